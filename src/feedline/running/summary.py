"""Summary of a program's loaders: engines, rates, step times, and the largest fix.

Guarantees: at most ten lines.
"""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path

from feedline.errors import FeedlineError
from feedline.profile.diagnose import Diagnosis, diagnose
from feedline.profile.finding import Finding, as_gain
from feedline.profile.report import parts_of_time
from feedline.running.launch import PatchSettings
from feedline.text import as_percent, as_rate, as_seconds, finite, plural, printable
from feedline.timing.run import Loader, Run
from feedline.timing.run_file import read_run, run_file

_MOST_LOADERS = 3
_LONGEST = 240


def print_summary(settings: PatchSettings) -> None:
    """Print the summary of a program from the files that its processes have written."""
    runs: list[list[Run]] = []
    files: set[str] = set()
    folder = Path(settings.folder or "")
    for part in sorted(folder.glob("[0-9]*-*"), key=lambda path: int(path.name.split("-")[0])):
        ranks = []
        for file in sorted(part.glob("trace*.json")):
            files.add(file.name)
            with contextlib.suppress(FeedlineError):  # of a process that was killed
                ranks.append(read_run(file))
        runs.append(sorted(ranks, key=lambda run: run.rank))
    print(describe_run(runs, settings, files), file=sys.stderr, flush=True)


def describe_run(
    runs: list[list[Run]], settings: PatchSettings, files: set[str] | None = None
) -> str:
    """Describe the loaders of a program, by the runs of their ranks. `files` are names of the files
    that the ranks have written; None: other ranks are unknown.
    """
    used = [ranks for ranks in runs if ranks and ranks[0].passes and ranks[0].loaders]
    if not used:
        return "feedline run: the program iterated over no torch DataLoader"
    used.sort(key=lambda ranks: -_seconds(ranks[0]))
    loaders = [_LoaderText(ranks) for ranks in used]
    lines = [f"feedline run: {plural(len(loaders), 'loader')}{_ranks(used, files, settings)}"]
    for number, loader in enumerate(loaders[:_MOST_LOADERS], 1):
        lines += [f"{number}. {loader.engine}", f"   {loader.times}"]
    if more := loaders[_MOST_LOADERS:]:
        lines.append(
            f"and {plural(len(more), 'more loader')}, {as_seconds(sum(m.seconds for m in more))}"
        )
    if finding := _largest_fix(loaders):
        if finding.rule == "inconclusive":
            lines.append(f"diagnosis: {finding.cause} {finding.fix}")
        else:
            lines.append(f"largest fix: {finding.fix} Gain: {as_gain(finding.gain)}")
    if settings.folder is not None:
        lines.append(f"runs: {settings.folder}; `feedline report` shows each of its folders")
    return "\n".join(map(_cut, map(printable, lines)))


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


class _LoaderText:
    """Description of a loader, by its runs, rank 0 first."""

    def __init__(self, ranks: list[Run]) -> None:
        run = ranks[0]
        self.diagnosis: Diagnosis = diagnose(run)
        self.seconds = _seconds(run)
        loader = run.loaders[run.passes[-1].loader]
        dataset, kind = (name.rpartition(".")[2] for name in (loader.dataset, loader.name))
        size = "" if loader.samples is None else f" of {plural(loader.samples, 'sample')}"
        self.engine = f"{dataset}{size} ({kind}): {_describe_engine(loader)}"
        rates = [rate for rate in map(_rate, ranks) if rate is not None]
        shares = ", ".join(
            f"{part.name} {as_percent(100 * part.share)}"
            for part in parts_of_time(self.diagnosis)
            if part.share is not None
        )
        samples = sum(each.samples or 0 for run in ranks for each in run.passes)
        rate = as_rate(sum(rates) if rates else None)
        self.times = f"{plural(samples, 'sample')} read, {rate}; steps: {shares or 'not measured'}"


def _describe_engine(loader: Loader) -> str:
    because = f"; {loader.because}" if loader.because else ""
    if loader.kind != "feedline":
        return f"torch's loader{because}"
    if not loader.fused:
        return f"{loader.engine}{because}"
    because = f"; not the image-row engine: {loader.because}" if loader.because else ""
    return f"{loader.engine}; fused: {_names(loader.fused)}{because}"


def _names(steps: str) -> str:
    """Names of steps without their arguments, which may be cut."""
    while (shorter := re.sub(r"\([^()]*\)|\[[^][]*\]", "", steps)) != steps:
        steps = shorter
    return re.sub(r"\([^()]*(\([^()]*)*\.\.\.", "", steps)


def _seconds(run: Run) -> float:
    return sum(each.ended_s - each.begun_s for each in run.passes)


def _rate(run: Run) -> float | None:
    """Samples per second in all passes; None if they could not be counted."""
    samples, seconds = [each.samples for each in run.passes], _seconds(run)
    return (
        None if None in samples or not seconds else sum(map(int, filter(None, samples))) / seconds
    )


def _ranks(used: list[list[Run]], files: set[str] | None, settings: PatchSettings) -> str:
    """Number of ranks, and those that did not use feedline although others did."""
    world = max(run.world_size for ranks in used for run in ranks)
    if world == 1:
        return ""
    if files is None:
        return f" on rank {used[0][0].rank} of {world}"
    if settings.watch:
        return f" on {plural(world, 'rank')}"
    absent = {rank for rank in range(world) if run_file(rank) not in files}
    on_torch = set[int]()
    for ranks in used:
        kinds = {run.rank: run.loaders[0].kind for run in ranks if run.loaders}
        if "feedline" in kinds.values():
            on_torch |= {rank for rank, kind in kinds.items() if kind != "feedline"}
    text = f" on {world - len(absent | on_torch)} of {world} ranks"
    if absent:
        text += f"; no record of rank {_numbers(absent)}, which may use torch's loader"
    if on_torch:
        text += f"; torch's loader on rank {_numbers(on_torch)}"
    return text


def _numbers(ranks: set[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))


def _largest_fix(loaders: list[_LoaderText]) -> Finding | None:
    """Return the finding whose fix saves the most time, or the first without a gain.

    An inconclusive one only if there is no other.
    """
    saved: list[tuple[float, bool, Finding]] = []
    for loader in loaders:
        for finding in loader.diagnosis.findings:
            gain = None if finding.gain is None else finite(finding.gain.predicted)
            if finding.fix:
                seconds = loader.seconds * (1 - 1 / gain) if gain else 0.0
                saved.append((seconds, finding.rule != "inconclusive", finding))
    return max(saved, key=lambda each: each[:2], default=(0.0, False, None))[2]
