"""Description of how a loader works, as text: its options and the choice of its engine."""

from __future__ import annotations

import re

from feedline.engine.defaults import slots_for
from feedline.engine.generators import describe_generators
from feedline.images.native import describe_missing
from feedline.loader.dataset_kind import find_feedline_source
from feedline.loader.engine_choice import EngineChoice, are_images_lazy, keeps_workers
from feedline.loader.options import Options
from feedline.loader.torch_samplers import describe
from feedline.order.batch_spec import TASK_NS
from feedline.order.sample_order import describe_sample_order

_LONGEST = 300
_MOST_GENERATORS = 5
_ON_ERROR = {
    "raise": "raise: a sample that cannot be loaded is an error that names it",
    "skip": "skip: a sample that cannot be loaded is left out of its batch and listed in skipped",
}


def explain(options: Options, choice: EngineChoice, memory_bytes: int) -> str:
    """Describe a loader, one fact per line. `memory_bytes` is allocated for batches."""
    facts = {
        "samples": _samples(options),
        "copies": _copies(options, choice),
        "engine": str(choice).partition(" (")[0],
        "fused": _fused(options, choice),
        "unchanged": ", ".join(choice.unchanged),
        "because": " ".join(choice.reasons),
        "fix": choice.fix,
        "images": _images(choice),
        "missing": describe_missing() if choice.source is not None else "",
        "size": _size(options, choice),
        "schedule": _schedule(options),
        "order": _order(options),
        "generators": _generators(options, choice),
        "workers": _workers(options, choice),
        "prefetch": _prefetch(options, choice),
        "memory": _memory(options, choice, memory_bytes),
        "batches": _batches(options, choice),
        "on_error": _ON_ERROR[options.on_error],
    }
    return "\n".join(f"{name:<11} {fact}" for name, fact in facts.items() if fact)


def _fused(options: Options, choice: EngineChoice) -> str:
    """Fused steps; the image size replaces the sizes they were built with."""
    text = ", ".join(choice.fused)
    if options.effective_schedule.image_sizes and choice.honours_size:
        name = "image_size" if options.schedule is None else "schedule"
        return re.sub(r"\bsize=(\([^)]*\)|\[[^]]*\]|\d+)", f"size=by {name}", text)
    return text


def _images(choice: EngineChoice) -> str:
    if choice.engine not in ("dataset", "samples") or not are_images_lazy():
        return ""
    return "JPEGs that your code opens with Pillow stay undecoded until used (lazy_images)"


def _samples(options: Options) -> str:
    dataset = options.dataset
    count = f"{len(dataset)} from " if hasattr(type(dataset), "__len__") else ""
    source = find_feedline_source(dataset)
    if source is not None:
        text = " ".join(repr(source).split())  # a pipeline's has several lines
        return count + (text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}...")
    return f"{count}{type(dataset).__module__}.{type(dataset).__qualname__}"


def _copies(options: Options, choice: EngineChoice) -> str:
    """Resolutions of a cache that each phase reads; "" if no cache is read."""
    if choice.cache_contents is not None:
        sides = ", ".join(f"{side} px" for side in choice.cache_contents.sides)
        return (
            f"none for the first epoch, while the cache {choice.cache_contents.root} is filled "
            f"with copies of {sides}"
        )
    source = choice.source
    if not hasattr(source, "level_at"):
        return ""
    sizes = [phase.image_size or source.image_size for phase in options.effective_schedule.phases]
    levels = {size: source.level_at(size) for size in sizes}
    texts = [f"{level} for {size} px" for size, level in levels.items() if level]
    return f"{', '.join(texts)} (cache {source.copies_from})" if texts else ""


def _size(options: Options, choice: EngineChoice) -> str:
    if not options.effective_schedule.image_sizes or choice.honours_size:
        return ""
    return "read by your dataset, transform or collate_fn; a batch that never reads it is an error"


