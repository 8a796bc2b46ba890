"""Whose code makes the batches of a loader: decided once, here, and nowhere else.

Guarantees: pure, but for opening the cache that it is given; a decision says its reasons.
Relies on: `recognition`, which says of datasets with torchvision's or timm's transforms, and of a
TensorDataset, whether feedline's code means the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from torch.utils.data import Subset, TensorDataset, default_collate

from feedline.device.on_device import OnDevice
from feedline.device.value_table import ValueTable
from feedline.engine.source import Source
from feedline.errors import UsageError
from feedline.loader.checks import check_still, own_source
from feedline.loader.settings import Settings
from feedline.loader.slot_size import slot_size
from feedline.loader.to_fill import ToFill, to_fill
from feedline.recognition.folders import is_folder
from feedline.recognition.steps import NotRecognised
from feedline.recognition.tensors import BatchedTensors, batched_tensors

if TYPE_CHECKING:
    from feedline.recognition.pipeline import SamplePipeline
    from feedline.stores.cache_store import CacheStore

__all__ = [
    "REFRESH",
    "Decision",
    "Kind",
    "decide",
    "decided_by",
    "is_kept_by_schedule",
    "workers_live_on",
]

REFRESH = "after changes deep inside the dataset call loader.refresh()"

Kind: TypeAlias = Literal["native", "rows", "samples", "tensors", "dataset", "torch"]
"""Who makes the batches:
    native    a source of feedline's own writes rows into shared batches
    rows      the same, by feedline's code in the place of a recognised torchvision pipeline
    samples   that code makes samples; the user's own code collates them into whole batches
    tensors   a TensorDataset is indexed in the training process
    dataset   the user's dataset and collate_fn make whole batches
    torch     torch's own engine, for an IterableDataset
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Decision:
    """Whose code makes the batches, and why.

    Args:
        kind: see `Kind`.
        rows: writes the rows; None unless kind is "native" or "rows".
        samples: makes the samples; None unless kind is "samples".
        fast: steps of a recognised pipeline that feedline's own code stands for, as words.
        unchanged: its steps that run as they are, as words.
        reasons: why no more was recognised, sentences.
        max_image_size: the largest size in pixels that may be set; None for any.
        slot_bytes: memory of a batch of rows, as long as no larger one comes; 0 for any other kind.
        on_device: what becomes of batches of rows on the loader's device; None: they come as the
            workers made them, on the CPU.
        runs_user_code: code of the user's runs in the workers.
        pixels: what decides the pixels, in words; "" where only the user's code knows.
        to_fill: what the cache is to hold whose originals are read meanwhile; None else.
        uncompiled: the transform of a folder of images runs unchanged under a schedule, for these
            reasons.
    """

    kind: Kind
    rows: Source | None = None
    samples: SamplePipeline | None = None
    fast: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    max_image_size: int | None = None
    slot_bytes: int = 0
    on_device: OnDevice | None = None
    runs_user_code: bool = True
    pixels: str = ""
    to_fill: ToFill | None = None
    uncompiled: bool = False

    @property
    def accepts(self) -> tuple[str, ...]:
        """Which of the arguments "cache" and "device" the loader may be given."""
        made: Any = self.rows or self.samples
        cache = ("cache",) if getattr(made, "has_originals", False) else ()
        return (*cache, "device") if self.rows is not None else cache

    @property
    def honours_size(self) -> bool | None:
        """True if batches have the size that is asked for; None if the dataset's code decides."""
        if self.kind == "dataset":
            return None
        return self.kind in ("native", "rows", "samples")

    def check_size(self, size: int, what: str) -> None:
        """Refuse an image size that batches cannot have.

        Args:
            size: side of the images, in pixels.
            what: what it is called in the message.

        Raises:
            UsageError: nothing makes images of this size, or there is no memory for it.
        """
        if self.honours_size is False:
            raise UsageError(
                f"{what} {size} cannot be had: {self}. A map-style Dataset whose transform "
                "asks for feedline.image_size(), or is made by feedline.per_size, can change it"
            )
        if self.rows is not None:
            self.rows.fields(size)  # raises if they cannot be made at this size
        elif self.samples is not None:
            self.samples.level_at(size)
        if self.max_image_size is not None and size > self.max_image_size:
            raise UsageError(
                f"{what} {size} is above max_image_size={self.max_image_size}; build the loader "
                f"with max_image_size={size}, or without one"
            )

    def __str__(self) -> str:
        said = _ENGINE[self.kind]
        return f"{said} ({' '.join(self.reasons)})" if self.reasons else said


