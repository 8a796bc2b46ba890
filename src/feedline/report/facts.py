"""The facts of a report: one model, from which terminal, page and JSON are made.

Guarantees: pure; all that is shown of a run is in here, and follows from the run and its verdict
alone; None stands for what was not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from feedline import __version__
from feedline.diagnose.finding import Bound, Diagnosis, Finding, PhaseSplit, UpperBound
from feedline.report.course import Course, course_of
from feedline.report.figures import encodable, finite
from feedline.report.lanes import Timeline
from feedline.report.learned import LearnedEpoch
from feedline.report.timeline import timeline_of, too_large, worst_step
from feedline.trace.run import Excerpt, Loader, Machine, Run, SlowSample, StageTime, Use

__all__ = ["Facts", "Stage", "facts_of"]


_EXCERPTS, _NOTES = 4, 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """What a stage of making samples costs, in the workers' tasks that were timed.

    Args:
        name: of the stage.
        count: how often it was passed.
        mean_ms: of once.
        longest_ms: at most.
        on_core: for which share of it the worker was on a core, 0 to 1; None where that was not
            measured.
        share: of all stages' time, 0 to 1.
    """

    name: str
    count: int
    mean_ms: float | None
    longest_ms: float
    on_core: float | None
    share: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What is known of a run, and what follows from it.

    Args:
        form: the version of this form.
        feedline: the version of feedline that says so.
        bound: how far the run's input is what holds it back.
        split_ms: the mean step in ms: "wait", "copy", "compute"; None for what was not measured.
        wait_pct: exposed waiting in percent of the time, in steps and where later passes start.
        images_per_s: over all phases, start-ups left out.
        steps: how many were measured.
        findings: most important first.
        ceiling: what training would do with data for free; None where nothing can be said.
        phases: the split of each phase.
        epochs: likewise, pass by pass.
        timelines: the latest steps, and the one that waited longest, lane by lane.
        course: throughput over time.
        learned: loss, accuracy and rate of each finished epoch; empty where nothing is known.
        went_on_at: the epoch, from 0, that the latest start of a training went on with, where it
            went on; else None.
        stages: of making samples, most expensive first.
        slowest: samples, slowest first.
        loaders: what made the batches, each sort once.
        settings: of the recipe, by name; empty for a loop of the user's own.
        machine: where the run was.
        use: what it used of the machine.
        started: when it began, in seconds since 1970 by the machine's clock.
        seconds: how long it was watched.
        rank: of the process.
        world_size: how many processes there were.
        notes: what could not be measured, and why.
    """

    form: Literal[1]
    feedline: str
    bound: Bound
    split_ms: dict[str, float | None]
    wait_pct: float | None
    images_per_s: float | None
    steps: int
    findings: list[Finding]
    ceiling: UpperBound | None
    phases: list[PhaseSplit]
    epochs: list[PhaseSplit]
    timelines: list[Timeline]
    course: Course
    learned: list[LearnedEpoch]
    went_on_at: int | None
    stages: list[Stage]
    slowest: list[SlowSample]
    loaders: list[Loader]
    settings: dict[str, str]
    machine: Machine
    use: Use
    started: float
    seconds: float
    rank: int
    world_size: int
    notes: list[str]


def facts_of(
    run: Run, verdict: Diagnosis, learned: Sequence[LearnedEpoch] = (), note: str = ""
) -> Facts:
    """The facts of a run, with what was found in it.

    Args:
        run: as it was recorded.
        verdict: what was found.
        learned: its finished epochs, those of earlier starts included.
        note: what could not be read of these, "" for nothing.
    """
    drawn = [each for each in run.excerpts[:_EXCERPTS] if not too_large(each)]
    timelines = [found for each in drawn if (found := _timeline(each)) is not None]
    outside = sum(timeline.left_out for timeline in timelines)
    notes = [*run.notes[:_NOTES], *([note] if note else [])]
    if len(drawn) < len(run.excerpts):
        notes.append("excerpts of the run with more events than can be drawn are left out")
    if outside:
        notes.append(
            f"{outside} events lie outside the steps they belong to and are not drawn: their "
            "process has another clock, as it has in another container or on another machine"
        )
    return Facts(
        form=1,
        feedline=__version__,
        bound=verdict.bound,
        split_ms={name: finite(ms) for name, ms in verdict.split_ms.items()},
        wait_pct=finite(verdict.wait_pct),
        images_per_s=_images_per_s(verdict.phases),
        steps=sum(phase.steps for phase in verdict.phases),
        findings=verdict.findings,
        ceiling=verdict.ceiling,
        phases=verdict.phases,
        epochs=verdict.epochs,
        timelines=timelines,
        course=course_of(run.course),
        learned=list(learned),
        went_on_at=_went_on_at(run) if learned else None,
        stages=_stages(run.stages),
        slowest=_slowest(run.slowest),
        loaders=list(dict.fromkeys(run.loaders)),
        settings={encodable(name): encodable(said) for name, said in run.settings.items()},
        machine=run.machine,
        use=run.use,
        started=run.started,
        seconds=run.seconds,
        rank=run.rank,
        world_size=run.world_size,
        notes=notes,
    )


def _went_on_at(run: Run) -> int | None:
    """The epoch, from 0, that this start began with, where others came before it."""
    epoch = min((each.epoch for each in run.passes), default=0)
    return epoch if epoch > 0 else None


def _timeline(excerpt: Excerpt) -> Timeline | None:
    if excerpt.why == "latest":
        return timeline_of(excerpt, "the latest steps")
    return worst_step(excerpt)


def _images_per_s(phases: Sequence[PhaseSplit]) -> float | None:
    """The rate over phases, each with the time that its images took."""
    images = seconds = 0.0
    for phase in phases:
        if phase.steps:
            if phase.batch_size is None or not finite(phase.images_per_s):
                return None
            assert phase.images_per_s is not None
            images += phase.steps * phase.batch_size
            seconds += phase.steps * phase.batch_size / phase.images_per_s
    return finite(images / seconds) if seconds > 0 else None


def _slowest(samples: Sequence[SlowSample]) -> list[SlowSample]:
    """Each sample once, slowest first."""
    longest: dict[str, float] = {}
    for each in samples:
        name = encodable(each.name)
        longest[name] = max(each.ms, longest.get(name, 0.0))
    ordered = sorted(longest.items(), key=lambda item: -item[1])
    return [SlowSample(name=name, ms=ms) for name, ms in ordered]


def _stages(stages: Sequence[StageTime]) -> list[Stage]:
    total_ms = sum(stage.total_ms for stage in stages)
    return [
        Stage(
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
