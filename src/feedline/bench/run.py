"""Benchmark: survey the images, make copies, and measure all loaders in turn.

Guarantees: wrong options are reported before anything is measured. No process and no copies are
left when it returns or fails.
"""

from __future__ import annotations

import contextlib
import time
from typing import Protocol

from feedline.bench.copies import JpegCopies, copies_side, make_jpeg_copies
from feedline.bench.loaders import (
    PREFETCH,
    MeasuredFeedline,
    plan_turns,
    start_feedline,
    start_torch,
    take_turns,
    torch_process,
)
from feedline.bench.machine import machine, versions
from feedline.bench.options import BenchmarkOptions
from feedline.bench.pool import ProcessPool
from feedline.bench.result import BenchmarkResult, Omission
from feedline.bench.stages import measure_stages
from feedline.bench.survey import ImageSample, survey_images
from feedline.engine.buffers import batch_bytes
from feedline.engine.defaults import WORKER_BYTES, worker_count
from feedline.engine.shared_memory import require_memory
from feedline.images.folder import ImageFolder, sample_folder
from feedline.system import usable_cores

__all__ = ["ProgressListener", "run_benchmark"]

_PACKAGES = ("numpy", "simplejpeg", "Pillow")
_PROCESS_BYTES = 300 << 20  # of a process that imported a CUDA build of torch
_SURVEY_SHARE, _STAGES_SHARE = 0.1, 0.05  # of the seconds, in addition to them


class ProgressListener(Protocol):
    """Receives the progress of a benchmark."""

    def begin(self, what: str, total: int) -> None:
        """Start work of `total` parts."""

    def advance(self, done: int, what: str = "") -> None:
        """Set the number of finished parts; `what` renames the work unless it is ""."""


def run_benchmark(settings: BenchmarkOptions, report: ProgressListener) -> BenchmarkResult:
    """Run the benchmark that the settings describe.

    Raises:
        UsageError: the folder or a setting cannot be used, or torchvision is missing.
        ResourceError: there is too little memory.
        WorkerError: a process died or hung.
    """
    started = time.perf_counter()
    workers = worker_count(settings.workers)
    processes = max(1, workers)
    cores = min(processes, usable_cores())
    report.begin("listing the images", 1)
    everything = ImageFolder(settings.folder)
    _require_memory(everything, settings, workers)
    folder = sample_folder(everything, settings.seed)
    left_out: list[Omission] = []

    with contextlib.ExitStack() as stack:
        torch_pool: ProcessPool | None = None
        if settings.against is not None:
            report.begin("importing torchvision", 1)
            torch_pool = stack.enter_context(torch_process())
        report.begin("surveying the images", len(folder))
        pool = stack.enter_context(ProcessPool(processes))
        seconds = _SURVEY_SHARE * settings.seconds
        surveyed = survey_images(pool, folder, seconds=seconds, advance=report.advance)
        report.begin("timing one image", 1)
        seconds = _STAGES_SHARE * settings.seconds
        job = (folder, surveyed.numbers, settings.size_px, seconds)
        (stages,) = pool.each(measure_stages, [job])
        made: JpegCopies | None = None
        if settings.copies:
            side_px = copies_side(settings.size_px)
            report.begin(f"making {side_px} px copies", len(surveyed.images))
            outcome = stack.enter_context(
                make_jpeg_copies(pool, folder, surveyed, side_px, advance=report.advance)
            )
            if isinstance(outcome, JpegCopies):
                made = outcome
            else:
                left_out.append(Omission(f"{side_px} px copies", outcome))

        report.begin("starting the loaders", 1)
        sample = ImageSample(folder, surveyed.numbers)
        entries = start_feedline(stack, pool, sample, made, settings, workers)
        if torch_pool is not None:
            entries += start_torch(torch_pool, sample, settings, workers, left_out)
        refill_s = PREFETCH * settings.batch_size * stages.total_ms / 1000 / cores
        turns = plan_turns(len(entries), settings.seconds, refill_s)
        report.begin("measuring", turns.rounds * len(entries))
        rows = take_turns(entries, turns, left_out, report.advance)
        skipped = set(surveyed.skipped)
        for entry in entries:
            if isinstance(entry.measured, MeasuredFeedline):
                skipped.update(entry.measured.skipped)

    return BenchmarkResult(
        settings=settings,
        workers=workers,
        cores=cores,
        images=len(everything),
        classes=len(folder.classes),
        survey=surveyed,
        stages=stages,
        copies=made,
        rows=rows,
        skipped=sorted(skipped),
        left_out=left_out,
        machine=machine(),
        versions=versions(*_PACKAGES, *([] if settings.against is None else ["torchvision"])),
        elapsed_s=time.perf_counter() - started,
    )


def _require_memory(folder: ImageFolder, settings: BenchmarkOptions, workers: int) -> None:
    """Check that the machine has enough memory, before anything is started.

    Raises:
        ResourceError: there is too little memory.
    """
    batch = batch_bytes(folder.fields(settings.size_px), settings.batch_size)
    loader = (PREFETCH + 1) * batch + workers * WORKER_BYTES
    bare = (PREFETCH + 1) * batch
    needed = (2 if settings.copies else 1) * (loader + bare) + max(1, workers) * _PROCESS_BYTES
    if settings.against is not None:
        # Two batches for each worker and the current one; the bytes as uint8 and as float32.
        needed += (2 * workers + 1) * batch * 5 + _PROCESS_BYTES + 2 * workers * WORKER_BYTES
    require_memory(
        needed,
        f"measuring {workers} workers with batches of {settings.batch_size} at "
        f"{settings.size_px} px",
        "use fewer --workers, a smaller --batch-size or --image-size",
    )
