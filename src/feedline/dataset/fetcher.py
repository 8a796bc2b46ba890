"""Fetching and collating of whole batches of any torch Dataset, in a worker.

Guarantees: the result of torch's own worker for the same keys: `__getitems__` if it exists,
`collate_fn`, `worker_init_fn`, `get_worker_info()`. A user's exception reaches the trainer with its
type, its traceback and the sample's index. The random states, and the dataset's own generators, are
seeded from the batch's seed, whatever `worker_init_fn` seeds: batches go to free workers, so this
is the only way to make a batch the same in every run. A batch at another size or strength than
requested raises an error.
Relies on: use in one process, from its main thread.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from operator import length_hint
from typing import Any, TypeAlias

from torch.utils.data import default_collate

from feedline.dataset.collate import collate_into, odd_one_out
from feedline.dataset.generators import OwnGenerator, find, seed_own, seed_own_meanwhile
from feedline.dataset.notes import blame, explain
from feedline.dataset.outline import outline
from feedline.dataset.pack import lay
from feedline.dataset.samples import One, Samples, by_samples, check
from feedline.dataset.timed_steps import time_steps
from feedline.dataset.worker_exception import SkippedBatch, WorkerException
from feedline.dataset.worker_init import WorkerInit
from feedline.engine.messages import BatchTask, said
from feedline.engine.space import Space
from feedline.errors import note
from feedline.order.batch_spec import BatchSpec
from feedline.order.requested_size import SampleRequest, current_request, set_request
from feedline.randomness import fingerprint, put_back_later, seed_all, seeded, unbroken
from feedline.trace import is_recording_enabled, stage_timer

__all__ = ["DatasetFetcher", "Told"]

_log = logging.getLogger("feedline")

Told: TypeAlias = Callable[[int], None]
"""Called with the position of the next sample within its batch."""


class DatasetFetcher:
    """Makes batches of a Dataset.

    Args:
        beginning: initialisation of its workers, and the dataset: anything with `__getitem__`.
        collate_fn: makes a batch of samples.
        batched: keys are lists of sample keys; otherwise one key is fetched and collated.
        skip_errors: leave out samples that raise.
        samples: compiled replacement of the dataset, used unless `worker_init_fn` sets attributes
            of the dataset; None: only the dataset makes samples.
    """

    def __init__(
        self,
        beginning: WorkerInit,
        collate_fn: Callable[[Any], Any],
        *,
        batched: bool,
        skip_errors: bool = False,
        samples: Samples | None = None,
    ) -> None:
        self.dataset = beginning.dataset
        self._collate = collate_fn
        self._batched = batched
        self._beginning = beginning
        self._skip = skip_errors
        self._recognised = samples
        self._own: list[OwnGenerator] | None = None  # not looked for yet
        self._worker: int | None = None
        self._broken: WorkerException | None = None

    def given(self) -> dict[str, object]:
        """The user's objects, by the names of the loader's arguments."""
        return {**self._beginning.given(), "collate_fn": self._collate}

    def open(self, worker: int, workers: int) -> None:
        """Initialise this worker, like torch's workers."""
        self._worker = worker
        if is_recording_enabled():
            time_steps()
        self._beginning.become(worker, workers)
        before = fingerprint()
        try:
            had = None if self._recognised is None else outline(self.dataset)
            self._beginning.call(worker)
            if had is not None and had != outline(self.dataset, before=had):
                self._recognised = None
            if worker == 0 and fingerprint() != before:
                _log.info(
                    "worker_init_fn seeds random states; feedline seeds them again for each batch. "
                    "For repeatable runs use torch.manual_seed(...), generator= or seed="
                )
            self._look()
        except (Exception, SystemExit) as error:
            self._broken = WorkerException.of(error, self._place)

    def _look(self) -> list[OwnGenerator]:
        """Find the generators to seed for each batch, once."""
        if self._own is None:
            self._own = find(self.dataset, self._collate)
        return self._own

    @property
    def _place(self) -> str:
        return f"in DataLoader worker process {self._worker}"

    def pack(self, keys: bytes, task: BatchTask, space: Space, at: Told) -> int:
        """Make a batch, or catch its exception, and write it to memory."""
        if self._broken is not None:
            return lay(self._broken, space)
        try:
            seed_all(task.seed)
            seed_own(self._look(), task.seed)
            batch = self._make(pickle.loads(keys), task, space, at)
            try:
                return lay(batch, space)
            except Exception as error:
                explain(error, batch.batch if isinstance(batch, SkippedBatch) else batch)
                raise
        except (Exception, SystemExit) as error:
            return lay(WorkerException.of(error, self._place), space)

    def make_here(self, batch: BatchSpec) -> Any:
        """Make a batch in the training process, equal to a worker's.

        All random states, including the dataset's own, and the current request are restored
        afterwards, also after Ctrl-C.

        Raises:
            Exception: any error of the user's dataset, unchanged.
        """
        task = BatchTask(
            id=0,
            image_size=batch.image_size,
            seed=batch.batch_seed,
            row_seed=batch.seed,
            place=batch.place,
            stride=batch.stride,
            strength=batch.phase.strength,
        )
        with unbroken(), seeded(task.seed):
            put_back_later(partial(set_request, current_request()))
            seed_own_meanwhile(self._look(), task.seed)
            return self._make(batch.dataset_keys, task, None, None)

    def _make(self, keys: Any, task: BatchTask, space: Space | None, at: Told | None) -> Any:
        """Make a batch.

        Args:
            keys: keys from the sampler.
            task: size, strength and seeds.
            space: memory to stack tensors into; None leaves everything to `collate_fn`.
            at: see `Told`; None if not needed.
        """
        with SampleRequest(task.image_size, task.strength) as request:
            one = None
            if self._recognised is not None:
                one = by_samples(
                    self._recognised,
                    self.dataset,
                    keys if self._batched else [keys],
                    task,
                    request,
                )
            skipped: list[tuple[str, str]] = []
            if self._batched:
                samples, keys = self._samples(keys, one, skipped, at)
                batch = self._collated(samples, keys, space)
                stage_timer.end_stage("collate")
            else:
                if at is not None:
                    at(0)
                batch = self._collate(self._sample(one, 0, keys))
        check(request, self.dataset)
        return SkippedBatch(batch, tuple(skipped)) if skipped else batch

    def _collated(self, samples: Any, keys: Any, space: Space | None) -> Any:
        try:
            if space is not None and self._collate is default_collate:
                return collate_into(samples, space)
            return self._collate(samples)
        except Exception as error:
            odd = odd_one_out(samples) if isinstance(samples, Sequence) and samples else None
            if odd is not None:
                where, how = odd
                note(error, f"Sample {keys[where]!r} {how} (sample {keys[0]!r}).")
            elif isinstance(samples, Sequence) and samples and _holds_none(samples[0]):
                note(
                    error,
                    f"Sample {keys[0]!r} contains None. Check that every transform returns a "
                    "value.",
                )
            raise

    def _samples(
        self, keys: Any, one: One | None, skipped: list[tuple[str, str]], at: Told | None
    ) -> tuple[Any, Any]:
        if self._skip:
            return self._those_that_can_be_made(keys, one, skipped, at)
        together = getattr(self.dataset, "__getitems__", None)
        if together and one is None:
            samples = together(keys)
            stage_timer.end_stage("dataset")
            return samples, keys
        dataset, upcoming = self.dataset, iter(keys)
        try:
            each = stage_timer.each_sample
            if at is None and one is None and not each:
                # The quickest loop there is: tiny samples feel it.
                return [dataset[key] for key in upcoming], keys
            samples = []
            for k, key in enumerate(upcoming):
                if at is not None:
                    at(k)
                samples.append(dataset[key] if one is None else one(k, key))
                if each:
                    stage_timer.end_sample(key, "dataset")
            return samples, keys
        except (Exception, SystemExit) as error:
            blame(error, self.dataset, keys[len(keys) - length_hint(upcoming) - 1])
            raise

    def _those_that_can_be_made(
        self, keys: Any, one: One | None, skipped: list[tuple[str, str]], at: Told | None
    ) -> tuple[Any, Any]:
        samples, made = [], []
        first: Exception | None = None
        try:
            for k, key in enumerate(keys):
                if at is not None:
                    at(k)
                try:
                    samples.append(self._sample(one, k, key))
                    made.append(key)
                    if stage_timer.each_sample:
                        stage_timer.end_sample(key, "dataset")
                except Exception as error:
                    first = error if first is None else first
                    skipped.append((repr(key), f"{type(error).__name__}: {said(error)}"))
            if first is not None and not samples:
                count = len(skipped)
                note(
                    first,
                    f"No sample of the batch could be loaded ({count} of {count} failed), and a "
                    "batch cannot be empty. Use drop_last=True if this is a small last batch.",
                )
                raise first
            return samples, made
        finally:
            first = None  # its traceback holds this frame, and with it the samples

    def _sample(self, one: One | None, place: int, key: Any) -> Any:
        try:
            return self.dataset[key] if one is None else one(place, key)
        except (Exception, SystemExit) as error:
            blame(error, self.dataset, key)
            raise


def _holds_none(sample: Any) -> bool:
    parts = sample if isinstance(sample, (tuple, list)) else (sample,)
    return any(part is None for part in parts)
