"""Data of a report: one model, from which terminal, page and JSON are made.

Guarantees: pure; everything shown of a run is in here, and follows from the run and its diagnosis
alone; None is a value that was not measured.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from feedline import __version__
from feedline.profile.diagnose import diagnose
from feedline.profile.epoch_metrics import EpochMetrics, read_epoch_metrics
from feedline.profile.finding import Diagnosis
from feedline.profile.history import ThroughputHistory, build_history
from feedline.profile.timeline import Timeline, timeline_of, too_large, worst_step
from feedline.text import encodable, finite
from feedline.timing.run import (
    Loader,
    Machine,
    ResourceUse,
    Run,
    SlowSample,
    StageTime,
    TimelineSample,
)
from feedline.timing.run_file import read_run

__all__ = ["ReportData", "StageSummary", "build_report", "load_report"]


_EXCERPTS, _NOTES = 4, 50


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSummary:
    """Cost of a stage of making samples, in the workers' timed tasks.

    Args:
        name: of the stage.
        count: number of times it ran.
        mean_ms: mean time.
        longest_ms: longest time.
        on_core: share of the time on a core, 0 to 1; None if not measured.
        share: of all stages' time, 0 to 1.
    """

    name: str
    count: int
    mean_ms: float | None
    longest_ms: float
    on_core: float | None
    share: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportData(Diagnosis):
    """Diagnosis and data of a run.

    Args:
        form: version of this format.
        feedline: version of feedline that made the report.
        steps: number of measured steps.
        timelines: the latest steps, and the step with the longest wait, lane by lane.
        throughput_history: throughput over time.
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
        notes: missing measurements, with reasons.
    """

    form: Literal[1]
    feedline: str
    steps: int
    timelines: list[Timeline]
    throughput_history: ThroughputHistory
    epochs_trained: list[EpochMetrics]
    resumed_at_epoch: int | None
    stages: list[StageSummary]
    slowest: list[SlowSample]
    loaders: list[Loader]
    settings: dict[str, str]
    machine: Machine
    use: ResourceUse
    started: float
    seconds: float
    rank: int
    world_size: int
    notes: list[str]


def build_report(
    run: Run, verdict: Diagnosis, learned: Sequence[EpochMetrics] = (), note: str = ""
) -> ReportData:
    """Build the data of a report.

    Args:
        run: as recorded.
        verdict: the diagnosis.
        learned: its finished epochs, including those of earlier starts.
        note: remark on epochs that could not be read, or "".
    """
    drawn = [each for each in run.excerpts[:_EXCERPTS] if not too_large(each)]
    timelines = [found for each in drawn if (found := _timeline(each)) is not None]
    outside = sum(timeline.left_out for timeline in timelines)
    notes = [*run.notes[:_NOTES], *([note] if note else [])]
    if len(drawn) < len(run.excerpts):
        notes.append("timeline samples with too many events to draw are left out")
    if outside:
        notes.append(
            f"{outside} events are outside the steps they belong to and are not drawn: their "
            "process has another clock, as in another container or on another machine"
        )
    return ReportData(
        **{each.name: getattr(verdict, each.name) for each in fields(verdict)},
        form=1,
        feedline=__version__,
        steps=sum(phase.steps for phase in verdict.phases),
        timelines=timelines,
        throughput_history=build_history(run.course),
        epochs_trained=list(learned),
        resumed_at_epoch=_resume_epoch(run) if learned else None,
        stages=_stages(run.stages),
        slowest=_slowest(run.slowest),
        loaders=list(dict.fromkeys(run.loaders)),
        settings={encodable(name): encodable(value) for name, value in run.settings.items()},
        machine=run.machine,
        use=run.use,
        started=run.started,
        seconds=run.seconds,
        rank=run.rank,
        world_size=run.world_size,
        notes=notes,
    )


def _resume_epoch(run: Run) -> int | None:
    """Epoch, from 0, with which this start began; None if it was the first start."""
    epoch = min((each.epoch for each in run.passes), default=0)
    return epoch if epoch > 0 else None


def _timeline(excerpt: TimelineSample) -> Timeline | None:
    if excerpt.why == "latest":
        return timeline_of(excerpt, "the latest steps")
    return worst_step(excerpt)


def _slowest(samples: Sequence[SlowSample]) -> list[SlowSample]:
    """Remove duplicate samples and sort them, slowest first."""
    longest: dict[str, float] = {}
    for each in samples:
        name = encodable(each.name)
        longest[name] = max(each.ms, longest.get(name, 0.0))
    ordered = sorted(longest.items(), key=lambda item: -item[1])
    return [SlowSample(name=name, ms=ms) for name, ms in ordered]


def _stages(stages: Sequence[StageTime]) -> list[StageSummary]:
    total_ms = sum(stage.total_ms for stage in stages)
    return [
        StageSummary(
            name=stage.name,
            count=stage.count,
            mean_ms=finite(stage.total_ms / stage.count) if stage.count > 0 else None,
            longest_ms=stage.longest_ms,
            on_core=None
            if stage.cpu_ms is None or stage.total_ms <= 0
            else finite(min(1.0, stage.cpu_ms / stage.total_ms)),
            share=finite(stage.total_ms / total_ms) if total_ms > 0 else None,
        )
        for stage in stages
    ]


def load_report(where: str | os.PathLike[str]) -> ReportData:
    """Load the run in a folder or a file, with its diagnosis.

    Raises:
        UsageError: it is missing, damaged, not a run, or written by a newer feedline.
    """
    run = read_run(where)
    path = Path(where)
    learned, note = read_epoch_metrics(path if path.is_dir() else path.parent)
    return build_report(run, diagnose(run), learned, note)
