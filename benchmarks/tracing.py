"""Measure the overhead of recording a run: loaders with recording on and off, alternately.

    python benchmarks/tracing.py [--seconds 1.5] [--rounds 15] [--out FILE]

Cases: raw 128 px pixels as rows at 112 px, at about 20 us per row the worst case, with two workers,
and in this process, where short turns are possible; JPEGs of 500 x 375 px as rows at 112 px; a
TensorDataset of tiny images, and torch's DataLoader of JPEGs under feedline.watch and without, each
without workers and with two. There is no training step, so only the loader is measured.

Method: both loaders of a case exist at the same time and are read in turns of `--seconds`: on, off,
off, on, and so on. Two consecutive turns give the ratio on / off of throughput, and of samples per
CPU second of the trainer and its workers. Prints the median ratio and its 95% confidence interval
(order statistics, which assume no distribution). "Off" sets FEEDLINE_RECORD=0, with which workers
record nothing either.

Caveats: on a busy machine throughput varies more than the effect; CPU time is steadier, and
equivalent if the CPU is the bottleneck. "Off" still counts the mean step (`loader.timing`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import simplejpeg
import torch
from report import machine
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import TensorDataset
from torchvision import datasets
from torchvision.transforms import v2

import feedline
from feedline.timing import RECORD_SWITCH

_WARM_S = 1.0


class _Pull:
    """Reads batches of a loader, epoch after epoch; a turn continues where the last one ended."""

    def __init__(self, loader: Any, batches_of: Callable[[Any], int]) -> None:
        self._loader = loader
        self._samples = batches_of
        before = set(psutil.Process().children(recursive=True))
        self._batches: Iterator[Any] = iter(loader)
        self._workers: list[psutil.Process] = []
        while True:  # workers may start one after the other
            self.rates(_WARM_S)
            children = set(psutil.Process().children(recursive=True))
            # Without the fork server, which is the parent of workers.
            self._workers = list(children - before - {child.parent() for child in children})
            if len(self._workers) >= loader.num_workers:
                break

    def rates(self, seconds: float) -> tuple[float, float]:
        """Samples per second, and per CPU second, over `seconds`."""
        cpu_s, samples, start_s = self._cpu_s(), 0, time.perf_counter()
        while (now := time.perf_counter()) - start_s < seconds:
            try:
                samples += self._samples(next(self._batches))
            except StopIteration:
                self._batches = iter(self._loader)
        return samples / (now - start_s), samples / max(1e-9, self._cpu_s() - cpu_s)

    def _cpu_s(self) -> float:
        """CPU time of this process and the loader's workers."""
        used = 0.0
        for worker in self._workers:
            with contextlib.suppress(psutil.Error):
                times = worker.cpu_times()
                used += times.user + times.system
        return used + time.process_time()


def _first_rows(batch: Any) -> int:
    return len(batch[0])


def _jpegs(folder: Path, count: int = 512) -> Path:
    rng = np.random.default_rng(0)
    for number in range(count):
        small = rng.integers(0, 256, (24, 32, 3), np.uint8).repeat(16, 0).repeat(16, 1)
        pixels = np.ascontiguousarray(small[:375, :500])
        target = folder / f"class{number % 4}" / f"{number}.jpg"
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(simplejpeg.encode_jpeg(pixels, quality=85))
    return folder


def cases(folder: Path) -> dict[str, Callable[[bool], Any]]:
    """Builders of the loaders, by case; the argument turns recording on or off."""
    pixels = np.random.default_rng(0).integers(0, 256, (8192, 128, 128, 3), np.uint8)
    raw = feedline.ImageArray(pixels, np.arange(8192) % 10, transform=feedline.TrainCrop())
    tiny = TensorDataset(torch.zeros(50_000, 3, 8, 8, dtype=torch.uint8), torch.zeros(50_000))
    images = feedline.ImageFolder(str(folder), transform=feedline.TrainCrop())
    steps = [v2.RandomResizedCrop(112), v2.PILToTensor()]
    theirs = datasets.ImageFolder(str(folder), v2.Compose(steps))
    rows = {"num_workers": 2, "shuffle": True, "image_size": 112, "persistent_workers": True}

    def own(dataset: Any, **options: Any) -> Callable[[bool], Any]:
        return lambda on: feedline.DataLoader(dataset, 64, **options)

    def watched(**options: Any) -> Callable[[bool], Any]:
        def build(on: bool) -> Any:
            made: Any = TorchDataLoader(theirs, 64, shuffle=True, **options)
            return feedline.watch(made, panel=False) if on else made

        return build

    return {
        "raw 128 px rows at 112 px, 2 workers": own(raw, **rows),
        "the same rows, in this process": own(raw, shuffle=True, image_size=112),
        "JPEGs as rows at 112 px, 2 workers": own(images, **rows),
        "tiny TensorDataset, no workers": own(tiny, shuffle=True),
        "tiny TensorDataset, 2 workers": own(tiny, shuffle=True, num_workers=2),
        "torch's DataLoader of JPEGs, no workers, watched": watched(),
        "torch's DataLoader of JPEGs, 2 workers, watched": watched(
            num_workers=2, persistent_workers=True
        ),
    }


def _median_interval(ratios: list[float]) -> tuple[float, float]:
    """95% confidence interval of the median, by order statistics."""
    ordered, n = sorted(ratios), len(ratios)
    k, below = 0, 0.5**n
    while below + math.comb(n, k + 1) * 0.5**n <= 0.025:
        k += 1
        below += math.comb(n, k) * 0.5**n
    return ordered[k], ordered[n - 1 - k]


def _say(ratios: list[float]) -> str:
    low, high = _median_interval(ratios)
    return f"{statistics.median(ratios):.4f} ({low:.4f}-{high:.4f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=1.5, help="seconds per turn")
    parser.add_argument("--rounds", type=int, default=15, help="pairs of turns for each case")
    parser.add_argument("--only", default="", help="run only cases whose name contains this text")
    parser.add_argument("--out", type=Path, help="write all turns to this JSON file")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": machine(), "seconds": options.seconds, "cases": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name, build in cases(_jpegs(Path(folder))).items():
            if options.only not in name:
                continue
            pulls = {}
            for on in (True, False):
                os.environ[RECORD_SWITCH] = "1" if on else "0"
                pulls[on] = _Pull(build(on), _first_rows)
            turns: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
            for number in range(options.rounds):
                for on in (True, False) if number % 2 else (False, True):
                    os.environ[RECORD_SWITCH] = "1" if on else "0"  # for workers of a new epoch
                    turns[on].append(pulls[on].rates(options.seconds))
            ratios = [
                [on[k] / off[k] for on, off in zip(turns[True], turns[False], strict=True)]
                for k in range(2)
            ]
            results["cases"][name] = {"on": turns[True], "off": turns[False], "ratios": ratios}
            off_rate = statistics.median(rate for rate, _ in turns[False])
            print(
                f"{name:50s} {off_rate:9.0f}/s off   on / off " + ", CPU ".join(map(_say, ratios)),
                flush=True,
            )
            del pulls
    if options.out:
        options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
