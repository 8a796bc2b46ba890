"""Benchmark: survey the images, time one image by stage, and measure all loaders in turn.

Guarantees: wrong options are reported before anything is measured. Every figure was measured in
the same run. No process is left when it returns or fails. If a loader of torch fails, it is left
out with the reason.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from feedline.engine.buffers import batch_bytes
from feedline.engine.defaults import WORKER_BYTES, worker_count
from feedline.engine.shared_memory import require_memory
from feedline.errors import DatasetError, ImageError, UsageError
from feedline.images.codec_registry import Decoder
from feedline.images.folder import ImageFolder, sample_folder
from feedline.images.resize import fill
from feedline.machine import (
    NOTABLE_SHARE,
    FilePart,
    OtherPrograms,
    drop_from_memory,
    environment,
)
from feedline.order.batch_spec import Item
from feedline.order.schedule import MAX_IMAGE_SIZE
from feedline.order.seeds import mix
from feedline.profile.bench_loaders import (
    PREFETCH,
    TORCH_FORMS,
    ImageSample,
    MeasuredLoader,
    Turn,
    feedline_loader,
    settle_down,
    torch_loader,
)
from feedline.sources.files import read_file
from feedline.system import usable_cores
from feedline.text import format_table, plural, wrap_text

__all__ = [
    "BenchmarkOptions",
    "BenchmarkResult",
    "ProgressListener",
    "benchmark_table",
    "notes",
    "run_benchmark",
    "verdict",
]

_MAX_BATCH_SIZE = 1 << 24
_MAX_SECONDS = 24 * 3600.0
_PACKAGES = ("numpy", "simplejpeg", "Pillow")
_SURVEY_SHARE, _STAGES_SHARE = 0.1, 0.05  # of the seconds, in addition to them
_MIN_SURVEYED, _MIN_TIMED = 32, 8  # images, however slow they are
_REPEATS = 3
_ROUNDS, _FEWER_ROUNDS = 5, 3


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkOptions:
    """Options of a benchmark, checked.

    Args:
        folder: the images, one sub-folder per class.
        size_px: side of the batches' images.
        batch_size: images in a batch.
        workers: "auto", or the number of processes that load images; 0 loads in this one.
        against: "torch" also measures torch's DataLoader with torchvision; None does not.
        seconds: total time of counting images.
        seed: selects the images if there are more than needed, and all crops.

    Raises:
        UsageError: a value is out of range.
    """

    folder: str
    size_px: int = 224
    batch_size: int = 64
    workers: int | Literal["auto"] = "auto"
    against: Literal["torch"] | None = None
    seconds: float = 30.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, most in (
            ("image_size", self.size_px, MAX_IMAGE_SIZE),
            ("batch_size", self.batch_size, _MAX_BATCH_SIZE),
        ):
            if not 1 <= value <= most:
                raise UsageError(
                    f"must be a whole number from 1 to {most}, got {value!r}", argument=name
                )
        if not (math.isfinite(self.seconds) and 0 < self.seconds <= _MAX_SECONDS):
            raise UsageError(
                f"must be above 0 and at most {_MAX_SECONDS:.0f}, got {self.seconds!r}",
                argument="seconds",
            )


class ProgressListener(Protocol):
    """Receives the progress of a benchmark."""

    def begin(self, what: str, total: int) -> None:
        """Start work of `total` parts."""

    def advance(self, done: int, what: str = "") -> None:
        """Set the number of finished parts; `what` renames the work unless it is ""."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, minimum and maximum of some values, at least one."""

    median: float
    low: float
    high: float


