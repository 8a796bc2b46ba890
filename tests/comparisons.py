"""Comparison of loaders: with torch's, with other numbers of workers, and after a resume."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from feedline.loader import DataLoader
from sets import plain, through_json


def anew(make: Any) -> Any:
    """Mark a function as one that creates an argument, for each loader."""
    make.anew = True
    return make


def same_as_torch(make: Callable[[], Any], *, epochs: int = 1, **options: Any) -> list[Any]:
    """Batches, or the class of the exception, the same of torch's loader and of feedline's.

    The draw that follows is part of the result: both leave torch's random state at the same place.

    Args:
        make: creates the dataset.
        epochs: number of epochs.
        options: arguments of both loaders.
    """
    found: list[list[Any]] = []
    for kind in (TorchDataLoader, DataLoader):
        torch.manual_seed(7)
        made = {k: v() if getattr(v, "anew", False) else v for k, v in options.items()}
        try:
            loader = kind(make(), **made)
            found.append([plain(batch) for _ in range(epochs) for batch in loader])
            found[-1].append(float(torch.rand(1)))
        except Exception as error:
            found.append([type(error)])
    assert found[1] == found[0]
    return found[1]


def same_everywhere(
    make: Callable[[int], DataLoader[Any]],
    *,
    workers: tuple[int, ...] = (1, 2),
    seed: bool = True,
    every_state: bool = False,
) -> list[list[Any]]:
    """Two epochs of a loader, the same for any number of workers and from any state.

    Args:
        make: creates the loader, with a number of workers.
        workers: numbers to compare with none.
        seed: the loader has a seed or a schedule, so that a state also determines the next epoch.
        every_state: resume after each batch, instead of after three.
    """

    def epochs(loader: DataLoader[Any]) -> list[list[Any]]:
        return [[plain(batch) for batch in loader] for _ in range(2)]

    states = []
    torch.manual_seed(7)
    with make(0) as loader:
        whole: list[list[Any]] = [[], []]
        for epoch, batches in enumerate(whole):
            for batch in loader:
                batches.append(plain(batch))
                states.append((epoch, len(batches), through_json(loader.state_dict())))
    for count in workers:
        torch.manual_seed(7)
        with make(count) as loader:
            assert epochs(loader) == whole, f"{count} workers"
            for epoch in (1, 0) if count == workers[-1] and loader.seed is not None else ():
                loader.set_epoch(epoch)
                assert [plain(batch) for batch in loader] == whole[epoch], f"set epoch {epoch}"
    picked = states if every_state else [states[0], *states[-2:]]
    for number, (epoch, done, state) in enumerate(picked):
        torch.manual_seed(50 + number)
        random.seed(number)
        with make((workers[-1], 0, workers[0])[number % 3]) as loader:
            loader.load_state_dict(state)
            rest, following = epochs(loader)
            assert rest == whole[epoch][done:], f"after {done} batches of epoch {epoch}"
            assert following == whole[1] or epoch == 1 or not seed
    return whole
