"""Runs made by hand: a compute-bound one, and its variants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from feedline.machine import Machine
from feedline.profile.diagnose import diagnose
from feedline.profile.finding import Finding
from feedline.timing.run import Histogram, Loader, Pass, Process, ResourceUse, Run, StageTime

MACHINE = Machine(
    host="here",
    cpu="a processor",
    cores=8,
    usable_cores=8,
    quota_cores=None,
    memory_bytes=32 << 30,
    gpu=None,
    platform="Linux",
    versions={},
)
LOADER = Loader(
    kind="torch",
    name="torch.utils.data.dataloader.DataLoader",
    dataset="here.Photos",
    samples=3200,
    workers=4,
    prefetch_factor=2,
    persistent_workers=True,
    pin_memory=False,
    batch_size=32,
    start_method="fork",
)


def times(ms: float, count: int) -> Histogram:
    histogram = Histogram()
    for _ in range(count):
        histogram.add(ms)
    return histogram


def one_pass(
    wait: float = 0.0, compute: float = 50.0, steps: int = 100, start: float = 100.0, **more: Any
) -> Pass:
    """A pass of equal steps, in ms."""
    made = Pass(
        loader=0,
        epoch=0,
        image_size=64,
        batch_size=32,
        start_ms=times(start, 1),
        batches=steps + 1,
        samples=32 * (steps + 1),
        bytes=400_000 * (steps + 1),
        wait=times(wait, steps),
        compute=times(compute, steps),
        first_steps_ms=[compute] * min(8, steps),
        ended="exhausted",
        wait_cpu_ms=0.3 * steps,
        compute_cpu_ms=2.0 * steps,
        ended_s=steps * (wait + compute) / 1000,
    )
    return replace(made, **more)


def a_run(
    *passes: Pass,
    work: float = 40.0,
    cpu: float = 1.0,
    stages: dict[str, float] | None = None,
    loader: dict[str, Any] | None = None,
    machine: dict[str, Any] | None = None,
    use: dict[str, Any] | None = None,
    **more: Any,
) -> Run:
    """Build a run.

    Args:
        passes: its epochs.
        work: time of a batch in a worker, in ms.
        cpu: share of it on a core; the rest is blocked.
        stages: shares of the work, each with the same share on a core.
    """
    said = replace(LOADER, **(loader or {}))
    batches = sum(each.batches for each in passes)
    seconds = sum(
        (each.wait.total_ms + each.compute.total_ms + each.start_ms.total_ms) / 1000
        for each in passes
    )
    timed = batches // 8
    lanes = max(1, said.workers or 1)
    busy_s = batches * work * cpu / 1000
    trainer = Process(
        role="trainer",
        pid=1,
        seconds=seconds,
        cpu_s=0.05 * seconds,
        queued_s=0.0,
        read_bytes=0,
        major_faults=0,
        called_bytes=1000,
    )
    workers = [
        replace(trainer, role="worker", pid=100 + k, cpu_s=busy_s / lanes)
        for k in range(said.workers or 0)
    ]
    shares = {"dataset": 0.4, "read and decode": 0.2, "collate": 0.1} if stages is None else stages
    fields: dict[str, Any] = {
        "machine": replace(MACHINE, **(machine or {})),
        "seconds": seconds,
        "loaders": [said],
        "passes": list(passes),
        "tasks": batches,
        "tasks_ms": batches * work,
        "timed": timed,
        "timed_ms": timed * work,
        "timed_cpu_ms": timed * work * cpu,
        "timed_queued_ms": 0.0,
        "stages": [
            StageTime(
                name=name,
                count=timed * 32,
                total_ms=timed * work * share,
                longest_ms=work,
                cpu_ms=timed * work * share * cpu,
            )
            for name, share in shares.items()
        ],
        "use": replace(ResourceUse(processes=[trainer, *workers]), **(use or {})),
    }
    return Run(**{**fields, **more})


def rules_of(run: Run) -> list[str]:
    return [finding.rule for finding in diagnose(run).findings]


def finding_of(run: Run, rule: str) -> Finding:
    return next(finding for finding in diagnose(run).findings if finding.rule == rule)
