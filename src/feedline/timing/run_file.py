"""Files of runs: `trace.json`, for rank 1 `trace-rank1.json`, and so on; and merging of runs.

Guarantees: a file is written completely or not at all; a file that is read has the format of
`run.Run`, of a known version, or is refused by name; at most `MAX_BYTES` are read. A run that is
read from a folder knows the times of all ranks with a file there. Merging loses no step, and the
number of passes stays bounded.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from feedline.errors import UsageError
from feedline.system import replacing, unwritten
from feedline.timing.run import (
    RUN_VERSION,
    Pass,
    Run,
    SlowSample,
    StageTime,
    ThroughputPoint,
    rank_times,
)

RUN_FILE = "trace.json"
MAX_BYTES = 16 << 20
"""More than a run with the most passes, stages and events that a recorder keeps."""

MAX_POINTS = 200  # of the throughput history
MAX_RANKS = 256  # whose times are read
_SLOWEST = 20  # samples that a run names
_KIND = "feedline run"
_MAX_VALUE = 1e18  # of any count or time
_MAX_PASSES = 200
_DAMAGED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _RunFile(msgspec.Struct):
    what: str = ""
    version: int = 0
    run: msgspec.Raw = msgspec.Raw()


def run_file(rank: int) -> str:
    """File name for a rank."""
    return RUN_FILE if rank == 0 else f"trace-rank{rank}.json"


def check_folder(folder: Path) -> None:
    """Create a folder for runs, and check that files can be written to it.

    Raises:
        UsageError: they cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"a run cannot be written to {str(folder)!r}: {error.strerror}",
            hint="name another folder",
        ) from error


def write_run(run: Run, folder: Path) -> Path:
    """Write a run to a folder, which is created; an existing file is replaced atomically.

    Raises:
        UsageError: it cannot be written.
    """
    file = folder / run_file(run.rank)
    data = _encode(run)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(file) as partial:
            partial.write_bytes(data)
    except OSError as error:
        raise UsageError(
            f"the run cannot be written to {str(file)!r}: {unwritten(file, len(data), error)}",
            hint="free some space, or name another folder",
        ) from error
    return file


def _encode(run: Run) -> bytes:
    form = {"run": run, "what": _KIND, "version": RUN_VERSION}
    try:
        return msgspec.json.encode(form)
    except UnicodeEncodeError:  # of a file name that is not UTF-8
        return json.dumps(msgspec.to_builtins(form), ensure_ascii=False).encode(errors="replace")


def read_run(where: str | os.PathLike[str], rank: int = 0) -> Run:
    """Read a run.

    Args:
        where: the run's folder, or a file in it.
        rank: rank of the run to read from a folder, with the times of the other ranks.

    Raises:
        UsageError: it is missing, damaged, not a run, or written by a newer feedline.
    """
    path = Path(where)
    if not path.is_dir():
        return _read(path, path)
    run = _read(path / run_file(rank), path)
    times = {each.rank: each for each in run.ranks}
    for other in range(min(run.world_size, MAX_RANKS) if run.world_size > 1 else 0):
        if (file := path / run_file(other)).exists():
            try:
                found = run if other == rank else _read(file, path)
            except UsageError as error:
                run.notes.append(f"the times of rank {other} are unknown: {error}")
                continue
            # Not the file of another training that used the folder before.
            together = found.started < run.started + run.seconds
            if together and run.started < found.started + found.seconds:
                times[other] = rank_times(found)
    run.ranks = [times[other] for other in sorted(times)]
    return run


def _read(file: Path, path: Path) -> Run:
    """Read a file; `path` is the user's."""
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"no run at {str(path)!r}: {file.name} cannot be read ({error.strerror})",
            hint="record one with feedline.watch(loader, run=FOLDER) or feedline train",
        ) from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"{str(file)!r} is not a run: it is larger than {MAX_BYTES >> 20} MiB")
    try:
        found = msgspec.json.decode(data, type=_RunFile)
    except _DAMAGED as error:
        raise UsageError(f"{str(file)!r} is not a run, or damaged: {error}") from error
    if found.what != _KIND:
        raise UsageError(f"{str(file)!r} is not a run: expected what={_KIND!r}, got {found.what!r}")
    if found.version > RUN_VERSION:
        raise UsageError(
            f"{str(file)!r} has version {found.version}, from a newer feedline; this one reads "
            f"versions up to {RUN_VERSION}",
            hint="update feedline",
        )
    try:
        run = msgspec.json.decode(found.run, type=Run)
    except _DAMAGED as error:
        raise UsageError(f"{str(file)!r} is damaged: {error}") from error
    if _has_huge_number(msgspec.to_builtins(run)):
        raise UsageError(f"{str(file)!r} is damaged: a number is beyond {_MAX_VALUE:g}")
    return run


