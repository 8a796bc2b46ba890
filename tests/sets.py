"""Datasets, samplers and functions for the tests. They pickle, and workers can import them."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from feedline.order.requested_size import image_size


class Made(Dataset[Any]):
    """Samples by a function of the index; with a lambda it goes by fork only."""

    def __init__(self, length: int, make: Callable[[int], Any]) -> None:
        self.length = length
        self.make = make

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return self.make(index)


class Drawing(Dataset[Any]):
    """A sample is its index and one number from each of the three random states."""

    def __init__(self, length: int = 23) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, float, float]:
        return int(index), torch.rand(2), float(np.random.rand()), random.random()


class Counting(IterableDataset[int]):
    """Yields the numbers below a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


class Sized(Drawing):
    """Like `Drawing`, with the requested image size."""

    def __getitem__(self, index: int) -> Any:
        return image_size(), super().__getitem__(index)


class Slow(Dataset[Any]):
    """A sample is its index, repeated; takes a while."""

    def __init__(self, length: int, seconds: float) -> None:
        self.length, self.seconds = length, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.full((100,), index)


class Kept(Dataset[Any]):
    """Returns an attribute and its process id."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.value, os.getpid()


class Closed(Kept):
    """A dataset that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("this stays here")


class Stateful:
    """A sampler with a state; one permutation per epoch."""

    def __init__(self, length: int, seed: int) -> None:
        self.length, self.seed = length, seed
        self.given = self.passes = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.passes)
        order = torch.randperm(self.length, generator=generator).tolist()
        while self.given < self.length:
            self.given += 1
            yield order[self.given - 1]
        self.given = 0
        self.passes += 1

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given, "passes": self.passes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given, self.passes = state["given"], state["passes"]


class Drawn(Stateful):
    """A sampler that draws lazily, and saves its generator's state."""

    def __init__(self, length: int, seed: int) -> None:
        super().__init__(length, seed)
        self.generator = torch.Generator()
        self.generator.manual_seed(seed)

    def __iter__(self) -> Iterator[int]:
        while self.given < self.length:
            self.given += 1
            yield int(torch.randint(self.length, (1,), generator=self.generator))
        self.given = 0

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "generator": self.generator.get_state().tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.generator.set_state(torch.tensor(state["generator"], dtype=torch.uint8))


class Unrepeatable:
    """A sampler that draws from Python's random state, which is not tracked."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return iter(random.sample(range(self.length), self.length))


class Repeated:
    """A batch sampler without end, as timm's MultiEpochsDataLoader puts in a loader."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


def as_it_is(batch: Any) -> Any:
    """A collate_fn that leaves all to the packing."""
    return batch


def worker_of(index: int) -> list[int]:
    """A sample that says which worker makes it, and of how many."""
    info = get_worker_info()
    assert info is not None
    assert info.dataset[:1] if isinstance(info.dataset, list) else info.dataset
    return [index, info.id, info.num_workers]


def worker_of_batch(samples: list[Any]) -> list[Any]:
    """The same of a collate_fn."""
    info = get_worker_info()
    return [None if info is None else info.id, samples]


def plain(value: Any) -> Any:
    """A batch in comparable form: tensors and arrays with type, dtype, strides and values."""
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, (np.ndarray, np.generic)):
        said = value.tolist() if value.dtype.hasobject else value.tobytes()
        return type(value).__name__, str(value.dtype), value.shape, said
    if isinstance(value, dict):
        return type(value), [(key, plain(part)) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [plain(part) for part in value]
    return type(value), repr(value)


def _tensor(value: torch.Tensor) -> Any:
    if value.is_nested:
        return "nested", [plain(part) for part in value.unbind()]
    if value.layout is not torch.strided:
        return str(value.layout), plain(value.to_dense())
    bare = value.detach().as_subclass(torch.Tensor)
    data = bare.resolve_conj().clone(memory_format=torch.contiguous_format).view(-1)
    said = bytes(data.view(torch.uint8).numpy()) if data.numel() else b""
    extra = {key: repr(part) for key, part in vars(value).items() if not key.startswith("_")}
    kind = type(value), value.dtype, tuple(value.shape), bare.stride(), value.requires_grad
    return *kind, said, extra


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    """A state as it comes back from a file."""
    back: dict[str, Any] = json.loads(json.dumps(state))
    return back
