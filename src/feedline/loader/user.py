"""A user's Dataset behind a loader: looked at when an iteration begins, and made by whoever can.

Guarantees: a torchvision pipeline that is recognised goes by rows, anything else by whole batches,
rows in memory without workers; each time of the dataset as it is then.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from torch.utils.data import IterableDataset, default_collate

from feedline.dataset.fetcher import DatasetFetcher
from feedline.dataset.folder import folder_in
from feedline.dataset.gather import Gather, gatherer
from feedline.dataset.renewal import digest
from feedline.dataset.worker_init import BegunRows, WorkerInit
from feedline.engine.source import Source
from feedline.errors import StartError
from feedline.loader.backends.backend import Backend
from feedline.loader.build import direct_maker, look_at_first, row_maker, whole_maker
from feedline.loader.cursor import BatchCursor
from feedline.plan.schedule import Phase, Schedule
from feedline.recognition.result import Recognition

_TELLING_S = 0.07
"""How long it may take to tell whether a dataset has changed, where new workers come by fork: what
it takes to end two workers and to have a batch of new ones, measured at 74 ms for a process that
has imported torch, at 150 and 360 ms for one with 1 and 4 GB besides."""

__all__ = ["UserData", "fingerprint_of", "is_source", "usual_road"]


def is_source(dataset: object) -> bool:
    """Whether a dataset is one of feedline's own sources."""
    return all(hasattr(dataset, name) for name in ("fields", "load", "fingerprint"))


def fingerprint_of(dataset: object) -> str:
    """What a state says of a dataset: its own fingerprint, or else its class."""
    own = getattr(dataset, "fingerprint", None)
    if callable(own) and not isinstance(dataset, IterableDataset):
        return str(own())
    kind = type(dataset)
    return f"{kind.__module__}.{kind.__qualname__}"


def usual_road(context: Any) -> str:
    """How workers for a user's Dataset start: as asked, else as multiprocessing's would.

    Args:
        context: a multiprocessing context, or None.
    """
    if context is not None:
        asked: str = context.get_start_method()
        return asked
    method = multiprocessing.get_start_method(allow_none=True)
    method = method or multiprocessing.get_all_start_methods()[0]
    return method if sys.platform == "linux" else "spawn"


