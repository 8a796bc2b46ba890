"""Faulty sources, to test how the engine handles them."""

from __future__ import annotations

import ctypes
import itertools
import os
import time
from pathlib import Path

from feedline.engine.load_samples import Row
from feedline.order.batch_spec import Item
from row_sources import Rows


class Steady(Rows):
    """Rows with a delay each, between the pixels and the label."""

    def __init__(self, length: int = 200, row_s: float = 0.0) -> None:
        super().__init__(length)
        self.row_s = row_s

    def load(self, item: Item, row: Row) -> None:
        super().load(item, row)
        if self.row_s:
            row[1][()] = -1
            time.sleep(self.row_s)
            row[1][()] = item.sample

    def name(self, sample: int) -> str:
        return f"sample-{sample}"


class Deadly(Steady):
    """Samples that end their worker or fail in different ways: always, or only the first time.

    Args:
        ways: by sample.
        first_time_only: a folder to note the samples in.
        step: where they fail.
    """

    def __init__(
        self, ways: dict[int, str], first_time_only: Path | None = None, step: str = "load"
    ) -> None:
        super().__init__(96)
        self.ways, self.first_time_only, self.step = ways, first_time_only, step

    def prepare(self, samples: list[int], image_size: int | None) -> None:
        for sample in samples:
            self._fail_in("prepare", sample)

    def load(self, item: Item, row: Row) -> None:
        self._fail_in("load", item.sample)
        super().load(item, row)

    def _fail_in(self, step: str, sample: int) -> None:
        if step != self.step or sample not in self.ways:
            return
        if self.first_time_only is not None:
            try:
                os.close(os.open(self.first_time_only / str(sample), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
        fail(self.ways[sample], sample)


def fail(way: str, sample: int | None = None) -> None:
    if way == "segfault":
        ctypes.string_at(0)
    elif way == "kill":
        os.kill(os.getpid(), 9)
    elif way == "abort":
        os.abort()
    elif way == "exit":
        os._exit(3)
    elif way == "hang":
        time.sleep(3600)
    elif way == "quit":
        raise SystemExit("no more")
    elif way == "speechless":
        raise _Speechless
    raise OSError(f"sample {sample} is on a bad sector")


class _Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Counted(Deadly):
    """Counts an out-of-memory kill, as the kernel does, before a sample kills its worker."""

    def __init__(self, ways: dict[int, str], root: Path) -> None:
        super().__init__(ways)
        self.root = root

    def load(self, item: Item, row: Row) -> None:
        if item.sample in self.ways:
            count = next_number(self.root)
            (self.root / "sys/fs/cgroup/memory.events").write_text(f"oom 1\noom_kill {count}\n")
        super().load(item, row)


class DeadlyStart(Steady):
    """Ends the first workers, in a way: while they open, or while they prepare a task."""

    def __init__(self, folder: Path, deaths: int, way: str, step: str) -> None:
        super().__init__(96)
        self.folder, self.deaths, self.way, self.step = folder, deaths, way, step

    def open(self, worker_id: int, workers: int) -> None:
        self._die("open")

    def prepare(self, samples: list[int], image_size: int | None) -> None:
        self._die("prepare")

    def _die(self, step: str) -> None:
        if step == self.step and next_number(self.folder) < self.deaths:
            fail(self.way)


def next_number(folder: Path) -> int:
    """Number of the calls with this folder before, of all processes."""
    for number in itertools.count():
        try:
            os.close(os.open(folder / str(number), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        return number
    raise AssertionError


class FailsToOpen(Steady):
    """Cannot be opened in a worker."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def __setstate__(self, state: dict[str, str]) -> None:
        fail(state["way"])
