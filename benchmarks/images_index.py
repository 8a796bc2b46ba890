"""Measure the index of a large image folder: scan time, memory and pickle size.

    python benchmarks/images_index.py --classes 1000 --files 1300

Method: creates `--classes` folders of `--files` empty files, named like ImageNet's, in a temporary
folder and scans it `--rounds` times. Prints the seconds of each scan, memory of the arrays, peak
memory of the process (tracemalloc, in one more scan, which it slows), pickle size with arrays out
of band and in band, and seconds of a fingerprint. Then builds a loader over the whole folder with
blank images, and prints the time to the first batch with and without starting the fork server, and
the memory (PSS) of a worker.

Caveats: directory entries are in the kernel's cache, as they were just created; the first scan of a
cold disk or network file system takes longer. Files are empty, but none is opened.
"""

from __future__ import annotations

import argparse
import os
import pickle
import tempfile
import time
import tracemalloc

import psutil
from report import describe_processor, machine

from feedline.images.folder import ImageFolder
from feedline.loader import DataLoader
from feedline.sources.folder import scan_folder


class Blank(ImageFolder):
    """The samples of a folder; opens no file."""

    def load(self, item, row):
        row[1][()] = self.store.label(item.sample)


def start_workers(root, workers):
    start = time.perf_counter()
    data = Blank(root)
    print(f"ImageFolder: {time.perf_counter() - start:.2f} s")
    loaders = []
    for what in ("with the fork server to start", "with the fork server up"):
        start = time.perf_counter()
        loader = DataLoader(data, 64, image_size=64, num_workers=workers, shuffle=True, seed=0)
        next(iter(loader))
        print(f"{workers} workers, {what}: first batch after {time.perf_counter() - start:.2f} s")
        loaders.append(loader)
    for _, _ in zip(range(2000), loader, strict=False):
        pass
    pss = [psutil.Process(pid).memory_full_info().pss / 1e6 for pid in loader.worker_pids]
    print(f"PSS of a worker after 2000 batches: at most {max(pss):.1f} MB")
    for loader in loaders:
        loader.close()


def make(root, classes, files):
    for number in range(classes):
        name = f"n{number:08d}"
        folder = os.open(_made(os.path.join(root, name)), os.O_RDONLY)
        for file in range(files):
            flags = os.O_CREAT | os.O_WRONLY
            os.close(os.open(f"{name}_{file * 37}.JPEG", flags, dir_fd=folder))
        os.close(folder)


def _made(path):
    os.mkdir(path)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--files", type=int, default=1300, help="files per class")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--under", default=None, help="parent folder of the temporary folder")
    options = parser.parse_args()
    print(describe_processor(machine()), flush=True)
    with tempfile.TemporaryDirectory(dir=options.under) as root:
        start = time.perf_counter()
        make(root, options.classes, options.files)
        print(f"made {options.classes * options.files} files: {time.perf_counter() - start:.1f} s")
        for _ in range(options.rounds):
            start = time.perf_counter()
            index = scan_folder(root)
            print(f"scan: {time.perf_counter() - start:.2f} s")
        buffers = []
        outside = pickle.dumps(index, protocol=5, buffer_callback=buffers.append)
        nbytes = sum(buffer.raw().nbytes for buffer in buffers)
        print(
            f"{len(index)} samples: arrays {nbytes} bytes "
            f"({nbytes / len(index):.1f} a sample); pickle {len(outside)} bytes and "
            f"{len(buffers)} buffers out of band, {len(pickle.dumps(index, protocol=5))} in band"
        )
        start = time.perf_counter()
        index.fingerprint()
        print(f"fingerprint: {time.perf_counter() - start:.3f} s")
        tracemalloc.start()
        scan_folder(root)
        print(f"peak of Python's memory while scanning: {tracemalloc.get_traced_memory()[1]} bytes")
        tracemalloc.stop()
        start_workers(root, options.workers)


if __name__ == "__main__":
    main()
