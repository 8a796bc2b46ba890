"""Tables of a report, as rows of text, the same in a terminal and on a page."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from feedline.profile.finding import PhaseSplit
from feedline.profile.report_data import ReportData
from feedline.text import (
    NOT_MEASURED,
    as_bytes,
    as_ms,
    as_percent,
    as_rate,
    as_seconds,
    finite,
    printable,
)
from feedline.timing.run import Process

__all__ = ["ReportTable", "learned_table", "loader_table", "machine_table", "tables"]

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


def tables(facts: ReportData) -> list[ReportTable]:
    """Return all tables of a report that have rows."""
    made = [
        phase_table(facts),
        learned_table(facts),
        stage_table(facts),
        process_table(facts),
        slowest_table(facts),
        *(loader_table(facts, k) for k in range(min(_LOADERS, len(facts.loaders)))),
        settings_table(facts),
        use_table(facts),
        machine_table(facts),
    ]
    return [_cut(table) for table in made if table.rows]


def _cut(table: ReportTable) -> ReportTable:
    """Limit the rows of a table."""
    if len(table.rows) <= _MAX_ROWS:
        return table
    note = f"{table.note} {len(table.rows) - _MAX_ROWS} more rows are in the JSON.".strip()
    return replace(table, rows=table.rows[:_MAX_ROWS], note=note)


def _three(figures: tuple[float, float, float] | None) -> str:
    """Format median, 95th percentile and longest, in ms."""
    if figures is None:
        return NOT_MEASURED
    return "/".join(as_ms(each).removesuffix(" ms") for each in figures)


def phase_table(facts: ReportData) -> ReportTable:
    """Split of the step, phase by phase."""
    return ReportTable(
        title="Phases",
        heads=[
            *("px @batch", "epochs", "steps", "images/s", "wait"),
            *("wait ms", "copy ms", "compute ms", "hidden"),
        ],
        rows=[_split_row(each) for each in facts.phases],
        note="px @batch: image size and batch size. Parts of a step in ms: median/95th "
        "percentile/longest. hidden: work of the workers for a batch during the steps, in ms per "
        "worker.",
    )


def _split_row(phase: PhaseSplit) -> list[str]:
    return [
        f"{'-' if phase.image_size is None else phase.image_size}"
        + ("" if phase.batch_size is None else f" @{phase.batch_size}"),
        "-".join(str(epoch + 1) for epoch in dict.fromkeys(phase.epochs)),
        str(phase.steps),
        as_rate(phase.images_per_s).removesuffix(" images/s"),
        as_percent(phase.wait_pct),
        _three(phase.wait_ms),
        _three(phase.copy_ms),
        _three(phase.compute_ms),
        as_ms(phase.hidden_ms).removesuffix(" ms"),
    ]


def learned_table(facts: ReportData) -> ReportTable:
    """Metrics of the latest epochs."""
    latest = facts.epochs_trained[-_EPOCHS:]
    more = len(facts.epochs_trained) - len(latest)

    def cell(value: float | None, form: str = ".4g") -> str:
        return "-" if value is None else f"{value:{form}}"

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


def stage_table(facts: ReportData) -> ReportTable:
    """Cost of making a sample, by stage."""
    rows = [
        [
            printable(each.name),
            NOT_MEASURED if each.share is None else as_percent(100 * each.share),
            as_ms(each.mean_ms),
            as_ms(each.longest_ms),
            NOT_MEASURED if each.on_core is None else as_percent(100 * each.on_core),
            str(each.count),
        ]
        for each in facts.stages
    ]
    return ReportTable(
        title="Stages of making a sample",
        heads=["stage", "share", "mean", "longest", "on a core", "times"],
        rows=rows,
        note="From the workers' timed tasks, which are a part of all tasks.",
    )


def slowest_table(facts: ReportData) -> ReportTable:
    """Samples that took longest."""
    rows = [[printable(each.name), as_ms(each.ms)] for each in facts.slowest[:_SLOWEST]]
    return ReportTable(title="Slowest samples", heads=["sample", "took"], rows=rows)


def loader_table(facts: ReportData, number: int) -> ReportTable:
    """Settings of a loader."""
    loader = facts.loaders[number]
    rows = {
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
    title = "Loader" if len(facts.loaders) == 1 else f"Loader {number}"
    return ReportTable(title=title, rows=[[name, value] for name, value in rows.items() if value])


def _count(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _yes(value: bool | None) -> str:
    return "unknown" if value is None else "yes" if value else "no"


def settings_table(facts: ReportData) -> ReportTable:
    """Settings of the recipe."""
    rows = [[printable(name), printable(value)] for name, value in facts.settings.items()]
    return ReportTable(title="Settings of the recipe", rows=rows)


def machine_table(facts: ReportData) -> ReportTable:
    """Machine and software of the run."""
    machine = facts.machine
    quota = "none" if machine.quota_cores is None else f"{machine.quota_cores:g} cores"
    rows = {
        "host": printable(machine.host),
        "processor": printable(machine.cpu),
        "logical cores": str(machine.cores),
        "usable cores": str(machine.usable_cores),
        "training processes": str(machine.shared_by),
        "CPU quota": quota,
        "memory": as_bytes(machine.memory_bytes),
        "GPU": "none" if machine.gpu is None else printable(machine.gpu),
        "system": printable(machine.platform),
    }
    rows |= {
        printable(name): "not installed" if version is None else printable(version)
        for name, version in machine.versions.items()
    }
    return ReportTable(title="Machine", rows=[[name, value] for name, value in rows.items()])


def use_table(facts: ReportData) -> ReportTable:
    """Use of the machine."""
    use = facts.use
    rows = {
        "GPU busy": NOT_MEASURED if use.gpu_busy is None else as_percent(100 * use.gpu_busy),
        "worker processes": str(use.worker_starts),
        "worker deaths": str(use.worker_deaths),
        "throttled by the CPU quota": "no quota"
        if use.throttled_s is None and facts.machine.quota_cores is None
        else as_seconds(use.throttled_s),
        "torch threads, trainer": _count(use.threads),
        "threads, busiest worker": _count(use.worker_threads),
        "/dev/shm": as_bytes(use.shared_memory_bytes),
        "memory for cached files": as_bytes(use.cacheable_bytes),
        "all samples": as_bytes(use.dataset_bytes),
    }
    return ReportTable(
        title="Use of the machine", rows=[[name, value] for name, value in rows.items()]
    )


def process_table(facts: ReportData) -> ReportTable:
    """Activity of each process."""
    heads = [
        "process",
        "watched",
        "on a core",
        "waited for a core",
        "read from disk",
        "page faults",
    ]
    rows = [_process(each) for each in facts.use.processes]
    note = "From the kernel's counters: the trainer, and the longest-lived workers."
    return ReportTable(title="Processes", heads=heads, rows=rows, note=note)


def _process(each: Process) -> list[str]:
    watched = finite(each.seconds) or 0.0
    return [
        f"{each.role} {each.pid}",
        as_seconds(each.seconds),
        as_percent(100 * each.cpu_s / watched) if watched > 0 else NOT_MEASURED,
        NOT_MEASURED
        if each.queued_s is None or watched <= 0
        else as_percent(100 * each.queued_s / watched),
        as_bytes(each.read_bytes),
        NOT_MEASURED if each.major_faults is None else str(each.major_faults),
    ]
