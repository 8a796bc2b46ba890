"""`feedline.tune`: the fewest workers with which a training is as fast as it can be.

Guarantees: the loader's workers live from trial to trial; when it returns or raises, the loader has
the workers that it had and stands where it stood. Ctrl-C gives what is known so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from feedline.control.limits import Limits
from feedline.engine.start_method import WORKER_BYTES
from feedline.errors import UsageError
from feedline.loader import DataLoader
from feedline.system import available_memory_bytes, usable_cores
from feedline.tuning.rehearsal import Rehearsal, Step
from feedline.tuning.search import Search
from feedline.tuning.trial import Trial
from feedline.tuning.tuned import Ended, Tuned, TunedPhase

__all__ = ["tune"]

_CEILING_S = 1.0
_LEAST_S, _MOST_S = 1.0, 4.0  # a trial
_TRIALS = 5
_STEPS = 8  # that a trial takes at least, those of the crew before included
_MEMORY = 0.5  # of what is available


def tune(
    loader: DataLoader[Any],
    step: Step | None = None,
    *,
    step_ms: float | None = None,
    budget_s: float = 60.0,
    told: Callable[[int | None, Trial], object] | None = None,
) -> Tuned:
    """Find the fewest workers with which a training is as fast as it can be, for each image size.

    Files should be in the page cache, as in later epochs: go over the loader once where memory
    holds them.

    Args:
        loader: with workers, and with nothing under way; its batches are taken, as many as it
            needs, and it stands at its beginning afterwards.
        step: one training step on a batch, the copy to the device included, that waits for what it
            computes (`torch.cuda.synchronize`). It really trains.
        step_ms: in its place, how long a step takes at the largest size; shorter at smaller ones
            as the images have fewer pixels. The process sleeps for so long.
        budget_s: how many seconds it may take.
        told: is called after each trial with the image size.

    Raises:
        UsageError: neither or both of `step` and `step_ms`; the loader has no workers, or its
            number cannot change; the budget is too short for anything.
        Exception: whatever the step or the dataset raises.

    Example:
        >>> found = feedline.tune(loader, train_step)                           # doctest: +SKIP
        >>> print(found)                                                        # doctest: +SKIP
    """
    _check(loader, step, step_ms, budget_s)
    sizes = _sizes(loader)
    begun, had, adapted = time.monotonic(), loader.num_workers, loader.adapts
    state = loader.state_dict()
    phases: list[TunedPhase] = []
    ended: Ended = "done"
    loader.adapts = False
    try:
        for k, size in enumerate(sizes):
            left_s = budget_s - (time.monotonic() - begun)
            until = time.monotonic() + left_s / (len(sizes) - k)
            own = step or _paced(step_ms or 0.0, size, max((one or 0 for one in sizes), default=0))
            if ended == "done":
                phases.append(_phase(loader, own, size, until, told))
                if phases[-1].ended == "interrupted":
                    ended = "interrupted"
    finally:
        loader.load_state_dict(state)
        if loader.num_workers != had:
            loader.num_workers = had
        loader.adapts = adapted
    seconds = time.monotonic() - begun
    rows = {phase.batch_size or loader.batch_size for phase in loader._asked.phases.phases}
    return Tuned(
        phases=tuple(phases),
        seconds=seconds,
        batch_size=rows.pop() if len(rows) == 1 else None,
    )


def _phase(
    loader: DataLoader[Any],
    step: Step,
    size: int | None,
    until: float,
    told: Callable[[int | None, Trial], object] | None,
) -> TunedPhase:
    """Search at one size."""
    ceiling, search = None, None
    ended: Ended = "done"
    order: list[Trial] = []
    # In an epoch of the phase batches are as large as the schedule says.
    epoch = _first_epoch(loader, size)
    rehearsal = Rehearsal(loader, step, size, epoch)
    try:
        if size is not None:
            loader.set_image_size(size if epoch is None else None)
        ceiling = rehearsal.ceiling(min(_CEILING_S, (until - time.monotonic()) / 8))
        room = int(_MEMORY * available_memory_bytes() / WORKER_BYTES)
        limits = Limits(cores=usable_cores(), more=room)
        search = Search(limits, loader.num_workers, ceiling)
        while (crew := search.next()) is not None:
            left_s = until - time.monotonic()
            if left_s < _LEAST_S:
                ended = "budget"
                break
            trial = rehearsal.trial(crew, least_s=_LEAST_S, most_s=min(_MOST_S, left_s))
            search.add(trial)
            order.append(trial)
            if told is not None:
                told(size, trial)
    except KeyboardInterrupt:
        ended = "interrupted"
    finally:
        rehearsal.close()
    known = search is not None and bool(search.trials)
    return TunedPhase(
        size=size,
        ceiling=ceiling,
        trials=tuple(order),
        best=search.best if search is not None and known else None,
        reached=search is not None and known and search.reached,
        ended=ended,
        needs_s=_needs_s(ceiling),
    )


def _needs_s(ceiling: float | None) -> float:
    """How long the usual number of trials takes, with the steps that each begins with."""
    step_s = 1.0 / ceiling if ceiling else 0.0
    return _CEILING_S + _TRIALS * max(_MOST_S, _STEPS * step_s)


def _check(
    loader: DataLoader[Any], step: Step | None, step_ms: float | None, budget_s: float
) -> None:
    if (step is None) == (step_ms is None):
        raise UsageError(
            "tune needs either step, a function that trains on a batch, or step_ms, how long that "
            "takes; nobody can tell how many workers keep up with a step that is not known"
        )
    if step_ms is not None and not 0 <= step_ms < float("inf"):
        raise UsageError(f"step_ms must be a number of milliseconds, got {step_ms!r}")
    if not budget_s >= 2 * _LEAST_S:
        raise UsageError(f"budget_s must be at least {2 * _LEAST_S:.0f} seconds, got {budget_s!r}")
    if not isinstance(loader, DataLoader):
        raise UsageError(
            f"tune takes a feedline.DataLoader, whose workers can change while they live, got "
            f"{type(loader).__name__}; feedline.DataLoader takes the same arguments as torch's"
        )
    if loader.num_workers == 0:
        raise UsageError("the loader has no workers: build it with num_workers='auto'")
    if loader._asked.iterable:
        raise UsageError(
            "torch divides an IterableDataset by the number of workers, so that cannot change; "
            "time it with one number after another, each in a loader of its own"
        )


def _sizes(loader: DataLoader[Any]) -> list[int | None]:
    """The sizes of the schedule, or the loader's one."""
    schedule = loader._asked.phases
    return list(dict.fromkeys(phase.size for phase in schedule.phases)) or [None]


def _first_epoch(loader: DataLoader[Any], size: int | None) -> int | None:
    """The first epoch of a schedule that has this size; None where the loader has no schedule."""
    schedule = loader._asked.schedule
    if schedule is None:
        return None
    return next(k for k in range(schedule.epochs) if schedule.phase_at(k).size == size)


def _paced(step_ms: float, size: int | None, largest: int) -> Step:
    share = (size / largest) ** 2 if size and largest else 1.0

    def step(batch: Any) -> None:
        time.sleep(step_ms * share / 1000)

    return step
