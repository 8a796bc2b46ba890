"""Choice of a loader's engine: made once, here, and nowhere else.

Guarantees: `choose_engine` is pure, except for opening the given cache; a choice includes its
reasons. `CurrentChoice` chooses again after `forget`, or if something was set on the dataset or the
loader, as detected by `outline`; it opens the loader's cache once, because a dataset may change
while the machine with the cache is unreachable.

Relies on: `recognition`, which tells for datasets with torchvision or timm transforms, and for a
TensorDataset, whether feedline's code is equivalent; `cache_filling` for whether copies are read.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from torch.utils.data import Subset, TensorDataset, default_collate

from feedline.engine.attribute_snapshot import AttributeSnapshot
from feedline.engine.buffers import batch_bytes
from feedline.engine.normalise import DeviceTransforms, ValueTable
from feedline.engine.worker import Source
from feedline.errors import UsageError
from feedline.loader.argument_checks import check_still, own_source
from feedline.loader.cache_filling import CacheContents, CacheFilling, cache_contents
from feedline.loader.options import CurrentOptions
from feedline.loader.state import fingerprint_of, identity_of
from feedline.recognition.folders import is_folder
from feedline.recognition.steps import NotRecognised
from feedline.recognition.tensors import BatchedTensors, batched_tensors
from feedline.remote.open_location import open_cache
from feedline.stores.cache_store import CacheStore
from feedline.stores.cached_files import cache_within

if TYPE_CHECKING:
    from feedline.recognition.pipeline import SamplePipeline
    from feedline.stores.cache_store import CacheStore

__all__ = [
    "REFRESH",
    "CurrentChoice",
    "EngineChoice",
    "EngineName",
    "cache_of",
    "choice_inputs",
    "choose_engine",
    "describe_copies",
    "is_kept_by_schedule",
    "level_read",
    "slot_size",
    "workers_live_on",
]


def slot_size(
    source: Source, batches: Sequence[tuple[int, int]], max_image_size: int | None
) -> tuple[int, int | None]:
    """Bytes of a slot, and the largest image size in pixels that may be set; None for any.

    A size may be set in any phase, so the largest batch must fit at `max_image_size`. Without one,
    slots grow when a batch does not fit.

    Args:
        source: makes the rows.
        batches: image size in pixels and rows of a batch, for each phase.
        max_image_size: largest size that may be set; None for any.
    """
    if max_image_size is not None:
        size = max(max_image_size, *(size for size, _ in batches))
        return batch_bytes(source.fields(size), max(rows for _, rows in batches)), size
    return max(batch_bytes(source.fields(size), rows) for size, rows in batches), None


REFRESH = "after changes deep inside the dataset call loader.refresh()"

EngineName: TypeAlias = Literal["native", "rows", "samples", "tensors", "dataset", "torch"]
"""Engines:
    native    a feedline source writes rows into shared batches
    rows      the same, with a compiled torchvision pipeline
    samples   a compiled pipeline makes samples; the user's code collates them into whole batches
    tensors   a TensorDataset is indexed in the training process
    dataset   the user's dataset and collate_fn make whole batches
    torch     torch's own engine, for an IterableDataset
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineChoice:
    """Choice of the engine, and the reasons.

    Args:
        engine: name of the engine, see `EngineName`.
        rows: writes the rows; None unless engine is "native" or "rows".
        samples: makes the samples; None unless engine is "samples".
        fast: fused steps of a compiled pipeline, as text.
        unchanged: its unchanged steps, as text.
        reasons: reasons why no more was compiled, as sentences.
        max_image_size: largest size in pixels that may be set; None for any.
        slot_bytes: memory of a batch of rows, until a larger one comes; 0 for any other engine.
        on_device: transforms of batches of rows on the loader's device; None: they stay on the CPU,
            as the workers made them.
        runs_user_code: user code runs in the workers.
        pixels: description of everything that determines the pixels; "" if only the user's code
            knows.
        cache_contents: contents of the cache to fill, while originals are read; otherwise None.
        uncompiled: the transform of a folder of images runs unchanged under a schedule, for these
            reasons.
    """

    engine: EngineName
    rows: Source | None = None
    samples: SamplePipeline | None = None
    fast: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    max_image_size: int | None = None
    slot_bytes: int = 0
    on_device: DeviceTransforms | None = None
    runs_user_code: bool = True
    pixels: str = ""
    cache_contents: CacheContents | None = None
    uncompiled: bool = False

    @property
    def made_by(self) -> dict[str, str]:
        """State entry: what determines the pixels, and the engine."""
        ours = self.engine in ("native", "rows", "samples")
        return {"pixels": self.pixels, "engine": "feedline" if ours else "dataset"}

    @property
    def accepts(self) -> tuple[str, ...]:
        """Arguments that the loader could be given: "cache", "device"."""
        made: Any = self.rows or self.samples
        cache = ("cache",) if getattr(made, "has_originals", False) else ()
        return (*cache, "device") if self.rows is not None else cache

    @property
    def honours_size(self) -> bool | None:
        """True if batches have the requested size; None if the dataset's code decides."""
        if self.engine == "dataset":
            return None
        return self.engine in ("native", "rows", "samples")

    def check_size(self, size: int, what: str) -> None:
        """Check that batches can have an image size.

        Args:
            size: side of the images, in pixels.
            what: its name in the message.

        Raises:
            UsageError: nothing makes images of this size, or there is no memory for it.
        """
        if self.honours_size is False:
            raise UsageError(
                f"{what} {size} is not possible with the {self}. Use a map-style Dataset whose "
                "transform calls feedline.image_size() or is made by feedline.per_size"
            )
        if self.rows is not None:
            self.rows.fields(size)  # raises if they cannot be made at this size
        elif self.samples is not None:
            self.samples.level_at(size)
        if self.max_image_size is not None and size > self.max_image_size:
            raise UsageError(
                f"{what} {size} is larger than max_image_size={self.max_image_size}; build the "
                f"loader with max_image_size={size}, or without it"
            )

    def __str__(self) -> str:
        said = _ENGINE[self.engine]
        return f"{said} ({' '.join(self.reasons)})" if self.reasons else said


