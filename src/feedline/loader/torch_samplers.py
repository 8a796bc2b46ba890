"""Properties of torch samplers, the random states they use, and a loader's public samplers.

The random states that determine an epoch's order are saved in the loader's state and replayed on
resume: torch's global random state, and the state of every `torch.Generator` in the attribute
`generator` of the loader or of one of its samplers. Saving only reads the random states. A replay
uses a copy of the global random state, and does not change the global random state itself.

Frameworks read a loader's `sampler` and `batch_sampler`: they ask for a length, set the epoch, and
replace a sampler that does not distribute samples over ranks (i.e. is not a DistributedSampler).
Some build a torch DataLoader from the parts. It requests batches from these samplers, which then
warn or raise an error. The order of samples is defined in `order.sample_order`.
"""

from __future__ import annotations

import base64
import contextlib
import inspect
import sys
import warnings
import weakref
import zlib
from collections.abc import Callable, Iterator, Sized
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from feedline.errors import StateError, UsageError
from feedline.loader.dataset_kind import is_row_source
from feedline.order.sample_order import SEQUENTIAL, Order
from feedline.system import find_attribute

_Result = TypeVar("_Result")
_drawing: ContextVar[bool] = ContextVar("feedline_drawing", default=False)


def draws_for_feedline() -> bool:
    """Return True while a feedline loader requests the keys of a batch from a sampler."""
    return _drawing.get()


