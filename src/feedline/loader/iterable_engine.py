"""Engine and position for an IterableDataset: torch's iterator, with its workers and sharding.

Guarantees: the same batches as torch's DataLoader, from any position. If Ctrl-C interrupts `next`,
the next call returns the same batch.
"""

from __future__ import annotations

import contextlib
import copy
import os
import weakref
from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader

from feedline.errors import LoadTimeoutError, UsageError
from feedline.loader.engines import Engine
from feedline.loader.position import LoaderPosition
from feedline.loader.state import Position, damaged_state_error, pack, require_entries, unpack
from feedline.loader.torch_samplers import RandomStates, has_state
from feedline.order.batch_spec import BatchSpec
from feedline.order.schedule import Phase, Schedule
from feedline.system import find_attribute
from feedline.timing import is_recording_enabled
from feedline.timing.stage_page import StageTimings
from feedline.timing.torch_workers import TorchWorkers, end_torch_workers

_END = object()
_TIMED_OUT = "DataLoader timed out"


class IterablePosition(LoaderPosition):
    """Position in the batches of an IterableDataset, made by torch's engine.

    On resume the delivered batches are drawn again from the recorded random states and discarded:
    exact for a deterministic dataset, at the cost of its work. An exception that replaces a batch
    is a step like a batch. Without workers the state of a dataset or iterator with `state_dict` and
    `load_state_dict` is used instead. `loader`, whose attributes torch's engine reads, is
    referenced weakly.
    """

    def __init__(self, loader: TorchDataLoader[Any]) -> None:
        super().__init__(Schedule((Phase(epochs=1),)))
        self.loader_ref = weakref.ref(loader)
        self.raised: list[int] = []  # steps of the epoch that were replaced by an exception
        self.start: RandomStates | None = None  # random states at the beginning of the open epoch
        self.loaded_state: Mapping[str, Any] | None = None
        """Loaded state from which the engine will open the epoch; None afterwards."""
        self.samples: Any = None  # iterator over the dataset of an epoch without workers

    @property
    def loader(self) -> TorchDataLoader[Any]:
        loader = self.loader_ref()
        assert loader is not None, "an iterator keeps its loader alive"
        return loader

    def steps(self, epoch: int) -> int:
        return TorchDataLoader.__len__(self.loader)

    def begin(self) -> bool:
        if self.loaded_state is None and self.current.step:
            self.finish()
        return True

    def record_delivery(self, batch: BatchSpec | None) -> None:
        current = self.current.at_step(self.current.step + 1)
        self.current, self.has_delivered = current, True

    def _move_to_epoch(self, epoch: int) -> None:
        self.start = self.loaded_state = self.samples = None
        self.raised = []
        self.has_delivered = False
        self.current = Position(epoch=epoch)

    @property
    def _has_open_epoch(self) -> bool:
        return self.start is not None

    def set_epoch(self, epoch: int) -> bool:
        """Begin the next iteration as `epoch`; calls `set_epoch` of the dataset if it exists."""
        set_epoch = find_attribute(self.loader.dataset, "set_epoch")
        if callable(set_epoch):
            set_epoch(epoch)
        if epoch == self.current.epoch:
            return False
        self._move_to_epoch(epoch)
        return True

    def set_step(self, step: int) -> bool:
        raise UsageError(
            "an IterableDataset cannot skip its first batches without making them; skip its first "
            "samples in its __iter__, or load a state"
        )

    def set_image_size(self, image_size: int | None) -> bool:
        raise UsageError(
            "an IterableDataset cannot be given an image size: torch's engine makes its batches "
            "ahead, without one. Use a map-style Dataset"
        )

    def state(self) -> dict[str, Any]:
        if self.loaded_state is not None:
            return dict(self.loaded_state)
        start = self.start or RandomStates.capture(None, self.loader.generator)
        state: dict[str, Any] = {
            **super().state(),
            "raised": list(self.raised),
            "random": start.as_json(),
            "iterator_state": None,
            "dataset_state": None,
        }
        if self.loader.num_workers == 0:
            dataset: Any = self.loader.dataset
            if has_state(self.samples):
                state["iterator_state"] = pack(self.samples.state_dict())
            elif has_state(dataset):
                state["dataset_state"] = pack(dataset.state_dict())
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        position = Position.from_state(state)
        require_entries(state, ("random", "raised", "iterator_state", "dataset_state"))
        if any(step >= position.step for step in state["raised"]):
            raise damaged_state_error(state, "raised")
        states = {name: pack(unpack(state[name])) for name in ("iterator_state", "dataset_state")}
        self.loaded_state = {**state, **states}
        self.raised = list(state["raised"])
        self.has_delivered, self.current = False, position