_ENGINE: dict[EngineName, str] = {
    "native": "image-row engine: all workers write samples into one shared batch",
    "rows": "image-row engine with a fused transform: all workers write samples into one shared "
    "batch",
    "samples": "sample engine with a fused transform: one worker per batch, collated by your "
    "collate_fn",
    "tensors": "tensor engine: tensors in memory, indexed in this process, which is faster than "
    "workers",
    "dataset": "dataset engine: one worker per batch runs your dataset and collate_fn, in shared "
    "memory",
    "torch": "torch's engine: an IterableDataset is divided among torch's workers",
}


def workers_live_on(options: CurrentOptions, choice: EngineChoice) -> bool:
    """Return True if workers stay when an epoch ends or is left.

    A seed alone does not keep them: a user's dataset is copied into new workers for each epoch, as
    in torch, so that they see all changes. torch's own engine without workers has an iterator that
    stays: it may have a state.
    """
    asked_for = options.schedule is not None or options.persistent
    in_process = choice.engine == "torch" and options.workers == 0
    return asked_for or in_process or not choice.runs_user_code


def is_kept_by_schedule(options: CurrentOptions, choice: EngineChoice) -> bool:
    """Return True if workers with the user's dataset are kept because of a schedule."""
    scheduled = options.schedule is not None and not options.persistent
    return scheduled and options.workers > 0 and choice.runs_user_code


def choice_inputs(options: CurrentOptions) -> tuple[Any, ...]:
    """CurrentOptions that affect the choice and may change while the loader lives."""
    return (
        *(options.dataset, options.collate_fn, options.worker_init_fn),
        *(options.batched, options.max_rows, options.timeout_s),
        *(options.in_order, options.pin, options.workers == 0),
    )


def choose_engine(
    options: CurrentOptions, open_cache: Callable[[], CacheStore] | None = None
) -> EngineChoice:
    """Choose the engine.

    Args:
        options: options of the loader.
        open_cache: opens the loader's cache, to read its copies; None: originals are read, while
            the cache, if any, is filled.

    Raises:
        UsageError: no engine supports the options.
    """
    if options.iterable:
        return EngineChoice(engine="torch")
    check_still(options.dataset, native=options.native)
    if options.native:
        source, wanted = _with_cache(options, _row_source(options.dataset), open_cache)
        return _choose_rows(
            options, "native", source, cache_contents=wanted, on_device=options.on_device
        )
    choice = _choose_for_dataset(options, open_cache)
    if options.device is not None and choice.engine != "rows":
        raise UsageError(
            f'device="{options.device}" is only for feedline\'s own sources, e.g. '
            "feedline.ImageFolder, and for torchvision pipelines on the image-row engine. This "
            f"{type(options.dataset).__name__} uses the {choice}. Use pin_memory=True and "
            "batch.to(device, non_blocking=True)"
        )
    return choice


def _row_source(dataset: Any) -> Any:
    """Row writer of a dataset that is a feedline source, or a Subset of one.

    Raises:
        UsageError: the rows of a Subset are unknown.
    """
    if own_source(dataset) is dataset:
        return dataset
    from feedline.recognition.recognise import source_within  # loads decoders

    try:
        return source_within(dataset)
    except NotRecognised as why:
        raise UsageError(
            f"this Subset of a feedline source cannot be loaded: {why} A Subset needs integer "
            "indices, and a source without methods of its own. Or give the loader the source "
            "itself, and a sampler with these indices"
        ) from why


