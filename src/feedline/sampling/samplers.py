"""What a loader has to know of a sampler, whatever class it is of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sized
from typing import Any, Protocol

from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = [
    "Stateful",
    "chain",
    "describe",
    "drawn_by",
    "draws_nothing",
    "epoch_mark",
    "set_epoch",
    "share_of",
    "stateful_part",
]


class Stateful(Protocol):
    """A sampler that says where it stands."""

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there with the next pass."""
        ...


_DEEPEST = 10  # samplers within one another


def chain(sampler: object) -> Iterator[Any]:
    """A sampler, and those within it: a batch sampler's sampler and so on, each of them once."""
    parts: list[object] = []
    # One may be within itself, or make up another whenever it is asked, as mocks do.
    while sampler is not None and len(parts) < _DEEPEST and all(sampler is not p for p in parts):
        parts.append(sampler)
        yield sampler
        sampler = getattr(sampler, "sampler", None)


def stateful_part(sampler: object) -> Stateful | None:
    """The outermost of them that keeps a state of its own."""
    for part in chain(sampler):
        methods = (getattr(part, name, None) for name in ("state_dict", "load_state_dict"))
        if all(map(callable, methods)):
            return part  # type: ignore[no-any-return]
    return None


def epoch_mark(sampler: object) -> int | None:
    """The epoch that a sampler was set to, by `set_epoch`; None where it has none."""
    for part in chain(sampler):
        if hasattr(part, "set_epoch"):
            epoch = getattr(part, "epoch", None)
            if isinstance(epoch, int):
                return epoch
    return None


def set_epoch(sampler: object, epoch: int) -> None:
    """Set a sampler to an epoch, if it knows of epochs."""
    for part in chain(sampler):
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)
            return


def draws_nothing(sampler: object) -> bool:
    """Whether a sampler surely draws from no random state but one that it seeds itself."""
    *outer, inner = chain(sampler)
    known = (SequentialSampler, DistributedSampler)
    return any(type(inner).__iter__ is each.__iter__ for each in known) and all(
        isinstance(part, BatchSampler) and type(part).__module__.startswith(("torch.", "feedline."))
        for part in outer
    )


def drawn_by(sampler: object) -> str | None:
    """Name of torch's sampler that draws at random from all samples; None for any other.

    A sampler that shares samples out among ranks is another.
    """
    *_, inner = chain(sampler)
    if share_of(sampler)[1] > 1:
        return None
    kinds = (WeightedRandomSampler, SubsetRandomSampler, RandomSampler)
    return next((kind.__name__ for kind in kinds if isinstance(inner, kind)), None)


def share_of(sampler: object) -> tuple[int, int]:
    """The rank and the number of ranks that a sampler deals samples out to; (0, 1) for none."""
    for part in chain(sampler):
        rank, ranks = getattr(part, "rank", None), getattr(part, "num_replicas", None)
        if isinstance(rank, int) and isinstance(ranks, int) and ranks > 0:
            return rank, ranks
    return 0, 1


def describe(sampler: object) -> dict[str, Any]:
    """What a state says of a sampler: JSON-able, the same on every rank and for any number."""
    parts = list(chain(sampler))
    inner = parts[-1]
    said: dict[str, Any] = {"type": " of ".join(type(part).__name__ for part in parts)}
    if isinstance(inner, DistributedSampler):
        said |= {"seed": inner.seed, "shuffle": inner.shuffle, "drop_last": inner.drop_last}
    elif isinstance(inner, RandomSampler):
        said["replacement"] = inner.replacement
    if not isinstance(inner, DistributedSampler) and isinstance(inner, Sized):
        with contextlib.suppress(TypeError):  # it has a __len__ that refuses
            said["samples"] = len(inner)
    return said