def spread_of(values: Sequence[float]) -> Spread:
    """Return the spread of at least one value."""
    return Spread(median(values), min(values), max(values))


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkData:
    """Images of a benchmark.

    Args:
        images, classes: numbers of images and classes in the folder.
        images_measured: number of images that were read and decoded.
        images_shorter_than_size: of these with a side shorter than the batches' images.
        file_bytes_mean, height_px_median, width_px_median: over the measured images.
    """

    images: int
    classes: int
    images_measured: int
    images_shorter_than_size: int
    file_bytes_mean: float
    height_px_median: int
    width_px_median: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StageCosts:
    """Mean cost of one image in one process.

    Args:
        images: number of measured images.
        read_ms: reading the file from memory.
        read_cold_ms: reading it from the disk; None if not measured.
        cold_not_measured: the reason if it was not measured, or "".
        decode_ms: decoding as many pixels as the crop needs, and drawing the crop.
        resize_ms: resizing the crop into its row, mirrored or not.
        total_ms: of reading from memory, decoding and resizing.
    """

    images: int
    read_ms: float
    read_cold_ms: float | None
    cold_not_measured: str
    decode_ms: float
    resize_ms: float
    total_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkRow:
    """Measurements of one loader, one turn per round.

    Args:
        name: printed name.
        loader: its library.
        images_per_s: over the rounds.
        images_per_s_per_core: the median, by the cores in use.
        ratio_to_feedline: this rate / feedline's, of the same rounds.
        first_batch_s: time from building the loader to its first batch.
        cpu_s_per_1000_images: CPU seconds of all its processes, over all rounds.
        turns: one per round.
    """

    name: str
    loader: Literal["feedline", "torch"]
    images_per_s: Spread
    images_per_s_per_core: float
    ratio_to_feedline: Spread
    first_batch_s: float
    cpu_s_per_1000_images: float
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Omission:
    """Requested measurement that was not made, and the reason."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class BrokenFile:
    """Image that could not be loaded, and the reason."""

    file: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkResult:
    """Measurements of a benchmark; as a dict they are its JSON form.

    Args:
        settings: the options.
        workers: processes that loaded images; 0: the training process loaded them.
        cores_used: number of cores the processes can use: the usable ones, at most one a process.
        other_cores: mean number of usable cores that other programs used while images were counted.
        data: the images.
        rows: the loaders; the first is feedline's.
        one_image: cost of one image in one process.
        left_out: measurements that could not be made.
        skipped: images that could not be loaded.
        machine, versions: machine and software.
        elapsed_s: total time.
    """

    settings: BenchmarkOptions
    workers: int
    cores_used: int
    other_cores: float
    data: BenchmarkData
    rows: tuple[BenchmarkRow, ...]
    one_image: StageCosts
    left_out: list[Omission]
    skipped: list[BrokenFile]
    machine: dict[str, Any]
    versions: dict[str, str | None]
    elapsed_s: float


def run_benchmark(settings: BenchmarkOptions, report: ProgressListener) -> BenchmarkResult:
    """Run the benchmark that the settings describe.

    Raises:
        UsageError: the folder or a setting cannot be used, or torchvision is missing.
        ResourceError: there is too little memory.
        DatasetError: no image can be decoded.
        WorkerError: a process died or hung.
    """
    started, seconds = time.perf_counter(), settings.seconds
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
    images, broken = survey_images(folder, seconds=_SURVEY_SHARE * seconds, tell=report.advance)
    report.begin("timing one image", 1)
    numbers = [image.sample for image in images]
    costs = measure_stages(folder, numbers, settings.size_px, _STAGES_SHARE * seconds)
    report.begin("starting the loaders", 1)
    sample = ImageSample(folder, numbers)
    left_out: list[Omission] = []
    shape = settings.batch_size, settings.size_px, workers
    with contextlib.ExitStack() as stack:
        loaders = [stack.enter_context(feedline_loader(sample, *shape))]
        for form in TORCH_FORMS if settings.against else ():
            settle_down()
            try:
                loaders.append(stack.enter_context(torch_loader(form, sample, *shape)))
            except Exception as error:
                left_out.append(_omission(TORCH_FORMS[form], error))
        refill_s = PREFETCH * settings.batch_size * costs.total_ms / 1000 / cores
        rounds = count_rounds(len(loaders), seconds, refill_s)
        report.begin("measuring", rounds * len(loaders))
        turn_s = seconds / (len(loaders) * rounds)
        others = OtherPrograms()
        turns = take_turns(loaders, rounds, turn_s, left_out, report.advance)
        other_cores = others.cores()
        broken |= set(loaders[0].skipped)
    return BenchmarkResult(
        settings=settings,
        workers=workers,
        cores_used=cores,
        other_cores=other_cores,
        data=BenchmarkData(
            images=len(everything),
            classes=len(folder.classes),
            images_measured=len(images),
            images_shorter_than_size=sum(
                min(image.height_px, image.width_px) < settings.size_px for image in images
            ),
            file_bytes_mean=mean(image.file_bytes for image in images),
            height_px_median=round(median(image.height_px for image in images)),
            width_px_median=round(median(image.width_px for image in images)),
        ),
        rows=make_rows(turns, cores),
        one_image=costs,
        left_out=left_out,
        skipped=[BrokenFile(path, reason) for path, reason in sorted(broken)],
        **environment(*_PACKAGES, *([] if settings.against is None else ["torchvision"])),
        elapsed_s=time.perf_counter() - started,
    )


def _require_memory(folder: ImageFolder, settings: BenchmarkOptions, workers: int) -> None:
    """Raise a ResourceError if the machine has too little memory, before anything is started."""
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
    try:
        import torchvision  # noqa: F401
    except Exception as error:  # a build for another torch raises any exception
        raise UsageError(
            "--against torch measures torchvision, which cannot be imported "
            f"({type(error).__name__}: {error})",
            hint="install a version that fits this torch: pip install torchvision",
        ) from error


def _omission(name: str, error: Exception) -> Omission:
    # torch puts its worker's traceback into the message, and the error at the end.
    lines = str(error).splitlines()
    return Omission(name, lines[-1] if lines else type(error).__name__)


class SurveyedImage(NamedTuple):
    """Size of an image that can be decoded."""

    sample: int
    file_bytes: int
    height_px: int
    width_px: int


def survey_images(
    folder: ImageFolder, *, seconds: float, tell: Callable[[int], None]
) -> tuple[list[SurveyedImage], set[tuple[str, str]]]:
    """Read and decode a folder's images once, until the end of the folder or of the time.

    This also brings the files into memory, so that the loaders are measured and not the disk.
    Return the images that can be decoded, by sample number, and (path, reason) of the others.

    Args:
        folder: the images, surveyed in their order.
        seconds: time limit; the first few images are surveyed in any case.
        tell: called with the number of surveyed images.

    Raises:
        DatasetError: none of them can be decoded.
    """
    decoder, end = Decoder(), time.monotonic() + seconds
    images: list[SurveyedImage] = []
    broken: list[tuple[str, str]] = []
    for sample in range(len(folder)):
        if sample >= _MIN_SURVEYED and time.monotonic() > end:
            break
        try:
            data = read_file(folder.files.path(sample))
            height, width = decoder.open(data)
            decoder.read()
        except ImageError as error:
            broken.append((folder.name(sample), error.message))
        else:
            images.append(SurveyedImage(sample, len(data), height, width))
        tell(sample + 1)
    if not images:
        name, problem = broken[0]
        raise DatasetError(
            f"{folder.root}: none of {len(broken)} images tried can be decoded. First error: "
            f"{name}: {problem}",
            hint="check that the images were downloaded and unpacked completely",
        )
    return images, set(broken)


def measure_stages(
    folder: ImageFolder, numbers: Sequence[int], size: int, seconds: float
) -> StageCosts:
    """Time the stages of images in this process.

    Reading, resizing and all of `ImageFolder.load` are timed; the rest of the latter is decoding.
    The fastest of an image's repetitions counts, as the others were disturbed.

    Args:
        folder: the images, with the transform.
        numbers: sample numbers of images that can be decoded.
        size: of the row, in pixels.
        seconds: approximate time limit; at least a few images are measured.
    """
    decoder = Decoder()
    row = np.zeros((size, size, 3), np.uint8), np.zeros((), np.int64)
    spans: list[list[float]] = []
    end = time.monotonic() + seconds
    for sample in numbers:
        if len(spans) >= _MIN_TIMED and time.monotonic() > end:
            break
        item = Item(sample, size, mix(sample), 1.0)
        runs = [_time_stages(folder, item, row, decoder) for _ in range(_REPEATS)]
        spans.append([min(times) for times in zip(*runs, strict=True)])
    read_ms, resize_ms, load_ms = (mean(times) for times in zip(*spans, strict=True))
    cold_ms, why_not = _read_cold_ms(folder, numbers[: len(spans)])
    decode_ms = max(0.0, load_ms - read_ms - resize_ms)
    return StageCosts(
        images=len(spans),
        read_ms=read_ms,
        read_cold_ms=cold_ms,
        cold_not_measured=why_not,
        decode_ms=decode_ms,
        resize_ms=resize_ms,
        total_ms=read_ms + decode_ms + resize_ms,
    )


def _time_stages(
    folder: ImageFolder, item: Item, row: tuple[np.ndarray[Any, Any], ...], decoder: Decoder
) -> tuple[float, float, float]:
    """Milliseconds to read one image, to resize it, and for everything."""
    start = time.perf_counter()
    data = read_file(folder.files.path(item.sample))
    was_read = time.perf_counter()
    height, width = decoder.open(data)
    placement = folder.transform.place(height, width, item)
    part = decoder.read(part=placement.part)
    decoded = time.perf_counter()
    fill(row[0], part, placement)
    resized = time.perf_counter()
    folder.load(item, row)
    loaded = time.perf_counter()
    return (was_read - start) * 1e3, (resized - decoded) * 1e3, (loaded - resized) * 1e3


def _read_cold_ms(folder: ImageFolder, numbers: Sequence[int]) -> tuple[float | None, str]:
    """Milliseconds to read a file from the disk, or None and the reason it is unknown."""
    files = [FilePart(folder.files.path(sample)) for sample in numbers]
    source, timed = drop_from_memory(files)
    if len(files) < 2:
        return None, "at least two images are needed"
    if source != "disk":
        reason = "a RAM disk, or in use by another program" if source == "memory" else sys.platform
        return None, f"the files may stay in memory ({reason})"
    start = time.perf_counter()
    for file in timed:
        read_file(os.fsencode(file.path))
    return (time.perf_counter() - start) / len(timed) * 1e3, ""


def count_rounds(loaders: int, seconds: float, refill_s: float) -> int:
    """Number of rounds, in each of which every loader has a turn.

    Args:
        loaders: number of measured loaders.
        seconds: time of counting images, for all of them.
        refill_s: uncounted time of a loader after its turn to refill its prefetch buffer: if it
            is longer than the turn itself, there are fewer rounds.
    """
    return _ROUNDS if refill_s * loaders * _ROUNDS <= seconds else _FEWER_ROUNDS


def take_turns(
    loaders: Sequence[MeasuredLoader],
    rounds: int,
    turn_s: float,
    left_out: list[Omission],
    tell: Callable[[int, str], None],
) -> dict[MeasuredLoader, list[Turn]]:
    """Measure all loaders in turn, round after round; return the turns of each.

    Args:
        loaders: the first is feedline's, whose errors are raised; the others are torch's.
        rounds: number of turns of each.
        turn_s: length of a turn.
        left_out: receives the loaders of torch that fail.
        tell: called with the number of finished turns and a description of the next.
    """
    turns: dict[MeasuredLoader, list[Turn]] = {loader: [] for loader in loaders}
    done = 0
    for number in range(rounds):
        for loader in list(turns):
            tell(done, f"round {number + 1} of {rounds}: {loader.name}")
            done += 1
            settle_down()
            try:
                turns[loader].append(loader.turn(turn_s))
            except Exception as error:
                if loader is loaders[0]:
                    raise
                left_out.append(_omission(loader.name, error))
                del turns[loader]
    return turns


def make_rows(
    turns: Mapping[MeasuredLoader, Sequence[Turn]], cores: int
) -> tuple[BenchmarkRow, ...]:
    """Summarise the turns of loaders, of which the first is feedline's."""
    rows: list[BenchmarkRow] = []
    for loader, taken in turns.items():
        rates = [turn.images_per_s for turn in taken]
        ours = rows[0].turns if rows else taken
        ratios = [rate / own.images_per_s for rate, own in zip(rates, ours, strict=True)]
        cpu_s, images = (sum(getattr(t, name) for t in taken) for name in ("cpu_s", "images"))
        rows.append(
            BenchmarkRow(
                name=loader.name,
                loader="torch" if rows else "feedline",
                images_per_s=spread_of(rates),
                images_per_s_per_core=median(rates) / cores,
                ratio_to_feedline=spread_of(ratios),
                first_batch_s=loader.first_batch_s,
                cpu_s_per_1000_images=1000 * cpu_s / images,
                turns=tuple(taken),
            )
        )
    return tuple(rows)