def _choose_for_dataset(
    options: CurrentOptions, open_cache: Callable[[], CacheStore] | None
) -> EngineChoice:
    """Choose the engine for a map-style Dataset."""
    pipeline: Any = None
    reasons: tuple[str, ...] = ()
    # Decoders need not be loaded for anything else.
    if "torchvision" in sys.modules or own_source(options.dataset) is not None:
        pipeline, fast, unchanged, reasons = _compile(options)
    if options.cache and pipeline is None:
        raise UsageError(
            f"cache={options.cache!r} cannot be used: {type(options.dataset).__name__} reads its "
            f"images with its own code. {' '.join(reasons)} Use a feedline.ImageFolder of the "
            "cache as the dataset, or remove cache="
        )
    if pipeline is not None:
        pipeline, wanted = _with_cache(options, pipeline, open_cache)
        known: dict[str, Any] = {"fast": fast, "unchanged": unchanged, "cache_contents": wanted}
        blocked = tuple(why for holds, why in _reasons_for_samples(options, pipeline) if holds)
        if not blocked:
            if options.device is not None and options.device.type != "cpu":
                pipeline, known["on_device"] = _pixels_for_device(pipeline)
            return _choose_rows(options, "rows", pipeline, reasons=reasons, **known)
        return EngineChoice(
            engine="samples",
            samples=pipeline,
            reasons=(*reasons, *blocked),
            pixels=pipeline.transform_identity(),
            **known,
        )
    tensors = _tensors(options)
    if tensors.gather is not None:
        return EngineChoice(engine="tensors", runs_user_code=False)
    if isinstance(options.dataset, TensorDataset | Subset) and not reasons:
        reasons = (tensors.refused,)
    folder = is_folder(options.dataset) or own_source(options.dataset) is not None
    uncompiled = folder and options.schedule is not None
    return EngineChoice(engine="dataset", reasons=reasons, uncompiled=uncompiled)


def _with_cache(
    options: CurrentOptions, source: Any, open_cache: Callable[[], CacheStore] | None
) -> tuple[Any, CacheContents | None]:
    """Reader of a loader with a cache, and the contents to fill the cache with meanwhile."""
    if options.cache is None:
        return source, None
    if open_cache is None:
        return source, cache_contents(options, source)
    return source.cached(open_cache()), None


