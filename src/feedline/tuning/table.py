"""What a search has found, as text: a table for each phase, the reasons, and the call to paste."""

from __future__ import annotations

from collections.abc import Sequence

from feedline.tuning.setting import Setting
from feedline.tuning.trial import Trial
from feedline.tuning.tuned_phase import TunedPhase, phase_names

__all__ = ["table"]


def table(
    phases: Sequence[TunedPhase], start: Setting, files: str, seconds: float, snippet: str
) -> str:
    """All lines of it; arguments are as those of `tuned.Tuned`."""
    lines: list[str] = []
    for name, phase in zip(phase_names(phases), phases, strict=True):
        copies = f", from copies of {phase.copies_px} px" if phase.copies_px else ""
        lines.append(name + copies)
        if phase.ceiling is not None:
            free = _rate(phase.ceiling, phase.batch_size)
            lines.append(f"  {'with data for free':<44}{free}")
        for trial in sorted(phase.trials, key=lambda trial: trial.workers):
            mark = "<" if trial is phase.best else ""
            lines.append(_line(trial, start, phase, mark))
        for other in phase.others:
            lines.append(_line(other.trial, start, phase, f"with {other.name}"))
        lines.append(f"  {phase.reason}")
    lines.append(f"files: {files}; {seconds:.0f} s in all")
    starts = [trial.start_s for phase in phases for trial in phase.trials]
    known = [start_s for start_s in starts if start_s is not None]
    if known:
        lines.append(
            f"workers took up to {max(known):.1f} s to start and give a batch; with "
            "persistent_workers=True they start once, and not at each epoch"
        )
    return "\n".join([*lines, *(["", snippet] if snippet else [])])


def _line(trial: Trial, start: Setting, phase: TunedPhase, mark: str) -> str:
    """A trial, in a line."""
    each = phase.batch_size or 1
    between = "too few steps for an interval"
    if trial.interval is not None:
        between = "{:.1f} to {:.1f}".format(*(each * rate for rate in trial.interval))
    rate = _rate(trial.steps_per_s, phase.batch_size)
    line = (
        f"  {_named(trial.setting, start):<44}{rate} ({between}), waits "
        f"{trial.window.wait_share:4.0%} {mark}"
    )
    return line.rstrip()


def _named(setting: Setting, start: Setting) -> str:
    """A setting, by what it has that the first one had not."""
    said = f"{setting.workers:4} worker{'s' * (setting.workers > 1)}"
    if setting.prefetch != start.prefetch:
        each = "prefetch_factor" if setting.piece_ms is None else "prefetch"
        said += f", {each} {setting.prefetch}"
    if setting.piece_ms != start.piece_ms:
        said += f", pieces of {setting.piece_ms:g} ms"
    if setting.pin != start.pin:
        said += ", pinned" if setting.pin else ", not pinned"
    return said


def _rate(steps_per_s: float, rows: int | None) -> str:
    return f"{(rows or 1) * steps_per_s:10.1f} {'images/s' if rows else 'steps/s'}"