def _has_huge_number(part: Any) -> bool:
    """Return True if calculations with a number of a JSON value could overflow, or never end."""
    if isinstance(part, dict):
        part = [*part, *part.values()]
    if isinstance(part, (list, tuple)):
        return any(map(_has_huge_number, part))
    return isinstance(part, (int, float)) and not -_MAX_VALUE <= part <= _MAX_VALUE


def limit_passes(passes: list[Pass], unfinished: Sequence[Pass] = ()) -> list[Pass]:
    """Sum up old finished entries, by loader and size; if that is not enough, the last of any."""
    if len(passes) <= _MAX_PASSES:
        return passes
    stay = {id(each) for each in unfinished}
    old, recent = passes[: -_MAX_PASSES // 2], passes[-_MAX_PASSES // 2 :]
    by_kind: dict[tuple[int, int | None], Pass] = {}
    for each in old:
        if id(each) not in stay:
            known = by_kind.setdefault((each.loader, each.image_size), each)
            if known is not each:
                known.add(each)
    summed = list(by_kind.values())
    while len(summed) > _MAX_PASSES // 4:
        last = summed.pop()
        summed[-1].add(last)
    return [*summed, *(each for each in old if id(each) in stay), *recent]


def join_points(points: Iterable[ThroughputPoint], length_s: float) -> list[ThroughputPoint]:
    """Join neighbours, so that each point begins at least this long after the one before it."""
    joined: list[ThroughputPoint] = []
    for point in points:
        if joined and point.begun_s < joined[-1].begun_s + length_s:
            joined[-1].add(point)
        else:
            joined.append(replace(point))
    return joined


def slowest_samples(samples: Iterable[SlowSample]) -> list[SlowSample]:
    """Return the slowest samples, each once, slowest first."""
    by_name: dict[str, SlowSample] = {}
    for sample in sorted(samples, key=lambda sample: -sample.ms):
        by_name.setdefault(sample.name, sample)
    return list(by_name.values())[:_SLOWEST]


def merge_runs(earlier: Run, later: Run) -> Run:
    """Merge the record of an interrupted training with that of its next start.

    Times continue as if the starts had followed each other without a gap. The machine, its use and
    the times of other ranks are those of the later start.
    """
    loaders = list(dict.fromkeys([*earlier.loaders, *later.loaders]))
    after_s = earlier.seconds
    passes = [
        replace(
            each,
            loader=loaders.index(later.loaders[each.loader]),
            begun_s=each.begun_s + after_s,
            ended_s=each.ended_s + after_s,
        )
        for each in later.passes
    ]
    course = [replace(each, begun_s=each.begun_s + after_s) for each in later.course]
    course = [*earlier.course, *course]
    if len(course) > MAX_POINTS:
        course = join_points(course, (after_s + later.seconds) / (MAX_POINTS - 1))
    excerpts = [replace(each, begun_s=each.begun_s + after_s) for each in later.excerpts]
    stages: dict[str, StageTime] = {}
    for stage in (*earlier.stages, *later.stages):
        stages.setdefault(stage.name, StageTime(name=stage.name)).add(stage)
    decoded_px = sum((run.decoded_px or 0.0) * run.decoded for run in (earlier, later))
    merged = replace(
        later,
        started=earlier.started,
        seconds=after_s + later.seconds,
        settings=later.settings or earlier.settings,
        loaders=loaders,
        passes=limit_passes(copy.deepcopy(earlier.passes) + passes),
        course=course,
        stages=sorted(stages.values(), key=lambda stage: -stage.total_ms),
        slowest=slowest_samples([*earlier.slowest, *later.slowest]),
        # The latest of each kind.
        excerpts=list({each.why: each for each in [*earlier.excerpts, *excerpts]}.values()),
        notes=list(dict.fromkeys([*earlier.notes, *later.notes])),
    )
    merged.add_tasks(earlier)
    merged.decoded_px = decoded_px / merged.decoded if decoded_px else None
    return merged