_SKIPPED_SHOWN = 3
_NOISY = 0.3  # range of the rates of rounds, as a share of their median
_HEADS = ("", "images/s", "range", "per core", "x feedline", "first batch", "CPU s/1000")


def benchmark_table(result: BenchmarkResult) -> str:
    """Format the rates, the cost of one image and remarks, at most 100 columns wide."""
    rows = [
        (
            row.name,
            f"{row.images_per_s.median:.0f}",
            f"{row.images_per_s.low:.0f}-{row.images_per_s.high:.0f}",
            f"{row.images_per_s_per_core:.0f}",
            f"{row.ratio_to_feedline.median:.2f}",
            f"{row.first_batch_s:.2f} s",
            f"{row.cpu_s_per_1000_images:.2f}",
        )
        for row in result.rows
    ]
    costs = result.one_image
    cold = "" if costs.read_cold_ms is None else f" (from the disk {costs.read_cold_ms:.2f})"
    remarks = [f"{each.what} left out: {each.reason}" for each in result.left_out]
    lines = [line for text in [*remarks, *notes(result)] for line in wrap_text(text, first="")]
    if result.skipped:
        lines.append(f"unreadable images skipped: {len(result.skipped)}, for example")
        lines += [f"  {each.file}: {each.reason}" for each in result.skipped[:_SKIPPED_SHOWN]]
    return "\n".join(
        [
            _headline(result),
            "",
            *format_table([_HEADS, *rows], indent="", left=(0,)),
            "",
            f"one image in one process: read {costs.read_ms:.2f}{cold} + decode "
            f"{costs.decode_ms:.2f} + crop and resize {costs.resize_ms:.2f} ms",
            "",
            *wrap_text(" ".join(verdict(result)), first="", following=""),
            *([""] if lines else []),
            *lines,
        ]
    )


