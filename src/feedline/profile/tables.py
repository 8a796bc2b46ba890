"""Tables of a report, as rows of text, the same in a terminal and on a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from feedline.machine import Machine
from feedline.profile.report import ReportData
from feedline.text import (
    NOT_MEASURED,
    as_bytes,
    as_ms,
    as_percent,
    as_rate,
    as_seconds,
    as_share,
    printable,
)
from feedline.timing.run import Loader

_SLOWEST, _LOADERS, _EPOCHS, _MAX_ROWS = 12, 8, 20, 100

_LABELS = {
    "name": "class",
    "made_by": "engine",
    "gpu": "GPU",
    "gpu_busy": "GPU busy",
    "other_cores": "cores of other processes",
    "quota_cores": "CPU quota",
    "throttled_s": "throttled by the CPU quota",
    "storage_stall_s": "processes waited for storage",
    "shared_by": "training processes",
    "threads": "torch threads",
    "worker_threads": "threads of the busiest worker",
    "shared_memory_bytes": "/dev/shm",
    "cacheable_bytes": "memory for cached files",
    "dataset_bytes": "all samples",
}
"""Printed names of fields whose own names do not tell enough."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportTable:
    """Table of text cells.

    Args:
        title: printed title.
        heads: of the columns; empty if the first column names the second.
        rows: of cells; the first cell is text, and so are all if there are no heads.
        note: remark on the table.
    """

    title: str
    heads: list[str] = field(default_factory=list)
    rows: list[list[str]]
    note: str = ""


def report_tables(report: ReportData) -> list[ReportTable]:
    """Return all tables of a report that have rows."""
    all_ms = sum(each.total_ms for each in report.stages)
    more = len(report.epochs_trained) - _EPOCHS
    numbers = [f" {k}" for k in range(_LOADERS)] if len(report.loaders) > 1 else [""]
    made = [
        _table(
            "Phases",
            report.phases,
            {
                "px @batch": lambda each: (
                    _text(each.image_size)
                    + ("" if each.batch_size is None else f" @{each.batch_size}")
                ),
                "epochs": lambda each: "-".join(str(k + 1) for k in dict.fromkeys(each.epochs)),
                "steps": lambda each: str(each.steps),
                "images/s": lambda each: as_rate(each.images_per_s).removesuffix(" images/s"),
                "wait": lambda each: as_percent(each.wait_pct),
                "wait ms": lambda each: _quantiles(each.wait_ms),
                "copy ms": lambda each: _quantiles(each.copy_ms),
                "compute ms": lambda each: _quantiles(each.compute_ms),
                "hidden": lambda each: as_ms(each.hidden_ms).removesuffix(" ms"),
            },
            "Steps alone, without the starts of passes. px @batch: image size and batch size. "
            "Parts of a step in ms: median/95th percentile/longest; computing includes waits for a "
            "core. hidden: work of the workers for a batch during the steps, in ms per worker.",
        ),
        _table(
            "Ranks",
            report.ranks,
            {
                "rank": lambda each: f"{each.rank} on {printable(each.host)}",
                "slow": lambda each: each.slow,
                "step": lambda each: as_ms(each.step_ms),
                "data wait": lambda each: as_ms(each.wait_ms),
                "workers": lambda each: as_ms(each.worker_ms),
                "on a core": lambda each: as_ms(each.on_core_ms),
                "steps": lambda each: str(each.steps),
            },
            "Means per step; on a core: computing of the training thread. Ranks that synchronise "
            "gradients have equal steps: all wait for the slowest input or computing.",
        ),
        _table(
            "Learning",
            report.epochs_trained[-_EPOCHS:],
            {
                "epoch": lambda each: str(each.epoch),
                "px": lambda each: _text(each.size_px),
                "loss": lambda each: _text(each.train_loss, ".4g"),
                "val loss": lambda each: _text(each.val_loss, ".4g"),
                "top-1": lambda each: _text(each.val_top1, ".1%"),
                "top-5": lambda each: _text(each.val_top5, ".1%"),
                "lr": lambda each: _text(each.lr, ".3g"),
                "trained for": lambda each: as_seconds(each.ended_s),
            },
            f"The latest {_EPOCHS}; the JSON has {more} more." if more > 0 else "",
        ),
        _table(
            "Stages of making a sample",
            report.stages,
            {
                "stage": lambda each: printable(each.name),
                "share": lambda each: _share(each.total_ms, all_ms),
                "mean": lambda each: as_ms(each.total_ms / each.count if each.count > 0 else None),
                "longest": lambda each: as_ms(each.longest_ms),
                "on a core": lambda each: _share(each.cpu_ms, each.total_ms),
                "times": lambda each: str(each.count),
            },
            "From the workers' timed tasks, which are a part of all tasks.",
        ),
        _table(
            "Processes",
            report.use.processes,
            {
                "process": lambda each: f"{each.role} {each.pid}",
                "watched": lambda each: as_seconds(each.seconds),
                "on a core": lambda each: _share(each.cpu_s, each.seconds),
                "waited for a core": lambda each: _share(each.queued_s, each.seconds),
                "read from disk": lambda each: as_bytes(each.read_bytes),
                "page faults": lambda each: _text(each.major_faults, missing=NOT_MEASURED),
            },
            "From the kernel's counters: the trainer, and the longest-lived workers.",
        ),
        _table(
            "Slowest samples",
            report.slowest[:_SLOWEST],
            {"sample": lambda each: printable(each.name), "took": lambda each: as_ms(each.ms)},
        ),
        *(
            _pairs(f"Loader{number}", _loader(loader))
            for number, loader in zip(numbers, report.loaders, strict=False)
        ),
        _pairs("Settings of the recipe", report.settings),
        _pairs("Use of the machine", _use(report)),
        _pairs("Machine", _machine(report.machine)),
    ]
    return [_cut(table) for table in made if table.rows]


