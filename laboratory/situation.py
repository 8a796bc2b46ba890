"""A situation: a training loop with one thing wrong, or nothing, and the same with that mended.

The loop is the same in all of them: it asks a watched loader for batches and does a step for each.
What is measured is the time for a sample from the first batch on, by a clock of the laboratory's
own; the start of the first pass is left out, as a diagnosis leaves it out.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import feedline
from feedline.system import usable_cores
from feedline.trace.run import Run

CORES = usable_cores()

_BLOCK = bytes(1 << 15)  # hashed in some 20 us

Step = Callable[[Any], None]


@dataclass
class Outcome:
    """What one run of a loop gave."""

    run: Run
    seconds: float
    samples: int


@dataclass
class Situation:
    """One planted bottleneck.

    Args:
        name: of the function that plants it.
        planted: the rule that must be named first.
        over: "torch" or "feedline".
        what: in words, what is wrong and what the fix is.
        loop: runs it, as planted or with the fix applied.
        predicts: whether the gain of the fix applied is the one that is predicted; else only the
            name is compared.
        needs: a question that must be answered with yes for it to be planted here.
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
    """Register a loop; its docstring says what is planted."""

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
    """A training loop.

    Args:
        loader: gives batches; or what builds a loader for an epoch.
        step: is called with each batch.
        epochs: passes over the loader.
        at_most: batches of an epoch.
    """
    watched = None if callable(loader) else feedline.watch(loader)
    begun_s, samples = 0.0, 0
    for epoch in range(epochs):
        if callable(loader):
            watched = feedline.watch(loader(epoch))
        assert watched is not None
        for number, batch in enumerate(watched):
            if not begun_s:
                begun_s = time.perf_counter()
            step(batch)
            samples += _length(batch)
            if number + 1 == at_most:
                break
    seconds = time.perf_counter() - begun_s if begun_s else 0.0
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
    """A step that takes so long on a device: the host waits for it, on no core."""

    def step(batch: Any) -> None:
        time.sleep(ms / 1000)

    return step


def burn(ms: float) -> None:
    """Be on a core for so long, mostly without the interpreter, as code that decodes is."""
    end_ns = time.thread_time_ns() + int(1e6 * ms)
    while time.thread_time_ns() < end_ns:
        hashlib.sha1(_BLOCK, usedforsecurity=False)
