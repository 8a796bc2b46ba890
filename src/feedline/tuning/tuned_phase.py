"""Result of a search in one phase: its trials, the best of them, and the reason for its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from feedline.text import plural
from feedline.tuning.trial import LoaderTrial

__all__ = ["SearchStatus", "TunedPhase", "phase_dict", "phase_names"]

SearchStatus = Literal["done", "budget", "interrupted", "resources", "error"]
"""`budget`: the time limit ended the search; `interrupted`: Ctrl-C; `resources`: memory or
processes ran out; `error`: the step or the dataset raised an exception."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TunedPhase:
    """Result for one image size, or for a whole loader without sizes.

    Args:
        size: image size in pixels; None if the loader has no sizes.
        batch_size: samples in a batch; None if it varies.
        ceiling: compute-bound rate: steps per second over batches kept in memory.
        trials: trials in order; empty if no time was left.
        best: trial of the fewest workers that are as fast as any; None without trials.
        is_compute_bound: True if the step bounds this trial, and no setting of the loader.
        status: end of the search.
        full_search_s: estimated duration of a full search with these steps.
        error: one-line description of the exception that ended the search; "" without.
        copies_px: resolution of the cache that is read; None for the originals.
    """

    size: int | None
    batch_size: int | None
    ceiling: float | None
    trials: tuple[LoaderTrial, ...]
    best: LoaderTrial | None
    is_compute_bound: bool
    status: SearchStatus
    full_search_s: float
    error: str = ""
    copies_px: int | None = None

    @classmethod
    def of_trial(
        cls, trial: LoaderTrial, *, size: int | None, batch_size: int | None, ceiling: float | None
    ) -> TunedPhase:
        """Build a phase from a single trial, without a search."""
        return cls(
            size=size,
            batch_size=batch_size,
            ceiling=ceiling,
            trials=(trial,),
            best=trial,
            is_compute_bound=False,
            status="done",
            full_search_s=0.0,
        )

    @property
    def reason(self) -> str:
        """Result of the search in a sentence."""
        end = {
            "budget": f"the time budget ended the search, a full search"
            f"{' at this size' * bool(self.size)} needs about {self.full_search_s:.0f} s: raise "
            "--budget or budget_s=",
            "interrupted": "Ctrl-C ended the search",
            "error": self.error,
            "resources": "memory or processes ran out",
        }.get(self.status)
        if self.best is None:
            return f"not measured: {end}"
        workers = plural(self.best.workers, "worker")
        if self.is_compute_bound:
            suffice = "suffices" if self.best.workers == 1 else "suffice"
            text = f"compute-bound: no loader setting helps, {workers} {suffice}"
        else:
            share = self.best.steps_per_s / self.ceiling if self.ceiling else None
            capacity = "" if share is None else f" ({share:.0%} of the step's capacity)"
            text = f"{workers} was the fastest setting tried{capacity}"
        return text if end is None else f"{text}; {end}"


def phase_names(phases: Sequence[TunedPhase]) -> list[str]:
    """Name each phase by its image size, and by its batch size if several have that size."""
    sizes = [phase.size for phase in phases]
    return [
        (f"{phase.size} px" if phase.size else "all batches")
        + (f", batches of {phase.batch_size}" if sizes.count(phase.size) > 1 else "")
        for phase in phases
    ]


def phase_dict(phase: TunedPhase) -> dict[str, Any]:
    """Return a JSON-compatible dictionary of a phase."""
    return {
        "image_size": phase.size,
        "batch_size": phase.batch_size,
        "num_workers": None if phase.best is None else phase.best.workers,
        "free_batches_per_s": phase.ceiling,
        "step_is_the_limit": phase.is_compute_bound,
        "ended": phase.status,
        "reason": phase.reason,
        "copies_px": phase.copies_px,
        "trials": [_trial_dict(trial) for trial in phase.trials],
    }


def _trial_dict(trial: LoaderTrial) -> dict[str, Any]:
    setting, window = trial.setting, trial.window
    return {
        "num_workers": setting.workers,
        "prefetch": setting.prefetch,
        "task_ms": setting.task_ms,
        "pin_memory": setting.pin,
        "batches_per_s": trial.steps_per_s,
        "interval": trial.interval,
        "wait_share": window.wait_share,
        "work_ms": 1e3 * window.work_s,
        "blocked_share": window.blocked_share,
        "start_s": trial.start_s,
    }