class IterableEngine(Engine):
    """Iterator of a torch DataLoader at a position. The position has the loader."""

    def __init__(self, position: IterablePosition) -> None:
        self._position = position
        self._iterator: Any = None
        self._batch: Any = None
        self._has_batch = False  # True if `_batch` was made and not yet delivered
        self._is_split_off = False  # True if persistent workers belong to another engine
        self._processes: list[Any] = []
        self._pages: TorchWorkers | None = None  # stage timings of the workers

    @property
    def workers(self) -> int:
        return self._position.loader.num_workers

    @property
    def pids(self) -> dict[int, int]:
        return {i: process.pid for i, process in enumerate(self._processes)}

    @property
    def handles(self) -> list[Any]:
        return self._processes

    def begin(self, restart: bool) -> None:
        self._open()

    def _open(self) -> None:
        """Create torch's iterator at the position, like torch's `iter()`."""
        position, loader = self._position, self._position.loader
        self.restart_prefetch()
        loaded_state = position.loaded_state
        if loaded_state is None:
            start = RandomStates.capture(None, loader.generator)
            self._iterator = self._create_iterator()
            position.start, position.samples = start, _samples(self._iterator)
            return
        loader._iterator = None  # persistent workers are not at the beginning any more
        dataset: Any = loader.dataset
        dataset_state = unpack(loaded_state["dataset_state"])
        iterator_state = unpack(loaded_state["iterator_state"])
        if dataset_state is not None:
            dataset.load_state_dict(dataset_state)
        start = RandomStates.from_json(loaded_state["random"], None, loader.generator)
        with start.replace_global_state():
            iterator = self._create_iterator()
            if iterator_state is None and dataset_state is None:
                self._skip(iterator)
        # Outside of the `with`: loading this state may set the global random state, which is kept.
        if iterator_state is not None:
            _samples(iterator).load_state_dict(iterator_state)
        # Set last: if an error was raised before, the next call tries again.
        self._iterator = iterator
        position.start, position.samples, position.loaded_state = start, _samples(iterator), None

    def _create_iterator(self) -> Any:
        with contextlib.ExitStack() as starting:
            loader: Any = self._position.loader
            if self._pages is None or self._pages.owner != os.getpid():
                with contextlib.suppress(OSError):
                    enabled = is_recording_enabled()
                    self._pages = TorchWorkers(loader.num_workers) if enabled else None
            if self._pages is not None:
                starting.enter_context(self._pages.starting(loader))
            if not (loader.persistent_workers and loader.num_workers):
                iterator: Any = TorchDataLoader._get_iterator(loader)
            elif loader._iterator is None:
                iterator = loader._iterator = TorchDataLoader._get_iterator(loader)
            else:
                iterator = loader._iterator
                iterator._reset(loader)
            if self._pages is not None:
                self._pages.watch_here(iterator)
        self._processes = list(getattr(iterator, "_workers", ()))
        return iterator

    def stage_timings(self) -> dict[int, StageTimings]:
        return {} if self._pages is None else self._pages.stage_timings()

    def _skip(self, iterator: Any) -> None:
        """Request the delivered batches again. Exceptions that replaced batches are ignored."""
        for step in range(self._position.current.step):
            before = _received(iterator)
            try:
                if next(iterator, _END) is _END:
                    return
            except Exception:
                if step not in self._position.raised or not _exception_replaced_batch(
                    iterator, before
                ):
                    raise

    def next(self) -> Any:
        if self._has_batch:
            return self._batch
        if self._iterator is None:  # the position was moved
            self._open()
        before = _received(self._iterator)
        try:
            self._batch = next(self._iterator)
        except StopIteration:
            self._iterator = None
            raise
        except Exception as error:
            if _exception_replaced_batch(self._iterator, before):
                self._position.raised.append(self._position.current.step)
                self._position.record_delivery(None)
            elif type(error) is RuntimeError and str(error).startswith(_TIMED_OUT):
                raise self._timeout_error(error) from None
            raise
        self._has_batch = True
        return self._batch

    def record_delivery(self) -> None:
        self._position.record_delivery(None)
        # Last without a call: Python raises KeyboardInterrupt only in calls, so Ctrl-C cannot
        # leave the delivery half recorded.
        self._batch, self._has_batch = None, False

    def _timeout_error(self, error: RuntimeError) -> LoadTimeoutError:
        iterator: Any = self._iterator
        # If a torch release lacks these private attributes, the worker is unknown.
        task = getattr(iterator, "_task_info", {}).get(getattr(iterator, "_rcvd_idx", None))
        worker, place = None, ""
        if isinstance(task, tuple) and task and task[0] in range(len(self._processes)):
            worker = int(task[0])
            pid = self._processes[worker].pid
            place = f": worker {worker} (pid {pid}) has not finished its next batch"
        return LoadTimeoutError(
            f"{error}{place}. The storage may be unavailable (a network disk or server that does "
            "not answer), or a batch takes longer. Set a larger timeout, or 0 for no limit",
            seconds=float(self._position.loader.timeout),
            worker=worker,
        )

    def restart_prefetch(self) -> None:
        self._iterator, self._batch, self._has_batch = None, None, False

    def split_off(self, position: Any) -> Engine:
        other = copy.copy(self)  # with the running iterator
        other._position, other._is_split_off = position, True
        self.restart_prefetch()
        return other

    def apply(self, **changes: int | None) -> None:
        raise UsageError(
            "the number of workers of an IterableDataset cannot change; build a new loader"
        )

    def release(self) -> object:
        # Torch's iterators are kept alive: their finalizer would end the parent's workers.
        loader = self._position.loader
        iterators = self._iterator, loader._iterator
        self._iterator = loader._iterator = None
        return iterators

    def close(self) -> None:
        """End torch's workers, even if an exception's traceback keeps their iterator alive."""
        iterator, self._iterator, self._pages = self._iterator, None, None
        self._position.samples = None
        loader = self._position.loader_ref()
        persistent = None if loader is None else loader._iterator
        if not (self._is_split_off and iterator is persistent):
            end_torch_workers(iterator)
        if not self._is_split_off and loader is not None:
            loader._iterator = None
            end_torch_workers(persistent)


def _samples(iterator: Any) -> Any:
    """Iterator over the dataset itself; None with workers."""
    return getattr(getattr(iterator, "_dataset_fetcher", None), "dataset_iter", None)


def _received(iterator: Any) -> int | None:
    """Number of batches torch's iterator has received in order; None without workers."""
    received: int | None = getattr(iterator, "_rcvd_idx", None)
    return received


def _exception_replaced_batch(iterator: Any, before: int | None) -> bool:
    """Return True if an exception replaces a batch. After a timeout the same batch still follows.

    `before` is the return value of `_received` before the request.
    """
    in_order = getattr(iterator, "_in_order", True)  # from torch 2.6 on
    return before is None or not in_order or iterator._rcvd_idx != before
