"""Result of a search: trials of each phase, the best setting, a table, a snippet and an SVG image.

Guarantees: pure. The image is self-contained and readable on light and dark pages; its lines differ
by dashes and marks, not only by colour.
"""

from __future__ import annotations

import math
import textwrap
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

import feedline
from feedline.errors import UsageError
from feedline.loader.saved_settings import SavedSettings
from feedline.order.schedule import Schedule
from feedline.system import usable_cores
from feedline.text import as_share, format_table, plural
from feedline.throughput.step_model import Part
from feedline.throughput.thresholds import THRESHOLDS
from feedline.throughput.what_if import Changes, Forecast, Rates, WhatIf, forecast, what_if
from feedline.tuning.search import LoaderSetting, LoaderTrial

_LIBRARIES = tuple(f"{Path(module.__file__ or '').parent}/" for module in (feedline, torch))
_WORKER_TRACEBACK = "\nOriginal Traceback"  # torch's text in the exception of a worker
_MAX_CHARACTERS = 300

_WIDTH, _HEIGHT = 620.0, 280.0
_MAX_PHASES = 4  # number of distinguishable dashes and marks
_MAX_LABELS = 16
_WRAP_COLUMNS = 110

_ONE_FOR_ALL = (
    "one setting for all phases, enough for the busiest; num_workers='auto' adapts to each phase"
)

_BOTTLENECKS: dict[Part, str] = {
    "compute": "the step, which takes longer than alone",
    "hand-over": "the training process, which receives the batches",
    "copy": "copying batches to the device",
    "workers": "the workers",
    "cores": "the cores",
}

SearchStatus = Literal["done", "budget", "interrupted", "resources", "error"]
"""`budget`: the time limit ended the search; `interrupted`: Ctrl-C; `resources`: memory or
processes ran out; `error`: the step or the dataset raised an exception."""


