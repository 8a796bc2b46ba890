"""A whole benchmark: looks at the images, makes copies, and lets all contestants count in turn.

Guarantees: what can be found wrong with the request is found before anything is measured. When it
returns or breaks off, none of its processes is left, and no copies.
"""

from __future__ import annotations

import contextlib
import time
from typing import Protocol

from feedline.bench.contestants import enter_ours, enter_torch, take_turns
from feedline.bench.copies import Copies, copies, copies_side
from feedline.bench.machine import machine, versions
from feedline.bench.ours import PREFETCH, Ours
from feedline.bench.pool import Pool
from feedline.bench.result import LeftOut, Result
from feedline.bench.sample import Sample
from feedline.bench.settings import Settings
from feedline.bench.stages import measure_stages
from feedline.bench.survey import survey
from feedline.bench.theirs import torch_process
from feedline.bench.turns import plan_turns
from feedline.engine.layout import batch_bytes
from feedline.engine.memory import require_memory
from feedline.engine.start_method import WORKER_BYTES
from feedline.images.drawn import drawn
from feedline.images.folder import ImageFolder
from feedline.loader.checks import worker_count
from feedline.system import usable_cores

__all__ = ["Report", "run_benchmark"]

_PACKAGES = ("numpy", "simplejpeg", "Pillow")
_PROCESS_BYTES = 300 << 20  # one of its own that imported torch, built for CUDA
_SURVEY_SHARE, _STAGES_SHARE = 0.1, 0.05  # of the seconds, on top of them


class Report(Protocol):
    """Is told what a benchmark does."""

    def begin(self, what: str, total: int) -> None:
        """Some work of `total` parts begins."""

    def advance(self, done: int, what: str = "") -> None:
        """So many parts are done; `what` renames the work where it is not ""."""


def run_benchmark(settings: Settings, report: Report) -> Result:
    """Measure what the settings ask for.

    Raises:
        UsageError: a folder or setting that cannot be used as asked, or torchvision is missing.
        ResourceError: the machine has too little memory for it.
        WorkerError: a process died or was silent for long.
    """
    started = time.perf_counter()
    workers = worker_count(settings.workers)
    processes = max(1, workers)
    cores = min(processes, usable_cores())
    report.begin("listing the images", 1)
    everything = ImageFolder(settings.folder)
    _require_memory(everything, settings, workers)
    folder = drawn(everything, settings.seed)
    left_out: list[LeftOut] = []

    with contextlib.ExitStack() as stack:
        torch_pool: Pool | None = None
        if settings.against is not None:
            report.begin("importing torchvision", 1)
            torch_pool = stack.enter_context(torch_process())
        report.begin("looking at the images", len(folder))
        pool = stack.enter_context(Pool(processes))
        seconds = _SURVEY_SHARE * settings.seconds
        looked = survey(pool, folder, seconds=seconds, advance=report.advance)
        report.begin("timing one image", 1)
        seconds = _STAGES_SHARE * settings.seconds
        job = (folder, looked.numbers, settings.size_px, seconds)
        (stages,) = pool.each(measure_stages, [job])
        made: Copies | None = None
        if settings.copies:
            side_px = copies_side(settings.size_px)
            report.begin(f"making {side_px} px copies", len(looked.looks))
            outcome = stack.enter_context(
                copies(pool, folder, looked, side_px, advance=report.advance)
            )
            if isinstance(outcome, Copies):
                made = outcome
            else:
                left_out.append(LeftOut(f"{side_px} px copies", outcome))

        report.begin("starting the loaders", 1)
        sample = Sample(folder, looked.numbers)
        entries = enter_ours(stack, pool, sample, made, settings, workers)
        if torch_pool is not None:
            entries += enter_torch(torch_pool, sample, settings, workers, left_out)
        refill_s = PREFETCH * settings.batch_size * stages.total_ms / 1000 / cores
        turns = plan_turns(len(entries), settings.seconds, refill_s)
        report.begin("measuring", turns.rounds * len(entries))
        rows = take_turns(entries, turns, left_out, report.advance)
        skipped = set(looked.skipped)
        for entry in entries:
            if isinstance(entry.contestant, Ours):
                skipped.update(entry.contestant.skipped)

    return Result(
        settings=settings,
        workers=workers,
        cores=cores,
        images=len(everything),
        classes=len(folder.classes),
        survey=looked,
        stages=stages,
        copies=made,
        rows=rows,
        skipped=sorted(skipped),
        left_out=left_out,
        machine=machine(),
        versions=versions(*_PACKAGES, *([] if settings.against is None else ["torchvision"])),
        elapsed_s=time.perf_counter() - started,
    )


def _require_memory(folder: ImageFolder, settings: Settings, workers: int) -> None:
    """Refuse what the machine cannot hold, before anything is started.

    Raises:
        ResourceError: there is too little memory.
    """
    batch = batch_bytes(folder.fields(settings.size_px), settings.batch_size)
    loader = (PREFETCH + 1) * batch + workers * WORKER_BYTES
    bare = (PREFETCH + 1) * batch
    needed = (2 if settings.copies else 1) * (loader + bare) + max(1, workers) * _PROCESS_BYTES
    if settings.against is not None:
        # Two for each worker, and the one in hand; the bytes as uint8 and as float32.
        needed += (2 * workers + 1) * batch * 5 + _PROCESS_BYTES + 2 * workers * WORKER_BYTES
    require_memory(
        needed,
        f"measuring {workers} workers with batches of {settings.batch_size} at "
        f"{settings.size_px} px",
        "use fewer --workers, a smaller --batch-size or --size",
    )
