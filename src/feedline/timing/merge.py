"""Merge the records of an interrupted and resumed training to one run.

Guarantees: no step is lost, and the number of passes stays bounded. Times continue as if the starts
had followed each other without a gap. Machine and its use are those of the later start.
"""

from __future__ import annotations

from dataclasses import replace

from feedline.timing.passes import limit_passes
from feedline.timing.run import Run, StageTime, TimelineSample

__all__ = ["merge_runs"]

_SLOWEST = 20
_MAX_POINTS = 400


def merge_runs(earlier: Run, later: Run) -> Run:
    """Merge the record of an earlier start into that of a later one."""
    after_s = earlier.seconds
    loaders = list(earlier.loaders)
    numbers = []
    for loader in later.loaders:
        if loader not in loaders:
            loaders.append(loader)
        numbers.append(loaders.index(loader))
    passes = [
        replace(
            each,
            loader=numbers[each.loader],
            begun_s=each.begun_s + after_s,
            ended_s=each.ended_s + after_s,
        )
        for each in later.passes
    ]
    course = [replace(each, begun_s=each.begun_s + after_s) for each in later.course]
    excerpts = [replace(each, begun_s=each.begun_s + after_s) for each in later.excerpts]
    sizes = dict(earlier.sample_sizes)
    for k, (count, total_ms) in later.sample_sizes.items():
        count_before, ms_before = sizes.get(k, (0, 0.0))
        sizes[k] = count_before + count, ms_before + total_ms
    slowest = sorted([*earlier.slowest, *later.slowest], key=lambda sample: -sample.ms)
    decoded = earlier.decoded + later.decoded
    decoded_px = sum((r.decoded_px or 0.0) * r.decoded for r in (earlier, later))
    queued = [r.timed_queued_ms for r in (earlier, later) if r.timed]
    return replace(
        later,
        started=earlier.started,
        seconds=after_s + later.seconds,
        settings=later.settings or earlier.settings,
        loaders=loaders,
        passes=limit_passes([replace(each) for each in earlier.passes] + passes),
        course=[*earlier.course, *course][-_MAX_POINTS:],
        stages=_stages(earlier.stages, later.stages),
        tasks=earlier.tasks + later.tasks,
        tasks_ms=earlier.tasks_ms + later.tasks_ms,
        timed=earlier.timed + later.timed,
        timed_ms=earlier.timed_ms + later.timed_ms,
        timed_cpu_ms=earlier.timed_cpu_ms + later.timed_cpu_ms,
        timed_queued_ms=None if not queued or None in queued else sum(q or 0.0 for q in queued),
        decoded=decoded,
        decoded_px=decoded_px / decoded if decoded_px else None,
        sample_sizes=sizes,
        slowest=slowest[:_SLOWEST],
        excerpts=_excerpts(earlier.excerpts, excerpts),
        notes=list(dict.fromkeys([*earlier.notes, *later.notes])),
    )


def _stages(earlier: list[StageTime], later: list[StageTime]) -> list[StageTime]:
    by_name = {stage.name: stage for stage in earlier}
    for stage in later:
        known = by_name.get(stage.name)
        by_name[stage.name] = stage if known is None else _add(known, stage)
    return sorted(by_name.values(), key=lambda stage: -stage.total_ms)


def _add(first: StageTime, second: StageTime) -> StageTime:
    known = first.cpu_ms is not None and second.cpu_ms is not None
    return StageTime(
        name=second.name,
        count=first.count + second.count,
        total_ms=first.total_ms + second.total_ms,
        longest_ms=max(first.longest_ms, second.longest_ms),
        cpu_ms=(first.cpu_ms or 0.0) + (second.cpu_ms or 0.0) if known else None,
    )


def _excerpts(earlier: list[TimelineSample], later: list[TimelineSample]) -> list[TimelineSample]:
    """Return the latest sample of each kind."""
    by_why = {each.why: each for each in [*earlier, *later]}
    return list(by_why.values())
