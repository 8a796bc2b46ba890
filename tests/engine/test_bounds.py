"""Memory, descriptors and processes: bounded, known before the first batch, and flat."""

import sys
from pathlib import Path

import psutil
import pytest
from faulty import Steady

from feedline.errors import ResourceError
from feedline.loader import DataLoader
from processes import all_workers, eventually, newcomers, outcome, own_family

pytestmark = pytest.mark.own_fork_server

OPEN_FILES = """
import os, resource
from faulty import Steady

if __name__ == "__main__":
    from feedline.loader import DataLoader  # not at the top: workers would load torch

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    source = Steady(256)
    with DataLoader(source, 64, num_workers=8, image_size=200, prefetch=3) as loader:
        assert loader.memory_bytes > 28 << 20
        counts = set()
        for epoch in range(5):
            labels = [k for _, labels in loader for k in labels.tolist()]
            assert sorted(labels) == list(range(256))
            counts.add(len(os.listdir("/proc/self/fd")))
        assert not loader.worker_deaths, loader.worker_deaths
    assert len(counts) == 1, counts
    print("fine")
"""


def mapped(name):
    """Inodes of files with this name that this process maps.

    Memory of an earlier test may be released at any time, so it is not counted.
    """
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if name in line}


def test_sixty_four_open_files_are_enough_for_eight_workers(tmp_path):
    assert outcome(OPEN_FILES, tmp_path) == ("fine", "")


def test_no_dev_shm_is_used():
    others = mapped("/dev/shm")  # of other libraries
    with DataLoader(Steady(64), 32, num_workers=2, image_size=200, shuffle=True, seed=0) as loader:
        next(iter(loader))
        pids = loader.worker_pids

        def maps():
            return [Path(f"/proc/{pid}/maps").read_text() for pid in pids]

        assert eventually(lambda: all("memfd:feedline" in text for text in maps()))
        assert not any("/dev/shm" in text for text in maps())
        assert not mapped("/dev/shm") - others


def test_closed_loader_and_held_batch_release_memory():
    before = mapped("memfd:feedline")
    loader = DataLoader(Steady(64), 32, num_workers=2, image_size=32, shuffle=True, seed=0)
    images, labels = next(iter(loader))
    wanted = images.clone()
    loader.close()
    assert len(mapped("memfd:feedline") - before) == 1  # the block, for the batch that is kept
    assert images.equal(wanted)
    del images, labels
    assert not mapped("memfd:feedline") - before


def test_descriptors_and_memory_of_a_worker_do_not_grow():
    with DataLoader(Steady(128), 32, num_workers=2, image_size=32, shuffle=True, seed=0) as loader:
        workers = [psutil.Process(pid) for pid in all_workers(loader, 2)]
        own = []
        fds = [[] for _ in workers]
        uss = [[] for _ in workers]
        for _ in range(30):
            for _ in loader:
                pass
            own.append(psutil.Process().num_fds())
            for worker, counts, sizes in zip(workers, fds, uss, strict=True):
                counts.append(worker.num_fds())
                sizes.append(worker.memory_full_info().uss)
        assert not loader.worker_deaths
        # Other files of this process may be closed in between. A worker that works
        # ahead opens a file now and then, and may begin its first task after others ended an epoch.
        assert own[-1] <= own[4]
        for counts in fds:
            assert min(counts[-10:]) < min(counts[:10]) + 10  # of 20 epochs
        assert sum(sizes[-1] - sizes[4] for sizes in uss) < 1 << 20


def test_insufficient_memory_raises_before_anything_starts():
    before = own_family()
    with pytest.raises(ResourceError, match=r"(?s)512 workers.*MiB are available.*num_workers"):
        DataLoader(Steady(10**6), 100_000, num_workers=512, image_size=500, shuffle=True, seed=0)
    assert not newcomers(before)


@pytest.mark.skipif(sys.platform != "linux", reason="a limit that Linux applies to shared memory")
def test_limit_on_file_sizes_is_named():
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(ResourceError, match="ulimit -f"):
            next(iter(DataLoader(Steady(8), 4, num_workers=1, image_size=8)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
