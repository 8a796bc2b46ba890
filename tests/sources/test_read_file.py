"""Files are read also while another process holds a lease on them."""

import fcntl
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest

from caches import FORMATS, images, made
from feedline import DataLoader, ImageFolder
from feedline.sources.files import open_nonblocking, read_file, read_small

HOLDER = """
import fcntl, os, signal, sys
held = []
def give_up(*_):
    for fd in held:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
signal.signal(signal.SIGIO, give_up)
for path in sys.argv[1:]:
    held.append(os.open(path, os.O_RDWR))
    fcntl.fcntl(held[-1], fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def leased(*files):
    """Another process holds leases on files, and releases them when the kernel asks."""
    command = [sys.executable, "-S", "-c", HOLDER, *map(str, files)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as holder:
        assert holder.stdout is not None
        try:
            if holder.stdout.readline() != b"held\n":
                pytest.skip("no leases on this file system")
            with pytest.raises(BlockingIOError):
                os.open(files[0], os.O_RDONLY | os.O_NONBLOCK)
            yield
        finally:
            holder.kill()


def opened(path):
    with open(path, "rb", opener=open_nonblocking) as file:
        return file.read()


WAYS = {
    "file": lambda path: read_file(os.fsencode(path)),
    "small": lambda path: read_small(path, 100),
    "opener": opened,
}

pytestmark = pytest.mark.skipif(not hasattr(fcntl, "F_SETLEASE"), reason="needs leases")


@pytest.mark.parametrize("way", WAYS)
def test_a_file_with_a_lease_is_read(way, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"data")
    with leased(file):
        assert WAYS[way](file) == b"data"


def test_images_with_leases_come_in_batches(jpeg_folder, tmp_path):
    root = tmp_path / "images"
    shutil.copytree(jpeg_folder, root)
    files = sorted(root.rglob("*.jpg"))
    with leased(*files), DataLoader(ImageFolder(root), 4, num_workers=1, image_size=16) as loader:
        assert sum(len(labels) for _, labels in loader) == len(files)


@pytest.mark.parametrize("format", FORMATS)
def test_a_cache_with_leases_is_read(format, jpeg_folder, tmp_path):
    root = tmp_path / "cache"
    made(jpeg_folder, root, format)
    expected = images(root)
    with leased(*(path for path in root.rglob("*") if path.is_file())):
        assert images(root) == expected
