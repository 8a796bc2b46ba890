"""Benchmark: examine the images, time one image by stage, and measure all loaders in turn.

Guarantees: wrong options are reported before anything is measured. Every figure was measured in
the same run. No process is left when it returns or fails. If a loader of torch fails, it is left
out with the reason. The result is its JSON form: plain values, whose names end in the units.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import mean, median
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from feedline.engine.buffers import batch_bytes
from feedline.engine.defaults import WORKER_BYTES, worker_count
from feedline.engine.shared_memory import require_memory
from feedline.errors import DatasetError, ImageError, UsageError
from feedline.images.codec_registry import Decoder
from feedline.images.folder import ImageFolder, sample_folder
from feedline.images.resize import fill
from feedline.machine import FilePart, OtherPrograms, drop_from_memory, environment
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
from feedline.text import ProgressCallback, format_table, plural, wrap_text
from feedline.throughput.thresholds import THRESHOLDS

_MAX_BATCH_SIZE = 1 << 24
_MAX_SECONDS = 24 * 3600.0
_SURVEY_SHARE, _STAGES_SHARE = 0.15, 0.05  # of the seconds, in addition to them
_MIN_IMAGES, _MIN_TIMED = 32, 8  # however slow they are
_REPEATS = 3
_ROUNDS = 5
_SEED = 0  # selects the images if there are more than needed

Result: TypeAlias = dict[str, Any]


def check_options(image_size: int, batch_size: int, seconds: float) -> None:
    """Raise a UsageError if an option of a measurement is out of range."""
    for name, value, most in (
        ("image_size", image_size, MAX_IMAGE_SIZE),
        ("batch_size", batch_size, _MAX_BATCH_SIZE),
    ):
        if not 1 <= value <= most:
            raise UsageError(f"must be a whole number from 1 to {most}, got {value}", argument=name)
    if not (math.isfinite(seconds) and 0 < seconds <= _MAX_SECONDS):
        raise UsageError(
            f"must be above 0 and at most {_MAX_SECONDS:.0f}, got {seconds}", argument="seconds"
        )


def run_benchmark(
    images: str | os.PathLike[str],
    progress: ProgressCallback,
    *,
    image_size: int = 224,
    batch_size: int = 64,
    workers: int | Literal["auto"] = "auto",
    against: Literal["torch"] | None = None,
    seconds: float = 30.0,
) -> Result:
    """Measure feedline's loader on the images of a folder, and torch's on request.

    Args:
        images: folder with one sub-folder per class.
        progress: called with the current work.
        image_size: side of the batches' images, in pixels.
        batch_size: images in a batch.
        workers: "auto", or the number of processes that load images; 0 loads in this one.
        against: "torch" also measures torch's DataLoader with torchvision.
        seconds: total time of counting images.

    Raises:
        UsageError: the folder or an option cannot be used, or torchvision is missing.
        ResourceError: there is too little memory.
        DatasetError: no image can be decoded.
        WorkerError: a process died or hung.
    """
    started = time.perf_counter()
    check_options(image_size, batch_size, seconds)
    count = worker_count(workers)
    cores = min(max(1, count), usable_cores())
    progress("listing the images", 0, 1)
    everything = ImageFolder(images)
    _require_memory(everything.fields(image_size), batch_size, count, against is not None)
    folder = sample_folder(everything, _SEED)
    if against is not None:
        progress("importing torchvision", 0, 1)
        _import_torchvision()
    survey = survey_images(folder, image_size, seconds, progress)
    sample, left_out = ImageSample(folder, survey.numbers), dict[str, str]()
    progress("starting the loaders", 0, 1)
    with contextlib.ExitStack() as stack:
        batches = sample, batch_size, image_size, count
        loaders = [stack.enter_context(feedline_loader(*batches))]
        for form, name in TORCH_FORMS.items() if against else ():
            settle_down()
            try:
                loaders.append(stack.enter_context(torch_loader(form, *batches)))
            except Exception as error:
                left_out[name] = _last_line(error)
        others, turn_s = OtherPrograms(), seconds / (len(loaders) * _ROUNDS)
        turns = take_turns(loaders, _ROUNDS, turn_s, left_out, progress)
        other_cores = others.cores()
        broken = {**survey.broken, **dict(loaders[0].skipped)}
    result: Result = {
        "settings": {
            "folder": os.fspath(images),
            "size_px": image_size,
            "batch_size": batch_size,
            "workers": workers,
            "against": against,
            "seconds": seconds,
            "seed": _SEED,
        },
        "workers": count,
        "cores_used": cores,
        "other_cores": other_cores,
        "data": {"images": len(everything), "classes": len(folder.classes), **survey.data},
        "rows": make_rows(turns, cores),
        "one_image": survey.costs,
        "left_out": [{"what": name, "reason": why} for name, why in left_out.items()],
        "skipped": [{"file": file, "reason": why} for file, why in sorted(broken.items())],
        **environment("simplejpeg"),
        "elapsed_s": time.perf_counter() - started,
    }
    return {**result, "verdict": verdict(result), "notes": notes(result)}


def _require_memory(fields: Any, batch_size: int, workers: int, against: bool) -> None:
    """Raise a ResourceError if the machine has too little memory, before anything is started."""
    batch = batch_bytes(fields, batch_size)
    needed = (PREFETCH + 1) * batch + workers * WORKER_BYTES
    if against:
        # Two batches for each worker and the current one; the bytes as uint8 and as float32.
        needed += (2 * workers + 1) * batch * 5 + 2 * workers * WORKER_BYTES
    require_memory(
        needed,
        f"measuring {plural(workers, 'worker')} with batches of {batch_size}",
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


def _last_line(error: Exception) -> str:
    # torch puts its worker's traceback into the message, and the error at the end.
    return [type(error).__name__, *str(error).splitlines()][-1]


class Survey(NamedTuple):
    """Images of a folder that can be decoded, and the cost of one of them."""

    numbers: list[int]
    data: Result
    """Numbers and sizes of the images, JSON-able."""
    costs: Result
    """Means in one process, in ms: "read_ms" from memory, "read_cold_ms" from the disk (None for
    the reason "cold_not_measured"), "decode_ms" of as many pixels as the crop needs, "resize_ms" of
    the crop, "total_ms" from memory; and the number of timed "images"."""
    broken: dict[str, str]
    """Reasons by path."""


def survey_images(
    folder: ImageFolder, size: int, seconds: float, progress: ProgressCallback
) -> Survey:
    """Decode the images of a folder in their order, and time the stages of the first ones.

    This also brings the files into memory, so that the loaders are measured and not the disk. The
    fastest of an image's repetitions counts, as the others were disturbed. The survey ends after a
    share of the benchmark's `seconds`, but not before some images.

    Raises:
        DatasetError: none of them can be decoded.
    """
    decoder, spans = Decoder(), list[list[float]]()
    numbers, files, sides = list[int](), list[FilePart](), list[tuple[int, int]]()
    row = np.zeros((size, size, 3), np.uint8), np.zeros((), np.int64)
    broken: dict[str, str] = {}
    start = time.monotonic()
    for sample in range(len(folder)):
        elapsed_s = time.monotonic() - start
        if sample >= _MIN_IMAGES and elapsed_s > _SURVEY_SHARE * seconds:
            break
        try:
            data = read_file(path := folder.files.path(sample))
            height_and_width = decoder.open(data)
            decoder.read()
        except ImageError as error:
            broken[folder.name(sample)] = error.message
        else:
            numbers.append(sample)
            files.append(FilePart(path, 0, len(data)))
            sides.append(height_and_width)
            if len(spans) < _MIN_TIMED or elapsed_s < _STAGES_SHARE * seconds:
                item = Item(sample, size, mix(sample), 1.0)
                runs = [_time_stages(folder, item, row, decoder) for _ in range(_REPEATS)]
                spans.append([min(times) for times in zip(*runs, strict=True)])
        progress("timing images", sample + 1, len(folder))
    if not numbers:
        name, problem = next(iter(broken.items()))
        raise DatasetError(
            f"{folder.root}: none of {len(broken)} images tried can be decoded. First error: "
            f"{name}: {problem}",
            hint="check that the images were downloaded and unpacked completely",
        )
    read_ms, resize_ms, load_ms = (mean(times) for times in zip(*spans, strict=True))
    cold_ms, why_not = _read_cold_ms(files[: len(spans)])
    heights, widths = zip(*sides, strict=True)
    about = {
        "images_measured": len(numbers),
        "images_shorter_than_size": sum(min(each) < size for each in sides),
        "file_bytes_mean": mean(file.bytes for file in files),
        "height_px_median": round(median(heights)),
        "width_px_median": round(median(widths)),
    }
    costs = {
        "images": len(spans),
        "read_ms": read_ms,
        "read_cold_ms": cold_ms,
        "cold_not_measured": why_not,
        "decode_ms": max(0.0, load_ms - read_ms - resize_ms),
        "resize_ms": resize_ms,
        "total_ms": max(load_ms, read_ms + resize_ms),
    }
    return Survey(numbers, about, costs, broken)


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


def _read_cold_ms(files: Sequence[FilePart]) -> tuple[float | None, str]:
    """Milliseconds to read a file from the disk, or None and the reason it is unknown."""
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


def take_turns(
    loaders: Sequence[MeasuredLoader],
    rounds: int,
    turn_s: float,
    left_out: dict[str, str],
    progress: ProgressCallback,
) -> dict[MeasuredLoader, list[Turn]]:
    """Measure all loaders in turn, round after round; return the turns of each.

    Errors of the first loader, feedline's, are raised; `left_out` receives the names of torch's
    loaders that fail, and the reasons.
    """
    turns: dict[MeasuredLoader, list[Turn]] = {loader: [] for loader in loaders}
    total = rounds * len(loaders)
    for done in range(total):
        number, loader = done // len(loaders), loaders[done % len(loaders)]
        if loader not in turns:
            continue
        progress(f"round {number + 1} of {rounds}: {loader.name}", done, total)
        settle_down()
        try:
            turns[loader].append(loader.turn(turn_s))
        except Exception as error:
            if loader is loaders[0]:
                raise
            left_out[loader.name] = _last_line(error)
            del turns[loader]
    return turns


def make_rows(turns: Mapping[MeasuredLoader, Sequence[Turn]], cores: int) -> list[Result]:
    """Summarise the turns of loaders, of which the first is feedline's.

    Ratios are of the same rounds; CPU seconds are those of all processes of a loader.
    """
    rows: list[Result] = []
    ours = [turn.images_per_s for turn in next(iter(turns.values()))]
    for loader, taken in turns.items():
        rates = [turn.images_per_s for turn in taken]
        cpu_s, images = sum(turn.cpu_s for turn in taken), sum(turn.images for turn in taken)
        ratios = [rate / own for rate, own in zip(rates, ours, strict=True)]
        rows.append(
            {
                "name": loader.name,
                "loader": "torch" if rows else "feedline",
                "images_per_s": _spread(rates),
                "images_per_s_per_core": median(rates) / cores,
                "ratio_to_feedline": _spread(ratios),
                "first_batch_s": loader.first_batch_s,
                "cpu_s_per_1000_images": 1000 * cpu_s / images,
                "turns": [asdict(turn) for turn in taken],
            }
        )
    return rows


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "low": min(values), "high": max(values)}


_SKIPPED_SHOWN = 3
_HEADS = ("", "images/s", "range", "per core", "x feedline", "first batch", "CPU s/1000")


def benchmark_table(result: Result) -> str:
    """Format the rates, the cost of one image and remarks, at most 100 columns wide."""
    rows = [
        (
            row["name"],
            f"{row['images_per_s']['median']:.0f}",
            f"{row['images_per_s']['low']:.0f}-{row['images_per_s']['high']:.0f}",
            f"{row['images_per_s_per_core']:.0f}",
            f"{row['ratio_to_feedline']['median']:.2f}",
            f"{row['first_batch_s']:.2f} s",
            f"{row['cpu_s_per_1000_images']:.2f}",
        )
        for row in result["rows"]
    ]
    costs, skipped = result["one_image"], result["skipped"]
    cold = costs["read_cold_ms"]
    from_disk = "" if cold is None else f" (from the disk {cold:.2f})"
    remarks = [f"{each['what']} left out: {each['reason']}" for each in result["left_out"]]
    lines = [line for text in [*remarks, *result["notes"]] for line in wrap_text(text, first="")]
    if skipped:
        lines.append(f"unreadable images skipped: {len(skipped)}, for example")
        lines += [f"  {each['file']}: {each['reason']}" for each in skipped[:_SKIPPED_SHOWN]]
    parts = [
        _headline(result),
        "",
        *format_table([_HEADS, *rows], indent="", left=(0,)),
        "",
        f"one image in one process: read {costs['read_ms']:.2f}{from_disk} + decode "
        f"{costs['decode_ms']:.2f} + crop and resize {costs['resize_ms']:.2f} ms",
        "",
        *wrap_text(" ".join(result["verdict"]), first="", following=""),
        *([""] if lines else []),
        *lines,
    ]
    return "\n".join(parts)


def _headline(result: Result) -> str:
    data, settings, workers = result["data"], result["settings"], result["workers"]
    images, measured, file_bytes = data["images"], data["images_measured"], data["file_bytes_mean"]
    return (
        f"{f'{measured} of ' if measured < images else ''}{images} images, "
        f"{file_bytes / 1e3:.{0 if file_bytes >= 1e4 else 1}f} KB, "
        f"{data['width_px_median']}x{data['height_px_median']} px, to {settings['size_px']} px in "
        f"batches of {settings['batch_size']}; "
        f"{plural(workers, 'worker') if workers else 'no workers'}, "
        f"{plural(result['machine']['usable_cores'], 'core')} usable"
    )


def verdict(result: Result) -> list[str]:
    """Describe the costliest stage, reads from the disk, and the comparison with torch."""
    costs, total_ms = result["one_image"], result["one_image"]["total_ms"]
    parts = {
        "decoding": costs["decode_ms"],
        "reading": costs["read_ms"],
        "cropping and resizing": costs["resize_ms"],
    }
    first, *others = sorted(parts, key=lambda name: -parts[name])
    rest = " and ".join(f"{name} {parts[name] / total_ms:.0%}" for name in others)
    share = f"{parts[first] / total_ms:.0%} of the {total_ms:.2f} ms of an image"
    lines = [f"Most costly: {first}, {share}; {rest}."]
    if (costs["read_cold_ms"] or 0.0) > costs["decode_ms"] + costs["resize_ms"]:
        lines.append(
            "Until the files are in memory, the bottleneck is reading them: "
            f"{costs['read_cold_ms']:.2f} ms an image from the disk, {costs['read_ms']:.2f} ms "
            "from memory."
        )
    ratios = [(row["ratio_to_feedline"], row["name"]) for row in result["rows"][1:]]
    if ratios:
        text = " and ".join(
            f"{1 / each['median']:.2f}x ({1 / each['high']:.2f}-{1 / each['low']:.2f}) {name}"
            for each, name in ratios
        )
        lines.append(f"feedline's rate is {text}.")
    return lines


def notes(result: Result) -> list[str]:
    """Remarks on the figures, without the left-out measurements."""
    data, settings, costs = result["data"], result["settings"], result["one_image"]
    measured, small = data["images_measured"], data["images_shorter_than_size"]
    cores, workers = result["machine"]["usable_cores"], result["workers"]
    rates = {row["name"]: row["images_per_s"] for row in result["rows"]}
    noise = {name: (rate["high"] - rate["low"]) / rate["median"] for name, rate in rates.items()}
    noisiest = max(noise, key=lambda name: noise[name])
    found = {
        f"{small} of {measured} images have a side shorter than {settings['size_px']} px: they are "
        "enlarged": small > 0,
        f"{measured} images are fewer than a batch of {settings['batch_size']}: each batch repeats "
        "them": measured < settings["batch_size"],
        f"more workers could help: {workers} for {cores} usable cores": workers < cores,
        f"other programs used {result['other_cores']:.1f} of {plural(cores, 'core')}: without them "
        "the rates are higher": result["other_cores"] >= THRESHOLDS.other_cores * cores,
        f"rounds differ by up to {noise[noisiest]:.0%} ({noisiest}): measure for more --seconds": (
            noise[noisiest] > THRESHOLDS.noisy_rounds
        ),
        f"reading from the disk was not measured: {costs['cold_not_measured']}": (
            costs["read_cold_ms"] is None
        ),
    }
    return [note for note, applies in found.items() if applies]
