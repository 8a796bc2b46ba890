"""What a search has found: for each phase its trials, the fewest workers that suffice, and why.

Guarantees: pure; what is printed is said from this alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from feedline.forecast.changes import Changes
from feedline.forecast.rates import Rates
from feedline.forecast.schedule import Forecast, forecast
from feedline.forecast.what_if import LevelRates, WhatIf, what_if
from feedline.plan.schedule import Schedule
from feedline.tuning.trial import Trial

__all__ = ["Ended", "Tuned", "TunedPhase"]

Ended = Literal["done", "budget", "interrupted"]
"""`budget`: the time was over before the search; `interrupted`: by Ctrl-C."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TunedPhase:
    """One image size, or the whole loader where it has none.

    Args:
        size: of the images, in pixels; None where the loader has no sizes.
        ceiling: steps per second over batches that are kept, so with data for free.
        trials: by workers, in the order in which they were tried; empty where no time was left.
        best: the trial of the fewest workers that are as fast as any; None without trials.
        reached: the step is what bounds this trial, and no setting of the loader.
        ended: how the search did.
        needs_s: about how long a whole search takes with such steps.
    """

    size: int | None
    ceiling: float | None
    trials: tuple[Trial, ...]
    best: Trial | None
    reached: bool
    ended: Ended
    needs_s: float

    @property
    def reason(self) -> str:
        """Why the search ended there."""
        if self.best is None:
            return f"not measured: the time was over; this takes about {self.needs_s:.0f} s"
        crew = f"{self.best.workers} worker{'s' * (self.best.workers > 1)}"
        if self.reached:
            said = f"the step is the limit, no loader setting helps; {crew} suffice"
        else:
            share = self.best.steps_per_s / self.ceiling if self.ceiling else None
            of = "" if share is None else f", at {share:.0%} of what the step could do"
            said = f"no crew is faster than {crew}{of}"
        if self.ended == "done":
            return said
        over = "interrupted"
        if self.ended == "budget":
            over = f"the time was over; a whole search takes about {self.needs_s:.0f} s"
        return f"{said}, of the crews that were tried ({over})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """What was found.

    Args:
        phases: in the order of the schedule.
        seconds: that it took.
        batch_size: samples of a batch; None where it varies.
        rates: of the phases that were measured, what else is predicted from.
    """

    phases: tuple[TunedPhase, ...]
    seconds: float
    batch_size: int | None
    rates: tuple[Rates, ...] = ()

    @property
    def num_workers(self) -> int | None:
        """The workers that suffice for every phase; None where nothing was measured."""
        known = [phase.best.workers for phase in self.phases if phase.best is not None]
        return max(known, default=None)

    def what_if(self, changes: str | Changes, levels: LevelRates | None = None) -> WhatIf:
        """Predict each phase with something changed.

        Args:
            changes: any of workers, cache, cores and gpu: "workers=8,cache=256,cores=16,gpu=2".
                `cache` is the side of a level in pixels or "none", `gpu` how many times as fast the
                step computes.
            levels: rates of a cache's levels, where another one is asked for:
                `feedline.plan_cache(folder, schedule).measured.rates`.

        Raises:
            UsageError: changes that are not understood; a level that was not measured; nothing was.

        Example:
            >>> print(found.what_if("workers=8,gpu=2"))                         # doctest: +SKIP
        """
        return what_if(self.rates, changes, levels)

    def forecast(
        self,
        schedule: str | Schedule,
        *,
        images: int | None = None,
        workers: int | None = None,
        levels: LevelRates | None = None,
    ) -> Forecast:
        """Predict each phase of a schedule, and its time against one fixed size.

        Args:
            schedule: the phases, also of sizes that were not tuned: that is said.
            images: of an epoch; None: times are left out.
            workers: with which all of it runs; None: those that suffice for every phase.
            levels: as of `what_if`: one of them may be advised.

        Raises:
            UsageError: nothing was measured; what was has sizes and the schedule has none, or the
                reverse.

        Example:
            >>> print(found.forecast("112x10,224x10", images=1_281_167))        # doctest: +SKIP
        """
        crew = workers or self.num_workers
        return forecast(self.rates, schedule, images=images, workers=crew, levels=levels)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values: rates in batches per second, shares from 0 to 1."""
        return {
            "num_workers": self.num_workers,
            "batch_size": self.batch_size,
            "seconds": self.seconds,
            "phases": [_phase_dict(phase) for phase in self.phases],
        }

    def __str__(self) -> str:
        """A table, a line for each trial, and the reasons."""
        lines = []
        unit = "images/s" if self.batch_size else "steps/s"
        each = self.batch_size or 1
        for phase in self.phases:
            lines.append(f"{phase.size} px" if phase.size else "all batches")
            if phase.ceiling is not None:
                lines.append(f"  with data for free {each * phase.ceiling:10.1f} {unit}")
            for trial in sorted(phase.trials, key=lambda trial: trial.workers):
                mark = " <" if trial is phase.best else ""
                between = "too few steps for an interval"
                if trial.interval is not None:
                    between = "{:.1f} to {:.1f}".format(*(each * rate for rate in trial.interval))
                lines.append(
                    f"  {trial.workers:4} workers {each * trial.steps_per_s:10.1f} {unit} "
                    f"({between}), waits {trial.window.wait_share:4.0%}{mark}"
                )
            lines.append(f"  {phase.reason}")
        if self.num_workers is not None:
            lines.append(f"\nfeedline.DataLoader(..., num_workers={self.num_workers})")
        return "\n".join(lines)


def _phase_dict(phase: TunedPhase) -> dict[str, Any]:
    return {
        "image_size": phase.size,
        "num_workers": None if phase.best is None else phase.best.workers,
        "free_batches_per_s": phase.ceiling,
        "step_is_the_limit": phase.reached,
        "ended": phase.ended,
        "reason": phase.reason,
        "trials": [
            {
                "num_workers": trial.workers,
                "batches_per_s": trial.steps_per_s,
                "interval": trial.interval,
                "wait_share": trial.window.wait_share,
            }
            for trial in phase.trials
        ],
    }