@dataclass(frozen=True, slots=True)
class UserCodeFailure:
    """An exception of the training step or the dataset.

    Its traceback has only frames of user code, and a worker's traceback once.
    """

    error: Exception
    where: Literal["the step", "loading a batch"]

    @property
    def summary(self) -> str:
        """One line: the code that raised, and the message."""
        text, kind = str(self.error).strip(), type(self.error).__name__
        if _WORKER_TRACEBACK in f"\n{text}":
            last = text.splitlines()[-1]  # of the worker's traceback
        else:
            last = f"{kind}: {text.splitlines()[0]}" if text else kind
        return f"{self.where} raised {last[:_MAX_CHARACTERS]}"

    @property
    def traceback(self) -> str:
        """Traceback with the frames of user code."""
        found = traceback.TracebackException.from_exception(self.error)
        own = [frame for frame in found.stack if not frame.filename.startswith(_LIBRARIES)]
        found.stack = traceback.StackSummary.from_list(own)
        return "".join(found.format() if own else found.format_exception_only()).rstrip()


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
        bottleneck: part that bounds the best trial; None if unknown.
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
    bottleneck: Part | None = None
    error: str = ""
    copies_px: int | None = None

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
        workers = worker_name(self.best.workers)
        if self.is_compute_bound:
            text = f"compute-bound: no loader setting helps, fewest that suffice: {workers}"
        else:
            text = f"fastest of {plural(len(self.trials), 'setting')}: {workers}"
            if self.ceiling:
                text += f", at {self.best.steps_per_s / self.ceiling:.0%} of the compute-bound rate"
            if self.bottleneck is not None:
                part = _BOTTLENECKS[self.bottleneck]
                if self.bottleneck == "workers" and not self.best.workers:
                    part = "the training process, which makes the batches"
                text += f"; bottleneck: {part}"
        return text if end is None else f"{text}; {end}"

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary: rates in batches per second."""
        return {
            "image_size": self.size,
            "batch_size": self.batch_size,
            "num_workers": None if self.best is None else self.best.workers,
            "compute_bound_batches_per_s": self.ceiling,
            "compute_bound": self.is_compute_bound,
            "bottleneck": self.bottleneck,
            "status": self.status,
            "reason": self.reason,
            "copies_px": self.copies_px,
            "trials": [_trial_dict(trial) for trial in self.trials],
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
        "other_cores": trial.other_cores,
    }


def _phase_names(phases: Sequence[TunedPhase]) -> list[str]:
    """Name each phase by its image size, and by its batch size if several have that size."""
    sizes = [phase.size for phase in phases]
    return [
        (f"{phase.size} px" if phase.size else "all batches")
        + (f", batches of {phase.batch_size}" if sizes.count(phase.size) > 1 else "")
        for phase in phases
    ]


def worker_name(workers: int) -> str:
    """Name a number of workers."""
    return plural(workers, "worker") if workers else "no workers"


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
        return LoaderSetting(
            workers=max(setting.workers for setting in found),
            prefetch=max(setting.prefetch for setting in found),
            task_ms=min((each.task_ms for each in found if each.task_ms is not None), default=None),
            pin=found[0].pin,
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the loader; empty if nothing was measured."""
        found, start, of_torch = self.setting, self.start, self.loader == "torch"
        if found is None:
            return {}
        arguments: dict[str, Any] = {"num_workers": found.workers}
        if found.workers:
            if of_torch or found.prefetch != start.prefetch:
                arguments[_prefetch_name(found)] = found.prefetch
            if found.task_ms != start.task_ms:
                arguments["task_ms"] = found.task_ms
            if of_torch:
                arguments["persistent_workers"] = True
        if of_torch:
            arguments["pin_memory"] = bool(found.pin)
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

    @property
    def other_cores(self) -> float:
        """Mean number of usable cores that other programs used during the trials."""
        trials = [trial for phase in self.phases for trial in phase.trials]
        seconds = sum(trial.window.seconds for trial in trials)
        used = sum(trial.other_cores * trial.window.seconds for trial in trials)
        return used / seconds if seconds > 0 else 0.0

    @property
    def busy_machine(self) -> str:
        """Sentence on other programs that used the cores meanwhile; "" if they used few."""
        cores = usable_cores()
        if self.other_cores < THRESHOLDS.other_cores * cores:
            return ""
        return (
            f"other programs used {self.other_cores:.1f} of {plural(cores, 'core')} during the "
            "search: other settings may be faster without them"
        )

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
        # Without workers each phase stays as measured.
        workers = self.num_workers or None if workers is None else workers
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
            "other_cores": self.other_cores,
            "seconds": self.seconds,
            "phases": [phase.as_dict() for phase in self.phases],
        }

    def __str__(self) -> str:
        """Return a table for each phase, the reasons and the call to paste."""
        lines: list[str] = []
        for name, phase in zip(_phase_names(self.phases), self.phases, strict=True):
            copies = f", from copies of {phase.copies_px} px" if phase.copies_px else ""
            lines += [name + copies, *self._table(phase), f"  {phase.reason}"]
        lines.append(f"files: {self.files}; search time {self.seconds:.0f} s")
        if self.busy_machine:
            lines.append(f"note: {self.busy_machine}")
        starts = [trial.start_s for phase in self.phases for trial in phase.trials]
        if any(starts):
            lines.append(
                f"workers needed up to {max(start or 0 for start in starts):.1f} s to start and "
                "load a batch; persistent_workers=True starts them once instead of in every epoch"
            )
        return "\n".join([*lines, *(["", self.snippet] if self.snippet else [])])

    def _table(self, phase: TunedPhase) -> list[str]:
        """Return the lines of a phase: the compute-bound rate and the trials."""
        each = phase.batch_size or 1
        rows = [("", "images/s" if phase.batch_size else "steps/s", "95% interval", "wait", "")]
        if phase.ceiling is not None:
            rows.append(("compute-bound", f"{each * phase.ceiling:.1f}", "", "", ""))
        for trial in sorted(phase.trials, key=lambda trial: trial.workers):
            interval = "too few steps"
            if trial.interval is not None:
                interval = "{:.1f} to {:.1f}".format(*(each * rate for rate in trial.interval))
            rows.append(
                (
                    _setting_name(trial.setting, self.start),
                    f"{each * trial.steps_per_s:.1f}",
                    interval,
                    as_share(trial.window.wait_share),
                    "<" if trial is phase.best else "",
                )
            )
        return format_table(rows) if len(rows) > 1 else []


