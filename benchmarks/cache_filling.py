"""Measure what filling a cache during training costs the first epoch, and what it saves later.

    python benchmarks/cache_filling.py FOLDER [--rounds 3] [--copies 8] [--busy-ms 0,60]

A folder with several links to each image is read with `cache=` and without, alternately, each in a
new process, at 224 px in batches of 64, with one worker per core. `--busy-ms` is the duration of
the training step, which sleeps as if a GPU computed; 0 measures a run bound by loading. Prints
median epoch times and the ratio of the first epochs of a turn. An epoch's time includes the wait
for the cache at its beginning.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import describe_processor, machine

EPOCHS = 3


def train(folder: str, cache: str, busy_ms: float) -> None:
    """Print the seconds of each epoch, including the wait for the cache before it."""
    from feedline import DataLoader, ImageFolder, TrainCrop

    data = ImageFolder(folder, TrainCrop((0.25, 1.0)))
    seconds = []
    with DataLoader(
        data, 64, schedule=f"224x{EPOCHS}", num_workers="auto", cache=cache or None
    ) as loader:
        next(iter(loader))  # start the workers and the process that fills the cache
        loader.set_epoch(0)
        for _ in range(EPOCHS):
            start_s = time.perf_counter()
            for _ in loader:
                time.sleep(busy_ms / 1000)
            seconds.append(time.perf_counter() - start_s)
    print(json.dumps(seconds))


def link_copies(folder: Path, copies: int, root: Path) -> Path:
    """Link each image of a folder `copies` times."""
    for number in range(copies):
        for path in folder.resolve().iterdir():
            (root / f"{number}-{path.name}").symlink_to(path)
    return root


def turn(folder: Path, cache: Path | str, busy_ms: float) -> list[float]:
    command = [sys.executable, __file__, "--train", str(folder), str(cache), str(busy_ms)]
    seconds: list[float] = json.loads(subprocess.check_output(command).splitlines()[-1])
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--copies", type=int, default=8)
    parser.add_argument("--busy-ms", default="0,60")
    options = parser.parse_args()
    print(describe_processor(machine()), flush=True)
    for busy_ms in map(float, options.busy_ms.split(",")):
        plain, cached = [], []
        for number in range(options.rounds):
            with tempfile.TemporaryDirectory() as temporary:
                folder = Path(temporary, "images")
                folder.mkdir()
                link_copies(options.folder, options.copies, folder)
                for which in ("plain", "cached") if number % 2 else ("cached", "plain"):
                    if which == "plain":
                        plain.append(turn(folder, "", busy_ms))
                    else:
                        cached.append(turn(folder, Path(temporary, "cache"), busy_ms))
        ratio = [one[0] / other[0] for one, other in zip(cached, plain, strict=True)]
        print(
            f"step of {busy_ms:.0f} ms: first epoch {statistics.median(ratio):.3f} of one without "
            f"a cache ({min(ratio):.3f} to {max(ratio):.3f}); epochs in s without "
            f"{_medians(plain)}, with {_medians(cached)}"
        )


def _medians(runs: list[list[float]]) -> str:
    return ", ".join(f"{statistics.median(each):.1f}" for each in zip(*runs, strict=True))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[2], sys.argv[3], float(sys.argv[4]))
    else:
        main()
