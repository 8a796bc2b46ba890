"""Faulty sources, killed workers and interrupts, to test how the engine handles them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline.order.batch_spec import Field, Item

if TYPE_CHECKING:  # workers would load torch
    from feedline.loader import DataLoader


class Steady:
    """Rows that are a pure function of (sample, size, seed), with a delay each."""

    def __init__(self, length: int = 200, row_s: float = 0.0) -> None:
        self.length = length
        self.row_s = row_s

    def __len__(self) -> int:
        return self.length

    def fields(self, image_size: int) -> tuple[Field, ...]:
        return (
            Field("image", "uint8", (image_size, image_size, 3)),
            Field("label", "int64", ()),
        )

    def load(self, item: Item, row: tuple[np.ndarray, ...]) -> None:
        ramp = np.arange(row[0].size, dtype=np.uint64)
        row[0][...] = (
            (ramp * (item.seed | 1) >> np.uint64(7)).astype(np.uint8).reshape(row[0].shape)
        )
        if self.row_s:
            time.sleep(self.row_s)
        row[1][()] = item.sample

    def name(self, sample: int) -> str:
        return f"sample-{sample}"

    def fingerprint(self) -> str:
        return f"steady-{self.length}"


class Deadly(Steady):
    """Samples that kill their worker in different ways: always, or only the first time."""

    def __init__(self, ways: dict[int, str], first_time_only: Path | None = None) -> None:
        super().__init__(96)
        self.ways = ways
        self.first_time_only = first_time_only

    def load(self, item: Item, row: tuple[np.ndarray, ...]) -> None:
        way = self.ways.get(item.sample)
        if way and self._is_time(item.sample):
            if way == "segfault":
                ctypes.string_at(0)
            elif way == "kill":
                os.kill(os.getpid(), 9)
            elif way == "exit":
                os._exit(3)
            elif way == "hang":
                time.sleep(3600)
            elif way == "quit":
                raise SystemExit("no more")
            elif way == "raise":
                raise OSError(f"sample {item.sample} is on a bad sector")
        super().load(item, row)

    def _is_time(self, sample: int) -> bool:
        if self.first_time_only is None:
            return True
        try:
            os.close(os.open(self.first_time_only / str(sample), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class Stillborn(Steady):
    """Cannot be opened in a worker."""

    def __setstate__(self, state: dict[str, object]) -> None:
        raise RuntimeError("no licence for this dataset")


class Sleeper(Steady):
    """Never finishes opening in a worker."""

    def __setstate__(self, state: dict[str, object]) -> None:
        time.sleep(3600)


class Unborn(Steady):
    """Ends every worker that opens it."""

    def __setstate__(self, state: dict[str, object]) -> None:
        os._exit(7)


class Speechless(Steady):
    """A sample that fails with an exception whose `__str__` fails."""

    def load(self, item: Item, row: tuple[np.ndarray, ...]) -> None:
        if item.sample == 5:
            raise _Speechless
        super().load(item, row)


class _Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Killer(threading.Thread):
    """Context manager: kills random workers of a loader, with random pauses between.

    With `progress`, it waits for this event before each kill. On a slow machine, workers would
    otherwise be killed while they start.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        pause_s: tuple[float, float],
        seed: int,
        progress: threading.Event | None = None,
    ) -> None:
        super().__init__(daemon=True)
        self.loader, self.pause_s, self.progress = loader, pause_s, progress
        self.random = random.Random(seed)
        self.kills = 0
        self.stopped = threading.Event()

    def run(self) -> None:
        while not self.stopped.wait(self.random.uniform(*self.pause_s)):
            if self.progress is not None:
                self.progress.wait()
                self.progress.clear()
            if pids := self.loader.worker_pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.random.choice(pids), signal.SIGKILL)
                    self.kills += 1

    def __enter__(self) -> Killer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        if self.progress is not None:
            self.progress.set()
        self.join()


@contextlib.contextmanager
def interrupt_after(seconds: float) -> Iterator[None]:
    """Raise KeyboardInterrupt in the block after this time; 0 does not."""
    usual = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)