def _prefetch_name(setting: LoaderSetting) -> str:
    return "prefetch_factor" if setting.task_ms is None else "prefetch"


def _setting_name(setting: LoaderSetting, start: LoaderSetting) -> str:
    """Describe a setting by its differences from the first one."""
    name = worker_name(setting.workers)
    if setting.prefetch != start.prefetch:
        name += f", {_prefetch_name(setting)} {setting.prefetch}"
    if setting.task_ms != start.task_ms:
        name += f", tasks of {setting.task_ms:g} ms"
    if setting.pin != start.pin:
        name += ", pinned" if setting.pin else ", not pinned"
    return name


def curve_svg(found: TuningResult) -> str:
    """Draw a tuning result as an SVG image, 760 px wide.

    Of several trials with the same number of workers the fastest is drawn. A bar is the 95%
    interval of a trial, a horizontal line the compute-bound rate, a filled mark the chosen setting.
    Only the first four phases are drawn.
    """
    from feedline.profile.page import template, ticks  # loads jinja2

    phases = [phase for phase in found.phases if phase.trials][:_MAX_PHASES]
    workers = sorted({trial.workers for phase in phases for trial in phase.trials}) or [1]
    highest = 1.05 * max(map(_highest, phases), default=0.0) or 1.0

    def x(workers_: int) -> float:
        return round(_WIDTH * workers_ / (workers[-1] + 0.5), 1)

    def y(per_s: float) -> float:
        return max(0.0, round(_HEIGHT * (1 - per_s / highest), 1))

    def point(trial: LoaderTrial, phase: TunedPhase) -> dict[str, Any]:
        rows, rate = phase.batch_size or 1, trial.steps_per_s
        low, high = trial.interval or (rate, rate)
        return {
            "x": x(trial.workers),
            "y": y(rows * rate),
            "low": y(rows * low),
            "high": y(rows * high),
            "best": trial is phase.best,
            "label": f"{worker_name(trial.workers)}: {rows * rate:.0f}",
        }

    lines, reasons = list[dict[str, Any]](), list[str]()
    for name, phase in zip(_phase_names(phases), phases, strict=True):
        trials = sorted(phase.trials, key=lambda each: (each is phase.best, each.steps_per_s))
        drawn = {trial.workers: trial for trial in trials}
        bound = (phase.batch_size or 1) * phase.ceiling if phase.ceiling else math.inf
        lines.append(
            {
                "name": name,
                "points": [point(trial, phase) for _, trial in sorted(drawn.items())],
                "compute_bound": y(bound) if bound <= highest else None,
            }
        )
        reasons += textwrap.wrap(f"{name}: {phase.reason}", _WRAP_COLUMNS)
    return template("curve.svg").render(
        scope=":root, svg",
        lines=lines,
        width=_WIDTH,
        height=_HEIGHT,
        worker_ticks=[
            {"x": x(count), "label": str(count)}
            for count in workers[:: -(-len(workers) // _MAX_LABELS)]
        ],
        rate_ticks=[{"y": y(rate), "label": f"{rate:g}"} for rate in ticks(highest)],
        unit="images/s" if all(phase.batch_size for phase in phases) else "steps/s",
        reasons=reasons or ["nothing was measured"],
    )


def _highest(phase: TunedPhase) -> float:
    """Highest rate to draw; a compute-bound rate far above all loaders is only printed."""
    fast = max(trial.steps_per_s for trial in phase.trials)
    ends = (trial.interval or (0.0, trial.steps_per_s) for trial in phase.trials)
    bound = phase.ceiling if phase.ceiling and phase.ceiling < 3 * fast else 0.0
    return (phase.batch_size or 1) * max(bound, *(min(high, 1.5 * fast) for _, high in ends))