def draw(function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Call a function that draws from a sampler. `draws_for_feedline` is True meanwhile."""
    # In a separate context, so that Ctrl-C at any line cannot leave the variable set.
    return copy_context().run(_draw, function, *arguments)


def _draw(function: Callable[..., _Result], *arguments: Any) -> _Result:
    _drawing.set(True)
    return function(*arguments)


_MAX_DEPTH = 10  # of nested samplers


def nested_samplers(sampler: object) -> Iterator[Any]:
    """Yield a sampler and its nested samplers, without duplicates."""
    parts: list[object] = []
    # A sampler may contain itself, or create its `sampler` at each access, as mocks do.
    while sampler is not None and len(parts) < _MAX_DEPTH and all(sampler is not p for p in parts):
        parts.append(sampler)
        yield sampler
        sampler = find_attribute(sampler, "sampler")


def has_state(part: object) -> bool:
    """Return True if an object has load_state_dict, and a state_dict that needs no arguments.

    That of the datasets of litdata and mosaicml-streaming needs the position, for their own loader.
    """
    save = find_attribute(part, "state_dict")
    if not (callable(save) and callable(find_attribute(part, "load_state_dict"))):
        return False
    try:
        inspect.signature(save).bind()
    except ValueError:  # a function written in C may have no signature
        return True
    except TypeError:
        return False
    return True


def stateful_part(sampler: object) -> Any:
    """Outermost of the nested samplers that has a state; None if no sampler has one."""
    return next(filter(has_state, nested_samplers(sampler)), None)


def epoch_of(sampler: object) -> int | None:
    """Epoch number of a sampler with `set_epoch`; None for any other sampler."""
    for part in nested_samplers(sampler):
        if find_attribute(part, "set_epoch") is not None:
            epoch = find_attribute(part, "epoch")
            if isinstance(epoch, int):
                return epoch
    return None


def set_epoch(sampler: object, epoch: int) -> None:
    """Call `set_epoch` of a sampler, if it has that method."""
    for part in nested_samplers(sampler):
        if find_attribute(part, "set_epoch") is not None:
            part.set_epoch(epoch)
            return


def draws_nothing(sampler: object) -> bool:
    """Return True if a sampler is known to use no random state from outside the sampler."""
    *outer, inner = nested_samplers(sampler)
    classes = (SequentialSampler, DistributedSampler)
    return any(type(inner).__iter__ is each.__iter__ for each in classes) and all(
        isinstance(part, BatchSampler) and type(part).__module__.startswith(("torch.", "feedline."))
        for part in outer
    )


def random_sampler_name(sampler: object) -> str | None:
    """Class name of a torch sampler that draws at random from all samples on each rank, or None."""
    *_, inner = nested_samplers(sampler)
    if sampler_rank_and_world_size(sampler)[1] > 1:
        return None
    classes = (WeightedRandomSampler, SubsetRandomSampler, RandomSampler)
    return next((each.__name__ for each in classes if isinstance(inner, each)), None)


def sampler_rank_and_world_size(sampler: object) -> tuple[int, int]:
    """Rank and number of ranks of a sampler that distributes samples; otherwise (0, 1)."""
    for part in nested_samplers(sampler):
        rank, ranks = find_attribute(part, "rank"), find_attribute(part, "num_replicas")
        if isinstance(rank, int) and isinstance(ranks, int) and ranks > 0:
            return rank, ranks
    return 0, 1


def describe(sampler: object) -> dict[str, Any]:
    """Description of a sampler for a state: JSON-able, equal on every rank, for any rank count."""
    parts = list(nested_samplers(sampler))
    inner = parts[-1]
    description: dict[str, Any] = {"type": " of ".join(type(part).__name__ for part in parts)}
    if isinstance(inner, DistributedSampler):
        description |= {"seed": inner.seed, "shuffle": inner.shuffle, "drop_last": inner.drop_last}
    elif isinstance(inner, RandomSampler):
        description["replacement"] = inner.replacement
    if not isinstance(inner, DistributedSampler) and isinstance(inner, Sized):
        with contextlib.suppress(TypeError):  # raised by __len__
            description["samples"] = len(inner)
    return description


_MAX_STATE_BYTES = 1 << 16
"""Upper limit of a random state in bytes: data that unpacks to more is damaged."""


@dataclass(frozen=True)
class RandomStates:
    """Recorded random states: torch's global one, and those of the generators, in order."""

    global_rng_state: bytes
    generator_rng_states: tuple[bytes, ...]
    generators: tuple[torch.Generator, ...]

    @classmethod
    def capture(cls, sampler: object, generator: torch.Generator | None) -> RandomStates:
        """Record the current random states."""
        generators = sampler_generators(sampler, generator)
        rng_states = tuple(_to_bytes(each.get_state()) for each in generators)
        return cls(_to_bytes(torch.default_generator.get_state()), rng_states, generators)

    def set_generators(self) -> None:
        """Restore the generators. The global random state is not changed."""
        for each, rng_state in zip(self.generators, self.generator_rng_states, strict=True):
            each.set_state(_to_tensor(rng_state))

    def as_json(self) -> list[str]:
        """Text form, some kilobytes per random state: the global one, then the generators."""
        rng_states = self.global_rng_state, *self.generator_rng_states
        return [base64.b85encode(zlib.compress(each, 9)).decode() for each in rng_states]

    @classmethod
    def from_json(
        cls, text: Any, sampler: object, generator: torch.Generator | None
    ) -> RandomStates:
        """Read the text form, or raise a StateError."""
        generators = sampler_generators(sampler, generator)
        try:
            global_rng_state, *rng_states = map(_from_text, text)
            devices = [torch.device("cpu"), *(each.device for each in generators)]
            # Tried now, because an invalid one would otherwise fail in mid-epoch.
            for device, rng_state in zip(devices, (global_rng_state, *rng_states), strict=False):
                torch.Generator(device).set_state(_to_tensor(rng_state))
        except (KeyError, TypeError, ValueError, RuntimeError, zlib.error) as error:
            raise StateError(f"cannot resume: damaged random state ({error})") from None
        if len(rng_states) != len(generators):
            raise StateError(
                f"cannot resume: the state holds {len(rng_states)} generators for the order of the "
                f"samples, this loader has {len(generators)}; pass the same generator= as before"
            )
        return cls(global_rng_state, tuple(rng_states), generators)

    @contextlib.contextmanager
    def replace_global_state(self) -> Iterator[None]:
        """Context manager: use the recorded global random state, and restore the previous one."""
        current = torch.default_generator.get_state()
        torch.default_generator.set_state(_to_tensor(self.global_rng_state))
        try:
            yield
        finally:
            torch.default_generator.set_state(current)

    def with_current_global_state(self) -> RandomStates:
        """Copy with the current global random state."""
        return replace(self, global_rng_state=_to_bytes(torch.default_generator.get_state()))


def sampler_generators(
    sampler: object, generator: torch.Generator | None
) -> tuple[torch.Generator, ...]:
    """Generators of a loader's sampler, of the samplers within it, and of the loader itself."""
    every = [generator, *[find_attribute(part, "generator") for part in nested_samplers(sampler)]]
    return tuple({id(each): each for each in every if isinstance(each, torch.Generator)}.values())


def _to_bytes(rng_state: torch.Tensor) -> bytes:
    return rng_state.numpy().tobytes()


def _to_tensor(rng_state: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(rng_state, np.uint8).copy())


def _from_text(text: str) -> bytes:
    return zlib.decompressobj().decompress(base64.b85decode(text), _MAX_STATE_BYTES)


class PlannedSampler(DistributedSampler[Any]):
    """Sampler view of the planned order, also after the loader's end. Its epoch is the loader's."""

    def __init__(self, order: Order, dataset: Any, loader: Any) -> None:
        self.update_from_order(order, dataset)
        self._first_order = order
        self._loader: weakref.ref[Any] = weakref.ref(loader)
        self._is_setting = False  # True while `set_epoch` sets the loader's epoch
        self._latest: int | None = None  # epoch of the latest `__iter__`

    def update_from_order(self, order: Order, dataset: Any) -> None:
        """Set the attributes of a DistributedSampler from an order."""
        epoch = getattr(self, "epoch", 0)
        super().__init__(
            dataset,
            num_replicas=order.world_size,
            rank=order.rank,
            shuffle=order.sample_order != SEQUENTIAL,
            seed=order.seed,
            drop_last=order.drop_last,
        )
        self.epoch = epoch

    @property
    def _order(self) -> Order:
        return getattr(self._loader(), "order", None) or self._first_order

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the loader's next iteration."""
        super().set_epoch(epoch)
        loader = self._loader()
        # If a framework has wrapped the batch sampler, the loader calls this method again.
        if loader is not None and not self._is_setting:
            self._is_setting = True
            try:
                loader.set_epoch(epoch)
            finally:
                self._is_setting = False

    def __iter__(self) -> Iterator[int]:
        """Sample indices of this rank's part of the epoch, in order.

        The indices of an incomplete last batch are included even with `drop_last`. The batch
        sampler drops them, unless a framework sets it to keep them (Lightning does for `predict`).
        """
        epoch = getattr(self._loader(), "epoch", self.epoch)
        if self.shuffle and epoch == self._latest:
            warnings.warn(
                "Another DataLoader iterates the sampler of a feedline.DataLoader again in epoch "
                f"{epoch} and gets the same order: this does not advance the epoch of the feedline "
                "loader. Call set_epoch() before each pass, or remove seed= if a framework defines "
                "the order (e.g. ignite's DeterministicEngine)",
                RuntimeWarning,
                stacklevel=2,
            )
        self._latest = epoch
        order, remaining = replace(self._order, drop_last=False), len(self)
        for step in range(order.steps(epoch)):
            samples = order.batch(epoch, step).samples[:remaining]
            yield from samples.tolist()
            remaining -= len(samples)

    def __len__(self) -> int:
        """Number of samples of each rank: some are repeated, or with `drop_last` dropped."""
        order = self._order
        padded = order.length + (0 if order.drop_last else order.world_size - 1)
        return padded // order.world_size


class PublicBatchSampler(BatchSampler):
    """Batch sampler of a loader with a planned order.

    It defines no `__init__`, because frameworks build one with BatchSampler's arguments.
    """

    even_batches = True  # read and set by Accelerate: every rank has the same number of batches

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "batch_size" and vars(self).get(name, value) != value:
            raise UsageError(
                f"cannot set the batch sampler's batch_size to {value}: a loader with a seed or a "
                "schedule plans its batches; put the batch sizes into the schedule, e.g. "
                '"ownx1@32,ownx1@64", or remove seed and schedule'
            )
        super().__setattr__(name, value)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the sampler, if it has `set_epoch`."""
        if (set_epoch := find_attribute(self.sampler, "set_epoch")) is not None:
            set_epoch(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        """Keys of each batch. Warns if another loader iterates them."""
        if not draws_for_feedline():
            ranks = find_attribute(self.sampler, "num_replicas", 1)
            if ranks > 1 and accelerate_processes() not in (None, 1):
                raise UsageError(
                    f"the loader distributes its samples over {ranks} ranks, and Accelerate would "
                    f"distribute this rank's share again; {_PREPARE}, with transformers return "
                    f"{_STEPWISE}, or remove seed and schedule from the loader"
                )
            warnings.warn(
                "another loader draws from the batch sampler of a feedline.DataLoader, so "
                "feedline's engine is not used. A framework may have replaced the loader by a "
                f"torch DataLoader. With Accelerate {_PREPARE}, and the Accelerator's method "
                f"skip_first_batches; with transformers return {_STEPWISE}",
                RuntimeWarning,
                stacklevel=2,
            )
        return super().__iter__()


def accelerate_processes() -> int | None:
    """Number of processes of Accelerate; None if no Accelerator exists."""
    state: Any = sys.modules.get("accelerate.state")
    if state is None or not state.is_initialized():
        return None
    return int(state.AcceleratorState().num_processes)


def warn_of_stock_loader(loader: Any) -> bool:
    """Warn that Accelerate builds a torch DataLoader from a loader's parts. Return True if so."""
    processes = accelerate_processes()
    if processes is None or isinstance(loader.dataset, IterableDataset):
        return False
    ranks = loader.ranks if loader.order is not None else 1
    if is_row_source(loader.dataset) or loader.schedule is not None or ranks > 1:
        raise UsageError(
            f"accelerator.prepare would build a torch DataLoader, which cannot give this loader's "
            f"batches; {_PREPARE}"
        )
    lost = [name for name in ("image_size", "cache", "device") if getattr(loader, name) is not None]
    lost += ["on_error"] if loader.on_error != "raise" else []
    kind = getattr(sys.modules.get("accelerate.data_loader"), "DataLoader", None)
    if not lost and getattr(kind, "__module__", "").startswith("feedline."):
        return False  # the program has replaced torch's class by feedline's
    without = f", without {', '.join(f'{name}=' for name in lost)}" if lost else ""
    warnings.warn(
        f"Accelerate builds a torch DataLoader from this feedline.DataLoader: torch's workers load "
        f"the data{without}. To keep feedline's workers {_PREPARE}",
        RuntimeWarning,
        stacklevel=4,
    )
    return True


_STEPWISE = "feedline.integrations.transformers.Stepwise(loader)"
_PREPARE = "call feedline.integrations.accelerate.prepare(accelerator, loader)"
