"""A loader's side of Hugging Face Accelerate.

Guarantees: where feedline does by itself what Accelerate promises, `accelerator.prepare(loader)`
gives back the same loader: `save_state` and `load_state` keep its state, and Accelerate knows which
batch of an epoch is the last. Elsewhere Accelerate makes a loader of its own from this one's parts,
as it does of torch's, and a warning says so. What was asked for and cannot be is an error.
Relies on: `Accelerator.prepare_data_loader` asking a loader first whether it is prepared. It passes
nothing of its configuration, which is read where it asks from.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, TypeVar

from torch.utils.data import IterableDataset

from feedline.errors import UsageError
from feedline.loader.checks import is_native
from feedline.loader.skip_first_batches import BUILDS_STOCK, SkipFirstBatches
from feedline.plan.batches import Plan
from feedline.sampling.samplers import chain

__all__ = ["TOLD_BY_ACCELERATE", "Accelerated"]

T = TypeVar("T")

TOLD_BY_ACCELERATE = frozenset(
    {"end_of_dataloader", "gradient_state", "remainder", "_passes", "_sends"}
)
"""Attributes of a loader that are of one run: a copy has to be prepared itself."""

_HEEDED = ("non_blocking", "use_stateful_dataloader")
_WITHOUT_EFFECT = {
    "planned": ("use_seedable_sampler",),  # all ranks have one order in any case
    "alone": ("even_batches",),
}
"""Settings of Accelerate's that change nothing where feedline plans, or on one process."""


