"""The random states that a user's transforms draw from, made to follow from a batch's seed.

Guarantees: after `seed_all(seed)` torch's, Python's and numpy's global states on the CPU depend
on `seed` alone, so that a batch's random transforms are the same whichever worker makes it, on
any number of workers, and after a resume. `kept` puts the states back, for a process that is the
user's own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from feedline.plan.seeds import extend

__all__ = ["fingerprint", "kept", "seed_all"]

_NUMPY, _PYTHON = 1, 2  # each generator gets numbers of its own


def seed_all(seed: int) -> None:
    """Seed the three global generators from 64 bits."""
    # Not torch.manual_seed: that would also seed CUDA, with a stack trace for each call.
    torch.default_generator.manual_seed(seed)
    np.random.seed(extend(seed, _NUMPY) & 0xFFFFFFFF)
    random.seed(extend(seed, _PYTHON))


@contextmanager
def kept() -> Iterator[None]:
    """Put the three global states back at the end."""
    states = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


def fingerprint() -> tuple[int, int, int]:
    """Differs when somebody has seeded or drawn from one of the three."""
    numpy_state = np.random.get_state(legacy=False)["state"]
    return (
        hash(bytes(torch.default_generator.get_state().numpy())),
        hash((numpy_state["key"].tobytes(), numpy_state["pos"])),
        hash(random.getstate()),
    )
