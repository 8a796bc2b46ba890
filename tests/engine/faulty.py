"""Faulty sources, to test how the engine handles them."""

from __future__ import annotations

import ctypes
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
    """Samples that kill their worker in different ways: always, or only the first time."""

    def __init__(self, ways: dict[int, str], first_time_only: Path | None = None) -> None:
        super().__init__(96)
        self.ways = ways
        self.first_time_only = first_time_only

    def load(self, item: Item, row: Row) -> None:
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

    def load(self, item: Item, row: Row) -> None:
        if item.sample == 5:
            raise _Speechless
        super().load(item, row)


class _Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")
