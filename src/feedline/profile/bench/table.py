"""Benchmark results as text, at most 100 columns wide: rates, costs of an image, notes.

Guarantees: pure; every number in it was measured in the same run.
"""

from __future__ import annotations

from feedline.profile.bench.result import BenchmarkResult, BenchmarkRow, Spread
from feedline.text import format_table, plural, wrap_text

__all__ = ["kilobytes", "notes", "table", "verdict"]


_SKIPPED_SHOWN = 3
_HEADS = ("", "images/s", "range", "per core", "x feedline", "first batch", "CPU s/1000")


def table(result: BenchmarkResult) -> str:
    """Format the rates, the cost of one image and the left-out measurements."""
    rates = format_table(
        [_HEADS, *(_cells(row, result) for row in result.rows)], indent="", left=(0,)
    )
    summary = wrap_text(" ".join(verdict(result)), first="", following="")
    parts = [_headline(result), "", *rates, "", *_costs(result), "", *summary, *_remarks(result)]
    return "\n".join(parts)


def _headline(result: BenchmarkResult) -> str:
    survey, settings = result.survey, result.settings
    height, width = survey.median_px
    images = f"{result.images} images"
    if len(survey.images) < result.images:
        images = f"{len(survey.images)} of {result.images} images"
    workers = plural(result.workers, "worker") if result.workers else "no workers"
    cores = result.machine["cores_usable"]
    return (
        f"{images}, {kilobytes(survey.file_bytes)}, {width}x{height} px, to {settings.size_px} "
        f"px in batches of {settings.batch_size}; {workers}, {plural(cores, 'core')} "
        "usable"
    )


def _cells(row: BenchmarkRow, result: BenchmarkResult) -> tuple[str, ...]:
    rate = row.images_per_s
    return (
        row.name,
        f"{rate.median:.0f}",
        f"{rate.low:.0f}-{rate.high:.0f}",
        f"{rate.median / result.cores:.0f}",
        f"{row.ratio_to(result.ours).median:.2f}",
        f"{row.first_batch_s:.2f} s",
        f"{row.cpu_s_per_1000_images:.2f}",
    )


def _costs(result: BenchmarkResult) -> list[str]:
    stages = result.stages
    cold = "" if stages.read_cold_ms is None else f" (from the disk {stages.read_cold_ms:.2f})"
    return [
        f"one image in one process: read {stages.read_ms:.2f}{cold} "
        f"+ decode {stages.decode_ms:.2f} + crop and resize {stages.resize_ms:.2f} ms"
    ]


def _remarks(result: BenchmarkResult) -> list[str]:
    left_out = [f"{each.what} left out: {each.reason}" for each in result.left_out]
    lines = [line for each in [*left_out, *notes(result)] for line in wrap_text(each, first="")]
    if result.skipped:
        lines.append(f"unreadable images skipped: {len(result.skipped)}, for example")
        lines += [f"  {path}: {reason}" for path, reason in result.skipped[:_SKIPPED_SHOWN]]
    return ["", *lines] if lines else []


_NOISY = 0.3


def kilobytes(size_bytes: float) -> str:
    """Format a size with at least two digits."""
    return f"{size_bytes / 1e3:.{0 if size_bytes >= 1e4 else 1}f} KB"


def factor(spread: Spread) -> str:
    """Format a ratio with its range."""
    return f"{spread.median:.2f}x ({spread.low:.2f}-{spread.high:.2f})"


def verdict(result: BenchmarkResult) -> list[str]:
    """Describe the costliest stage, reads from the disk, and the comparison with torch."""
    return [_costliest(result), *_cold_reads(result), *_torch_ratio(result)]


def _costliest(result: BenchmarkResult) -> str:
    stages = result.stages
    parts = {
        "decoding": stages.decode_ms,
        "reading": stages.read_ms,
        "cropping and resizing": stages.resize_ms,
    }
    total = stages.total_ms
    first, *others = sorted(parts, key=lambda name: -parts[name])
    rest = " and ".join(f"{name} {parts[name] / total:.0%}" for name in others)
    share = f"{parts[first] / total:.0%} of the {total:.2f} ms of an image"
    return f"Most costly: {first}, {share}; {rest}."


def _cold_reads(result: BenchmarkResult) -> list[str]:
    stages = result.stages
    cold_ms = stages.read_cold_ms
    if cold_ms is None or cold_ms <= stages.decode_ms + stages.resize_ms:
        return []
    return [
        "Until the files are in memory, the bottleneck is reading them: "
        f"{cold_ms:.2f} ms an image from the disk, {stages.read_ms:.2f} ms from memory."
    ]


def _torch_ratio(result: BenchmarkResult) -> list[str]:
    rows = [row for row in result.rows if row.loader == "torch"]
    if not rows:
        return []
    ratios = " and ".join(f"{factor(result.ours.ratio_to(row))} {row.name}" for row in rows)
    return [f"feedline's rate is {ratios}."]


def notes(result: BenchmarkResult) -> list[str]:
    """Remarks on the figures, without the left-out measurements."""
    survey, settings = result.survey, result.settings
    found: list[str] = []
    small = survey.count_smaller(settings.size_px)
    if small:
        found.append(
            f"{small} of {len(survey.images)} images have a side shorter than "
            f"{settings.size_px} px: they are enlarged"
        )
    if len(survey.images) < settings.batch_size:
        found.append(
            f"{len(survey.images)} images are fewer than a batch of {settings.batch_size}: each "
            "batch repeats them"
        )
    cores = result.machine["cores_usable"]
    if result.workers < cores:
        found.append(f"more workers could help: {result.workers} for {cores} usable cores")
    noise = {row.name: row.images_per_s.width for row in result.rows}
    noisiest = max(noise, key=lambda name: noise[name])
    if noise[noisiest] > _NOISY:
        found.append(
            f"rounds differ by up to {noise[noisiest]:.0%} ({noisiest}): other programs were busy, "
            "or --seconds is too short"
        )
    if result.stages.read_cold_ms is None:
        found.append(f"reading from the disk was not measured: {result.stages.cold_not_measured}")
    return found
