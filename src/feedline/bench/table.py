"""A benchmark's result as text, at most 100 columns wide."""

from __future__ import annotations

from feedline.bench.result import Result, Row
from feedline.bench.text_table import aligned, wrapped
from feedline.bench.verdict import kilobytes, notes, verdict

__all__ = ["table"]

_NAMED = 3
_HEADS = ("", "images/s", "range", "per core", "x feedline", "first batch", "CPU s/1000")


def table(result: Result) -> str:
    """The table of rates, the split of one image's cost, the verdict and what was left out."""
    rates = aligned([_HEADS, *(_cells(row, result) for row in result.rows)])
    said = wrapped(" ".join(verdict(result)))
    parts = [_headline(result), "", *rates, "", *_costs(result), "", *said, *_remarks(result)]
    return "\n".join(parts)


def _headline(result: Result) -> str:
    survey, settings = result.survey, result.settings
    height, width = survey.median_px
    how_many = f"{result.images} images"
    if len(survey.looks) < result.images:
        how_many = f"{len(survey.looks)} of {result.images} images"
    count = result.workers
    workers = "no workers" if count == 0 else f"{count} worker{'s' * (count != 1)}"
    cores = result.machine["cores_usable"]
    return (
        f"{how_many}, {kilobytes(survey.file_bytes)}, {width}x{height} px, to {settings.size_px} "
        f"px in batches of {settings.batch_size}; {workers}, {cores} core{'s' * (cores != 1)} "
        "usable"
    )


def _cells(row: Row, result: Result) -> tuple[str, ...]:
    rate = row.images_per_s
    return (
        row.name,
        f"{rate.median:.0f}",
        f"{rate.low:.0f}-{rate.high:.0f}",
        f"{rate.median / result.cores:.0f}",
        f"{row.ratio_to(result.ours).median:.2f}",
        "-" if row.first_batch_s is None else f"{row.first_batch_s:.2f} s",
        f"{row.cpu_s_per_1000_images:.2f}",
    )


def _costs(result: Result) -> list[str]:
    stages = result.stages
    cold = "" if stages.read_cold_ms is None else f" (from the disk {stages.read_cold_ms:.2f})"
    lines = [
        f"one image in one process: read {stages.read_ms:.2f}{cold} "
        f"+ decode {stages.decode_ms:.2f} + crop and resize {stages.resize_ms:.2f} ms"
    ]
    said = [
        f"{spread.median:.3f} ({spread.low:.3f}-{spread.high:.3f}) on {files}"
        for files, spread in result.kept.items()
    ]
    if said:
        lines.append(f"feedline / bare processes: {', '.join(said)}")
    return lines


def _remarks(result: Result) -> list[str]:
    said = [f"{each.what} left out: {each.reason}" for each in result.left_out]
    lines = [line for each in [*said, *notes(result)] for line in wrapped(each, indent="  ")]
    if result.skipped:
        lines.append(f"unreadable images skipped: {len(result.skipped)}, such as")
        lines += [f"  {path}: {reason}" for path, reason in result.skipped[:_NAMED]]
    return ["", *lines] if lines else []
