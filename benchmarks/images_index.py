"""What the index of a large image folder costs: seconds to scan, bytes to hold and to pickle.

Method: makes `--classes` folders of `--files` empty files each under a temporary folder, named
as ImageNet names them, and scans it `--rounds` times. Prints seconds of each scan, the memory
of the arrays, how far the peak memory of the process rose (tracemalloc, in one more scan, which
it slows), the size of the pickle with its arrays out of band and in band, and the seconds of a
fingerprint. The folder is removed at the end.

Caveats: the directory entries are in the kernel's cache, having just been made; a first scan of
a cold disk or a network file system waits for them. The files are empty, which plays no part:
none is opened.

    python benchmarks/images_index.py --classes 1000 --files 1300
"""

from __future__ import annotations

import argparse
import os
import pickle
import tempfile
import time
import tracemalloc

from feedline.images.index import scan_folder


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
    parser.add_argument("--files", type=int, default=1300, help="files of each class")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions")
    parser.add_argument("--under", default=None, help="where to make the temporary folder")
    options = parser.parse_args()
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
        print(
            f"{len(index)} samples: arrays {index.nbytes} bytes "
            f"({index.nbytes / len(index):.1f} a sample); pickle {len(outside)} bytes and "
            f"{len(buffers)} buffers out of band, {len(pickle.dumps(index, protocol=5))} in band"
        )
        start = time.perf_counter()
        index.fingerprint()
        print(f"fingerprint: {time.perf_counter() - start:.3f} s")
        tracemalloc.start()
        scan_folder(root)
        print(f"peak of Python's memory while scanning: {tracemalloc.get_traced_memory()[1]} bytes")
        tracemalloc.stop()


if __name__ == "__main__":
    main()
