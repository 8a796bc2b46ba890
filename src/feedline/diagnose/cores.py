"""Who has the cores: the run's own processes, or those of others.

Guarantees: pure. Where the kernel does not say how long processes were ready without a core, nobody
was.
"""

from __future__ import annotations

from dataclasses import dataclass

from feedline.trace.run import Loader, Process, Run

__all__ = ["Cores", "cores_of"]

_LONG_ENOUGH_S = 0.5  # of watching a process, to know what it does in a second


@dataclass(frozen=True, kw_only=True, slots=True)
class Cores:
    """What trainer and workers took of the cores.

    Args:
        used: cores in use by both, in the mean; None where it was not measured.
        wanted: the same and what was ready without a core; None likewise.
        allowed: cores that may be used.
        trainer_cpu: of the trainer, all threads, for each second;
        trainer_queued: ready without a core, for each second on one;
        workers_cpu, workers_queued: the same of all workers together.
    """

    used: float | None
    wanted: float | None
    allowed: int
    trainer_cpu: float | None
    trainer_queued: float
    workers_cpu: float | None
    workers_queued: float

    def others(self, queued: float) -> float:
        """How many times as long work takes because of others, of what was queued for each second.

        What is ready beyond the cores is in the way of its own kind; the rest is in that of others.
        """
        own = max(1.0, (self.wanted or 0.0) / self.allowed)
        return max(1.0, (1.0 + queued) / own)


def cores_of(run: Run, loader: Loader) -> Cores:
    """Sum up what the kernel counted of a run's processes."""
    trainer = [each for each in run.use.processes if each.role == "trainer"][:1]
    workers = [each for each in run.use.processes if each.role == "worker"]
    many = min(max(1, loader.workers or 1), len(workers))
    own, own_queued = _rates(trainer)
    made, made_queued = _rates(workers)
    used = wanted = None
    if own is not None:
        lanes = (made or 0.0) * many
        used = own + lanes
        wanted = own * (1 + own_queued) + lanes * (1 + made_queued)
    return Cores(
        used=used,
        wanted=wanted,
        allowed=max(1, run.machine.usable_cores),
        trainer_cpu=own,
        trainer_queued=own_queued,
        workers_cpu=None if made is None else made * many,
        workers_queued=made_queued,
    )


def _rates(processes: list[Process]) -> tuple[float | None, float]:
    """Cores in use by one of them, and the time without a core for each second on one."""
    seconds = sum(each.seconds for each in processes)
    cpu = sum(each.cpu_s for each in processes)
    queued = [each.queued_s for each in processes]
    known = cpu > 0 and None not in queued
    ratio = sum(each or 0.0 for each in queued) / cpu if known else 0.0
    return (cpu / seconds if seconds >= _LONG_ENOUGH_S else None), ratio
