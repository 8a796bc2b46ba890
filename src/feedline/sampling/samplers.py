"""Properties of samplers of any class."""

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
    """A sampler with a state."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the sampler."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a position with the next pass."""
        ...


_DEEPEST = 10  # samplers within one another


def chain(sampler: object) -> Iterator[Any]:
    """Yield a sampler and the samplers nested in it, without duplicates."""
    parts: list[object] = []
    # One may be within itself, or make up another whenever it is asked, as mocks do.
    while sampler is not None and len(parts) < _DEEPEST and all(sampler is not p for p in parts):
        parts.append(sampler)
        yield sampler
        sampler = getattr(sampler, "sampler", None)


def stateful_part(sampler: object) -> Stateful | None:
    """Outermost nested sampler with state_dict and load_state_dict."""
    for part in chain(sampler):
        methods = (getattr(part, name, None) for name in ("state_dict", "load_state_dict"))
        if all(map(callable, methods)):
            return part  # type: ignore[no-any-return]
    return None


def epoch_mark(sampler: object) -> int | None:
    """Epoch of a sampler with `set_epoch`; None if it has none."""
    for part in chain(sampler):
        if hasattr(part, "set_epoch"):
            epoch = getattr(part, "epoch", None)
            if isinstance(epoch, int):
                return epoch
    return None


def set_epoch(sampler: object, epoch: int) -> None:
    """Call `set_epoch` of a sampler, if it has that method."""
    for part in chain(sampler):
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)
            return


def draws_nothing(sampler: object) -> bool:
    """Return True if a sampler is known to use no random state but one it seeds itself."""
    *outer, inner = chain(sampler)
    known = (SequentialSampler, DistributedSampler)
    return any(type(inner).__iter__ is each.__iter__ for each in known) and all(
        isinstance(part, BatchSampler) and type(part).__module__.startswith(("torch.", "feedline."))
        for part in outer
    )


def drawn_by(sampler: object) -> str | None:
    """Name of the torch sampler that draws at random from all samples; None for any other.

    A sampler that distributes samples over ranks counts as another.
    """
    *_, inner = chain(sampler)
    if share_of(sampler)[1] > 1:
        return None
    kinds = (WeightedRandomSampler, SubsetRandomSampler, RandomSampler)
    return next((kind.__name__ for kind in kinds if isinstance(inner, kind)), None)


def share_of(sampler: object) -> tuple[int, int]:
    """Rank and number of ranks that a sampler distributes samples to; (0, 1) if it does not."""
    for part in chain(sampler):
        rank, ranks = getattr(part, "rank", None), getattr(part, "num_replicas", None)
        if isinstance(rank, int) and isinstance(ranks, int) and ranks > 0:
            return rank, ranks
    return 0, 1


def describe(sampler: object) -> dict[str, Any]:
    """Description of a sampler for a state: JSON-able, equal on every rank and for any number."""
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
