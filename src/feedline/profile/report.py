"""Data of a report: the diagnosis of a run with its figures, from which every form is made.

`ReportData` is the JSON of `feedline report --json`; `python -m feedline.profile.report` prints its
schema, `docs/schema/report.schema.json`. The sentences of a diagnosis are here, once for terminal,
page and notebook.

Guarantees: everything shown of a run is in here and follows from the run and its diagnosis alone;
None is a value that was not measured; a missing or damaged metrics file is no error.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from feedline import __version__
from feedline.machine import Machine
from feedline.profile.diagnose import Diagnosis, diagnose
from feedline.profile.facts import StepMeans, find_slow_rank
from feedline.profile.finding import TimePart
from feedline.profile.timeline import Timeline, timelines_of
from feedline.text import (
    as_date,
    as_ms,
    as_percent,
    as_rate,
    as_ratio,
    as_seconds,
    as_share,
    printable,
)
from feedline.timing.run import Loader, ResourceUse, Run, SlowSample, StageTime, ThroughputPoint
from feedline.timing.run_file import read_run

_METRICS_FILE = "metrics.jsonl"
_MAX_METRICS_BYTES = 64 << 20
_MAX_NOTES = 50
_MIN_S = 1e-9  # of an interval that was measured
_OF_RUN = (
    *("stages", "slowest", "loaders", "settings", "machine", "use"),
    *("started", "seconds", "rank", "world_size"),
)
_SHOWN = 0.0005  # share of the time: less is printed as 0.0%


_Count = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
_Seconds = Annotated[float, msgspec.Meta(ge=0)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochMetrics:
    """Finished epoch of `feedline train`, from its metrics file; None for unknown values.

    Args:
        epoch: counted from 1.
        size_px: side of its training images.
        seconds: from the first batch to the end of the last step, without validation.
        first_wait_s: time to the first batch.
        val_seconds: time of the validation.
        ended_s: training time up to its end, from the first epoch on: steps, waiting and
            validation, without the time between two starts.
        train_loss: mean training loss, with label smoothing.
        val_loss: validation loss.
        val_top1, val_top5: accuracy in validation, 0 to 1.
        lr: learning rate after its last step.
    """

    epoch: _Count
    size_px: _Count | None = None
    seconds: _Seconds | None = None
    first_wait_s: _Seconds | None = None
    val_seconds: _Seconds | None = None
    ended_s: _Seconds | None = None
    train_loss: float | None = None
    val_loss: float | None = None
    val_top1: _Share | None = None
    val_top5: _Share | None = None
    lr: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RateInterval:
    """Interval of a run's throughput history.

    Args:
        begun_s: start, from the run's start.
        seconds: length.
        images_per_s: rate; None if unknown.
        wait_pct: data wait in percent.
        image_size: of its batches, in pixels; None if they have none.
    """

    begun_s: float
    seconds: float
    images_per_s: float | None
    wait_pct: float | None
    image_size: int | None

    @property
    def ended_s(self) -> float:
        """End, from the run's start."""
        return self.begun_s + self.seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSummary:
    """Mean times of one rank of a distributed training, in ms per step.

    Args:
        rank: of the process.
        host: host name of its machine.
        steps: number of measured steps.
        step_ms: whole step.
        wait_ms: data wait.
        on_core_ms: computing on a core of the training thread; None if not measured.
        worker_ms: time of all tasks of its workers; None without tasks.
        slow: "input" or "computing" if all other ranks wait for this one's, or "".
    """

    rank: int
    host: str
    steps: int
    step_ms: float
    wait_ms: float
    on_core_ms: float | None
    worker_ms: float | None
    slow: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportData(Diagnosis):
    """Diagnosis and data of a run.

    Args:
        form: version of this format.
        feedline: version of feedline that made the report.
        steps: number of measured steps.
        timelines: the latest steps, and the step with the longest wait, lane by lane.
        throughput_history: throughput over time, a few hundred intervals at most.
        epochs_trained: loss, accuracy and learning rate of each finished epoch; empty if unknown.
        resumed_at_epoch: epoch, from 0, at which the latest start of a training resumed; None if it
            did not resume.
        stages: of making samples, most expensive first.
        slowest: samples, slowest first.
        loaders: loaders that made the batches, without duplicates.
        settings: of the recipe, by name; empty for a custom training loop.
        machine: machine of the run.
        use: use of the machine.
        started: start, in seconds since 1970 by the machine's clock.
        seconds: length of the recording.
        rank: of the process.
        world_size: number of processes.
        ranks: times of all known ranks; empty in a run of one process.
        notes: missing measurements, with reasons.
    """

    form: Literal[1]
    feedline: str
    steps: int
    timelines: list[Timeline]
    throughput_history: list[RateInterval]
    epochs_trained: list[EpochMetrics]
    resumed_at_epoch: int | None
    stages: list[StageTime]
    slowest: list[SlowSample]
    loaders: list[Loader]
    settings: dict[str, str]
    machine: Machine
    use: ResourceUse
    started: float
    seconds: float
    rank: int
    world_size: int
    ranks: list[RankSummary]
    notes: list[str]


