"""Description of how a loader will work, as text."""

from __future__ import annotations

from feedline.engine.defaults import slots_for
from feedline.engine.worker_setup import describe_generators
from feedline.loader.checks import own_source
from feedline.loader.decide import REFRESH, Decision, is_kept_by_schedule, workers_live_on
from feedline.loader.forecast import forecast_of
from feedline.loader.levels import copies_in_words
from feedline.loader.predict import in_memory, measured, predicted
from feedline.loader.settings import Settings
from feedline.order.batch_spec import TASK_NS
from feedline.order.planned_order import describe_sample_order
from feedline.sampling.samplers import describe
from feedline.trace.run import Run

__all__ = ["explain"]

_LONGEST = 300
_MOST_GENERATORS = 5


def explain(
    settings: Settings, decision: Decision, memory_bytes: int, run: Run, *, measure: bool = False
) -> str:
    """Describe a loader, one fact per line: samples, engine, schedule, order, workers, memory,
    batches.

    Args:
        settings: current settings of the loader.
        decision: chosen engine.
        memory_bytes: memory currently allocated for batches.
        run: record of its steps.
        measure: make some rows to predict images/s.
    """
    rows = measured(settings, decision) if measure else ""
    facts = {
        "samples": _samples(settings),
        "copies": copies_in_words(settings, decision),
        "engine": str(decision).partition(" (")[0],
        "fused": ", ".join(decision.fast),
        "unchanged": ", ".join(decision.unchanged),
        "because": " ".join(decision.reasons),
        "size": _size(settings, decision),
        "schedule": _schedule(settings),
        "order": _order(settings),
        "generators": _generators(settings, decision),
        "workers": _workers(settings, decision),
        "prefetch": _prefetch(settings, decision),
        "memory": _memory(settings, decision, memory_bytes),
        "batches": _batches(settings, decision),
        "bad samples": settings.on_error,
        "forecast": forecast_of(settings, decision, run, rows),
        "predicted": predicted(rows, settings, decision) if measure else "",
        "page cache": in_memory(settings, decision) if measure else "",
    }
    return "\n".join(f"{name:<11} {fact}" for name, fact in facts.items() if fact)


def _samples(settings: Settings) -> str:
    dataset = settings.dataset
    count = f"{len(dataset)} from " if hasattr(dataset, "__len__") else ""
    source = own_source(dataset)
    if source is not None:
        text = " ".join(repr(source).split())  # a pipeline's has several lines
        return count + (text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}...")
    return f"{count}{type(dataset).__module__}.{type(dataset).__qualname__}"


def _size(settings: Settings, decision: Decision) -> str:
    if not settings.asked.phases.image_sizes or decision.honours_size:
        return ""
    return "read by your dataset, transform or collate_fn; a batch that never reads it is an error"


def _schedule(settings: Settings) -> str:
    asked = settings.asked
    if asked.schedule is None and not asked.phases.image_sizes:
        return "endless; no image size is set"
    said = []
    for phase in asked.phases.phases:
        epochs = "epoch" if phase.epochs == 1 else "epochs"
        length = "endless" if asked.schedule is None else f"{phase.epochs} {epochs}"
        size = f"{phase.image_size} px" if phase.image_size else "the dataset's own size"
        rows = phase.batch_size or settings.batch_size or "set by the batch sampler"
        said.append(f"{length} at {size}, batch size {rows}")
    return ", then ".join(said)


def _order(settings: Settings) -> str:
    order = settings.order
    if order:
        name = describe_sample_order(order.sample_order)
        return f"{name}, seed {order.seed}, rank {order.rank} of {order.world_size}"
    if settings.asked.iterable:
        return "the dataset's own"
    source = "a generator" if settings.generator else "torch's random state"
    return (
        f"drawn from {describe(settings.sampler)['type']}, one epoch at a time; seeds come from "
        f"{source} (seed= makes all epochs plannable)"
    )


def _workers(settings: Settings, decision: Decision) -> str:
    if settings.workers == 0 or decision.kind == "tensors":
        return "none: batches are made in this process"
    if decision.kind == "torch":
        return f"{settings.workers} of torch"
    until = "for all epochs" if workers_live_on(settings, decision) else "new ones each epoch"
    if is_kept_by_schedule(settings, decision):
        until += f" because of schedule=; {REFRESH}"
    return f"{settings.workers}, started with {settings.start_method}, {until}"


def _generators(settings: Settings, decision: Decision) -> str:
    """Random generators seeded for each batch. There may be others, out of reach."""
    if decision.kind not in ("dataset", "samples"):
        return ""
    found = describe_generators(settings.dataset, settings.collate_fn)
    more = len(found) - _MOST_GENERATORS
    shown = ", ".join(["torch, numpy, random", *found[:_MOST_GENERATORS]])
    shown += f" and {more} more" if more > 0 else ""
    if settings.worker_init_fn is None or settings.workers == 0:
        return f"seeded for each batch: {shown}"
    return (
        f"seeded for each batch, even if worker_init_fn seeds them: {shown}, and those that "
        "worker_init_fn sets on the dataset"
    )


def _prefetch(settings: Settings, decision: Decision) -> str:
    if decision.rows is not None:
        ahead = settings.asked.prefetch if settings.prefetch is None else settings.prefetch
        said = f"{ahead} batches (prefetch)"
        if settings.task_ns != TASK_NS:
            said += f", in tasks of {settings.task_ns / 1e6:g} ms (task_ms)"
        return said
    if settings.workers == 0 or decision.kind == "tensors":
        return ""
    said = f"{settings.prefetch_factor} batches per worker (prefetch_factor)"
    return f"{said}, at least {settings.ahead}" if settings.ahead else said


def _memory(settings: Settings, decision: Decision, used: int) -> str:
    slots = slots_for(settings.asked.prefetch)
    if decision.rows is not None:
        nbytes = used or slots * decision.slot_bytes
        return f"{nbytes / 2**20:.0f} MiB in {slots} batches; more if a larger batch comes"
    return f"{used / 2**20:.0f} MiB so far" if used else ""


def _batches(settings: Settings, decision: Decision) -> str:
    device = settings.asked.device
    if decision.kind != "native":
        made = "as returned by collate_fn"
        if decision.on_device is None:
            return made
        if decision.on_device.values is None:
            return f"{made}, copied to {device}"
        return (
            f"{made}, on {device}: images are copied as uint8, and the transform's table of 256 "
            "values per channel is applied there"
        )
    if device is None:
        kept = max(0, settings.asked.prefetch - 1)
        return f"uint8, channels_last, on the CPU; no copy unless you keep more than {kept} batches"
    return f"normalised floats, channels_last, on {device}"
