"""What the figures say, in words: what bounds the loader, and what would help.

Guarantees: pure; every number in it was measured in the same run.
"""

from __future__ import annotations

from feedline.bench.result import Result, Spread

__all__ = ["kilobytes", "notes", "verdict"]

_WORTH_IT = 1.1
_NOISY = 0.3


def kilobytes(size_bytes: float) -> str:
    """A size as text, to two digits at least."""
    return f"{size_bytes / 1e3:.{0 if size_bytes >= 1e4 else 1}f} KB"


def factor(spread: Spread) -> str:
    """A ratio with its range, as text."""
    return f"{spread.median:.2f}x ({spread.low:.2f}-{spread.high:.2f})"


def verdict(result: Result) -> list[str]:
    """Plain sentences: the bound, what smaller copies bring, how torch compares."""
    return [_bound(result), *_cold(result), *_from_copies(result), *_against(result)]


def _bound(result: Result) -> str:
    stages = result.stages
    kept = result.kept.get("originals")
    handing = 0.0 if kept is None else max(0.0, 1 - kept.median)
    parts = {
        "decoding": stages.decode_ms,
        "reading": stages.read_ms,
        "cropping and resizing": stages.resize_ms,
    }
    total = stages.total_ms
    first, *others = sorted(parts, key=lambda name: -parts[name])
    rest = " and ".join(f"{name} {parts[name] / total:.0%}" for name in others)
    share = f"{parts[first] / total:.0%} of the {total:.2f} ms of an image"
    if handing > parts[first] / total * (1 - handing):
        return (
            f"Handing batches over bounds the loader: it costs {handing:.0%} of what bare "
            f"processes reach. In one of these {first} takes {share}, {rest}."
        )
    costs = "nothing that can be measured"
    if kept is not None and round(handing, 2):
        costs = f"{handing:.0%} ({max(0.0, 1 - kept.high):.0%}-{1 - kept.low:.0%})"
    return (
        f"{first.capitalize()} bounds the loader: it takes {share}, {rest}; handing batches over "
        f"costs {costs}."
    )


def _cold(result: Result) -> list[str]:
    stages = result.stages
    cold_ms = stages.read_cold_ms
    if cold_ms is None or cold_ms <= stages.decode_ms + stages.resize_ms:
        return []
    return [
        f"Until the files are in memory, reading bounds it: {cold_ms:.2f} ms an image from the "
        f"disk, {stages.read_ms:.2f} ms from memory."
    ]


def _from_copies(result: Result) -> list[str]:
    row, copies = result.row("feedline", "copies"), result.copies
    if row is None or copies is None:
        return []
    gain = row.ratio_to(result.ours)
    what = f"Copies with a shorter side of {copies.side_px} px"
    sizes = f"{kilobytes(copies.file_bytes)} an image, not {kilobytes(result.survey.file_bytes)}"
    if gain.median < _WORTH_IT:
        return [f"{what} would not help: {factor(gain)} as fast."]
    return [f"{what} make it {factor(gain)} as fast, and take {sizes}."]


def _against(result: Result) -> list[str]:
    rows = [row for row in result.rows if row.loader == "torch"]
    if not rows:
        return []
    said = " and ".join(f"{factor(result.ours.ratio_to(row))} {row.name}" for row in rows)
    return [f"feedline's rate is {said}."]


def notes(result: Result) -> list[str]:
    """What to know about the figures, beyond those that were left out."""
    survey, settings = result.survey, result.settings
    found: list[str] = []
    small = survey.smaller_than(settings.size_px)
    if small:
        found.append(
            f"{small} of {len(survey.looks)} images have a side shorter than "
            f"{settings.size_px} px: they are enlarged"
        )
    if len(survey.looks) < settings.batch_size:
        found.append(
            f"{len(survey.looks)} images are fewer than a batch of {settings.batch_size}: they "
            "come several times in each"
        )
    if result.copies is not None and result.copies.as_they_are:
        found.append(
            f"{result.copies.as_they_are} of {result.copies.images} copies are originals, which "
            "are that small already"
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