def _table(
    title: str, items: Sequence[Any], columns: Mapping[str, Callable[[Any], str]], note: str = ""
) -> ReportTable:
    rows = [[cell(each) for cell in columns.values()] for each in items]
    return ReportTable(title=title, heads=list(columns), rows=rows, note=note)


def _pairs(title: str, values: Mapping[str, str]) -> ReportTable:
    rows = [[printable(name), printable(value)] for name, value in values.items() if value]
    return ReportTable(title=title, rows=rows)


def _cut(table: ReportTable) -> ReportTable:
    """Limit the rows of a table."""
    if len(table.rows) <= _MAX_ROWS:
        return table
    note = f"{table.note} {len(table.rows) - _MAX_ROWS} more rows are in the JSON.".strip()
    return replace(table, rows=table.rows[:_MAX_ROWS], note=note)


def _text(value: object, form: str = "", missing: str = "-") -> str:
    return missing if value is None else format(value, form)


def _quantiles(ms: tuple[float, float, float] | None) -> str:
    return NOT_MEASURED if ms is None else "/".join(as_ms(q).removesuffix(" ms") for q in ms)


def _share(part: float | None, whole: float | None) -> str:
    return as_share(None if part is None or not whole or whole < 0 else min(1.0, part / whole))


def _fields(facts: Any, **shown: str) -> dict[str, str]:
    """Names and values of the fields of a dataclass, except lists and mappings.

    `shown` has the text of some fields; a field with an empty text is left out.
    """
    found = {}
    for name in (each.name for each in fields(facts)):
        value = getattr(facts, name)
        if name in shown:
            text = shown[name]
        elif name.endswith("_bytes"):
            text = as_bytes(value)
        elif isinstance(value, bool):
            text = "yes" if value else "no"
        else:
            text = _text(value, missing="unknown")
        if not isinstance(value, list | dict):
            found[_LABELS.get(name) or name.removesuffix("_bytes").replace("_", " ")] = text
    return found


def _loader(loader: Loader) -> dict[str, str]:
    return _fields(
        loader,
        made_by=loader.engine,
        collate=loader.collate or ("torch's default" if loader.kind == "torch" else ""),
        accepts="",
    )


def _use(report: ReportData) -> dict[str, str]:
    use, quota = report.use, report.machine.quota_cores
    throttled = "no quota" if use.throttled_s is quota is None else as_seconds(use.throttled_s)
    others = _text(use.other_cores, ".1f", NOT_MEASURED)
    return _fields(
        use,
        gpu_busy=as_share(use.gpu_busy),
        throttled_s=throttled,
        storage_stall_s=as_seconds(use.storage_stall_s),
        other_cores=others,
    )


def _machine(machine: Machine) -> dict[str, str]:
    quota = "none" if machine.quota_cores is None else f"{machine.quota_cores:g} cores"
    versions = {name: version or "not installed" for name, version in machine.versions.items()}
    return _fields(machine, quota_cores=quota, gpu=machine.gpu or "none") | versions
