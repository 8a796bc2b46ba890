"""Workers of whole batches keep freed memory of large blocks for later batches."""

import ctypes
import resource
import sys

import pytest
import torch

from feedline.loader import DataLoader
from sets import Made
from slow import slow

SIDE = 1 << 22  # floats: 16 MiB, above glibc's limit for allocations from the heap

pytestmark = [
    pytest.mark.own_fork_server,
    pytest.mark.skipif(
        sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc alone"
    ),
]


def page_faults(index):
    """Number of page faults for a block of 16 MiB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(SIDE)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.parametrize("method", ["fork", *slow("forkserver", "spawn")])
def test_large_blocks_are_requested_from_kernel_once(method):
    data = Made(24, page_faults)
    with DataLoader(data, 1, num_workers=1, multiprocessing_context=method) as loader:
        faults = [int(batch) for batch in loader]
    pages = 4 * SIDE // resource.getpagesize()
    assert faults[0] > pages // 8, "the first one is new, in pages of any size"
    # So are the next ones until there is room between other blocks, and one where a small block
    # has taken a place in that room. Without the setting each is.
    new = [count > pages // 8 for count in faults[6:]]
    assert sum(new) <= len(new) // 4, faults