def _headline(result: BenchmarkResult) -> str:
    data, settings = result.data, result.settings
    images = f"{data.images} images"
    if data.images_measured < data.images:
        images = f"{data.images_measured} of {images}"
    file_bytes = data.file_bytes_mean
    size = f"{file_bytes / 1e3:.{0 if file_bytes >= 1e4 else 1}f} KB"
    workers = plural(result.workers, "worker") if result.workers else "no workers"
    return (
        f"{images}, {size}, {data.width_px_median}x{data.height_px_median} px, to "
        f"{settings.size_px} px in batches of {settings.batch_size}; {workers}, "
        f"{plural(result.machine['cores_usable'], 'core')} usable"
    )


def verdict(result: BenchmarkResult) -> list[str]:
    """Describe the costliest stage, reads from the disk, and the comparison with torch."""
    costs, torch_rows = result.one_image, result.rows[1:]
    parts = {
        "decoding": costs.decode_ms,
        "reading": costs.read_ms,
        "cropping and resizing": costs.resize_ms,
    }
    shares = {name: f"{ms / costs.total_ms:.0%}" for name, ms in parts.items()}
    first, *others = sorted(parts, key=lambda name: -parts[name])
    rest = " and ".join(f"{name} {shares[name]}" for name in others)
    lines = [
        f"Most costly: {first}, {shares[first]} of the {costs.total_ms:.2f} ms of an image; {rest}."
    ]
    if (costs.read_cold_ms or 0.0) > costs.decode_ms + costs.resize_ms:
        lines.append(
            "Until the files are in memory, the bottleneck is reading them: "
            f"{costs.read_cold_ms:.2f} ms an image from the disk, {costs.read_ms:.2f} ms from "
            "memory."
        )
    if torch_rows:
        ratios = [(row.ratio_to_feedline, row.name) for row in torch_rows]
        text = " and ".join(
            f"{1 / each.median:.2f}x ({1 / each.high:.2f}-{1 / each.low:.2f}) {name}"
            for each, name in ratios
        )
        lines.append(f"feedline's rate is {text}.")
    return lines


