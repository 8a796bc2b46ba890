"""Tables of a report, as rows of text, the same in a terminal and on a page."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from feedline.profile.finding import PhaseSplit
from feedline.profile.report import ReportData
from feedline.text import (
    NOT_MEASURED,
    as_bytes,
    as_ms,
    as_percent,
    as_rate,
    as_seconds,
    as_share,
    finite,
    printable,
)
from feedline.timing.run import Loader, Process

__all__ = ["ReportTable", "report_tables"]

_SLOWEST, _LOADERS, _EPOCHS, _MAX_ROWS = 12, 8, 20, 100

_ENGINES = {
    "image rows": "image-row engine",
    "samples": "sample engine",
    "tensors": "tensor engine",
    "dataset": "dataset engine",
    "iterable": "torch's engine",
}


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
    loaders = report.loaders[:_LOADERS]
    numbers = [f" {k}" for k in range(len(loaders))] if len(report.loaders) > 1 else [""]
    settings = [[printable(name), printable(value)] for name, value in report.settings.items()]
    made = [
        _phases(report),
        _ranks(report),
        _epochs(report),
        _stages(report),
        _processes(report),
        ReportTable(
            title="Slowest samples",
            heads=["sample", "took"],
            rows=[[printable(each.name), as_ms(each.ms)] for each in report.slowest[:_SLOWEST]],
        ),
        *(
            _pairs(f"Loader{number}", _loader(loader))
            for number, loader in zip(numbers, loaders, strict=False)
        ),
        ReportTable(title="Settings of the recipe", rows=settings),
        _pairs("Use of the machine", _use(report)),
        _pairs("Machine", _machine(report)),
    ]
    return [_cut(table) for table in made if table.rows]


def _pairs(title: str, values: dict[str, str]) -> ReportTable:
    return ReportTable(title=title, rows=[[name, value] for name, value in values.items() if value])


def _cut(table: ReportTable) -> ReportTable:
    """Limit the rows of a table."""
    if len(table.rows) <= _MAX_ROWS:
        return table
    note = f"{table.note} {len(table.rows) - _MAX_ROWS} more rows are in the JSON.".strip()
    return replace(table, rows=table.rows[:_MAX_ROWS], note=note)


def _phases(report: ReportData) -> ReportTable:
    def three(figures: tuple[float, float, float] | None) -> str:
        if figures is None:
            return NOT_MEASURED
        return "/".join(as_ms(each).removesuffix(" ms") for each in figures)

    def row(phase: PhaseSplit) -> list[str]:
        batch = "" if phase.batch_size is None else f" @{phase.batch_size}"
        return [
            f"{'-' if phase.image_size is None else phase.image_size}{batch}",
            "-".join(str(epoch + 1) for epoch in dict.fromkeys(phase.epochs)),
            str(phase.steps),
            as_rate(phase.images_per_s).removesuffix(" images/s"),
            as_percent(phase.wait_pct),
            three(phase.wait_ms),
            three(phase.copy_ms),
            three(phase.compute_ms),
            as_ms(phase.hidden_ms).removesuffix(" ms"),
        ]

    heads = ["px @batch", "epochs", "steps", "images/s", "wait", "wait ms", "copy ms", "compute ms"]
    return ReportTable(
        title="Phases",
        heads=[*heads, "hidden"],
        rows=[row(each) for each in report.phases],
        note="Steps alone, without the starts of passes. px @batch: image size and batch size. "
        "Parts of a step in ms: median/95th percentile/longest; computing includes waits for a "
        "core. hidden: work of the workers for a batch during the steps, in ms per worker.",
    )


def _ranks(report: ReportData) -> ReportTable:
    heads = ["rank", "slow", "step", "data wait", "workers", "on a core", "steps"]
    return ReportTable(
        title="Ranks",
        heads=heads,
        rows=[
            [
                f"{each.rank} on {printable(each.host)}",
                each.slow,
                as_ms(each.step_ms),
                as_ms(each.wait_ms),
                as_ms(each.worker_ms),
                as_ms(each.on_core_ms),
                str(each.steps),
            ]
            for each in report.ranks
        ],
        note="Means per step; on a core: computing of the training thread. Ranks that synchronise "
        "gradients have equal steps: all wait for the slowest input or computing.",
    )


def _epochs(report: ReportData) -> ReportTable:
    def cell(value: float | None, form: str = ".4g") -> str:
        return "-" if value is None else f"{value:{form}}"

    latest = report.epochs_trained[-_EPOCHS:]
    more = len(report.epochs_trained) - len(latest)
    return ReportTable(
        title="Learning",
        heads=["epoch", "px", "loss", "val loss", "top-1", "top-5", "lr", "trained for"],
        rows=[
            [
                str(each.epoch),
                cell(each.image_size, "d"),
                cell(each.loss),
                cell(each.val_loss),
                cell(each.top1, ".1%"),
                cell(each.top5, ".1%"),
                cell(each.lr, ".3g"),
                as_seconds(each.ended_s),
            ]
            for each in latest
        ],
        note=f"The latest {_EPOCHS}; the JSON has {more} more." if more else "",
    )


def _stages(report: ReportData) -> ReportTable:
    all_ms = sum(each.total_ms for each in report.stages)

    def share(part: float | None, whole: float) -> str:
        return as_share(None if part is None or whole <= 0 else min(1.0, part / whole))

    return ReportTable(
        title="Stages of making a sample",
        heads=["stage", "share", "mean", "longest", "on a core", "times"],
        rows=[
            [
                printable(each.name),
                share(each.total_ms, all_ms),
                as_ms(each.total_ms / each.count if each.count > 0 else None),
                as_ms(each.longest_ms),
                share(each.cpu_ms, each.total_ms),
                str(each.count),
            ]
            for each in report.stages
        ],
        note="From the workers' timed tasks, which are a part of all tasks.",
    )


def _processes(report: ReportData) -> ReportTable:
    heads = ["watched", "on a core", "waited for a core", "read from disk", "page faults"]

    def row(each: Process) -> list[str]:
        watched = finite(each.seconds) or 0.0
        shares = [
            seconds / watched if seconds is not None and watched > 0 else None
            for seconds in (each.cpu_s, each.queued_s)
        ]
        return [
            f"{each.role} {each.pid}",
            as_seconds(each.seconds),
            *map(as_share, shares),
            as_bytes(each.read_bytes),
            _count(each.major_faults, NOT_MEASURED),
        ]

    return ReportTable(
        title="Processes",
        heads=["process", *heads],
        rows=[row(each) for each in report.use.processes],
        note="From the kernel's counters: the trainer, and the longest-lived workers.",
    )


def _loader(loader: Loader) -> dict[str, str]:
    return {
        "class": printable(loader.name),
        "kind": loader.kind,
        "dataset": printable(loader.dataset),
        "samples": _count(loader.samples),
        "batch size": _count(loader.batch_size),
        "workers": _count(loader.workers),
        "prefetch factor": _count(loader.prefetch_factor),
        "workers persist": _yes(loader.persistent_workers),
        "pinned memory": _yes(loader.pin_memory),
        "start method": printable(loader.start_method),
        "collate": printable(loader.collate)
        or ("torch's default" if loader.kind == "torch" else ""),
        "engine": _ENGINES.get(loader.made_by, printable(loader.made_by)),
        "because": printable(loader.because),
        "copies read": printable(loader.copies),
    }


def _count(value: int | None, missing: str = "unknown") -> str:
    return missing if value is None else str(value)


def _yes(value: bool | None) -> str:
    return "unknown" if value is None else "yes" if value else "no"


def _use(report: ReportData) -> dict[str, str]:
    use = report.use
    no_quota = use.throttled_s is None and report.machine.quota_cores is None
    return {
        "GPU busy": as_share(use.gpu_busy),
        "worker processes": str(use.worker_starts),
        "worker deaths": str(use.worker_deaths),
        "throttled by the CPU quota": "no quota" if no_quota else as_seconds(use.throttled_s),
        "torch threads, trainer": _count(use.threads),
        "threads, busiest worker": _count(use.worker_threads),
        "/dev/shm": as_bytes(use.shared_memory_bytes),
        "memory for cached files": as_bytes(use.cacheable_bytes),
        "all samples": as_bytes(use.dataset_bytes),
    }


def _machine(report: ReportData) -> dict[str, str]:
    machine = report.machine
    return {
        "host": printable(machine.host),
        "processor": printable(machine.cpu),
        "logical cores": str(machine.cores),
        "usable cores": str(machine.usable_cores),
        "training processes": str(machine.shared_by),
        "CPU quota": "none" if machine.quota_cores is None else f"{machine.quota_cores:g} cores",
        "memory": as_bytes(machine.memory_bytes),
        "GPU": "none" if machine.gpu is None else printable(machine.gpu),
        "system": printable(machine.platform),
    } | {
        printable(name): "not installed" if version is None else printable(version)
        for name, version in machine.versions.items()
    }
