"""What a search has found: for each phase its trials, the best of them, and why it ended.

Guarantees: pure; what is printed, drawn and written is said from this alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from feedline.loader.saved_settings import SavedSettings
from feedline.tuning.setting import Setting
from feedline.tuning.trial import Trial

__all__ = ["Ended", "Other", "Tuned", "TunedPhase"]

Ended = Literal["done", "budget", "interrupted"]
"""`budget`: the time was over before the search; `interrupted`: by Ctrl-C."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Other:
    """Images made in another way, with the setting that was best for the first one.

    Args:
        name: which way, as "decode='scaled'".
        trial: what it gave.
    """

    name: str
    trial: Trial


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
            said = f"nothing is faster than {crew}{of}"
        if self.ended == "done":
            return said
        over = "interrupted"
        if self.ended == "budget":
            over = f"the time was over; a whole search takes about {self.needs_s:.0f} s"
        return f"{said}, of what was tried ({over})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """What was found.

    Args:
        phases: in the order of the schedule.
        seconds: that it took.
        batch_size: samples of a batch where a phase has no other; None where it varies.
        loader: "feedline" or "torch".
        start: the setting that the search began with.
        files: how the images' files were, as "in the page cache".
    """

    phases: tuple[TunedPhase, ...]
    seconds: float
    batch_size: int | None
    loader: Literal["feedline", "torch"] = "feedline"
    start: Setting
    files: str = "as they were"

    @property
    def num_workers(self) -> int | None:
        """The workers that suffice for every phase; None where nothing was measured."""
        return None if self.setting is None else self.setting.workers

    @property
    def setting(self) -> Setting | None:
        """What suffices for every phase; None where nothing was measured."""
        found = [phase.best.setting for phase in self.phases if phase.best is not None]
        if not found:
            return None
        pieces = [setting.piece_ms for setting in found if setting.piece_ms is not None]
        return Setting(
            workers=max(setting.workers for setting in found),
            prefetch=max(setting.prefetch for setting in found),
            piece_ms=min(pieces, default=None),
            pin=found[0].pin,
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the loader that are to be given; empty where nothing was measured."""
        found, start = self.setting, self.start
        if found is None:
            return {}
        arguments: dict[str, Any] = {"num_workers": found.workers}
        if found.piece_ms is None:
            if self.loader == "torch" or found.prefetch != start.prefetch:
                arguments["prefetch_factor"] = found.prefetch
            if self.loader == "torch":
                arguments["persistent_workers"] = True
                arguments["pin_memory"] = bool(found.pin)
            return arguments
        if found.prefetch != start.prefetch:
            arguments["prefetch"] = found.prefetch
        if found.piece_ms != start.piece_ms:
            arguments["piece_ms"] = found.piece_ms
        return arguments

    @property
    def snippet(self) -> str:
        """The call to paste; "" where nothing was measured."""
        said = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        name = "torch.utils.data.DataLoader" if self.loader == "torch" else "feedline.DataLoader"
        return f"{name}(..., {said})" if said else ""

    @property
    def saved(self) -> SavedSettings | None:
        """What a file of settings says; None where nothing was measured."""
        arguments = dict(self.arguments)
        arguments.pop("persistent_workers", None)  # feedline's workers live on in any case
        return SavedSettings(**arguments) if arguments else None

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values: rates in batches per second, shares from 0 to 1."""
        return {
            "num_workers": self.num_workers,
            "arguments": self.arguments,
            "loader": self.loader,
            "batch_size": self.batch_size,
            "files": self.files,
            "seconds": self.seconds,
            "phases": [_phase_dict(phase) for phase in self.phases],
        }

    def __str__(self) -> str:
        """A table for each phase, the reasons, and the call to paste."""
        lines: list[str] = []
        for phase in self.phases:
            lines.append(f"{phase.size} px" if phase.size else "all batches")
            if phase.ceiling is not None:
                lines.append(
                    f"  {'with data for free':<44}{_rate(phase.ceiling, phase.batch_size)}"
                )
            for trial in sorted(phase.trials, key=lambda trial: trial.workers):
                lines.append(self._line(trial, phase, "<" if trial is phase.best else ""))
            lines += [
                self._line(other.trial, phase, f"with {other.name}") for other in phase.others
            ]
            lines.append(f"  {phase.reason}")
        lines.append(f"files: {self.files}; {self.seconds:.0f} s in all")
        starts = [trial.start_s for phase in self.phases for trial in phase.trials]
        known = [start_s for start_s in starts if start_s is not None]
        if known:
            lines.append(
                f"workers took {max(known):.1f} s to start, which persistent_workers=True saves at "
                "each epoch"
            )
        return "\n".join([*lines, *(["", self.snippet] if self.snippet else [])])

    def _line(self, trial: Trial, phase: TunedPhase, mark: str) -> str:
        """A trial, in a line of the table."""
        each = phase.batch_size or 1
        between = "too few steps for an interval"
        if trial.interval is not None:
            between = "{:.1f} to {:.1f}".format(*(each * rate for rate in trial.interval))
        rate = _rate(trial.steps_per_s, phase.batch_size)
        line = (
            f"  {self._named(trial.setting):<44}{rate} ({between}), waits "
            f"{trial.window.wait_share:4.0%} {mark}"
        )
        return line.rstrip()

    def _named(self, setting: Setting) -> str:
        """A setting, by what it has that the first one had not."""
        said = f"{setting.workers:4} worker{'s' * (setting.workers > 1)}"
        if setting.prefetch != self.start.prefetch:
            each = "prefetch_factor" if setting.piece_ms is None else "prefetch"
            said += f", {each} {setting.prefetch}"
        if setting.piece_ms != self.start.piece_ms:
            said += f", pieces of {setting.piece_ms:g} ms"
        if setting.pin != self.start.pin:
            said += ", pinned" if setting.pin else ", not pinned"
        return said


def _rate(steps_per_s: float, rows: int | None) -> str:
    return f"{(rows or 1) * steps_per_s:10.1f} {'images/s' if rows else 'steps/s'}"


def _phase_dict(phase: TunedPhase) -> dict[str, Any]:
    return {
        "image_size": phase.size,
        "batch_size": phase.batch_size,
        "num_workers": None if phase.best is None else phase.best.workers,
        "free_batches_per_s": phase.ceiling,
        "step_is_the_limit": phase.reached,
        "ended": phase.ended,
        "reason": phase.reason,
        "trials": [_trial_dict(trial) for trial in phase.trials],
        "others": [{"name": other.name, **_trial_dict(other.trial)} for other in phase.others],
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
