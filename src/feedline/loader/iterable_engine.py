"""torch's own engine for IterableDataset, with its rules for workers and sharding, and its
iterator.

Guarantees: the batches of torch's DataLoader, with a position. On resume the delivered batches are
drawn again from the recorded random states and discarded: exact for a deterministic dataset, at the
cost of its work. An exception that replaces a batch is a step like a batch. Without workers the
state of a dataset or iterator with `state_dict` and `load_state_dict` is used instead.
Relies on: the loader calling `begin` for each iteration.
"""

from __future__ import annotations

import contextlib
import copy
import os
import weakref
from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader

from feedline.errors import LoadTimeoutError, StateError, UsageError
from feedline.loader.engines import Engine
from feedline.loader.sampled_epoch import RandomStates
from feedline.order.position import (
    STATE_VERSION,
    Position,
    check_same_run,
    check_state,
    position_in,
)
from feedline.order.schedule import Phase, is_count
from feedline.trace import is_recording_enabled
from feedline.trace.stage_timings import StageTimings
from feedline.trace.torch_workers import TorchWorkers

__all__ = [
    "IterableEngine",
]


_END = object()
_TIMED_OUT = "DataLoader timed out"
_ITERATOR, _DATASET = "iterator_state", "dataset_state"


class IterableEngine(Engine):
    """Position and engine in one, because torch's cannot be separated.

    Args:
        loader: loader whose attributes torch's engine reads; referenced weakly.
    """

    def __init__(self, loader: TorchDataLoader[Any]) -> None:
        super().__init__()
        self._of = weakref.ref(loader)
        self.current = Position()
        self._raised: list[int] = []  # the steps of the epoch that came to an exception
        self._iterator: Any = None
        self._apart = False  # of an earlier iteration: workers that persist are not its own
        self._processes: list[Any] = []
        self._pages: TorchWorkers | None = None
        self._start: RandomStates | None = None
        self._restored: Mapping[str, Any] | None = None

    @property
    def _loader(self) -> TorchDataLoader[Any]:
        loader = self._of()
        assert loader is not None, "an iteration keeps its loader alive"
        return loader

    @property
    def workers(self) -> int:
        """Target number of worker processes."""
        return self._loader.num_workers

    @property
    def phase(self) -> Phase:
        """Endless phase without an image size."""
        return Phase(epochs=1)

    @property
    def pids(self) -> dict[int, int]:
        """Process ids of the workers of the current epoch, or of the last one."""
        return {i: process.pid for i, process in enumerate(self._processes)}

    @property
    def handles(self) -> list[Any]:
        """torch's objects of these workers."""
        return self._processes

    def begin(self, restart: bool = False) -> bool:
        """Begin an iteration."""
        if self._restored is None and self.current.step:
            self._go_to(self.current.epoch + 1)
        self._open()
        return True

    def _open(self) -> None:
        restored = self._restored
        if restored is None:
            self._start = RandomStates.now(None, self._loader.generator)
            self._iterator = self._begun()
            return
        dataset: Any = self._loader.dataset
        self._loader._iterator = None  # workers that persist have gone on from where they began
        if restored.get(_DATASET) is not None:
            dataset.load_state_dict(restored[_DATASET])
        start = RandomStates.from_json(restored["random"], None, self._loader.generator)
        own = restored.get(_ITERATOR)
        with start.again():
            iterator = self._begun()
            if own is None and restored.get(_DATASET) is None:
                self._skip(iterator)
        if own is not None:  # it may set the random state, too, which then has to stay
            _samples(iterator).load_state_dict(own)
        # Only now: where something failed on the way here, the next call tries again.
        self._start, self._iterator, self._restored = start, iterator, None

    def _begun(self) -> Any:
        """Create torch's iterator, like its own `__iter__`."""
        with contextlib.ExitStack() as starting:
            if (pages := self._opened_pages()) is not None:
                starting.enter_context(pages.starting(self._loader))
            iterator = self._iterator_of_torch()
            if pages is not None:
                pages.watch_here(iterator)
        self._processes = list(getattr(iterator, "_workers", ()))
        return iterator

    def _opened_pages(self) -> TorchWorkers | None:
        """Stage timings of the workers; None if not available."""
        if self._pages is None or self._pages.owner != os.getpid():
            with contextlib.suppress(OSError):
                self._pages = (
                    TorchWorkers(self._loader.num_workers) if is_recording_enabled() else None
                )
        return self._pages

    def spent(self) -> dict[int, StageTimings]:
        """Time per stage of each worker, by worker id."""
        return {} if self._pages is None else self._pages.spent()

    def _iterator_of_torch(self) -> Any:
        loader: Any = self._loader
        if not (loader.persistent_workers and loader.num_workers):
            iterator: Any = TorchDataLoader._get_iterator(loader)
        elif loader._iterator is None:
            iterator = loader._iterator = TorchDataLoader._get_iterator(loader)
        else:
            iterator = loader._iterator
            iterator._reset(loader)
        return iterator

    def _skip(self, iterator: Any) -> None:
        """Draw the delivered batches again; exceptions of then may be raised again."""
        for step in range(self.current.step):
            before = _received(iterator)
            try:
                if next(iterator, _END) is _END:
                    return
            except Exception:
                if step not in self._raised or not _order_changed(iterator, before):
                    raise

    def next(self) -> Any:
        """Return the next batch of torch's iterator."""
        # None is open after `set_epoch` or `load`, which may come between `begin` and here.
        if self._restored is not None or self._iterator is None:
            self._open()
        before = _received(self._iterator)
        try:
            made = next(self._iterator)
        except StopIteration:
            self._go_to(self.current.epoch + 1)
            raise
        except Exception as error:
            if _order_changed(self._iterator, before):
                self._raised.append(self.current.step)
                self.current = self.current.at_step(self.current.step + 1)
            elif type(error) is RuntimeError and str(error).startswith(_TIMED_OUT):
                raise self._timed_out(error) from None
            raise
        self.current = self.current.at_step(self.current.step + 1)
        return made

    def _timed_out(self, error: RuntimeError) -> LoadTimeoutError:
        """Convert a timeout error of torch to one with its facts."""
        iterator: Any = self._iterator
        # Names of torch's: where a release lacks them, the worker is not known.
        task = getattr(iterator, "_task_info", {}).get(getattr(iterator, "_rcvd_idx", None))
        worker, which = None, ""
        if isinstance(task, tuple) and task and task[0] in range(len(self._processes)):
            worker = int(task[0])
            pid = self._processes[worker].pid
            which = f": worker {worker} (pid {pid}) has not finished its next batch"
        return LoadTimeoutError(
            f"{error}{which}. The storage may be unavailable (a network disk or server that does "
            "not answer), or a batch takes longer. Set a larger timeout, or 0 for no limit",
            seconds=float(self._loader.timeout),
            worker=worker,
        )

    def _go_to(self, epoch: int) -> None:
        """Set the position to the beginning of an epoch that is not opened yet."""
        self._iterator = self._start = self._restored = None
        self._raised = []
        self.current = Position(epoch=epoch)

    def fork(self) -> IterableEngine | None:
        """Current iteration, to continue apart from the next; None if there is none."""
        if self._iterator is None:
            return None
        apart = copy.copy(self)
        apart._apart = True
        return apart

    def state(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Position as a state."""
        if self._restored is not None:
            return dict(self._restored)
        start = self._start or RandomStates.now(None, self._loader.generator)
        state: dict[str, Any] = {
            "version": STATE_VERSION,
            "epoch": self.current.epoch,
            "step": self.current.step,
            **self._mine(identity),
            "raised": list(self._raised),
            "random": start.as_json(),
        }
        if self._loader.num_workers == 0:
            dataset: Any = self._loader.dataset
            samples = _samples(self._iterator)
            if _keeps_state(samples):
                state[_ITERATOR] = samples.state_dict()
            elif _keeps_state(dataset):
                state[_DATASET] = dataset.state_dict()
        return state

    def _mine(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        loader = self._loader
        # Each worker has a share of its own: another number of them is another order.
        return {
            **identity,
            "batch_size": loader.batch_size,
            "drop_last": loader.drop_last,
            "num_workers": loader.num_workers,
        }

    def load_state(self, state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
        """Continue from a state with the next batch."""
        check_state(state)
        check_same_run(
            state,
            self._mine(identity),
            "An IterableDataset is divided among its workers, so their number must be the same",
        )
        position = position_in(state)
        if not isinstance(state.get("random"), Mapping):
            raise StateError("cannot resume: the state is damaged: invalid 'random'")
        raised = state.get("raised", [])  # older states have none
        if not isinstance(raised, list) or not all(
            is_count(step) and step < position.step for step in raised
        ):
            raise StateError("cannot resume: the state is damaged: invalid 'raised'")
        self._restored = dict(state)
        self._raised = list(raised)
        self.current = position

    def steps(self, epoch: int) -> int:
        """Number of batches of an epoch, if the dataset has a length."""
        return TorchDataLoader.__len__(self._loader)

    def set_epoch(self, epoch: int) -> bool:
        """Begin the next iteration as `epoch`; calls `set_epoch` of the dataset if it exists."""
        tell = getattr(self._loader.dataset, "set_epoch", None)
        if callable(tell):
            tell(epoch)
        if epoch == self.current.epoch:
            return False
        self._go_to(epoch)
        return True

    def set_step(self, step: int) -> bool:
        """Raise an error: an IterableDataset cannot skip batches without making them."""
        raise UsageError(
            "an IterableDataset cannot skip its first batches without making them; skip its first "
            "samples in its __iter__, or load a state"
        )

    def set_image_size(self, image_size: int | None) -> bool:
        """Raise an error: torch's workers do not know image sizes."""
        raise UsageError(
            "an IterableDataset cannot be given an image size: torch's engine makes its batches "
            "ahead, without one. Use a map-style Dataset"
        )

    def apply(self, **changes: int | None) -> None:
        """Raise an error: the number of workers determines how the dataset is divided."""
        raise UsageError(
            "the number of workers of an IterableDataset cannot change; build a new loader"
        )

    def release(self) -> object:
        """Forget torch's iterators, which belong to the process this one was forked from.

        Returns:
            The iterators. Keep them alive: their finalizer would end the other process's workers.
        """
        held = self._iterator, self._loader._iterator
        self._iterator = self._loader._iterator = None
        return held

    def close(self) -> None:
        """End torch's workers, even if an exception's traceback keeps their iterator alive."""
        iterator, self._iterator, self._pages = self._iterator, None, None
        loader = self._of()
        persistent = None if loader is None else loader._iterator
        if not (self._apart and iterator is persistent):
            _end_workers(iterator)
        if not self._apart and loader is not None:
            loader._iterator = None
            _end_workers(persistent)


def _end_workers(iterator: Any) -> None:
    """End workers like torch does when the iterator is garbage; may be called twice."""
    if hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()


def _samples(iterator: Any) -> Any:
    """Iterator over the dataset itself, without workers."""
    return getattr(getattr(iterator, "_dataset_fetcher", None), "dataset_iter", None)


def _received(iterator: Any) -> int | None:
    """Number of batches torch's iterator has received in order; None without workers."""
    received: int | None = getattr(iterator, "_rcvd_idx", None)
    return received


def _order_changed(iterator: Any, before: int | None) -> bool:
    """Return True if an exception replaces a batch: after a timeout the same batch still follows.

    `before` is what `_received` returned before.
    """
    in_order = getattr(iterator, "_in_order", True)  # from torch 2.6 on
    return before is None or not in_order or iterator._rcvd_idx != before


def _keeps_state(thing: object) -> bool:
    return callable(getattr(thing, "state_dict", None)) and callable(
        getattr(thing, "load_state_dict", None)
    )
