"""What a search has found in one phase: its trials, the best of them, and why it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from feedline.tuning.trial import Trial

__all__ = ["Ended", "Other", "TunedPhase", "phase_dict", "phase_names"]

Ended = Literal["done", "budget", "interrupted", "resources", "error"]
"""`budget`: the time was over before the search; `interrupted`: by Ctrl-C; `resources`: the machine
lacked memory, or a process, for what was to be tried next; `error`: the step or the loader raised
an exception of the user's code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Other:
    """Images made in another way, with the setting that was best for the first one.

    Args:
        name: which way, as "decode='scaled'".
        trial: what it gave.
        how: what to write to have it so; "" where the name says it.
        pixels_off: from those of the first way, in the mean, of 255 grey levels; None where that
            was not measured.
    """

    name: str
    trial: Trial
    how: str = ""
    pixels_off: float | None = None

    def said(self, best: Trial) -> str:
        """What it gains over the best of the first way, and what it changes."""
        times = self.trial.steps_per_s / best.steps_per_s
        off = "" if self.pixels_off is None else f" ({self.pixels_off:.2g} of 255 levels off)"
        return f"{self.name} is {times:.2f} times as fast, with other pixels{off}"


@dataclass(frozen=True, kw_only=True, slots=True)
class TunedPhase:
    """One image size, or the whole loader where it has none.

    Args:
        size: of the images, in pixels; None where the loader has no sizes.
        batch_size: samples of a batch in it; None where that varies.
        ceiling: steps per second over batches that are kept, so with data for free.
        trials: in the order in which they were made; empty where no time was left.
        best: the trial of the fewest workers that are as fast as any; None without trials.
        reached: the step is what bounds this trial, and no setting of the loader.
        ended: how the search did.
        needs_s: about how long a whole search takes with such steps.
        others: the same images, made in other ways.
        raised: what ended it with an exception, in a line; "" where nothing did.
        copies_px: the side of the copies in a cache that it reads; None for the originals.
    """

    size: int | None
    batch_size: int | None
    ceiling: float | None
    trials: tuple[Trial, ...]
    best: Trial | None
    reached: bool
    ended: Ended
    needs_s: float
    others: tuple[Other, ...] = ()
    raised: str = ""
    copies_px: int | None = None

    @classmethod
    def of_trial(
        cls, trial: Trial, *, size: int | None, batch_size: int | None, ceiling: float | None
    ) -> TunedPhase:
        """A phase in which nothing was searched for: one setting was tried."""
        return cls(
            size=size,
            batch_size=batch_size,
            ceiling=ceiling,
            trials=(trial,),
            best=trial,
            reached=False,
            ended="done",
            needs_s=0.0,
        )

    @property
    def recommended(self) -> Other | None:
        """The fastest other way, where it is faster than the best setting beyond both intervals.

        It changes pixels, so it is no part of the settings.
        """
        if self.best is None or (own := self.best.interval) is None:
            return None
        others = [each for each in self.others if (each.trial.interval or own)[0] > own[1]]
        return max(others, key=lambda other: other.trial.steps_per_s, default=None)

    @property
    def reason(self) -> str:
        """Why the search ended there."""
        why = {
            "budget": f"the time was over; a whole search{' at this size' * bool(self.size)} takes "
            f"about {self.needs_s:.0f} s: give it more, by --budget or budget_s=",
            "interrupted": "interrupted",
            "error": self.raised,
            "resources": "the machine lacked memory, or a process, for what was to be tried next",
        }.get(self.ended)
        if self.best is None:
            return f"not measured: {why}"
        crew = f"{self.best.workers} worker{'s' * (self.best.workers > 1)}"
        if self.reached:
            suffice = "suffices" if self.best.workers == 1 else "suffice"
            said = f"the step is the limit, no loader setting helps; {crew} {suffice}"
        else:
            share = self.best.steps_per_s / self.ceiling if self.ceiling else None
            of = "" if share is None else f", at {share:.0%} of what the step could do"
            what = "no setting" if self.others else "nothing"
            said = f"{what} is faster than {crew}{of}"
            if self.recommended is not None:
                said += f"; {self.recommended.said(self.best)}: yours to decide"
        return said if why is None else f"{said}, of what was tried ({why})"


def phase_names(phases: Sequence[TunedPhase]) -> list[str]:
    """Which phase each is: by its image size, and where several have that by its batch size."""
    sizes = [phase.size for phase in phases]
    return [
        (f"{phase.size} px" if phase.size else "all batches")
        + (f", batches of {phase.batch_size}" if sizes.count(phase.size) > 1 else "")
        for phase in phases
    ]


def phase_dict(phase: TunedPhase) -> dict[str, Any]:
    """A phase as plain values."""
    return {
        "image_size": phase.size,
        "batch_size": phase.batch_size,
        "num_workers": None if phase.best is None else phase.best.workers,
        "free_batches_per_s": phase.ceiling,
        "step_is_the_limit": phase.reached,
        "ended": phase.ended,
        "reason": phase.reason,
        "copies_px": phase.copies_px,
        "recommended": None if phase.recommended is None else phase.recommended.name,
        "trials": [_trial_dict(trial) for trial in phase.trials],
        "others": [
            {
                "name": other.name,
                "how": other.how,
                "pixels_off": other.pixels_off,
                **_trial_dict(other.trial),
            }
            for other in phase.others
        ],
    }


def _trial_dict(trial: Trial) -> dict[str, Any]:
    setting, window = trial.setting, trial.window
    return {
        "num_workers": setting.workers,
        "prefetch": setting.prefetch,
        "piece_ms": setting.piece_ms,
        "pin_memory": setting.pin,
        "batches_per_s": trial.steps_per_s,
        "interval": trial.interval,
        "wait_share": window.wait_share,
        "work_ms": 1e3 * window.work_s,
        "blocked_share": window.blocked_share,
        "start_s": trial.start_s,
    }