_ENGINE: dict[Kind, str] = {
    "native": "rows, written by all workers side by side into one batch",
    "rows": "rows of a recognised torchvision pipeline, written by all workers into one batch",
    "samples": "samples of a recognised torchvision pipeline, collated as you say into whole "
    "batches, each by one worker",
    "tensors": "tensors in memory, indexed a batch at a time in this process: workers would be "
    "slower",
    "dataset": "whole batches, each made and collated by one worker into shared memory",
    "torch": "torch's own: an IterableDataset shares itself out among torch's workers, and only "
    "it knows what comes next",
}


def workers_live_on(settings: Settings, decision: Decision) -> bool:
    """True if workers stay when an epoch ends or is left.

    A seed alone keeps none: a user's dataset is copied into new workers for each epoch, as torch
    does, so that they see all that has changed in it. Torch's own engine without workers has an
    iterator that stays: it may know where it stands.
    """
    asked_for = settings.asked.schedule is not None or settings.persistent
    in_process = decision.kind == "torch" and settings.workers == 0
    return asked_for or in_process or not decision.runs_user_code


def is_kept_by_schedule(settings: Settings, decision: Decision) -> bool:
    """Return True if workers that have the user's dataset are kept because of a schedule."""
    scheduled = settings.asked.schedule is not None and not settings.persistent
    return scheduled and settings.workers > 0 and decision.runs_user_code


def decided_by(settings: Settings) -> tuple[Any, ...]:
    """What a decision follows from that may be set on a loader while it lives."""
    return (
        *(settings.dataset, settings.collate_fn, settings.worker_init_fn),
        *(settings.batched, settings.max_rows, settings.timeout_s),
        *(settings.in_order, settings.pin, settings.workers == 0),
    )


def decide(settings: Settings, open_cache: Callable[[], CacheStore] | None = None) -> Decision:
    """Decide whose code makes the batches.

    Args:
        settings: of the loader.
        open_cache: gives the cache that the loader has, to read its copies; None: the originals
            are read, while the cache, if there is one, is filled.

    Raises:
        UsageError: what was asked for cannot be had in any way.
    """
    asked = settings.asked
    if asked.iterable:
        return Decision(kind="torch")
    check_still(settings.dataset, native=asked.native)
    if asked.native:
        source, wanted = _cached(settings, _native(settings.dataset), open_cache)
        return _rows(settings, "native", source, to_fill=wanted, on_device=asked.on_device)
    decision = _of_datasets(settings, open_cache)
    if asked.device is not None and decision.kind != "rows":
        raise UsageError(
            f'device="{asked.device}" is for feedline\'s own sources, as feedline.ImageFolder, and '
            "for torchvision pipelines whose rows feedline makes. Batches of this "
            f"{type(settings.dataset).__name__} are {decision}: they come on the CPU, and "
            "pin_memory=True and batch.to(device, non_blocking=True) bring them there"
        )
    return decision


def _native(dataset: Any) -> Any:
    """What writes the rows of a dataset that is a source of feedline's own, or a Subset of one.

    Raises:
        UsageError: which rows a Subset has cannot be known.
    """
    if own_source(dataset) is dataset:
        return dataset
    from feedline.recognition.recognise import source_within  # loads decoders

    try:
        return source_within(dataset)
    except NotRecognised as why:
        raise UsageError(
            f"this Subset of a feedline source cannot be loaded from: {why} Rows are made by "
            "number: a Subset's indices are whole numbers, of a source that has no methods of its "
            "own. Or give the loader the source itself, and a sampler that gives these numbers"
        ) from why


