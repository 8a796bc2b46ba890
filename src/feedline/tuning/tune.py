"""`feedline.tune`: the settings with which a training is as fast as it can be.

Guarantees: workers of a feedline.DataLoader live from trial to trial; when it returns or raises,
the loader has the settings that it had and stands where it stood, and an iteration that was under
way goes on by itself. Ctrl-C gives what is known so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader

from feedline.control.limits import Limits
from feedline.control.room import Room
from feedline.engine.start_method import WORKER_BYTES
from feedline.errors import ResourceError, UsageError
from feedline.forecast.rates import Rates
from feedline.loader import DataLoader
from feedline.plan.schedule import Phase
from feedline.system import available_memory_bytes, usable_cores
from feedline.tuning.arguments import check_budget, check_step_ms
from feedline.tuning.failure import Failure
from feedline.tuning.finalists import Finalists
from feedline.tuning.metered import Metered
from feedline.tuning.own_loader import OwnLoader
from feedline.tuning.rates_of import rates_of, rates_of_torch
from feedline.tuning.rehearsal import Rehearsal, Step
from feedline.tuning.search import Search
from feedline.tuning.setting import Setting
from feedline.tuning.torch_loader import TorchLoader
from feedline.tuning.trial import Trial
from feedline.tuning.tunable import Tunable
from feedline.tuning.tuned import Tuned
from feedline.tuning.tuned_phase import Ended, TunedPhase

__all__ = ["Told", "paced", "search_settings", "tune"]

Told = Callable[[int | None, Trial], object]
"""Is called after the first trial of each setting, with the image size."""

_CEILING_S = 1.0
_LEAST_S, _MOST_S = 1.0, 2.5  # a trial
_LEAST_STEPS = 4  # a trial: two before it counts, and two that count
_TRIALS = 5
_TURNS = 4  # of settings that are tried again, for _LEAST_S each
_STEPS = 8  # that a trial takes, those of the setting before included
_MEMORY = 0.5  # of what is available


def tune(
    loader: TorchDataLoader[Any],
    step: Step | None = None,
    *,
    step_ms: float | None = None,
    budget_s: float = 60.0,
    told: Told | None = None,
    warm: int = 0,
) -> Tuned:
    """Find the fewest workers with which a training is as fast as it can be, for each image size.

    Where batches come unevenly, it also tries to have more of them made ahead, within what a loader
    of rows has allocated, and smaller pieces. At last the answer, and what is hardly slower or may
    be faster, take turns as far as there is time, so that no single trial decides. Files should be
    in the page cache, as in later epochs: see `warm`.

    Args:
        loader: a feedline.DataLoader with workers; its batches are taken, as many as are needed,
            and it stands afterwards where it stood: an iteration that is under way goes on with the
            batch that was its next. Or torch's own, of which a copy is built for each trial: also
            prefetch_factor, and with a GPU pin_memory, are tried.
        step: one training step on a batch, the copy to the device included, that waits for what it
            computes (`torch.cuda.synchronize`). It really trains.
        step_ms: in its place, how long a step takes at the largest size; shorter at smaller ones
            as the images have fewer pixels. The process sleeps for so long.
        budget_s: how many seconds it may take; a step that is under way at the end is finished, and
            each size takes at least one.
        told: is called after the first trial of each setting with the image size.
        warm: batches of each size that are taken before anything is measured, without a step.

    Raises:
        UsageError: neither or both of `step` and `step_ms`; the loader has no workers, or its
            number cannot change; the budget is too short for anything.
        Exception: whatever the step or the dataset raises.

    Example:
        >>> found = feedline.tune(loader, train_step)                           # doctest: +SKIP
        >>> print(found)                                                        # doctest: +SKIP
    """
    found = search_settings(loader, step, step_ms=step_ms, budget_s=budget_s, told=told, warm=warm)
    if found.failure is not None:
        raise found.failure.error
    return found


def search_settings(
    loader: TorchDataLoader[Any],
    step: Step | None = None,
    *,
    step_ms: float | None = None,
    budget_s: float = 60.0,
    told: Told | None = None,
    warm: int = 0,
) -> Tuned:
    """The same, where what the step or the dataset raises ends the search, with all trials kept.

    Args:
        loader, step, step_ms, budget_s, told, warm: as of `tune`.

    Raises:
        UsageError: as `tune`.
    """
    _check(loader, step, step_ms, budget_s, warm)
    begun = time.monotonic()
    own = isinstance(loader, DataLoader)
    tried: Tunable = OwnLoader(loader) if isinstance(loader, DataLoader) else TorchLoader(loader)
    asked = tried.phases
    largest = max(phase.size or 0 for phase in asked)
    start, phases, rates = tried.start, list[TunedPhase](), list[Rates | None]()
    failure: Failure | None = None
    try:
        for k, phase in enumerate(asked):
            left_s = budget_s - (time.monotonic() - begun)
            until = time.monotonic() + left_s / (len(asked) - k)
            metered = Metered(step or paced(step_ms or 0.0, phase.size, largest))
            found, failure = _phase(tried, metered, phase, until, told, warm)
            phases.append(found)
            if isinstance(loader, DataLoader):
                rates.append(rates_of(loader, phases[-1], metered.cpu_s))
            else:
                rates.append(rates_of_torch(phases[-1], metered.cpu_s))
            if found.ended in ("interrupted", "error"):
                break
    finally:
        tried.close()
    return Tuned(
        phases=tuple(phases),
        seconds=time.monotonic() - begun,
        batch_size=loader.batch_size,
        loader="feedline" if own else "torch",
        start=start,
        rates=tuple(each for each in rates if each is not None),
        failure=failure,
        files=f"taken {warm} batches of each size before" if warm else "as they were",
    )


def paced(step_ms: float, size: int | None, largest: int) -> Step:
    """A step that sleeps, for less time at a size that is not the largest."""
    share = (size / largest) ** 2 if size and largest else 1.0

    def step(batch: Any) -> None:
        time.sleep(step_ms * share / 1000)

    return step


def _phase(
    tried: Tunable,
    step: Metered,
    phase: Phase,
    until: float,
    told: Told | None,
    warm: int,
) -> tuple[TunedPhase, Failure | None]:
    """Search in one phase; and what has ended that, if it was an exception of the user's code."""
    ceiling, search, final, failure = None, None, None, None
    ended: Ended = "done"
    rehearsal = Rehearsal(tried, step, phase.size)
    begun, ready_s = time.monotonic(), 0.0
    try:
        tried.begin(phase)
        rehearsal.warm(warm, until)
        ceiling_s = min(_CEILING_S, max(0.0, until - time.monotonic()) / 8)
        ceiling = rehearsal.ceiling(ceiling_s, until)
        ready_s = time.monotonic() - begun
        limits, room = Limits(cores=usable_cores()), _room(tried.start, rehearsal)
        search = Search(limits, tried.start, ceiling, tried.choices, room)
        while (setting := search.next()) is not None:
            left_s = until - time.monotonic()
            if left_s < max(_LEAST_S, _LEAST_STEPS / ceiling):
                ended = "budget"
                break
            trial = rehearsal.trial(
                setting,
                least_s=_LEAST_S,
                most_s=min(_MOST_S, left_s),
                fastest=max((each.steps_per_s for each in search.trials.values()), default=None),
            )
            search.add(trial)
            if told is not None:
                told(phase.size, trial)
        if ended == "done":
            final = Finalists(search.finalists)
            _take_turns(final, rehearsal, 1 / ceiling, until)
    except KeyboardInterrupt:
        ended = "interrupted"
    except ResourceError:
        if search is None or not search.trials:
            raise
        ended = "resources"
    except UsageError:
        raise
    except Exception as error:
        ended, failure = "error", Failure(error, step.raised(error))
    known = search is not None and bool(search.trials)
    best = search.best if search is not None and known else None
    if search is not None and final is not None:
        search.trials.update(final.trials)
        best = final.best
    found = TunedPhase(
        size=phase.size,
        batch_size=tried.batch_size,
        ceiling=ceiling,
        trials=tuple(search.trials.values()) if search is not None else (),
        best=best,
        reached=search is not None and known and search.reached,
        ended=ended,
        needs_s=_needs_s(ceiling, ready_s),
        raised="" if failure is None else failure.said,
    )
    return found, failure


