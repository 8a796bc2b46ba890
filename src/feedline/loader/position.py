"""Position of a loader, and its upcoming batches.

Three classes have the same methods: `order.position.PlannedPosition`, for an order planned from a
seed, `sampled_order.SampledPosition`, for torch's samplers, and IterablePosition, for an
IterableDataset, whose upcoming batches are unknown.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from torch.utils.data import DataLoader as TorchDataLoader

from feedline.errors import StateError, UsageError
from feedline.loader.options import Options
from feedline.loader.sampled_epoch import RandomStates
from feedline.loader.sampled_order import SampledPosition
from feedline.loader.samplers import share_of
from feedline.order.batch_spec import BatchSpec
from feedline.order.position import (
    STATE_VERSION,
    PlannedPosition,
    Position,
    check_same_run,
    check_state,
    position_in,
)
from feedline.order.schedule import Phase, is_count

__all__ = ["IterablePosition", "LoaderPosition", "check_length", "create_position"]

_ITERATOR, _DATASET = "iterator_state", "dataset_state"


class IterablePosition:
    """Position in the batches of an IterableDataset, made by torch's engine.

    On resume the delivered batches are drawn again from the recorded random states and discarded:
    exact for a deterministic dataset, at the cost of its work. An exception that replaces a batch
    is a step like a batch. Without workers the state of a dataset or iterator with `state_dict` and
    `load_state_dict` is used instead.

    Args:
        loader: loader whose attributes torch's engine reads; referenced weakly.
    """

    restored_step = 0
    """0, because torch's engine draws skipped batches again."""
    steps_to_skip = 0
    """0, because torch's engine skips no batch."""
    seed = 0
    """0, because torch draws its own seeds."""

    def __init__(self, loader: TorchDataLoader[Any]) -> None:
        self._loader_ref = weakref.ref(loader)
        self.current = Position()
        """Position of the next batch."""
        self.raised: list[int] = []
        """Steps of the epoch that were replaced by an exception."""
        self.start: RandomStates | None = None
        """Random states at the beginning of the open epoch."""
        self.restored: Mapping[str, Any] | None = None
        """Loaded state from which the engine opens the epoch."""
        self.samples: Any = None
        """Iterator over the dataset of an epoch without workers."""

    @property
    def loader(self) -> TorchDataLoader[Any]:
        """Loader whose attributes torch's engine reads."""
        loader = self._loader_ref()
        assert loader is not None, "an iterator keeps its loader alive"
        return loader

    @property
    def loader_or_none(self) -> TorchDataLoader[Any] | None:
        """The same; None if the loader is garbage."""
        return self._loader_ref()

    @property
    def phase(self) -> Phase:
        """Endless phase without an image size."""
        return Phase(epochs=1)

    def begin(self) -> bool:
        """Begin an iteration. Return True: nothing is prefetched for it."""
        if self.restored is None and self.current.step:
            self.finish()
        return True

    def open(self, start: RandomStates, samples: Any) -> None:
        """Record that the engine has opened the epoch."""
        self.start, self.samples, self.restored = start, samples, None

    def record_delivery(self, batch: BatchSpec | None) -> None:
        """Move past a delivered batch."""
        self.current = self.current.at_step(self.current.step + 1)

    def record_exception(self) -> None:
        """Move past a batch that an exception replaced."""
        self.raised.append(self.current.step)
        self.record_delivery(None)

    def finish(self) -> None:
        """End the iteration. The next epoch follows."""
        self._go_to(self.current.epoch + 1)

    def _go_to(self, epoch: int) -> None:
        """Set the position to the beginning of an epoch that is not opened yet."""
        self.start = self.restored = self.samples = None
        self.raised = []
        self.current = Position(epoch=epoch)

    def order_changed(self) -> bool:
        """Return False: torch's engine keeps its order."""
        return False

    def is_at_end(self) -> bool:
        """Return False: only the dataset knows its end."""
        return False

    def upcoming(self) -> Iterator[BatchSpec]:
        """No batches: only the dataset knows them."""
        return iter(())

    def fork(self) -> IterablePosition | None:
        """Position for an iteration that continues on its own; None if no epoch is open."""
        return copy.copy(self) if self.start is not None else None

    def state(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Position as a state."""
        if self.restored is not None:
            return dict(self.restored)
        start = self.start or RandomStates.capture(None, self.loader.generator)
        state: dict[str, Any] = {
            "version": STATE_VERSION,
            "epoch": self.current.epoch,
            "step": self.current.step,
            **self._identity(identity),
            "raised": list(self.raised),
            "random": start.as_json(),
        }
        if self.loader.num_workers == 0:
            dataset: Any = self.loader.dataset
            if _keeps_state(self.samples):
                state[_ITERATOR] = self.samples.state_dict()
            elif _keeps_state(dataset):
                state[_DATASET] = dataset.state_dict()
        return state

    def _identity(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        loader = self.loader
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
            self._identity(identity),
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
        self.restored = dict(state)
        self.raised = list(raised)
        self.current = position

    def steps(self, epoch: int) -> int:
        """Number of batches of an epoch, if the dataset has a length."""
        return TorchDataLoader.__len__(self.loader)

    def set_epoch(self, epoch: int) -> bool:
        """Begin the next iteration as `epoch`; calls `set_epoch` of the dataset if it exists."""
        set_epoch = getattr(self.loader.dataset, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
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

    def dataset_state(self) -> tuple[Any, Any]:
        """State of the dataset and state of its iterator in a loaded state; None if not there."""
        assert self.restored is not None
        return self.restored.get(_DATASET), self.restored.get(_ITERATOR)


def _keeps_state(thing: object) -> bool:
    return all(callable(getattr(thing, name, None)) for name in ("state_dict", "load_state_dict"))


LoaderPosition: TypeAlias = PlannedPosition | SampledPosition | IterablePosition


def create_position(options: Options, loader: TorchDataLoader[Any] | None = None) -> LoaderPosition:
    """Create a position at the beginning.

    Args:
        options: options of the loader.
        loader: the loader, for an IterableDataset.
    """
    if options.iterable:
        assert loader is not None, "torch's engine reads a loader"
        return IterablePosition(loader)
    if options.order is not None:
        return PlannedPosition(options.order, endless=options.schedule is None)
    return SampledPosition(
        options.index_sampler,
        options.generator,
        options.phases,
        share=share_of(options.index_sampler),
        seed=options.seed,
        persistent=options.persistent_workers and options.num_workers > 0,
    )


def check_length(position: object, before: Options, options: Options) -> None:
    """Check whether a position may continue with the dataset of other options.

    Raises:
        UsageError: it is at the position of a state with a dataset of another length.
    """
    if (
        isinstance(position, PlannedPosition)
        and position.is_restored
        and before.order
        and options.order
    ):
        had, has = before.order.length, options.order.length
        if had != has:
            raise UsageError(
                f"the dataset has {has} samples, but had {had} in the state from which this epoch "
                "continues; restore the dataset, or start over with set_epoch"
            )
