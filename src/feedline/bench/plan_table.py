"""A plan of a cache as text, at most 100 columns wide."""

from __future__ import annotations

from collections.abc import Sequence

from rich.filesize import decimal

from feedline.bench.planned_cache import CachePlan
from feedline.bench.text_table import aligned, wrapped
from feedline.cache.advice import counted, duration
from feedline.cache.choice import Choice, front

__all__ = ["plan_table"]

_MOST_SIZES = 4
_NAMED = 3


def plan_table(plan: CachePlan) -> str:
    """The choices that are worth a look, the recommendation, and what it rests on."""
    advised = plan.advice.choice
    shown = front(plan.choices, advised)
    sizes = sorted(plan.measured.wanted)
    if len(sizes) > _MOST_SIZES:
        sizes = []
    heads = ["", *([f"{size} px" for size in sizes] or ["images/s"]), "loading", "disk", "memory"]
    heads += ["build", "paid after", "differs by"]
    rows = [heads, *(_cells(choice, plan, sizes) for choice in (plan.originals, *shown))]
    marks = [" ", *("*" if choice is advised else " " for choice in (plan.originals, *shown))]
    table = [f"{mark} {row}" for mark, row in zip(marks, aligned(rows), strict=True)]
    parts = [*_headline(plan), "", *table, "", *wrapped(plan.advice.why)]
    if plan.command:
        parts += ["", plan.command]
    return "\n".join([*parts, *_remarks(plan)])


def _headline(plan: CachePlan) -> list[str]:
    measured, (height, width) = plan.measured, plan.median_px
    size = f", {decimal(round(measured.original_bytes))}" if measured.original_bytes else ""
    workers = f"{plan.workers} worker{'s' * (plan.workers != 1)}" if plan.workers else "no workers"
    return wrapped(
        f"{measured.images} images{size}, {width}x{height} px, for {measured.schedule} with "
        f"{workers}: images/s from memory, predicted from {plan.looked_at} images"
    )


def _cells(choice: Choice, plan: CachePlan, sizes: Sequence[int]) -> list[str]:
    rates = {phase.size: phase.images_per_s for phase in choice.phases}
    if sizes:
        shown = [rates[size] for size in sizes]
    else:
        shown = [plan.measured.images * plan.measured.schedule.epochs / choice.load_s]
    made = bool(choice.levels)
    total = choice.bytes if made else plan.measured.images * plan.measured.original_bytes
    most = max(phase.disk_bytes_per_s for phase in choice.phases)
    paid = "later" if choice.paid_after is None else counted(choice.paid_after, "epoch")
    return [
        str(choice),
        *(f"{rate:.0f}" for rate in shown),
        duration(choice.load_s),
        decimal(round(total)) if total else "-",
        f"{decimal(round(most))}/s" if most else "holds",
        duration(choice.build_s) if made else "-",
        paid if made else "-",
        f"{choice.difference:.1f}" if made else "-",
    ]


def _remarks(plan: CachePlan) -> list[str]:
    limits = plan.limits
    said = [
        f"Up to {decimal(round(limits.disk_bytes))} of disk are for a cache, and memory holds up "
        f"to {decimal(round(limits.memory_bytes))} of what is read; beyond that the disk is taken "
        f"to give {decimal(round(limits.disk_bytes_per_s))}/s, and to write as much. `memory` says "
        "what the disk must give where memory does not hold a level. Rows differ by so many grey "
        "levels on average from those of the originals."
    ]
    if plan.small:
        said.append(
            f"{plan.small} of {plan.looked_at} images have a side shorter than "
            f"{max(plan.measured.wanted)} px: they are enlarged."
        )
    lines = ["", *(line for each in said for line in wrapped(each))]
    if plan.skipped:
        lines.append(f"unreadable images left out: {len(plan.skipped)}, such as")
        lines += [f"  {name}: {why}" for name, why in plan.skipped[:_NAMED]]
    return lines
