"""Loaders under a sandbox that refuses system calls, as seccomp filters and gVisor do."""

import errno
import platform
import sys

import pytest

from processes import start_script
from slow import slow

REFUSE = """
import ctypes, os, struct, sys

def refuse(number, code, *, argument=None):
    \"\"\"Have the kernel refuse a system call, in this process and all that it starts.\"\"\"
    load = lambda at: struct.pack("HBBI", 0x20, 0, 0, at)
    equal = lambda value, skip: struct.pack("HBBI", 0x15, 0, skip, value)
    give = lambda value: struct.pack("HBBI", 0x06, 0, 0, value)
    program = load(0)
    if argument is None:
        program += equal(number, 1)
    else:
        at, value = argument
        mask = struct.pack("HBBI", 0x54, 0, 0, 0xF)
        program += equal(number, 4) + load(16 + 8 * at) + mask + equal(value, 1)
    program += give(0x00050000 | code) + give(0x7FFF0000)
    buffer = ctypes.create_string_buffer(program, len(program))
    head = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, head, 0, 0):
        print("no filter", flush=True)
        sys.exit()
"""

LOAD = """
def sample(index):
    import torch  # not at the top: workers of rows would load it

    return torch.full((1000 * (1 + index),), index)

def sums(**options):
    made = Made(8, sample)
    with DataLoader(made, 2, collate_fn=list, **options) as loader:
        batches = iter(loader)
        found = [[int(t.sum()) for t in next(batches)]]
        for pid in loader.worker_pids:
            os.kill(pid, 9)
        return found + [[int(t.sum()) for t in batch] for batch in batches]

def labels(**options):
    array = ImageArray(np.zeros((12, 8, 8, 3), np.uint8), list(range(12)))
    with DataLoader(array, 4, image_size=8, **options) as loader:
        return [labels.tolist() for _, labels in loader]

if __name__ == "__main__":
    import numpy as np
    from feedline import DataLoader, ImageArray
    from feedline.timing.torch_workers import TorchWorkers
    from sets import Made

    refuse({number}, {code}, argument={argument})
    assert sums(num_workers=1, start_method="fork") == sums(num_workers=0)
    assert labels(num_workers=1, start_method="forkserver") == labels(num_workers=0)
    TorchWorkers(2)
    print("fine", flush=True)
"""

NUMBERS = {
    "x86_64": {"memfd_create": 319, "socketpair": 53},
    "aarch64": {"memfd_create": 279, "socketpair": 199},
}
CALLS = NUMBERS.get(platform.machine(), {})
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not CALLS, reason="needs filters of system calls"
)


@pytest.mark.parametrize(
    ("call", "named", "code", "argument"),
    [
        ("memfd_create", "memfd_create", errno.ENOSYS, None),
        *slow(
            ("memfd_create", "memfd_create", errno.EPERM, None),
            ("socketpair", "SEQPACKET", errno.EPROTONOSUPPORT, (1, 5)),
        ),
    ],
)
def test_workers_are_spawned_if_a_call_of_fork_server_is_rejected(
    call, named, code, argument, tmp_path
):
    load = LOAD.format(number=CALLS[call], code=code, argument=argument)
    script = start_script(REFUSE + load, tmp_path)
    output, errors = script.communicate(timeout=100)
    if "no filter" in output:
        pytest.skip("filters of system calls are refused here")
    assert (output.strip(), script.returncode) == ("fine", 0), errors
    assert errors.count(named) == 1
