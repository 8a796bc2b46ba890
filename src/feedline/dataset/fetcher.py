"""A worker's side of any torch Dataset: samples, collated, as whole batches.

Guarantees: what torch's own worker would make of the same keys: `__getitems__` where there is one,
`collate_fn`, `worker_init_fn`, `get_worker_info()`. A user's exception comes home with its type,
its traceback and the sample's index. The random states are seeded from the batch's seed, so a
batch is the same whichever worker makes it, unless `worker_init_fn` seeds them itself.
Relies on: being used in one worker, from its main thread.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Sequence, Sized
from operator import length_hint
from typing import Any

from torch.utils.data import default_collate

from feedline.dataset.codec import lay
from feedline.dataset.collate import collate_into, odd_one_out
from feedline.dataset.worker_exception import SkippedBatch, WorkerException
from feedline.dataset.worker_init import WorkerInit
from feedline.engine.culprit import culprit_in
from feedline.engine.messages import BatchTask, said
from feedline.engine.space import Space
from feedline.errors import FeedlineError
from feedline.randomness import fingerprint, seed_all
from feedline.request import Request

__all__ = ["DatasetFetcher", "Told"]

Told = Callable[[int], None]
"""Called with the position of the sample, within its batch, that is about to be made."""


class DatasetFetcher:
    """Makes batches of a Dataset.

    Args:
        beginning: of its workers, and the dataset: anything with `__getitem__`.
        collate_fn: makes a batch of samples.
        batched: keys are lists, of which each makes a sample; else a key makes what is collated.
        skip_errors: leave samples out that raise.
    """

    def __init__(
        self,
        beginning: WorkerInit,
        collate_fn: Callable[[Any], Any],
        *,
        batched: bool,
        skip_errors: bool = False,
    ) -> None:
        self.dataset = beginning.dataset
        self._collate = collate_fn
        self._batched = batched
        self._beginning = beginning
        self._skip = skip_errors
        self._worker: int | None = None
        self._seeds_itself = False
        self._broken: WorkerException | None = None

    def given(self) -> dict[str, object]:
        """What a user gave, by the names of the loader's arguments."""
        return {**self._beginning.given(), "collate_fn": self._collate}

    def open(self, worker: int, workers: int) -> None:
        """Become a worker, as torch's workers do."""
        self._worker = worker
        self._beginning.become(worker, workers)
        before = fingerprint()
        try:
            self._beginning.call(worker)
        except (Exception, SystemExit) as error:
            self._broken = WorkerException.of(error, self._place, opening=True)
        self._seeds_itself = fingerprint() != before

    @property
    def _place(self) -> str:
        return f"in DataLoader worker process {self._worker}"

    def pack(self, keys: bytes, task: BatchTask, space: Space, at: Told) -> int:
        """Make a batch, or what was raised instead, and lay it into memory."""
        if self._broken is not None:
            return lay(self._broken, space)
        if not self._seeds_itself:
            seed_all(task.seed)
        try:
            batch = self.make(pickle.loads(keys), task.image_size or None, space, at)
            try:
                return lay(batch, space)
            except Exception as error:
                _explain(error, batch.batch if isinstance(batch, SkippedBatch) else batch)
                raise
        except (Exception, SystemExit) as error:
            return lay(WorkerException.of(error, self._place), space)

    def make(self, keys: Any, image_size: int | None, space: Space | None, at: Told | None) -> Any:
        """Make a batch.

        Args:
            keys: what the sampler gave.
            image_size: what `feedline.image_size()` shall answer; None for nothing.
            space: where tensors may go at once; None leaves everything to `collate_fn`.
            at: see `Told`; None for nobody.
        """
        with Request(image_size):
            if not self._batched:
                if at is not None:
                    at(0)
                return self._collate(self._sample(keys))
            skipped: list[tuple[str, str]] = []
            samples, keys = self._samples(keys, skipped, at)
            try:
                if space is not None and self._collate is default_collate:
                    batch = collate_into(samples, space)
                else:
                    batch = self._collate(samples)
            except Exception as error:
                odd = odd_one_out(samples) if isinstance(samples, Sequence) and samples else None
                if odd is not None:
                    where, how = odd
                    _note(error, f"Sample {keys[where]!r} {how} (sample {keys[0]!r}).")
                raise
        return SkippedBatch(batch, tuple(skipped)) if skipped else batch

    def _samples(
        self, keys: Any, skipped: list[tuple[str, str]], at: Told | None
    ) -> tuple[Any, Any]:
        together = getattr(self.dataset, "__getitems__", None)
        if together and not self._skip:
            return together(keys), keys
        if self._skip:
            return self._those_that_can_be_made(keys, skipped, at)
        dataset, upcoming = self.dataset, iter(keys)
        try:
            if at is None:  # the quickest loop there is: for tiny samples it counts
                return [dataset[key] for key in upcoming], keys
            samples = []
            for k, key in enumerate(upcoming):
                at(k)
                samples.append(dataset[key])
            return samples, keys
        except (Exception, SystemExit) as error:
            self._blame(error, keys[len(keys) - length_hint(upcoming) - 1])
            raise

    def _those_that_can_be_made(
        self, keys: Any, skipped: list[tuple[str, str]], at: Told | None
    ) -> tuple[Any, Any]:
        samples, made = [], []
        first: Exception | None = None
        try:
            for k, key in enumerate(keys):
                if at is not None:
                    at(k)
                try:
                    samples.append(self._sample(key))
                    made.append(key)
                except Exception as error:
                    first = error if first is None else first
                    skipped.append((repr(key), f"{type(error).__name__}: {said(error)}"))
            if first is not None and not samples:
                if len(skipped) > 1:
                    _note(first, f"Not one of its batch's {len(skipped)} samples could be made.")
                raise first
            return samples, made
        finally:
            first = None  # its traceback holds this frame, and with it the samples

    def _sample(self, key: Any) -> Any:
        try:
            return self.dataset[key]
        except (Exception, SystemExit) as error:
            self._blame(error, key)
            raise

    def _blame(self, error: BaseException, key: Any) -> None:
        """Add to an exception which sample it is about."""
        note = f"Raised for the sample with index {key!r} of {type(self.dataset).__name__}."
        if isinstance(error, IndexError) and isinstance(self.dataset, Sized):
            note += f" Its len() is {len(self.dataset)}: does that promise samples it has not?"
        elif isinstance(error, SystemExit):
            note += " It asked the whole process to exit: raise an ordinary exception instead."
        _note(error, note)


def _explain(error: Exception, batch: object) -> None:
    """Add to an exception what in a batch kept it from going home, unless there was no memory."""
    if isinstance(error, (FeedlineError, MemoryError, OSError)):
        return
    found = culprit_in(batch, "batch")
    _note(
        error,
        f"What a worker returns is pickled on its way home, and {found.path}, of type "
        f"{type(found.value).__name__}, cannot be: turn it into tensors, numbers or text in "
        "collate_fn or __getitem__, or use num_workers=0.",
    )


def _note(error: BaseException, text: str) -> None:
    """Add a line to what an exception says of itself, unless its class allows no change."""
    notes = getattr(error, "__notes__", None)
    with contextlib.suppress(Exception):
        if notes is None:
            notes = error.__notes__ = []  # type: ignore[attr-defined]
        notes.append(text)
