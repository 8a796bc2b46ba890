"""Support for Hugging Face Accelerate in a loader.

Guarantees: if feedline itself provides what Accelerate is configured for,
`accelerator.prepare(loader)` returns the same loader: `save_state` and `load_state` include its
state, and Accelerate knows which batch of an epoch is the last. Otherwise Accelerate builds its own
loader from this one's parts, as it does from torch's, with a warning. A configuration that cannot
work raises an error. Relies on: `Accelerator.prepare_data_loader` first asks a loader whether it is
prepared. It passes no configuration, so that is read from the calling frame.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, TypeVar

from torch.utils.data import IterableDataset

from feedline.errors import UsageError
from feedline.loader.argument_checks import is_native
from feedline.loader.samplers import chain
from feedline.order.planned_order import Order

__all__ = [
    "BUILDS_STOCK",
    "TOLD_BY_ACCELERATE",
    "Accelerated",
    "SkipFirstBatches",
]


BUILDS_STOCK = "Accelerate builds a torch DataLoader"
"""Beginning of warnings about it."""


class SkipFirstBatches:
    """Method `skip_first_batches` of an Accelerator that prepared a feedline loader.

    Called with a loader and a number of batches, it returns the loader itself, which begins its
    next iteration after these batches without making them; a loader whose loaded state is already
    there is not changed. For a wrapper from `feedline.frameworks.accelerate.prepare`, it returns a
    wrapper of the rest, with feedline's workers.

    Raises:
        UsageError: the loader's loaded state is at a later batch.
    """

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = weakref.ref(accelerator)  # which holds this object

    def __call__(self, dataloader: Any, num_batches: int = 0) -> Any:
        """Return the rest of an epoch after a number of batches."""
        # Not isinstance: a wrapper of Accelerate's says that it is of the class it wraps.
        kept = hasattr(type(dataloader), "check_accelerator")
        if kept and dataloader.gradient_state is not None:
            dataloader.set_step(num_batches)
            return dataloader
        accelerator: Any = self._accelerator()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", BUILDS_STOCK, RuntimeWarning)
            rest = type(accelerator).skip_first_batches(accelerator, dataloader, num_batches)
        in_place_of = getattr(getattr(dataloader, "base_dataloader", None), "in_place_of", None)
        if in_place_of is not None:
            rest.base_dataloader = in_place_of(rest.base_dataloader)
        return rest

    def __reduce__(self) -> Any:
        return SkipFirstBatches, (self._accelerator(),)


T = TypeVar("T")

TOLD_BY_ACCELERATE = frozenset(
    {"end_of_dataloader", "gradient_state", "remainder", "_passes", "_sends"}
)
"""Attributes of a loader that belong to one run: a copy must be prepared itself."""

_HEEDED = ("non_blocking", "use_stateful_dataloader")
_WITHOUT_EFFECT = {
    "planned": ("use_seedable_sampler",),  # all ranks have one order in any case
    "alone": ("even_batches",),
}
"""Accelerate settings without effect if feedline plans the order, or on one process."""


class Accelerated:
    """Mixin for a loader with `dataset`, `batch_sampler`, `batch_size`, `drop_last`, `device`,
    `ranks`.

    `accumulate` and `gather_for_metrics` read `end_of_dataloader` and `remainder` of the active
    loader: whether the current batch is the epoch's last, and how many rows of the last batch over
    all ranks are not repetitions (0: all of them; -1: unknown).
    """

    dataset: Any
    batch_sampler: Any
    batch_size: int | None
    drop_last: bool
    device: Any

    @property
    def ranks(self) -> int:
        """Number of processes that share the samples."""
        raise NotImplementedError

    @property
    def order(self) -> Order | None:
        """Order planned by feedline; None if samplers or the dataset define it."""
        raise NotImplementedError

    @property
    def epoch(self) -> int:
        """Current epoch."""
        raise NotImplementedError

    use_stateful_dataloader = True  # save_state and load_state ask for this name
    end_of_dataloader = False
    remainder = -1
    gradient_state: Any = None  # Accelerate's, from `prepare` on
    _sends: Callable[[Any], Any] | None = None  # moves a batch to Accelerate's device
    _passes = 0  # iterations that Accelerate knows of
    in_a_wrapper = False
    """Whether a wrapper of Accelerate reads from this loader."""

    @property
    def collate_fn(self) -> Any:
        """As given, or torch's. Read by code that builds a torch loader from this one's parts."""
        asking = sys._getframe(1).f_globals.get("__name__")
        prepared = self.in_a_wrapper or self.gradient_state is not None
        if prepared and asking == "accelerate.data_loader":
            warnings.warn(
                f"{BUILDS_STOCK} from a prepared feedline.DataLoader: torch's workers load the "
                f"data{_lost(self)}. Call skip_first_batches of the Accelerator; a loader restored "
                "by load_state has no batches to skip",
                RuntimeWarning,
                stacklevel=3,
            )
        return self.__dict__["collate_fn"]

    @collate_fn.setter
    def collate_fn(self, collate_fn: Any) -> None:
        self.__dict__["collate_fn"] = collate_fn

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Answer to an Accelerator: True if `prepare` should return this loader.

        Raises:
            UsageError: the loader plans its order, but the Accelerator needs another one.
        """
        frame = sys._getframe(1)
        asking, accelerator = frame.f_locals, frame.f_locals.get("self")
        config = getattr(accelerator, "dataloader_config", None)
        if accelerator is None or config is None:
            prepared = self.gradient_state is not None
            if not prepared and str(frame.f_globals.get("__name__")).startswith("accelerate."):
                warnings.warn(
                    f"accelerate {getattr(sys.modules['accelerate'], '__version__', '?')} checks "
                    "in a way unknown to feedline whether this loader is prepared: Accelerate "
                    "builds a torch DataLoader from it, whose data torch's workers load",
                    RuntimeWarning,
                    stacklevel=3,
                )
            return prepared
        why = self.check_accelerator(accelerator)
        if why:
            if not isinstance(self.dataset, IterableDataset):
                warnings.warn(
                    f"{BUILDS_STOCK} from this feedline.DataLoader because {why}: torch's workers "
                    f"load the data{_lost(self)}. "
                    "feedline.frameworks.accelerate.prepare(accelerator, loader) gives the same "
                    "batches with feedline's workers",
                    RuntimeWarning,
                    stacklevel=3,
                )
            return False
        self._join(accelerator, asking.get("device_placement"), config)
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        """Ignore the mark `Accelerator.prepare` sets: the getter did the work."""

    def check_accelerator(self, accelerator: Any) -> str:
        """Reason why feedline cannot do what an Accelerator is configured for; "" if it can.

        Raises:
            UsageError: the loader plans its order, or has both a seed or schedule and a sampler,
                and the Accelerator needs other batches.
        """
        planned = self.order is not None or is_native(self.dataset)
        processes = accelerator.num_processes
        if planned and processes != self.ranks:
            raise UsageError(
                f"the loader distributes its samples over {self.ranks} ranks, but Accelerate runs "
                f"{processes} processes; set a seed, so that the loader distributes the samples "
                "itself, and build it after the Accelerator, or pass rank and world_size"
            )
        mesh = getattr(accelerator, "torch_device_mesh", None)
        why = self._why_not(processes, _changed(accelerator.dataloader_config), planned)
        if mesh is not None and {"tp", "cp", "sp"} & set(mesh.mesh_dim_names or ()):
            why = "several ranks share one batch in the Accelerator's device mesh"
        if why and planned:
            raise UsageError(
                f"the loader makes its own order, but {why}; remove that, or remove seed and "
                "schedule from the loader: then Accelerate distributes the samples"
            )
        given = [name for name in ("schedule", "seed") if vars(self)[name] is not None]
        if why and given:
            raise UsageError(
                f"{' and '.join(given)} and a sampler are set on the loader, and {why}, for which "
                "it builds a loader without them; remove them, or remove the sampler: then "
                "feedline makes the order and distributes it"
            )
        return why

    def _why_not(self, processes: int, changed: Mapping[str, Any], planned: bool) -> str:
        """Reason why feedline cannot do what Accelerate is configured for; "" if it can."""
        harmless = _HEEDED + (_WITHOUT_EFFECT["planned"] if planned else ())
        harmless += _WITHOUT_EFFECT["alone"] if processes == 1 else ()
        told = {name: value for name, value in changed.items() if name not in harmless}
        if told:
            said = ", ".join(f"{name}={value!r}" for name, value in told.items())
            return f"the Accelerator has DataLoaderConfiguration({said})"
        if planned and hasattr(self.dataset, "set_epoch"):
            return (
                "Accelerate does not call the dataset's set_epoch for a loader it leaves unchanged"
            )
        if planned:
            return ""
        if isinstance(self.dataset, IterableDataset):
            return "the dataset is an IterableDataset"
        if processes > 1:
            return f"Accelerate runs {processes} processes"
        parts = (self.dataset, *chain(self.batch_sampler))
        if any(hasattr(part, "set_epoch") for part in parts):
            return "Accelerate sets the epoch of the sampler or the dataset"
        return ""

    def _join(self, accelerator: Any, placed: bool | None, config: Any) -> None:
        accelerator.skip_first_batches = SkipFirstBatches(accelerator)
        state, utils = sys.modules["accelerate.state"], sys.modules["accelerate.utils"]
        self.gradient_state = state.GradientState()
        target = accelerator.device
        placed = accelerator.device_placement if placed is None else placed
        if placed and not self.device and target.type != "cpu":
            blocks = not config.non_blocking
            self._sends = lambda batch: utils.send_to_device(batch, target, non_blocking=not blocks)

    def set_step(self, step: int) -> None:
        """Begin the next iteration after the first `step` batches of its epoch."""
        raise NotImplementedError

    def watched(self, batches: Iterator[T], at_end: Callable[[], bool]) -> Iterator[T]:
        """Yield the batches, and report them to Accelerate once it prepared this loader.

        Args:
            batches: the iteration.
            at_end: returns True if no batches are left.
        """
        return batches if self.gradient_state is None else self._told(batches, at_end)

    def _told(self, batches: Iterator[T], at_end: Callable[[], bool]) -> Generator[T, None, None]:
        self.end_of_dataloader, self.remainder = False, self._unpadded()
        self._passes += 1
        if self._passes == 1:  # what is taken from Accelerate's list is taken for all of them
            self.gradient_state._add_dataloader(self)
        try:
            for batch in batches:
                self.end_of_dataloader = at_end()
                yield batch if self._sends is None else self._sends(batch)
        finally:
            self._passes -= 1
            if not self._passes:
                self.gradient_state._remove_dataloader(self)

    def _unpadded(self) -> int:
        rows_a_batch = self.batch_size or getattr(self.batch_sampler, "batch_size", None)
        if self.order is not None:
            phase = self.order.schedule.phase_at(self.epoch)
            rows_a_batch = self.order.global_batch_size(phase) // self.ranks
        if not isinstance(rows_a_batch, int) or not hasattr(self.dataset, "__len__"):
            return -1
        if self.drop_last:
            return 0
        rows = len(self.dataset) % (rows_a_batch * self.ranks)
        # Accelerate cuts off the end of what it gathered, rank by rank, where each of the last
        # `missing` ranks has one repeated row at its own end: right for one such rank alone.
        missing = -rows % self.ranks
        if missing > 1:
            warnings.warn(
                f"the epoch's last batch repeats {missing} rows, one on each of the last {missing} "
                "ranks, and gather_for_metrics counts them; choose a dataset length or batch_size "
                "with less padding, or drop the last `loader.batch.padding` rows yourself",
                RuntimeWarning,
                stacklevel=4,
            )
        return rows if missing < 2 else 0


def _lost(loader: Any) -> str:
    """Settings that a torch loader does not support, as the end of a sentence."""
    usual = {"on_error": "raise", "image_size": None}
    asked = {name: vars(loader)[name] for name in usual}
    said = [f"{name}={value!r}" for name, value in asked.items() if value != usual[name]]
    return f", and {' and '.join(said)} is lost" if said else ""


def _changed(config: Any) -> dict[str, Any]:
    """Settings of a DataLoaderConfiguration that differ from Accelerate's defaults."""
    usual = type(config)()
    return {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if getattr(config, field.name) != getattr(usual, field.name)
    }
