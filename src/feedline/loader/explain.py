"""What a loader will do, in words."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset

from feedline.loader.user import is_source
from feedline.plan.schedule import Schedule
from feedline.recognition.result import Recognition
from feedline.sampling.samplers import describe

__all__ = ["explain"]


def explain(loader: Any, found: Recognition | None, *, gathers: bool) -> str:
    """One fact a line: samples, engine, schedule, order, workers, memory, form of the batches.

    Args:
        loader: a feedline DataLoader, whose own attributes are the facts.
        found: what was made of its dataset; None where that is feedline's own, or iterable.
        gathers: its dataset is rows in memory.
    """
    facts = {
        "samples": _samples(loader),
        "engine": _engine(loader, found, gathers),
        **_recognised(found),
        "schedule": _schedule(loader),
        "order": _order(loader),
        "workers": _workers(loader),
        **_batches(loader),
        "bad samples": loader.on_error,
    }
    return "\n".join(f"{name:<11} {fact}" for name, fact in facts.items())


def _samples(loader: Any) -> str:
    dataset = loader.dataset
    count = f"{len(dataset)} from " if hasattr(dataset, "__len__") else ""
    return f"{count}{dataset!r}"


def _recognised(found: Recognition | None) -> dict[str, str]:
    if found is None:
        return {}
    said = {
        "recognised": ", ".join(found.fast),
        "as it is": ", ".join(found.as_is),
        "because": " ".join(found.refused),
    }
    return {name: words for name, words in said.items() if words}


def _engine(loader: Any, found: Recognition | None, gathers: bool) -> str:
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        return (
            "torch's own: an IterableDataset shares itself out among torch's workers, and only it "
            "knows what comes next"
        )
    if is_source(dataset) or (found is not None and found.source is not None):
        return "rows, written by all workers side by side into one batch"
    if gathers:
        return "rows in memory, taken a batch at a time in this process: no worker is quicker"
    if loader.num_workers == 0:
        return "samples made and collated in this process"
    return "whole batches, each made and collated by one worker into shared memory"


def _schedule(loader: Any) -> str:
    if loader.schedule is None:
        if loader.image_size is None and not is_source(loader.dataset):
            return "epochs without end; the dataset is told no image size"
        return f"epochs without end at {loader.phase.size} px, batch {loader.batch_size}"
    phases = Schedule.of(loader.schedule).phases
    return ", then ".join(
        f"{phase.epochs} epochs at {phase.size} px, batch {phase.batch_size or loader.batch_size}"
        for phase in phases
    )


def _order(loader: Any) -> str:
    plan = loader.plan
    if plan:
        return (
            f"{'shuffled' if plan.shuffle else 'as they are'}, seed {plan.seed}, "
            f"rank {plan.rank} of {plan.world_size}"
        )
    if isinstance(loader.dataset, IterableDataset):
        return "the dataset's own"
    source = "a generator" if loader.generator else "torch's random state"
    return (
        f"drawn from {describe(loader._index_sampler)['type']}, an epoch at a time; seeds come "
        f"from {source} (seed=... makes all epochs plannable)"
    )


def _workers(loader: Any) -> str:
    if loader.num_workers == 0:
        return "0, started in this process"
    return f"{loader.num_workers}, started by {loader.road}"


def _batches(loader: Any) -> dict[str, str]:
    prefetch, allocated = loader.prefetch, f"{loader.memory_bytes / 2**20:.0f} MiB"
    if not is_source(loader.dataset):
        form = "what collate_fn makes of them"
        return {"memory": allocated, "batches": form} if loader.memory_bytes else {"batches": form}
    form = (
        "uint8, channels_last, on the CPU; no copy unless you keep more than "
        f"{max(0, prefetch - 1)} batches"
        if loader.device is None
        else f"normalised floats, channels_last, on {loader.device}"
    )
    return {"memory": f"{allocated} in {prefetch + 1} batches", "batches": form}