@dataclass(frozen=True)
class UserData:
    """A Dataset and all that says how its batches are made.

    Args:
        dataset: the user's.
        collate_fn: makes a batch of samples.
        batched: keys are lists, of which each makes a sample.
        worker_init_fn: called once in each worker.
        way: where the loader stands.
        phases: of image size; None where the dataset is told none.
        max_rows: of a batch; 0 where nobody knows.
        max_image_size: the largest that may be asked for, in pixels.
        prefetch: batches of rows that are made ahead.
        ahead: whole batches that are made ahead by each worker.
        start_method: "fork", "forkserver" or "spawn".
        deadline_s: how long a batch may take; 0 for ever.
        in_order: hand batches out in order, not as soon as they are made.
        in_process: there are no workers.
        on_error: "raise", or "skip" to leave samples out that raise.
        pin: page-lock the tensors.
        no_rows: why rows cannot be made of it, once that was found.
    """

    dataset: Any
    collate_fn: Callable[[Any], Any]
    batched: bool
    worker_init_fn: Callable[[int], None] | None
    cursor: BatchCursor
    phases: Schedule | None
    max_rows: int
    max_image_size: int | None
    prefetch: int
    ahead: int
    start_method: str
    deadline_s: float
    in_order: bool
    in_process: bool
    on_error: str
    pin: bool
    no_rows: list[str]

    def start(self, workers: int) -> Backend:
        """Begin with the dataset as it is now, in the epoch that the way has begun."""
        # As torch's: drawn for the epoch that they begin with. 63 bits, as a seed of torch's has.
        seed = self.cursor.seed & (1 << 63) - 1
        beginning = WorkerInit(self.dataset, self.worker_init_fn, seed)
        found = self.recognised()
        if found.source is not None:
            rows: Source = found.source
            if found.as_is or self.worker_init_fn is not None:  # code of the user's runs there
                rows = BegunRows(rows, beginning)
            return self._rows(rows, found.source.image_size, workers)
        source = DatasetFetcher(
            beginning,
            self.collate_fn,
            batched=self.batched,
            skip_errors=self.on_error == "skip",
        )
        gathers = self.gather() is not None
        if workers == 0 or gathers:
            return direct_maker(source, self.cursor, self.gather if gathers else None, pin=self.pin)
        return whole_maker(
            source,
            self.cursor,
            ahead=self.ahead,
            workers=workers,
            start_method=self.start_method,
            deadline_s=self.deadline_s,
            in_order=self.in_order,
            pin=self.pin,
        )

    def fits(self, maker: Backend) -> bool:
        """Wait for the first batch of new workers, where a `worker_init_fn` begins them.

        Returns:
            False where it failed among workers that make rows, or changed the dataset there: from
            now on everything runs as it is.

        Raises:
            Exception: whatever `worker_init_fn` raises.
        """
        if self.worker_init_fn is None:
            return True
        try:
            look_at_first(maker)
        except StartError:
            if self.no_rows:
                raise
            self.no_rows.append("The worker_init_fn changes the dataset, or fails.")
            return False
        return True

    def recognised(self) -> Recognition:
        """Whether it is a torchvision pipeline that goes by rows, and why not."""
        if self.no_rows:
            return Recognition(None, refused=tuple(self.no_rows))
        for holds, why in (
            (self.batched and self.max_rows > 0, "Nobody knows how large its batches are."),
            (self.collate_fn is default_collate, "A collate_fn of its own wants single samples."),
            (self.in_order, "Rows come in order, and in_order=False was asked for."),
        ):
            if not holds:
                return Recognition(None, refused=(why,))
        if "torchvision" not in sys.modules:
            return Recognition(None, refused=("It is no dataset of torchvision's.",))
        # Only here: decoders are nothing to load for those who have no images.
        try:
            from feedline.recognition.recognise import recognise
        except ImportError as error:
            return Recognition(None, refused=(f"Images cannot be decoded here: {error}.",))
        return recognise(self.dataset)

    def _rows(self, source: Source, image_size: int, workers: int) -> Backend:
        own = Schedule((Phase(size=image_size, epochs=1),))
        return row_maker(
            source,
            self.cursor,
            phases=(self.phases or own).phases,
            batch_size=self.max_rows,
            max_image_size=self.max_image_size,
            prefetch=self.prefetch,
            workers=workers,
            start_method=self.start_method,
            deadline_s=self.deadline_s or inf,
            on_error=self.on_error,
            pin=self.pin,
            skip_after_error=True,
            form=list,  # torch's default collate makes lists of tuples
        )

    def gather(self) -> Gather | None:
        """Takes batches from memory; None where samples must be asked for."""
        if not self.batched or (self.worker_init_fn is not None and not self.in_process):
            return None
        return gatherer(self.dataset, self.collate_fn)

    def look(self) -> object:
        """What differs where the dataset is no more what it was; None where that is unknown."""
        within_s = _TELLING_S if self.start_method == "fork" else inf
        functions = self.collate_fn, self.worker_init_fn
        options = self.ahead, self.deadline_s, self.in_order, self.pin
        if (folder := _folder(self.dataset)) is not None:
            rest, listed = folder
            told = digest(rest, *functions, within_s=within_s)
            return None if told is None else (told, listed, *options)
        if self.in_process or self.gather() is not None:
            return object()  # begun anew each time, which costs nothing
        told = digest(self.dataset, *functions, within_s=within_s)
        return None if told is None else (told, *options)


def _folder(dataset: Any) -> tuple[object, object] | None:
    """What is in a torchvision folder, or Subsets of one; None for any other dataset.

    Returns:
        All but its samples, and its samples: tuples that cannot change, to be compared one by
        one, most of them by identity. For a million that takes milliseconds, pickling seconds.
    """
    found = folder_in(dataset)
    if found is None:
        return None
    dataset, listed = found
    samples = dataset.samples
    rest = {key: value for key, value in vars(dataset).items() if value is not samples}
    return (type(dataset), {**rest, "imgs": None, "targets": None}), [list(samples), *listed]
