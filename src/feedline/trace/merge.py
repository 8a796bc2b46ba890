"""One run made of several starts: what an interrupted and resumed training recorded.

Guarantees: no step is lost, and the number of passes stays bounded. Times count on as if one start
had followed the other at once. The machine and its use are those of the later start.
"""

from __future__ import annotations

from dataclasses import replace

from feedline.trace.passes import bounded
from feedline.trace.run import Excerpt, Run, StageTime

__all__ = ["merged"]

_SLOWEST = 20
_COURSE = 400


def merged(earlier: Run, later: Run) -> Run:
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
        had, had_ms = sizes.get(k, (0, 0.0))
        sizes[k] = had + count, had_ms + total_ms
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
        passes=bounded([replace(each) for each in earlier.passes] + passes),
        course=[*earlier.course, *course][-_COURSE:],
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
        had = by_name.get(stage.name)
        by_name[stage.name] = stage if had is None else _both(had, stage)
    return sorted(by_name.values(), key=lambda stage: -stage.total_ms)


def _both(had: StageTime, stage: StageTime) -> StageTime:
    known = had.cpu_ms is not None and stage.cpu_ms is not None
    return StageTime(
        name=stage.name,
        count=had.count + stage.count,
        total_ms=had.total_ms + stage.total_ms,
        longest_ms=max(had.longest_ms, stage.longest_ms),
        cpu_ms=(had.cpu_ms or 0.0) + (stage.cpu_ms or 0.0) if known else None,
    )


def _excerpts(earlier: list[Excerpt], later: list[Excerpt]) -> list[Excerpt]:
    """Of each kind the later one."""
    by_why = {each.why: each for each in [*earlier, *later]}
    return list(by_why.values())
