"""The tables of a report, as text in rows, alike in a terminal and on a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from feedline.diagnose.finding import PhaseSplit
from feedline.report.facts import Facts
from feedline.report.figures import (
    UNKNOWN,
    as_bytes,
    as_ms,
    as_percent,
    as_rate,
    as_seconds,
    finite,
    printable,
)
from feedline.trace.run import Process

__all__ = ["Table", "learned_table", "loader_table", "machine_table", "tables"]

_SLOWEST, _LOADERS, _EPOCHS, _MOST_ROWS = 12, 8, 20, 100
_SPLIT_HEADS = ["px @batch", "epochs", "steps", "images/s", "wait"]
_SPLIT_HEADS += ["wait ms", "copy ms", "compute ms", "hidden"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table.

    Args:
        title: what it tells of.
        heads: of the columns; empty where the first column says what the second one is.
        rows: of cells; the first cell is text, and so are all where there are no heads.
        note: what is to be known to read it.
    """

    title: str
    heads: list[str] = field(default_factory=list)
    rows: list[list[str]]
    note: str = ""


def tables(facts: Facts) -> list[Table]:
    """All tables of a report that have rows."""
    made = [
        phase_table(facts),
        epoch_table(facts),
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


def _cut(table: Table) -> Table:
    """A table of no more rows than can be read."""
    if len(table.rows) <= _MOST_ROWS:
        return table
    note = f"{table.note} {len(table.rows) - _MOST_ROWS} more rows are in the JSON.".strip()
    return replace(table, rows=table.rows[:_MOST_ROWS], note=note)


def _three(figures: tuple[float, float, float] | None) -> str:
    """Median, 95th percentile and longest, in ms."""
    if figures is None:
        return UNKNOWN
    return "/".join(as_ms(each).removesuffix(" ms") for each in figures)


def phase_table(facts: Facts) -> Table:
    """The split of the step, phase by phase."""
    return Table(
        title="Phases",
        heads=_SPLIT_HEADS,
        rows=_splits(facts.phases),
        note="Image size and batch size. Of a batch in ms: median/95th percentile/longest of each "
        "part. Hidden is the workers' work for it behind the steps, in ms for each worker.",
    )


def epoch_table(facts: Facts) -> Table:
    """The same of the latest passes, where there are several."""
    latest = facts.epochs[-_EPOCHS:] if len(facts.epochs) > 1 else []
    more = len(facts.epochs) - len(latest)
    note = f"The latest {_EPOCHS}; the JSON has {more} more." if latest and more else ""
    return Table(title="Epochs", heads=_SPLIT_HEADS, rows=_splits(latest), note=note)


def _splits(phases: Sequence[PhaseSplit]) -> list[list[str]]:
    return [
        [
            f"{'-' if each.image_size is None else each.image_size}"
            + ("" if each.batch_size is None else f" @{each.batch_size}"),
            "-".join(str(epoch) for epoch in dict.fromkeys(each.epochs)),
            str(each.steps),
            as_rate(each.images_per_s).removesuffix(" images/s"),
            as_percent(each.wait_pct),
            _three(each.wait_ms),
            _three(each.copy_ms),
            _three(each.compute_ms),
            as_ms(each.hidden_ms).removesuffix(" ms"),
        ]
        for each in phases
    ]


def learned_table(facts: Facts) -> Table:
    """What the latest epochs have learnt."""
    latest = facts.learned[-_EPOCHS:]
    more = len(facts.learned) - len(latest)

    def cell(value: float | None, form: str = ".4g") -> str:
        return "-" if value is None else f"{value:{form}}"

    return Table(
        title="Learning",
        heads=["epoch", "px", "loss", "val loss", "top-1", "top-5", "rate", "trained for"],
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


def stage_table(facts: Facts) -> Table:
    """What making a sample costs."""
    rows = [
        [
            printable(each.name),
            UNKNOWN if each.share is None else as_percent(100 * each.share),
            as_ms(each.mean_ms),
            as_ms(each.longest_ms),
            UNKNOWN if each.on_core is None else as_percent(100 * each.on_core),
            str(each.count),
        ]
        for each in facts.stages
    ]
    return Table(
        title="Stages of making a sample",
        heads=["stage", "share", "mean", "longest", "on a core", "times"],
        rows=rows,
        note="Of the workers' tasks that were timed stage by stage, which are some of all.",
    )


def slowest_table(facts: Facts) -> Table:
    """The samples that took longest."""
    rows = [[printable(each.name), as_ms(each.ms)] for each in facts.slowest[:_SLOWEST]]
    return Table(title="Slowest samples", heads=["sample", "took"], rows=rows)


def loader_table(facts: Facts, number: int) -> Table:
    """A loader's settings."""
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
        "made by": printable(loader.made_by),
        "because": printable(loader.because),
        "copies read": printable(loader.copies),
    }
    title = "Loader" if len(facts.loaders) == 1 else f"Loader {number}"
    return Table(title=title, rows=[[name, said] for name, said in rows.items() if said])


def _count(value: int | None) -> str:
    return "not known" if value is None else str(value)


def _yes(value: bool | None) -> str:
    return "not known" if value is None else "yes" if value else "no"


def settings_table(facts: Facts) -> Table:
    """What the recipe was set to."""
    rows = [[printable(name), printable(said)] for name, said in facts.settings.items()]
    return Table(title="Settings of the recipe", rows=rows)


def machine_table(facts: Facts) -> Table:
    """Where the run was."""
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
    return Table(title="Machine", rows=[[name, said] for name, said in rows.items()])


def use_table(facts: Facts) -> Table:
    """What was used of the machine."""
    use = facts.use
    rows = {
        "GPU busy": UNKNOWN if use.gpu_busy is None else as_percent(100 * use.gpu_busy),
        "worker processes seen": str(use.worker_starts),
        "workers that died": str(use.worker_deaths),
        "held up by the CPU quota": "no quota"
        if use.throttled_s is None and facts.machine.quota_cores is None
        else as_seconds(use.throttled_s),
        "threads of torch, trainer": _count(use.threads),
        "threads, busiest worker": _count(use.worker_threads),
        "/dev/shm": as_bytes(use.shared_memory_bytes),
        "memory that files could take": as_bytes(use.cacheable_bytes),
        "all samples": as_bytes(use.dataset_bytes),
    }
    return Table(title="What the run used", rows=[[name, said] for name, said in rows.items()])


def process_table(facts: Facts) -> Table:
    """What each process did."""
    heads = [
        "process",
        "watched",
        "on a core",
        "waited for one",
        "read from disk",
        "page faults",
    ]
    rows = [_process(each) for each in facts.use.processes]
    note = "By the kernel's count: the trainer, and the workers that lived longest."
    return Table(title="Processes", heads=heads, rows=rows, note=note)


def _process(each: Process) -> list[str]:
    watched = finite(each.seconds) or 0.0
    return [
        f"{each.role} {each.pid}",
        as_seconds(each.seconds),
        as_percent(100 * each.cpu_s / watched) if watched > 0 else UNKNOWN,
        UNKNOWN
        if each.queued_s is None or watched <= 0
        else as_percent(100 * each.queued_s / watched),
        as_bytes(each.read_bytes),
        UNKNOWN if each.major_faults is None else str(each.major_faults),
    ]
