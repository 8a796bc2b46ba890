"""Result of a search: trials of each phase, the best setting, a table and a snippet.

Guarantees: pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from feedline.errors import UsageError
from feedline.loader.saved_settings import SavedSettings
from feedline.order.schedule import Schedule
from feedline.text import plural
from feedline.throughput.changes import Changes
from feedline.throughput.phase_rates import Rates
from feedline.throughput.schedule_estimate import Forecast, forecast
from feedline.throughput.what_if import WhatIf, what_if
from feedline.tuning.step_benchmark import UserCodeFailure
from feedline.tuning.trial import LoaderSetting, LoaderTrial
from feedline.tuning.tuned_phase import TunedPhase, phase_dict, phase_names

__all__ = ["TuningResult"]


_ONE_FOR_ALL = (
    "one setting for all phases, enough for the busiest; num_workers='auto' adapts to each phase"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TuningResult:
    """Result of `feedline.tune`.

    Args:
        phases: in the order of the schedule.
        seconds: duration of the search.
        batch_size: samples in a batch of phases that set none; None if it varies.
        loader: "feedline" or "torch".
        start: first setting that was tried.
        rates: measured rates of the phases, for predictions.
        failure: exception of the step or the dataset that ended the search; None if there was none.
        files: state of the image files, such as "from the page cache".
    """

    phases: tuple[TunedPhase, ...]
    seconds: float
    batch_size: int | None
    loader: Literal["feedline", "torch"] = "feedline"
    start: LoaderSetting
    rates: tuple[Rates, ...] = ()
    failure: UserCodeFailure | None = None
    files: str = "not loaded beforehand"

    @property
    def num_workers(self) -> int | None:
        """Number of workers that suffices for every phase; None if nothing was measured."""
        return None if self.setting is None else self.setting.workers

    @property
    def full_search_s(self) -> float:
        """Estimated duration of a full search at all sizes; each gets an equal share."""
        return len(self.phases) * max((phase.full_search_s for phase in self.phases), default=0.0)

    @property
    def setting(self) -> LoaderSetting | None:
        """Setting that suffices for every phase; None if nothing was measured."""
        found = [phase.best.setting for phase in self.phases if phase.best is not None]
        if not found:
            return None
        pieces = [setting.task_ms for setting in found if setting.task_ms is not None]
        return LoaderSetting(
            workers=max(setting.workers for setting in found),
            prefetch=max(setting.prefetch for setting in found),
            task_ms=min(pieces, default=None),
            pin=found[0].pin,
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the loader; empty if nothing was measured."""
        found, start = self.setting, self.start
        if found is None:
            return {}
        arguments: dict[str, Any] = {"num_workers": found.workers}
        if found.task_ms is None:
            if self.loader == "torch" or found.prefetch != start.prefetch:
                arguments["prefetch_factor"] = found.prefetch
            if self.loader == "torch":
                arguments["persistent_workers"] = True
                arguments["pin_memory"] = bool(found.pin)
            return arguments
        if found.prefetch != start.prefetch:
            arguments["prefetch"] = found.prefetch
        if found.task_ms != start.task_ms:
            arguments["task_ms"] = found.task_ms
        return arguments

    @property
    def snippet(self) -> str:
        """Call to paste; empty if nothing was measured."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        name = "torch.utils.data.DataLoader" if self.loader == "torch" else "feedline.DataLoader"
        lines = [f"{name}(..., {arguments})"] if arguments else []
        if arguments and len(self.phases) > 1:
            lines.append(f"# {_ONE_FOR_ALL}")
        return "\n".join(lines)

    @property
    def saved(self) -> SavedSettings | None:
        """Contents of a settings file; None if nothing was measured."""
        arguments = dict(self.arguments)
        arguments.pop("persistent_workers", None)  # not part of a settings file
        return SavedSettings(**arguments) if arguments else None

    def what_if(self, changes: str | Changes) -> WhatIf:
        """Predict each phase after changes.

        Args:
            changes: any of workers, cores and gpu: "workers=8,cores=16,gpu=2". `gpu` is a factor of
                the step's speed.

        Raises:
            UsageError: changes are not understood; nothing was measured.
        Example:
            >>> print(found.what_if("workers=8,gpu=2"))                         # doctest: +SKIP
        """
        self._need_rates()
        return what_if(self.rates, changes)

    def forecast(
        self,
        schedule: str | Schedule,
        *,
        images: int | None = None,
        workers: int | None = None,
    ) -> Forecast:
        """Predict each phase of a schedule, and its time compared with a single size.

        Args:
            schedule: the phases; sizes that were not tuned are marked.
            images: images in an epoch. Default: no times.
            workers: number of workers. Default: the number that suffices for every phase.

        Raises:
            UsageError: nothing was measured; measured phases have sizes and the schedule has none,
                or the reverse; invalid numbers of images or workers.
        Example:
            >>> print(found.forecast("112x10,224x10", images=1_281_167))        # doctest: +SKIP
        """
        self._need_rates()
        workers = self.num_workers if workers is None else workers
        return forecast(self.rates, schedule, images=images, workers=workers)

    def _need_rates(self) -> None:
        """Raise UsageError if nothing was measured, or no times of the workers."""
        if not self.rates and self.setting is None:
            raise UsageError(
                "nothing was measured, so nothing can be predicted"
                + (f" ({self.phases[0].reason})" if self.phases else ""),
                hint="" if self.phases else "give it more time",
            )
        if not self.rates:
            raise UsageError(
                "torch's workers noted no times, so nothing can be predicted",
                hint="tune feedline.DataLoader over the same dataset instead",
            )

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary: rates in batches per second, shares from 0 to 1."""
        return {
            "num_workers": self.num_workers,
            "arguments": self.arguments,
            "snippet": self.snippet,
            "scope": "all phases",
            "loader": self.loader,
            "batch_size": self.batch_size,
            "files": self.files,
            "seconds": self.seconds,
            "phases": [phase_dict(phase) for phase in self.phases],
        }

    def __str__(self) -> str:
        """Return a table for each phase, the reasons and the call to paste."""
        return _table(self)