def _compile(
    options: CurrentOptions,
) -> tuple[Any, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    try:
        from feedline.recognition.recognise import recognise
    except ImportError as error:
        return None, (), (), (f"Images cannot be decoded here: {error}.",)
    found = recognise(options.dataset, options.phases.image_sizes)
    return found.pipeline, found.fast, found.as_is, found.refused


def _pixels_for_device(pipeline: Any) -> tuple[Any, DeviceTransforms]:
    """Row writer of pixels for a device, and their transforms there."""
    if pipeline.table is None:
        return pipeline, DeviceTransforms()
    return pipeline.in_pixels(), DeviceTransforms(ValueTable(pipeline.table))


def _reasons_for_samples(options: CurrentOptions, pipeline: Any) -> list[tuple[bool, str]]:
    """Conditions that require single samples, although rows would be faster."""
    return [
        (not pipeline.writes_rows, pipeline.no_rows),
        (options.collate_fn is not default_collate, "Your collate_fn needs single samples."),
        (not options.in_order, "in_order=False is set, but the image-row engine keeps the order."),
        (not options.batched, "batch_size=None makes no batches."),
        (options.worker_init_fn is not None, "Your worker_init_fn may change the dataset."),
    ]


def _choose_rows(
    options: CurrentOptions, engine: EngineName, source: Any, **known: Any
) -> EngineChoice:
    """EngineChoice for rows, with the memory they need as far as known."""
    if not options.batched:
        raise UsageError(
            f"batch_size=None needs single samples, but {type(options.dataset).__name__} makes "
            "batches; use batch_size=1"
        )
    phases = options.phases.phases
    if any(phase.strength != 1 for phase in phases) and not getattr(source, "uses_strength", True):
        raise UsageError(
            "a phase of the schedule has a strength other than 1, but the transform does not "
            "depend on it; remove the strength, or use feedline.augmentation_strength() in the "
            "transform"
        )
    batches = [
        (phase.image_size or source.image_size, phase.batch_size or options.max_rows or 1)
        for phase in phases
    ]
    slot_bytes, largest = slot_size(source, batches, options.max_image_size)
    identity: Callable[[], str] | None = getattr(source, "transform_identity", None)
    return EngineChoice(
        engine=engine,
        rows=source,
        max_image_size=largest,
        slot_bytes=slot_bytes,
        runs_user_code=options.worker_init_fn is not None,
        pixels=identity() if identity else "",
        **known,
    )


def _tensors(options: CurrentOptions) -> BatchedTensors:
    if options.phases.image_sizes:
        return BatchedTensors(None, "Tensors have a fixed size.")
    if not options.batched:
        return BatchedTensors(None, "batch_size=None makes no batches.")
    if options.worker_init_fn is not None and options.workers > 0:
        return BatchedTensors(None, "Your worker_init_fn may change the dataset.")
    return batched_tensors(options.dataset, options.collate_fn, options.max_rows)


_log = logging.getLogger("feedline")


class CurrentChoice:
    """The last choice, and the state of the dataset it was made for."""

    def __init__(self) -> None:
        self._choice: EngineChoice | None = None
        self._outline: AttributeSnapshot | None = None
        self._fingerprint = ""  # of the dataset, once a state asked for it
        self._cache: CacheStore | None = None
        self._warned = False

    def fork(self) -> CurrentChoice:
        """Return an independent object with the same choice."""
        other = CurrentChoice()
        other._choice, other._outline, other._cache = self._choice, self._outline, self._cache
        other._fingerprint, other._warned = self._fingerprint, self._warned
        return other

    def get(
        self, options: CurrentOptions, filling: CacheFilling, *, whole: bool = False
    ) -> EngineChoice:
        """Choose the engine for the current dataset; raises like `choose_engine`.

        Args:
            options: options of the loader.
            filling: cache that is being filled, if any.
            whole: compare the long lists of folders and Subsets entry by entry, too, as at the
                start of an iteration.
        """
        copies = filling.reads_copies(lambda: choose_engine(options).cache_contents)
        before = self._outline
        now = AttributeSnapshot(*choice_inputs(options), copies, before=before, whole=whole)
        changed = None if before is None else now.change_from(before)
        if self._choice is None or changed is not None:
            opened = (lambda: self._open_cache(options.cache)) if copies else None
            self._choice, self._outline = choose_engine(options, opened), now
            self._fingerprint = ""
            because = "" if changed is None else f"{changed} has changed; "
            name = type(options.dataset).__name__
            _log.info("%sengine for %s: %s", because, name, self._choice)
            if self._choice.uncompiled and not self._warned:
                self._warned = True
                _log.warning(
                    "the transform of %s runs unchanged, which is slower than compiled by "
                    'feedline, and cache= and device= cannot be used: %s See "Compiled transforms" '
                    "in docs/explanation/how-it-works.md for what is compiled.",
                    type(options.dataset).__name__,
                    " ".join(self._choice.reasons),
                )
        return self._choice

    def _open_cache(self, given: Any) -> CacheStore:
        """Cache that a loader was given: a path, a URL, or rows of it."""
        if self._cache is None:
            cache = open_cache(given) if isinstance(given, str) else given.store
            if not isinstance(cache, CacheStore):
                raise UsageError(f"cache={given!r} is not a cache; remove it")
            self._cache = cache
        return self._cache

    def forget(self) -> None:
        """Re-read the dataset and the cache."""
        self._choice = self._cache = None

    def identity(self, options: CurrentOptions) -> dict[str, Any]:
        """State entry of the dataset and the order, after the choice."""
        # Kept until a new choice is made: hashing a million paths takes a second.
        self._fingerprint = self._fingerprint or fingerprint_of(options.dataset)
        return identity_of(options, self._fingerprint)


def cache_of(choice: EngineChoice) -> CacheStore | None:
    """Cache the images come from; None for originals."""
    return cache_within(getattr(choice.rows or choice.samples, "store", None))


def level_read(choice: EngineChoice, size: int | None) -> tuple[int | None, int | None]:
    """Shorter side required for rows of a size, and that of the copies read.

    Both in pixels. The first is None if feedline does not read the images itself, the second
    if these are the originals.
    """
    source: Any = choice.rows or choice.samples
    size = size or getattr(source, "image_size", None)
    if not size or not hasattr(source, "level_at"):
        return None, None
    wanted = source.wanted_side(size)
    cache = cache_of(choice)
    return wanted, None if cache is None else cache.level_for(wanted).side


def describe_copies(options: CurrentOptions, choice: EngineChoice) -> str:
    """Resolutions of a cache that each phase reads, as text; "" if no cache is read."""
    if choice.cache_contents is not None:
        sides = ", ".join(f"{side} px" for side in choice.cache_contents.sides)
        return (
            f"none for the first epoch, while the cache {choice.cache_contents.root} is filled "
            f"with copies of {sides}"
        )
    source: Any = choice.rows or choice.samples
    level_at = getattr(source, "level_at", None)
    if level_at is None:
        return ""
    sizes = [phase.image_size or source.image_size for phase in options.phases.phases]
    levels = {size: level_at(size) for size in sizes}
    said = [f"{level} for {size} px" for size, level in levels.items() if level]
    return f"{', '.join(said)} (cache {source.copies_from})" if said else ""
