"""Measure the time to the first batch, memory per worker, and clean-up after a killed trainer.

    python benchmarks/worker_start.py FOLDER --workers 8

Method: one loader stays open, so that the fork server is running. Then, `--rounds` times, a loader
with `--workers` workers is built and its first batch read. Memory is the proportional set size
(PSS, shared pages divided among their users) of each worker, from /proc, after epoch 5 and after
the last of `--epochs` epochs. Finally a trainer with the same number of workers is killed
(SIGKILL), and the time until its last process has ended is measured.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from statistics import median

import psutil
from report import describe_processor, machine

from feedline import DataLoader, ImageFolder


def pss_mb(pids: list[int]) -> list[float]:
    return [psutil.Process(pid).memory_full_info().pss / 1e6 for pid in pids]


def kill_trainer(folder: str, workers: int) -> float:
    """Seconds from killing a trainer to the end of its last process."""
    script = (
        "import sys\nfrom feedline import DataLoader, ImageFolder\n"
        f"loader = DataLoader(ImageFolder({folder!r}), 64, image_size=224, num_workers={workers})\n"
        "while True:\n    for _ in loader: print('running', flush=True)\n"
    )
    trainer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert trainer.stdout is not None
    trainer.stdout.readline()
    processes = psutil.Process(trainer.pid).children(recursive=True)
    start = time.perf_counter()
    os.kill(trainer.pid, signal.SIGKILL)
    trainer.wait()
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes):
        time.sleep(0.001)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="image folder with one sub-folder per class")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=50)
    options = parser.parse_args()
    print(describe_processor(machine()), flush=True)
    data = ImageFolder(options.folder)

    start = time.perf_counter()
    keeper = DataLoader(
        data, options.batch_size, num_workers=1, image_size=224, shuffle=True, seed=0
    )
    next(iter(keeper))
    print(f"first loader of the program, fork server included: {time.perf_counter() - start:.2f} s")
    times = []
    for _ in range(options.rounds):
        time.sleep(0.3)
        start = time.perf_counter()
        with DataLoader(
            data,
            options.batch_size,
            num_workers=options.workers,
            image_size=224,
            shuffle=True,
            seed=0,
        ) as loader:
            next(iter(loader))
            times.append(time.perf_counter() - start)
    print(
        f"construction to first batch, {options.workers} workers: {median(times):.3f} s "
        f"({min(times):.3f} to {max(times):.3f})"
    )
    with DataLoader(
        data, options.batch_size, num_workers=options.workers, image_size=224, shuffle=True, seed=0
    ) as loader:
        for epoch in range(options.epochs):
            for _ in loader:
                pass
            if epoch == 4:
                early = pss_mb(loader.worker_pids)
        late = pss_mb(loader.worker_pids)
        print(
            f"PSS of a worker: at most {max(early):.1f} MB after 5 epochs, {max(late):.1f} MB "
            f"after {options.epochs}; together {sum(early):.0f} MB, {sum(late):.0f} MB"
        )
    keeper.close()
    ends = [kill_trainer(options.folder, options.workers) for _ in range(3)]
    print(f"a killed trainer's processes are gone after {median(ends):.3f} s ({max(ends):.3f})")


if __name__ == "__main__":
    main()