def load_report(where: str | os.PathLike[str]) -> ReportData:
    """Load the run in a folder or a file, with its diagnosis.

    Raises:
        UsageError: it is missing, damaged, not a run, or written by a newer feedline.
    """
    run = read_run(where)
    path = Path(where)
    epochs, note = read_epoch_metrics(path if path.is_dir() else path.parent)
    return build_report(run, diagnose(run), epochs, note)


def build_report(
    run: Run, diagnosis: Diagnosis, epochs: Sequence[EpochMetrics] = (), note: str = ""
) -> ReportData:
    """Build the data of a report of a run, its finished epochs, and a note on unreadable ones."""
    timelines, remarks = timelines_of(run.excerpts)
    first_epoch = min((each.epoch for each in run.passes), default=0)
    return ReportData(
        **{each.name: getattr(diagnosis, each.name) for each in fields(Diagnosis)},
        **{name: getattr(run, name) for name in _OF_RUN},
        form=1,
        feedline=__version__,
        steps=sum(phase.steps for phase in diagnosis.phases),
        timelines=timelines,
        throughput_history=rate_intervals(run.course),
        epochs_trained=list(epochs),
        resumed_at_epoch=first_epoch if epochs and first_epoch > 0 else None,
        ranks=_ranks(run, diagnosis),
        notes=[*run.notes[:_MAX_NOTES], *([note] if note else []), *remarks],
    )


def _ranks(run: Run, diagnosis: Diagnosis) -> list[RankSummary]:
    is_finding = any(finding.rule == "slow-rank" for finding in diagnosis.findings)
    slow = find_slow_rank(run) if is_finding else None
    return [
        RankSummary(
            rank=each.rank,
            host=each.host,
            steps=means.steps,
            step_ms=means.step_ms,
            wait_ms=means.wait_ms,
            on_core_ms=means.compute_cpu_ms,
            worker_ms=means.of_step(each.tasks_ms) if each.tasks else None,
            slow=slow.part if slow and slow.rank == each.rank else "",
        )
        for each in run.ranks
        if (means := StepMeans(each)).steps
    ]


def rate_intervals(points: Sequence[ThroughputPoint]) -> list[RateInterval]:
    """Convert recorded points to a throughput history, without those that took no time."""
    return [
        RateInterval(
            begun_s=point.begun_s,
            seconds=point.seconds,
            images_per_s=None if point.samples is None else point.samples / point.seconds,
            wait_pct=min(100.0, point.wait_ms / point.seconds / 10),
            image_size=point.image_size,
        )
        for point in points
        if point.seconds >= _MIN_S
    ]


def read_epoch_metrics(folder: Path) -> tuple[list[EpochMetrics], str]:
    """Read the epochs of a run's folder, in order, with a note on unreadable parts, or "".

    Args:
        folder: of the run; without a metrics file there are no epochs.
    """
    file = folder / _METRICS_FILE
    if not file.is_file():
        return [], ""
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_METRICS_BYTES + 1)
    except OSError as error:
        return [], f"{_METRICS_FILE} cannot be read: {error.strerror}"
    if len(data) > _MAX_METRICS_BYTES:
        return [], f"{_METRICS_FILE} is larger than {_MAX_METRICS_BYTES >> 20} MiB, and is left out"
    lines = [line for line in data.split(b"\n") if line.strip()]
    found: list[EpochMetrics] = []
    ended_s: float | None = 0.0
    for line in lines:
        try:
            values = json.loads(line, parse_constant=lambda constant: None)  # NaN, Infinity
            read = msgspec.convert(values, EpochMetrics)
        except (ValueError, OverflowError, RecursionError, msgspec.ValidationError):
            continue
        if not found or read.epoch > found[-1].epoch:
            if ended_s is not None and read.seconds is not None:
                ended_s += read.seconds + (read.first_wait_s or 0.0) + (read.val_seconds or 0.0)
            else:
                ended_s = None
            found.append(replace(read, ended_s=ended_s))
    unread = len(lines) - len(found)
    note = f"{unread} lines of {_METRICS_FILE} are invalid or out of order, and are left out"
    return found, note if unread else ""


def to_json(thing: Any) -> dict[str, Any]:
    """Convert report data, or another dataclass, to JSON types; NaN and infinity become null."""
    converted: dict[str, Any] = json.loads(msgspec.json.encode(thing))
    return converted


def json_schema() -> dict[str, Any]:
    """Return the JSON schema, draft 2020-12, of report data."""
    made = json.loads(msgspec.json.encode(msgspec.json.schema(ReportData)))
    for each in made["$defs"].values():
        text = inspect.cleandoc(each.get("description", ""))
        each["description"] = " ".join(text.partition("Args:")[0].split())
        _describe(each, text)
        for field in each.get("properties", {}).values():
            # Only msgspec 0.23 and later add these.
            field.pop("propertyNames", None)
            if field.get("default") == []:
                del field["default"]
    _describe(made["$defs"]["ReportData"], inspect.getdoc(Diagnosis) or "")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "feedline report",
        **made,
    }


