"""A situation: a training loop with one bottleneck or none, and the same loop with the fix applied.

The loop is always the same: it requests batches from a watched loader and runs a step for each. The
time per sample is measured from the first batch on with the laboratory's own clock; like a
diagnosis, it excludes the start of the first epoch.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import feedline
from feedline.system import usable_cores
from feedline.timing.run import Run

CORES = usable_cores()

_BLOCK = bytes(1 << 15)  # hashed in about 20 us

Step = Callable[[Any], None]


@dataclass
class Outcome:
    """Result of one run of a loop."""

    run: Run
    seconds: float
    samples: int


@dataclass
class Situation:
    """A planted bottleneck.

    Args:
        name: name of the function that plants it.
        planted: rule that must be named first.
        over: "torch" or "feedline".
        what: description of the bottleneck and the fix.
        loop: runs the loop, with the bottleneck or with the fix applied.
        predicts: the gain of the fix must match the predicted gain; otherwise only the rule is
            compared.
        needs: returns True if the situation is possible on this machine.
    """

    name: str
    planted: str
    over: str
    what: str
    loop: Callable[[bool], Outcome]
    predicts: bool = True
    needs: Callable[[], bool] = field(default=lambda: True)


SITUATIONS: list[Situation] = []


def situation(
    planted: str, over: str, *, predicts: bool = True, needs: Callable[[], bool] = lambda: True
) -> Callable[[Callable[[bool], Outcome]], Callable[[bool], Outcome]]:
    """Register a loop; its docstring describes the bottleneck."""

    def register(loop: Callable[[bool], Outcome]) -> Callable[[bool], Outcome]:
        name, what = loop.__name__.replace("_", "-"), (loop.__doc__ or "").strip()
        SITUATIONS.append(Situation(name, planted, over, what, loop, predicts, needs))
        return loop

    return register


def train(
    loader: Iterable[Any] | Callable[[int], Iterable[Any]],
    step: Step,
    *,
    epochs: int = 1,
    at_most: int | None = None,
) -> Outcome:
    """Run a training loop.

    Args:
        loader: yields batches; or a function that builds a loader for an epoch.
        step: called with each batch.
        epochs: passes over the loader.
        at_most: maximum number of batches per epoch.
    """
    watched = None if callable(loader) else feedline.watch(loader)
    start_s, samples = 0.0, 0
    for epoch in range(epochs):
        if callable(loader):
            watched = feedline.watch(loader(epoch))
        assert watched is not None
        for number, batch in enumerate(watched):
            if not start_s:
                start_s = time.perf_counter()
            step(batch)
            samples += _length(batch)
            if number + 1 == at_most:
                break
    seconds = time.perf_counter() - start_s if start_s else 0.0
    assert watched is not None
    return Outcome(watched.run, seconds, samples)


def _length(batch: Any) -> int:
    first = next(iter(batch.values())) if isinstance(batch, dict) else batch
    while isinstance(first, (list, tuple)):
        if len(first) > 8:  # a list of samples
            return len(first)
        first = first[0]
    return len(first)


def paced(ms: float) -> Step:
    """A step of fixed duration on a device: the host waits without using a core."""

    def step(batch: Any) -> None:
        time.sleep(ms / 1000)

    return step


def burn(ms: float) -> None:
    """Use a core for `ms`, mostly without holding the GIL, like code that decodes."""
    end_ns = time.thread_time_ns() + int(1e6 * ms)
    while time.thread_time_ns() < end_ns:
        hashlib.sha1(_BLOCK, usedforsecurity=False)
