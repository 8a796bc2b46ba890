"""Records of the loaders of a program, a run each.

Guarantees: equal loaders that a program uses one after another, such as those that it builds again
for each epoch, are one run; loaders of two datasets that exist at the same time are two.
Loaders are referenced weakly. A forked process has records of its own. A failure to write is
printed once and does not stop the program.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from feedline.errors import FeedlineError
from feedline.loader import DataLoader, access
from feedline.loader.recording import dataset_length
from feedline.profile.loader_probe import get_probe
from feedline.profile.watch import RecordedPass
from feedline.system import call_at_exit, rank_and_world
from feedline.timing import is_recording_enabled
from feedline.timing.recorder import Recorder
from feedline.timing.run import Run
from feedline.timing.run_file import run_file, write_run

_SAVE_EVERY_S = 30.0


@dataclass(eq=False)
class LoaderRecord:
    """Record of a loader, or of several equal ones."""

    name: str  # class of the dataset
    because: str  # reason why the loader is torch's; "" for a replaced or watched one
    key: tuple[Any, ...]  # equal for equal loaders
    loaders: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    dataset: Callable[[], object] = lambda: None
    """Dataset of the latest loader, while it exists."""
    recorder: Recorder = field(default_factory=Recorder)
    folder: Path | None = None  # of the run; None before its first pass
    rank: tuple[int, int] = (0, 1)  # and number of ranks, when the latest pass began
    saved_at: float = 0.0
    passes: int = 0
    is_compared: bool = False

    def is_of(self, loader: Any, key: tuple[Any, ...]) -> bool:
        """Return True if a loader is equal to those of this record, and not another one."""
        if key != self.key:
            return False
        datasets = [self.dataset(), *(each.dataset for each in self.loaders)]
        return all(each is None or each is loader.dataset for each in datasets)

    def add(self, loader: Any) -> None:
        """Add a loader."""
        self.loaders.add(loader)
        with contextlib.suppress(TypeError):  # e.g. a list
            self.dataset = weakref.ref(loader.dataset)

    def run(self) -> Run:
        """Return the run so far."""
        return replace(self.recorder.run(), rank=self.rank[0], world_size=self.rank[1])


class LoaderRecords:
    """Records of all loaders of this process, in folders below `folder`; None: not written."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._has_failed = False
        self._reset()

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._records: list[LoaderRecord] = []  # of loaders that were iterated over
        self._keys: weakref.WeakKeyDictionary[Any, tuple[str, str]] = weakref.WeakKeyDictionary()
        self._of: weakref.WeakKeyDictionary[Any, LoaderRecord] = weakref.WeakKeyDictionary()

    def add(self, loader: Any, kind: type, because: str) -> None:
        """Add a loader that a program has built by calling a class."""
        if os.getpid() != self._owner:
            self._reset()
        with contextlib.suppress(TypeError):  # a class without a hash
            self._keys[loader] = f"{kind.__module__}.{kind.__qualname__}", because

    def _find(self, loader: Any) -> LoaderRecord | None:
        """Find the record of a loader that is iterated over, or create it."""
        if os.getpid() != self._owner:
            return None
        try:
            if (record := self._of.get(loader)) is not None:
                return record
            name, because = self._keys[loader]
        except (KeyError, TypeError):  # unknown, or of a class without a hash
            return None
        dataset, samplers = loader.dataset, (type(loader.sampler), type(loader.batch_sampler))
        size = dataset_length(dataset), loader.batch_size
        key = (name, because, type(dataset), *size, *samplers, _settings(dataset))
        # Not when it was built: then the loader that it replaces may still exist.
        record = next((each for each in self._records if each.is_of(loader, key)), None)
        if record is None:
            if self._folder is not None and not self._records:
                call_at_exit(self.save)
            record = LoaderRecord(type(dataset).__name__, because, key)
            self._records.append(record)
        record.add(loader)
        self._of[loader] = record
        if isinstance(loader, DataLoader):
            access.share_recorder(loader, record.recorder, name)
        return record

    def begin(self, loader: Any) -> LoaderRecord | None:
        """Note that a pass over a loader begins. Return its record, if it has one."""
        record = self._find(loader)
        if record is not None:
            record.passes += 1
            record.rank = rank_and_world()
            if self._folder is not None and record.folder is None:
                record.folder = self._claim(self._folder, record)
            elif time.monotonic() - record.saved_at > _SAVE_EVERY_S:
                self._save(record)
        return record

    def iterate_torch(self, loader: Any, iterate: Callable[[Any], Iterator[Any]]) -> Any:
        """Begin a pass over a loader of torch. Return its iterator, recorded if possible."""
        record = self.begin(loader) if is_recording_enabled() else None
        if record is None:
            return iterate(loader)
        probe = get_probe(loader, record.recorder, record.because)
        return RecordedPass(record.recorder, probe, loader, None, iterate)

    def runs(self) -> list[list[Run]]:
        """Return the run of each loader so far, in a list of its own."""
        if os.getpid() != self._owner:
            return []
        return [[record.run()] for record in self._records]

    def save(self) -> None:
        """Write all runs, without raising."""
        if os.getpid() == self._owner:
            for record in self._records:
                self._save(record)

    def _claim(self, folder: Path, record: LoaderRecord) -> Path | None:
        """Create the folder of a record: the first one without a run of this rank."""
        number = 0
        while not self._has_failed:
            number += 1
            path = folder / f"{number}-{record.name}"
            file = path / run_file(record.rank[0])
            try:
                if any(file.exists() for file in folder.glob(f"{number}-*/{file.name}")):
                    continue  # another loader, or another program
                path.mkdir(parents=True, exist_ok=True)
                file.touch(exist_ok=False)
            except FileExistsError:
                continue
            except OSError as error:
                self._fail(f"cannot write to {path}: {error.strerror}")
                break
            record.saved_at = time.monotonic()
            return path
        return None

    def _save(self, record: LoaderRecord) -> None:
        if record.folder is None or self._has_failed:
            return
        try:
            write_run(record.run(), record.folder)
        except FeedlineError as error:
            self._fail(str(error))
        record.saved_at = time.monotonic()

    def _fail(self, text: str) -> None:
        if not self._has_failed:
            print(f"feedline: {text}", file=sys.stderr)
        self._has_failed = True


def _settings(dataset: Any) -> tuple[tuple[str, str | bool | Path], ...]:
    """Texts, paths and flags of a dataset, such as its root, split and `train`."""
    attributes = getattr(dataset, "__dict__", {})
    return tuple(
        (name, each) for name, each in attributes.items() if isinstance(each, str | bool | Path)
    )