def notes(result: BenchmarkResult) -> list[str]:
    """Remarks on the figures, without the left-out measurements."""
    data, settings, found = result.data, result.settings, list[str]()
    if data.images_shorter_than_size:
        found.append(
            f"{data.images_shorter_than_size} of {data.images_measured} images have a side shorter "
            f"than {settings.size_px} px: they are enlarged"
        )
    if data.images_measured < settings.batch_size:
        found.append(
            f"{data.images_measured} images are fewer than a batch of {settings.batch_size}: each "
            "batch repeats them"
        )
    cores = result.machine["cores_usable"]
    if result.workers < cores:
        found.append(f"more workers could help: {result.workers} for {cores} usable cores")
    if result.other_cores >= NOTABLE_SHARE * cores:
        found.append(
            f"other programs used {result.other_cores:.1f} of {plural(cores, 'core')}: without "
            "them the rates are higher"
        )
    rates = [(row.images_per_s, row.name) for row in result.rows]
    noise, noisiest = max(((each.high - each.low) / each.median, name) for each, name in rates)
    if noise > _NOISY:
        found.append(f"rounds differ by up to {noise:.0%} ({noisiest}): measure for more --seconds")
    if result.one_image.read_cold_ms is None:
        why = result.one_image.cold_not_measured
        found.append(f"reading from the disk was not measured: {why}")
    return found