class Accelerated:
    """For a loader with `dataset`, `batch_sampler`, `batch_size`, `drop_last`, `device`, `ranks`.

    `accumulate` and `gather_for_metrics` read `end_of_dataloader` and `remainder` of the loader
    under way: whether the batch handed out is the epoch's last, and how many rows of the last
    batch over all ranks are no repetitions (0: as many as there are; -1: not known).
    """

    dataset: Any
    batch_sampler: Any
    batch_size: int | None
    drop_last: bool
    device: Any

    @property
    def ranks(self) -> int:
        """How many processes the loader shares its samples among."""
        raise NotImplementedError

    @property
    def plan(self) -> Plan | None:
        """The order that feedline makes; None where samplers or the dataset make it."""
        raise NotImplementedError

    @property
    def epoch(self) -> int:
        """The epoch under way."""
        raise NotImplementedError

    use_stateful_dataloader = True  # save_state and load_state ask for this name
    end_of_dataloader = False
    remainder = -1
    gradient_state: Any = None  # Accelerate's, from `prepare` on
    _sends: Callable[[Any], Any] | None = None  # moves a batch to Accelerate's device
    _passes = 0  # iterations that Accelerate knows of
    in_a_wrapper = False
    """Whether a wrapper of Accelerate's reads from this loader."""

    @property
    def collate_fn(self) -> Any:
        """As it was given, or torch's. Who builds a stock loader of this one's parts takes it."""
        asking = sys._getframe(1).f_globals.get("__name__")
        prepared = self.in_a_wrapper or self.gradient_state is not None
        if prepared and asking == "accelerate.data_loader":
            warnings.warn(
                f"{BUILDS_STOCK} of a feedline.DataLoader that it has prepared: torch's workers "
                f"load{_lost(self)}. Call skip_first_batches of the Accelerator; of a loader whose "
                "state load_state has restored no batch is left to skip",
                RuntimeWarning,
                stacklevel=3,
            )
        return self.__dict__["collate_fn"]

    @collate_fn.setter
    def collate_fn(self, collate_fn: Any) -> None:
        self.__dict__["collate_fn"] = collate_fn

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Asked by an Accelerator: whether this loader is what `prepare` is to give back.

        Raises:
            UsageError: the loader plans its order, and the Accelerator wants it otherwise.
        """
        frame = sys._getframe(1)
        asking, accelerator = frame.f_locals, frame.f_locals.get("self")
        config = getattr(accelerator, "dataloader_config", None)
        if accelerator is None or config is None:
            prepared = self.gradient_state is not None
            if not prepared and str(frame.f_globals.get("__name__")).startswith("accelerate."):
                warnings.warn(
                    f"accelerate {getattr(sys.modules['accelerate'], '__version__', '?')} asks in "
                    "a way that feedline does not know whether this loader is prepared: Accelerate "
                    "makes a stock DataLoader of it, in which torch's workers load",
                    RuntimeWarning,
                    stacklevel=3,
                )
            return prepared
        why = self.check_accelerator(accelerator)
        if why:
            if not isinstance(self.dataset, IterableDataset):
                warnings.warn(
                    f"{BUILDS_STOCK} of this feedline.DataLoader, as {why}: torch's workers load"
                    f"{_lost(self)}. feedline.frameworks.accelerate.prepare(accelerator, loader) "
                    "gives the same batches by feedline's workers",
                    RuntimeWarning,
                    stacklevel=3,
                )
            return False
        self._join(accelerator, asking.get("device_placement"), config)
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        """What `Accelerator.prepare` does to each loader it keeps: the getter did it all."""

    def check_accelerator(self, accelerator: Any) -> str:
        """Why feedline cannot do what an Accelerator promises; "" where it does.

        Raises:
            UsageError: the loader plans its order, or was given a seed or a schedule beside a
                sampler, and the Accelerator wants the batches otherwise.
        """
        planned = self.plan is not None or is_native(self.dataset)
        processes = accelerator.num_processes
        if planned and processes != self.ranks:
            raise UsageError(
                f"the loader shares its samples among {self.ranks} and Accelerate runs {processes} "
                "processes; give the loader a seed, by which it shares them out itself, and build "
                "it after the Accelerator, or pass rank and world_size"
            )
        mesh = getattr(accelerator, "torch_device_mesh", None)
        why = self._why_not(processes, _changed(accelerator.dataloader_config), planned)
        if mesh is not None and {"tp", "cp", "sp"} & set(mesh.mesh_dim_names or ()):
            why = "in the Accelerator's device mesh several ranks share one batch"
        if why and planned:
            raise UsageError(
                f"the loader makes its own order, and {why}; leave that out, or leave seed and "
                "schedule out of the loader: then Accelerate shares the samples out"
            )
        given = [name for name in ("schedule", "seed") if vars(self)[name] is not None]
        if why and given:
            raise UsageError(
                f"{' and '.join(given)} and a sampler were given to the loader, and {why}, for "
                "which it builds a loader without them; leave them out, or the sampler: then "
                "feedline makes the order and shares it out"
            )
        return why

    def _why_not(self, processes: int, changed: Mapping[str, Any], planned: bool) -> str:
        """Why feedline cannot do what Accelerate promises; "" where it does."""
        harmless = _HEEDED + (_WITHOUT_EFFECT["planned"] if planned else ())
        harmless += _WITHOUT_EFFECT["alone"] if processes == 1 else ()
        told = {name: value for name, value in changed.items() if name not in harmless}
        if told:
            said = ", ".join(f"{name}={value!r}" for name, value in told.items())
            return f"the Accelerator was given DataLoaderConfiguration({said})"
        if planned and hasattr(self.dataset, "set_epoch"):
            return "Accelerate tells the dataset the epoch, by its set_epoch, which it leaves here"
        if planned:
            return ""
        if isinstance(self.dataset, IterableDataset):
            return "the dataset is an IterableDataset"
        if processes > 1:
            return f"Accelerate runs {processes} processes"
        parts = (self.dataset, *chain(self.batch_sampler))
        if any(hasattr(part, "set_epoch") for part in parts):
            return "Accelerate tells the sampler or the dataset the epoch"
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
        """Make the next iteration begin behind so many batches of its epoch."""
        raise NotImplementedError

    def watched(self, batches: Iterator[T], at_end: Callable[[], bool]) -> Iterator[T]:
        """The batches, told to Accelerate once it prepared this loader.

        Args:
            batches: the iteration.
            at_end: whether it has none left, as of now.
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
        if self.plan is not None:
            rows_a_batch = self.plan.global_batch(self.epoch) // self.ranks
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
                "with less to fill up, or take what `loader.batch.padding` says out yourself",
                RuntimeWarning,
                stacklevel=4,
            )
        return rows if missing < 2 else 0


def _lost(loader: Any) -> str:
    """What a stock loader has nothing of, where it was asked for."""
    usual = {"on_error": "raise", "image_size": None}
    asked = {name: vars(loader)[name] for name in usual}
    said = [f"{name}={value!r}" for name, value in asked.items() if value != usual[name]]
    return f", and {' and '.join(said)} is lost" if said else ""


def _changed(config: Any) -> dict[str, Any]:
    """The settings of a DataLoaderConfiguration that are not Accelerate's defaults."""
    usual = type(config)()
    return {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if getattr(config, field.name) != getattr(usual, field.name)
    }