def _schedule(options: Options) -> str:
    if options.schedule is None and not options.effective_schedule.image_sizes:
        return "none: your dataset sets the size of its images"
    texts = []
    for phase in options.effective_schedule.phases:
        epochs = "epoch" if phase.epochs == 1 else "epochs"
        length = "endless" if options.schedule is None else f"{phase.epochs} {epochs}"
        size = f"{phase.image_size} px" if phase.image_size else "the dataset's own size"
        rows = phase.batch_size or options.batch_size or "set by the batch sampler"
        texts.append(f"{length} at {size}, batch size {rows}")
    return ", then ".join(texts)


def _order(options: Options) -> str:
    order = options.order
    if order:
        name = describe_sample_order(order.sample_order)
        return f"{name}, seed {order.seed}, rank {order.rank} of {order.world_size}"
    if options.iterable:
        return "the dataset's own"
    source = "a generator" if options.generator else "torch's random state"
    return (
        f"drawn from {describe(options.index_sampler)['type']}, one epoch at a time; seeds come "
        f"from {source} (seed= makes all epochs plannable)"
    )


def _workers(options: Options, choice: EngineChoice) -> str:
    if options.num_workers == 0 or choice.engine == "tensors":
        return "none: batches are made in this process"
    if choice.engine == "iterable":
        return f"{options.num_workers} of torch"
    until = "for all epochs" if keeps_workers(options, choice) else "new ones each epoch"
    if options.schedule is not None and not options.persistent_workers and choice.runs_user_code:
        until += (
            " because of schedule=; after changes deep inside the dataset call loader.refresh()"
        )
    return f"{options.num_workers}, started with {options.start_method}, {until}"


def _generators(options: Options, choice: EngineChoice) -> str:
    """Random generators seeded for each batch, as far as feedline finds them."""
    seeds_rows = choice.makes_rows and options.worker_init_fn is not None and options.num_workers
    if seeds_rows:
        return "each row has a seed of its own, whatever worker_init_fn seeds"
    if choice.engine not in ("dataset", "samples"):
        return ""
    generators = describe_generators(options.dataset, options.collate_fn)
    more = len(generators) - _MOST_GENERATORS
    shown = ", ".join(["torch, numpy, random", *generators[:_MOST_GENERATORS]])
    shown += f" and {more} more" if more > 0 else ""
    if options.worker_init_fn is None or options.num_workers == 0:
        return f"seeded for each batch: {shown}"
    return (
        f"seeded for each batch, even if worker_init_fn seeds them: {shown}, and those that "
        "worker_init_fn sets on the dataset"
    )


def _prefetch(options: Options, choice: EngineChoice) -> str:
    if choice.makes_rows:
        ahead = options.allocated_prefetch if options.prefetch is None else options.prefetch
        text = f"{ahead} batches (prefetch)"
        if options.task_ns != TASK_NS:
            text += f", in tasks of {options.task_ns / 1e6:g} ms (task_ms)"
        return text
    if options.num_workers == 0 or choice.engine == "tensors":
        return ""
    text = f"{options.prefetch_factor} batches per worker (prefetch_factor)"
    minimum = options.min_prefetched_batches
    return f"{text}, at least {minimum}" if minimum else text


def _memory(options: Options, choice: EngineChoice, used: int) -> str:
    slots = slots_for(options.allocated_prefetch)
    if choice.makes_rows:
        nbytes = used or slots * choice.slot_bytes
        return f"{nbytes / 2**20:.0f} MiB in {slots} batches; more if a larger batch comes"
    return f"{used / 2**20:.0f} MiB so far" if used else ""


def _batches(options: Options, choice: EngineChoice) -> str:
    device = options.device
    if not options.is_row_source:
        text = "as returned by collate_fn"
        if choice.device_transforms is None:
            return text
        if choice.device_transforms.values is None:
            return f"{text}, copied to {device}"
        return (
            f"{text}, on {device}: images are copied as uint8, and the transform's table of 256 "
            "values per channel is applied there"
        )
    if device is None:
        limit = max(0, options.allocated_prefetch - 1)
        return (
            f"uint8, channels_last, on the CPU; no copy unless you keep more than {limit} batches"
        )
    return f"normalised floats, channels_last, on {device}"