def _describe(definition: dict[str, Any], docstring: str) -> None:
    """Copy the documentation of each field from the docstring of its class."""
    for argument in re.split(r"\n {4}(?! )", docstring.partition("Args:")[2]):
        names, _, text = argument.partition(": ")
        for name in names.split(", "):
            if name in definition.get("properties", {}):
                definition["properties"][name]["description"] = " ".join(text.split())


PART_NAMES: dict[TimePart, str] = {
    "starts": "starts of passes",
    "wait": "waiting for a batch",
    "copy": "copying to the device",
    "core": "waiting for a core",
    "shape": "first steps at a new size",
    "compute": "computing",
    "between": "between passes",
}
"""Printed names of the parts of a run's time."""


@dataclass(frozen=True, slots=True)
class PartOfTime:
    """Part of a run's time, as it is printed."""

    key: TimePart
    name: str
    seconds: str  # with their unit
    step_ms: str  # its time in a mean step; "" if it is not part of a step
    share: float | None  # of the whole, 0 to 1; None if not measured


def part_shares(split_s: Mapping[TimePart, float | None]) -> dict[TimePart, float | None]:
    """Return the share of each part of a run's time, 0 to 1; None if not measured."""
    total = sum(seconds or 0.0 for seconds in split_s.values())
    return {part: None if s is None or total <= 0 else s / total for part, s in split_s.items()}


def parts_of_time(diagnosis: Diagnosis) -> list[PartOfTime]:
    """Return the parts of a run's time. Their shares add up to 1."""
    shares = part_shares(diagnosis.time_split_s)
    steps = sum(phase.steps for phase in diagnosis.phases)
    made = []
    for key, name in PART_NAMES.items():
        seconds = diagnosis.time_split_s.get(key)
        if seconds or key in ("wait", "copy", "compute"):
            ms = None if seconds is None else 1000 * seconds
            in_step = ms is not None and steps and key not in ("starts", "between")
            step_ms = as_ms((ms or 0.0) / steps) if in_step else ""
            made.append(PartOfTime(key, name, as_ms(ms), step_ms, shares.get(key)))
    return made


def recording_of(report: ReportData) -> str:
    """Describe when and where a run was recorded."""
    rank = "" if report.world_size == 1 else f", rank {report.rank} of {report.world_size}"
    return (
        f"{as_seconds(report.seconds)} from {as_date(report.started)} on "
        f"{printable(report.machine.host)}{rank}"
    )


def headline(diagnosis: Diagnosis) -> str:
    """Describe the diagnosis in a sentence."""
    if diagnosis.bound == "inconclusive":
        return "Inconclusive: too little was measured to find the bottleneck of this run."
    compute_bound = any(finding.rule == "compute-bound" for finding in diagnosis.findings)
    bound = "Compute-bound" if compute_bound else diagnosis.bound.capitalize()
    if diagnosis.wait_pct is None:
        return f"{bound}; the data wait was not measured."
    shares = part_shares(diagnosis.time_split_s)
    where = ""
    if (shares.get("starts") or 0.0) >= _SHOWN:
        steps, starts = as_share(shares.get("wait")), as_share(shares["starts"])
        where = f" ({steps} in steps, {starts} at the starts of passes)"
    return f"{bound}: data wait is {as_percent(diagnosis.wait_pct)} of the time{where}."


def describe_throughput(diagnosis: Diagnosis) -> list[str]:
    """Describe the compute-bound throughput, and the rates of storage and workers."""
    found = diagnosis.compute_bound
    if found is None:
        return ["The compute-bound throughput was not measured."]
    bound, now = found.images_per_s, diagnosis.images_per_s
    times = f", {as_ratio(bound / now)} as fast" if now else ""
    alone = {
        "Storage alone delivers": found.storage_images_per_s,
        "Workers alone, with all data in memory, make": found.workers_images_per_s,
    }
    return [
        f"Now {as_rate(now)}; compute-bound {as_rate(bound)}{times}.",
        *(f"{source} {as_rate(rate)}." for source, rate in alone.items() if rate is not None),
    ]


@dataclass(frozen=True, slots=True)
class LimitCheck:
    """Limit, and if a run respects it."""

    name: str  # "wait_pct" or "images_per_s"
    limit: float
    measured: float | None  # None if not measured
    passed: bool | None  # None if it cannot be decided
    said: str  # the result in a sentence


def check_limits(
    report: ReportData, max_wait_pct: float | None, min_images_per_s: float | None
) -> list[LimitCheck]:
    """Check each limit that is not None. A run of too few steps neither passes nor fails."""
    is_decided, found = report.bound != "inconclusive", list[LimitCheck]()
    wait, rate = report.wait_pct, report.images_per_s
    if (most := max_wait_pct) is not None:
        passed = wait <= most if is_decided and wait is not None else None
        text = f"data wait: {as_percent(wait)} of the time, limit {most:g}%"
        found.append(LimitCheck("wait_pct", most, wait, passed, text))
    if (least := min_images_per_s) is not None:
        passed = rate >= least if is_decided and rate is not None else None
        text = f"throughput: {as_rate(rate)}, minimum {least:g} images/s"
        found.append(LimitCheck("images_per_s", least, rate, passed, text))
    return found


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2))