def _table(found: TuningResult) -> str:
    lines: list[str] = []
    for name, phase in zip(phase_names(found.phases), found.phases, strict=True):
        copies = f", from copies of {phase.copies_px} px" if phase.copies_px else ""
        lines.append(name + copies)
        if phase.ceiling is not None:
            lines.append(f"  {'compute-bound':<44}{_rate(phase.ceiling, phase.batch_size)}")
        for trial in sorted(phase.trials, key=lambda trial: trial.workers):
            lines.append(_line(trial, found.start, phase))
        lines.append(f"  {phase.reason}")
    lines.append(f"files: {found.files}; search time {found.seconds:.0f} s")
    starts = [trial.start_s for phase in found.phases for trial in phase.trials]
    known = [start_s for start_s in starts if start_s is not None]
    if known:
        lines.append(
            f"workers needed up to {max(known):.1f} s to start and load a batch; "
            "persistent_workers=True starts them once instead of in every epoch"
        )
    return "\n".join([*lines, *(["", found.snippet] if found.snippet else [])])


def _line(trial: LoaderTrial, start: LoaderSetting, phase: TunedPhase) -> str:
    each = phase.batch_size or 1
    mark = "<" if trial is phase.best else ""
    between = "too few steps for an interval"
    if trial.interval is not None:
        between = "{:.1f} to {:.1f}".format(*(each * rate for rate in trial.interval))
    rate = _rate(trial.steps_per_s, phase.batch_size)
    line = (
        f"  {_setting_name(trial.setting, start):<44}{rate} ({between}), data wait "
        f"{trial.window.wait_share:4.0%} {mark}"
    )
    return line.rstrip()


def _setting_name(setting: LoaderSetting, start: LoaderSetting) -> str:
    """Describe a setting by its differences from the first one."""
    name = f"{plural(setting.workers, 'worker'):>12}"
    if setting.prefetch != start.prefetch:
        argument = "prefetch_factor" if setting.task_ms is None else "prefetch"
        name += f", {argument} {setting.prefetch}"
    if setting.task_ms != start.task_ms:
        name += f", tasks of {setting.task_ms:g} ms"
    if setting.pin != start.pin:
        name += ", pinned" if setting.pin else ", not pinned"
    return name


def _rate(steps_per_s: float, rows: int | None) -> str:
    return f"{(rows or 1) * steps_per_s:10.1f} {'images/s' if rows else 'steps/s'}"