def _of_datasets(settings: Settings, open_cache: Callable[[], CacheStore] | None) -> Decision:
    """Whose code makes the batches of a map-style Dataset."""
    asked = settings.asked
    pipeline: Any = None
    reasons: tuple[str, ...] = ()
    # Decoders need not be loaded for anything else.
    if "torchvision" in sys.modules or own_source(settings.dataset) is not None:
        pipeline, fast, unchanged, reasons = _recognised(settings)
    if asked.cache and pipeline is None:
        raise UsageError(
            f"cache={asked.cache!r} was given, and images of {type(settings.dataset).__name__} are "
            f"read by code of its own. {' '.join(reasons)} Make a feedline.ImageFolder of the "
            "cache, or leave `cache` out"
        )
    if pipeline is not None:
        pipeline, wanted = _cached(settings, pipeline, open_cache)
        known: dict[str, Any] = {"fast": fast, "unchanged": unchanged, "to_fill": wanted}
        blocked = tuple(why for holds, why in _samples_because(settings, pipeline) if holds)
        if not blocked:
            if asked.device is not None and asked.device.type != "cpu":
                pipeline, known["on_device"] = _travelling(pipeline)
            return _rows(settings, "rows", pipeline, reasons=reasons, **known)
        return Decision(
            kind="samples",
            samples=pipeline,
            reasons=(*reasons, *blocked),
            pixels=pipeline.transform_identity(),
            **known,
        )
    tensors = _tensors(settings)
    if tensors.gather is not None:
        return Decision(kind="tensors", runs_user_code=False)
    if isinstance(settings.dataset, TensorDataset | Subset) and not reasons:
        reasons = (tensors.refused,)
    folder = is_folder(settings.dataset) or own_source(settings.dataset) is not None
    uncompiled = folder and asked.schedule is not None
    return Decision(kind="dataset", reasons=reasons, uncompiled=uncompiled)


def _cached(
    settings: Settings, source: Any, open_cache: Callable[[], CacheStore] | None
) -> tuple[Any, ToFill | None]:
    """What a loader with a cache reads, and what the cache is to be filled with meanwhile."""
    if settings.asked.cache is None:
        return source, None
    if open_cache is None:
        return source, to_fill(settings, source)
    return source.cached(open_cache()), None


def _recognised(
    settings: Settings,
) -> tuple[Any, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    try:
        from feedline.recognition.recognise import recognise
    except ImportError as error:
        return None, (), (), (f"Images cannot be decoded here: {error}.",)
    found = recognise(settings.dataset, settings.asked.phases.sizes)
    return found.pipeline, found.fast, found.as_is, found.refused


def _travelling(pipeline: Any) -> tuple[Any, OnDevice]:
    """What writes the rows that travel to a device, and what becomes of them there."""
    if pipeline.table is None:
        return pipeline, OnDevice()
    return pipeline.in_pixels(), OnDevice(ValueTable(pipeline.table))


def _samples_because(settings: Settings, pipeline: Any) -> list[tuple[bool, str]]:
    """What makes it necessary to make samples, where rows would be quicker."""
    return [
        (not pipeline.writes_rows, pipeline.no_rows),
        (settings.collate_fn is not default_collate, "Your collate_fn wants single samples."),
        (not settings.in_order, "Rows come in order, and in_order=False was asked for."),
        (not settings.batched, "There are no batches: batch_size is None."),
        (settings.worker_init_fn is not None, "Your worker_init_fn may change the dataset."),
    ]


def _rows(settings: Settings, kind: Kind, source: Any, **known: Any) -> Decision:
    """Rows, with the memory that they need as far as it is known."""
    if not settings.batched:
        raise UsageError(
            f"batch_size=None asks for single samples, and {type(settings.dataset).__name__} makes "
            "batches; pass batch_size=1"
        )
    asked, phases = settings.asked, settings.asked.phases.phases
    if any(phase.strength != 1 for phase in phases) and not getattr(source, "uses_strength", True):
        raise UsageError(
            "a phase of the schedule has a strength other than 1, and nothing in the transform "
            "changes with it; leave it out, or use feedline.augmentation_strength() in a step"
        )
    batches = [
        (phase.size or source.image_size, phase.batch_size or settings.max_rows or 1)
        for phase in phases
    ]
    slot_bytes, largest = slot_size(source, batches, asked.max_image_size)
    identity: Callable[[], str] | None = getattr(source, "transform_identity", None)
    return Decision(
        kind=kind,
        rows=source,
        max_image_size=largest,
        slot_bytes=slot_bytes,
        runs_user_code=settings.worker_init_fn is not None,
        pixels=identity() if identity else "",
        **known,
    )


def _tensors(settings: Settings) -> BatchedTensors:
    if settings.asked.phases.sizes:
        return BatchedTensors(None, "Tensors have the size that they have.")
    if not settings.batched:
        return BatchedTensors(None, "There are no batches: batch_size is None.")
    if settings.worker_init_fn is not None and settings.workers > 0:
        return BatchedTensors(None, "Your worker_init_fn may change the dataset.")
    return batched_tensors(settings.dataset, settings.collate_fn, settings.max_rows)