def _take_turns(final: Finalists, rehearsal: Rehearsal, step_s: float, until: float) -> None:
    """Let the finalists take turns, while there is time for all turns of a round."""
    most_s = max(_LEAST_S, 2 * _STEPS * step_s)
    while (setting := final.next()) is not None:
        if until - time.monotonic() < final.turns * (most_s + _STEPS * step_s):
            break
        final.add(rehearsal.trial(setting, least_s=_LEAST_S / 2, most_s=most_s))


def _room(start: Setting, rehearsal: Rehearsal) -> Room:
    """How far crew and depth may grow: a worker has memory of its own, and for what it makes."""
    whole = start.piece_ms is None
    return Room(
        free=int(_MEMORY * available_memory_bytes()),
        workers=start.workers,
        ahead=start.prefetch if whole else 0,
        worker_bytes=WORKER_BYTES,
        batch_bytes=rehearsal.batch_bytes if whole else 0,
    )


def _needs_s(ceiling: float | None, ready_s: float) -> float:
    """How long the usual number of trials takes, with the steps that each begins with.

    Args:
        ceiling: steps per second.
        ready_s: what it took until trials could begin.
    """
    step_s = 1.0 / ceiling if ceiling else 0.0
    turns_s = _TURNS * max(_LEAST_S, 3 * _STEPS * step_s)
    return max(ready_s, _CEILING_S) + _TRIALS * max(_MOST_S, _STEPS * step_s) + turns_s


def _check(
    loader: object, step: Step | None, step_ms: float | None, budget_s: float, warm: int
) -> None:
    if (step is None) == (step_ms is None):
        raise UsageError(
            "tune needs either step, a function that trains on a batch, or step_ms, how long that "
            "takes; nobody can tell how many workers keep up with a step that is not known"
        )
    if step is not None and not callable(step):
        raise UsageError(f"step must be a function of a batch, got {type(step).__name__}")
    check_step_ms(step_ms)
    check_budget(budget_s)
    if isinstance(warm, bool) or not isinstance(warm, int) or warm < 0:
        raise UsageError(f"warm must be a whole number of batches, 0 or above, got {warm!r}")
    if not isinstance(loader, TorchDataLoader):
        raise UsageError(
            f"tune takes a feedline.DataLoader or torch's own, got {type(loader).__name__}; "
            "feedline.DataLoader takes any Dataset and the same arguments as torch's"
        )
