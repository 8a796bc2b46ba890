"""Benchmark: survey the images, time one image by stage, and measure all loaders in turn.

Guarantees: wrong options are reported before anything is measured. No process is left when it
returns or fails. If a torch loader fails, it is left out with the reason.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from feedline.engine.buffers import batch_bytes
from feedline.engine.defaults import WORKER_BYTES, worker_count
from feedline.engine.shared_memory import require_memory
from feedline.errors import UsageError
from feedline.images.folder import ImageFolder, sample_folder
from feedline.machine import environment
from feedline.profile.bench.loaders import PREFETCH, FeedlineLoader, ImageSample, MeasuredLoader
from feedline.profile.bench.options import BenchmarkOptions
from feedline.profile.bench.rate import Turn, settle_down
from feedline.profile.bench.result import BenchmarkResult, BenchmarkRow, Loader, Omission
from feedline.profile.bench.stages import measure_stages
from feedline.profile.bench.survey import survey_images
from feedline.system import usable_cores

__all__ = ["ProgressListener", "TurnPlan", "plan_turns", "run_benchmark", "take_turns"]

_PACKAGES = ("numpy", "simplejpeg", "Pillow")
_SURVEY_SHARE, _STAGES_SHARE = 0.1, 0.05  # of the seconds, in addition to them
_ROUNDS = 5
_FEWER_ROUNDS = 3


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
    cores = min(max(1, workers), usable_cores())
    report.begin("listing the images", 1)
    everything = ImageFolder(settings.folder)
    _require_memory(everything, settings, workers)
    folder = sample_folder(everything, settings.seed)
    if settings.against is not None:
        report.begin("importing torchvision", 1)
        _import_torchvision()
    report.begin("surveying the images", len(folder))
    surveyed = survey_images(
        folder, seconds=_SURVEY_SHARE * settings.seconds, advance=report.advance
    )
    report.begin("timing one image", 1)
    stages = measure_stages(
        folder, surveyed.numbers, settings.size_px, _STAGES_SHARE * settings.seconds
    )
    report.begin("starting the loaders", 1)
    sample = ImageSample(folder, surveyed.numbers)
    left_out: list[Omission] = []
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(FeedlineLoader(sample, settings, workers))
        loaders: list[MeasuredLoader] = [ours]
        if settings.against is not None:
            loaders += _start_torch(stack, sample, settings, workers, left_out)
        refill_s = PREFETCH * settings.batch_size * stages.total_ms / 1000 / cores
        turns = plan_turns(len(loaders), settings.seconds, refill_s)
        report.begin("measuring", turns.rounds * len(loaders))
        rows = take_turns(loaders, turns, left_out, report.advance)
        skipped = {*surveyed.skipped, *ours.skipped}
    return BenchmarkResult(
        settings=settings,
        workers=workers,
        cores=cores,
        images=len(everything),
        classes=len(folder.classes),
        survey=surveyed,
        stages=stages,
        rows=rows,
        skipped=sorted(skipped),
        left_out=left_out,
        **environment(*_PACKAGES, *([] if settings.against is None else ["torchvision"])),
        elapsed_s=time.perf_counter() - started,
    )


def _require_memory(folder: ImageFolder, settings: BenchmarkOptions, workers: int) -> None:
    """Check that the machine has enough memory, before anything is started.

    Raises:
        ResourceError: there is too little memory.
    """
    batch = batch_bytes(folder.fields(settings.size_px), settings.batch_size)
    needed = (PREFETCH + 1) * batch + workers * WORKER_BYTES
    if settings.against is not None:
        # Two batches for each worker and the current one; the bytes as uint8 and as float32.
        needed += (2 * workers + 1) * batch * 5 + 2 * workers * WORKER_BYTES
    require_memory(
        needed,
        f"measuring {workers} workers with batches of {settings.batch_size} at "
        f"{settings.size_px} px",
        "use fewer --workers, a smaller --batch-size or --image-size",
    )


def _import_torchvision() -> None:
    """Import torchvision.

    Raises:
        UsageError: it cannot be imported.
    """
    try:
        import torchvision  # noqa: F401
    except Exception as error:  # a build for another torch raises any exception
        raise UsageError(
            "--against torch measures torchvision, which cannot be imported "
            f"({type(error).__name__}: {error})",
            hint="install a version that fits this torch: pip install torchvision",
        ) from error


def _start_torch(
    stack: contextlib.ExitStack,
    sample: ImageSample,
    settings: BenchmarkOptions,
    workers: int,
    left_out: list[Omission],
) -> list[MeasuredLoader]:
    """Start both forms of torch's loader."""
    from feedline.profile.bench.torch_loaders import FORMS, TorchLoader

    loaders: list[MeasuredLoader] = []
    for form, name in FORMS.items():
        settle_down()
        try:
            loaders.append(stack.enter_context(TorchLoader(form, sample, settings, workers)))
        except Exception as error:
            left_out.append(_omission(name, error))
    return loaders


def _omission(name: str, error: Exception) -> Omission:
    # torch puts its worker's traceback into the message, and the error at the end.
    lines = str(error).splitlines()
    return Omission(name, lines[-1] if lines else type(error).__name__)


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """Number of rounds, and seconds of each loader's turn in a round."""

    rounds: int
    seconds: float


def plan_turns(loaders: int, seconds: float, refill_s: float) -> TurnPlan:
    """Divide the time of counting images into turns.

    Args:
        loaders: number of measured loaders.
        seconds: time for all of them.
        refill_s: uncounted time of a loader after its turn to refill its prefetch buffer: if it
            is longer than the turn itself, there are fewer turns.
    """
    rounds = _ROUNDS if refill_s * loaders * _ROUNDS <= seconds else _FEWER_ROUNDS
    return TurnPlan(rounds, seconds / (loaders * rounds))


def take_turns(
    loaders: Sequence[MeasuredLoader],
    turns: TurnPlan,
    left_out: list[Omission],
    advance: Callable[[int, str], None],
) -> tuple[BenchmarkRow, ...]:
    """Measure all loaders in turn, round after round.

    Args:
        loaders: the first is feedline's, whose errors are raised; the others are torch's.
        turns: number of rounds and seconds per turn.
        left_out: receives the loaders of torch that fail.
        advance: called with the number of finished turns and a description of the next.
    """
    counted: dict[MeasuredLoader, list[Turn]] = {loader: [] for loader in loaders}
    done = 0
    for number in range(turns.rounds):
        for loader in list(counted):
            advance(done, f"round {number + 1} of {turns.rounds}: {loader.name}")
            done += 1
            settle_down()
            try:
                counted[loader].append(loader.turn(turns.seconds))
            except Exception as error:
                if loader is loaders[0]:
                    raise
                left_out.append(_omission(loader.name, error))
                del counted[loader]
    kinds: dict[bool, Loader] = {True: "feedline", False: "torch"}
    return tuple(
        BenchmarkRow(
            name=loader.name,
            loader=kinds[loader is loaders[0]],
            first_batch_s=loader.first_batch_s,
            turns=tuple(taken),
        )
        for loader, taken in counted.items()
    )
