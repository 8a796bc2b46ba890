"""Choice of a loader's engine, from its options and its dataset.

Guarantees: `choose_engine` is pure, except that it calls `open_cache`; a choice includes its
reasons. `CurrentChoice` chooses again after `forget`, or if `AttributeSnapshot` detects that an
attribute of the dataset or the loader was set. It opens the loader's cache once and reuses it:
if the dataset changes while the cache's server is unreachable, an engine can still be chosen.

Relies on: `images.compile`, which decides if feedline's code is equivalent to a dataset's
torchvision or timm transforms, or to a TensorDataset; `cache_filling`, which decides if copies are
read.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch.utils.data import Subset, TensorDataset, default_collate

from feedline.engine.attribute_snapshot import AttributeSnapshot
from feedline.engine.buffers import batch_bytes
from feedline.engine.dataset_fetch import find_nested
from feedline.engine.load_samples import Source
from feedline.engine.normalise import DeviceTransforms, ValueTable
from feedline.engine.process import in_worker
from feedline.engine.tensor_dataset import BatchedTensors, batched_tensors
from feedline.errors import UsageError
from feedline.images.compile.datasets import is_folder
from feedline.images.compile.library_steps import CompileError, is_original
from feedline.loader.cache_filling import CacheContents, CacheFilling, cache_contents
from feedline.loader.dataset_kind import check_kind_unchanged, find_feedline_source
from feedline.loader.options import Options
from feedline.loader.state import fingerprint_of, identity_of
from feedline.loader.worker_seeding import only_seeds
from feedline.sources.cache_store import CacheStore, cache_within
from feedline.sources.remote_cache import open_cache
from feedline.system import rank_and_world

if TYPE_CHECKING:
    from feedline.images.compile.nested import NestedPipelines

EngineName: TypeAlias = Literal["image rows", "samples", "tensors", "dataset", "iterable"]

_DESCRIPTIONS: dict[EngineName, str] = {
    "image rows": "image-row engine: all workers write samples into one shared batch",
    "samples": "sample engine with a fused transform: one worker per batch, collated by your "
    "collate_fn",
    "tensors": "tensor engine: tensors in memory, indexed in this process, which is faster than "
    "workers",
    "dataset": "dataset engine: one worker per batch runs your dataset and collate_fn, in shared "
    "memory",
    "iterable": "torch's engine: an IterableDataset is divided among torch's workers",
}

_FIX = 'See "Compiled transforms" in docs/explanation/how-it-works.md for what is fused.'
_FIX_OF_OPENED = (
    'If it opens images with Image.open(path).convert("RGB"), call feedline.lazy_images() before '
    "the first iteration, or start the script with `feedline run`. Or pass paths to "
    "feedline.compile(transform)."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineChoice:
    """Choice of the engine, and the reasons."""

    engine: EngineName
    source: Any = None  # makes the image rows or samples; None for the other engines
    compiled: bool = False  # the source is a compiled pipeline
    fused: tuple[str, ...] = ()  # fused steps of a compiled pipeline, as text
    unchanged: tuple[str, ...] = ()  # unchanged steps of a compiled pipeline, as text
    reasons: tuple[str, ...] = ()  # why more steps were not compiled, as sentences
    fix: str = ""  # what to change so that they are, as a sentence
    warning: str = ""  # about an unfused transform, to be logged once
    max_image_size: int | None = None  # largest size in pixels that may be set; None for any
    slot_bytes: int = 0  # memory of a batch of rows, until a larger one comes
    device_transforms: DeviceTransforms | None = None  # of batches of rows; None on the CPU
    runs_user_code: bool = True  # in the workers
    pixels: str = ""  # everything that determines the pixels; "" if the user's code does
    cache_contents: CacheContents | None = None  # of the cache to fill, while originals are read
    fuses_nested: bool = False  # pipelines within the dataset, in the dataset engine
    uncompiled: bool = False  # the transform of a folder runs unchanged
    snapshot: AttributeSnapshot | None = None  # of the dataset for which the choice was made

    @property
    def makes_rows(self) -> bool:
        """True if all workers write rows into one shared batch."""
        return self.engine == "image rows"

    @property
    def made_by(self) -> dict[str, str]:
        """Entries of a state: values that determine the pixels, and the engine."""
        engine = "dataset" if self.source is None else "feedline"
        return {"pixels": self.pixels, "engine": engine}

    @property
    def accepts(self) -> tuple[str, ...]:
        """Arguments that the loader supports, of "cache" and "device"."""
        cache = ("cache",) if getattr(self.source, "has_originals", False) else ()
        return (*cache, "device") if self.makes_rows else cache

    @property
    def honours_size(self) -> bool | None:
        """True if batches have the requested size; None if the dataset's code decides."""
        return None if self.engine == "dataset" else self.source is not None

    def check_size(self, size: int, name: str) -> None:
        """Raise UsageError if batches cannot have an image size, in pixels, of this name."""
        if self.honours_size is False:
            raise UsageError(
                f"{name} {size} is not possible with the {self}. Use a map-style Dataset whose "
                "transform calls feedline.image_size() or is made by feedline.per_size"
            )
        if self.makes_rows:
            self.source.fields(size)  # raises if rows cannot have this size
        elif self.source is not None:
            self.source.level_at(size)
        if self.max_image_size is not None and size > self.max_image_size:
            raise UsageError(
                f"{name} {size} is larger than max_image_size={self.max_image_size}; build the "
                f"loader with max_image_size={size}, or without it"
            )

    def cached_px(self, size: int | None) -> int | None:
        """Shorter side in pixels of the copies read for rows of a size; None for originals."""
        size = size or getattr(self.source, "image_size", None)
        cache = cache_within(getattr(self.source, "store", None))
        if cache is None or not size or not hasattr(self.source, "level_at"):
            return None
        return cache.level_for(self.source.wanted_side(size)).side

    def __str__(self) -> str:
        text = _DESCRIPTIONS[self.engine]
        if self.makes_rows and self.compiled:
            text = text.replace("engine", "engine with a fused transform", 1)
        return f"{text} ({' '.join(self.reasons)})" if self.reasons else text


def keeps_workers(options: Options, choice: EngineChoice) -> bool:
    """Return True if workers are kept when an epoch ends or is left.

    A seed alone does not keep the workers: a user's dataset is copied into new workers for each
    epoch, as in torch, so that they see all changes. torch's own engine without workers is kept,
    because its iterator may have a state.
    """
    is_requested = options.schedule is not None or options.persistent_workers
    in_process = choice.engine == "iterable" and options.num_workers == 0
    return is_requested or in_process or not choice.runs_user_code


def choose_engine(
    options: Options, open_cache: Callable[[], CacheStore] | None = None
) -> EngineChoice:
    """Choose the engine; raises UsageError if none supports the options.

    `open_cache` opens the loader's cache, to read copies. Without it originals are read, while the
    cache, if any, is filled.
    """
    if options.iterable:
        return EngineChoice(engine="iterable")
    check_kind_unchanged(options.dataset, was_row_source=options.is_row_source)
    if options.is_row_source:
        source = _row_source(options.dataset)
        choice = EngineChoice(
            engine="image rows", source=source, device_transforms=options.device_transforms
        )
    else:
        choice = _compile(options)
    if choice.source is None:
        choice = _choose_without_source(options, choice)
    else:
        if options.cache is not None and open_cache is not None:
            choice = replace(choice, source=choice.source.cached(open_cache()))
        elif options.cache is not None:
            choice = replace(choice, cache_contents=cache_contents(options, choice.source))
        blocked = () if options.is_row_source else _reasons_for_samples(options, choice.source)
        if blocked:
            reasons, pixels = (*choice.reasons, *blocked), choice.source.transform_identity()
            choice = replace(choice, engine="samples", reasons=reasons, pixels=pixels)
        else:
            choice = _with_rows(choice, options)
    if options.device is not None and not choice.makes_rows:
        raise UsageError(
            f'"{options.device}" is only for feedline\'s own sources, e.g. '
            "feedline.ImageFolder, and for torchvision pipelines on the image-row engine. This "
            f"{type(options.dataset).__name__} uses the {choice}. Use pin_memory=True and "
            "batch.to(device, non_blocking=True)",
            argument="device",
        )
    return choice


def _row_source(dataset: Any) -> Any:
    """Source of the rows of a dataset that is a feedline source, or a Subset of one."""
    if find_feedline_source(dataset) is dataset:
        return dataset
    from feedline.images.compile.compile_dataset import find_source  # loads decoders

    try:
        return find_source(dataset)
    except CompileError as why:
        raise UsageError(
            f"this Subset of a feedline source cannot be loaded: {why} A Subset needs integer "
            "indices and a feedline source whose class overrides no methods. Or pass the source "
            "itself and a sampler with these indices"
        ) from why


def _compile(options: Options) -> EngineChoice:
    """Compile a map-style Dataset. If that is not possible, the choice has no source."""
    # Other datasets do not need the decoders, which take time to import.
    if "torchvision" not in sys.modules and find_feedline_source(options.dataset) is None:
        return EngineChoice(engine="dataset")
    try:
        from feedline.images.compile.compile_dataset import compile_dataset
    except ImportError as error:
        return EngineChoice(engine="dataset", reasons=(f"Images cannot be decoded here: {error}.",))
    result = compile_dataset(options.dataset, options.effective_schedule.image_sizes)
    return EngineChoice(
        engine="dataset" if result.pipeline is None else "image rows",
        source=result.pipeline,
        compiled=result.pipeline is not None,
        fused=result.fused,
        unchanged=result.unchanged,
        reasons=result.reasons,
        fix=result.fix,
    )


def _choose_without_source(options: Options, uncompiled: EngineChoice) -> EngineChoice:
    """Choose the tensor engine or the dataset engine, for a dataset that was not compiled."""
    reasons = uncompiled.reasons
    if options.cache:
        raise UsageError(
            f"{options.cache!r} cannot be used: {type(options.dataset).__name__} reads its "
            f"images with its own code. {' '.join(reasons)} Use a feedline.ImageFolder of the "
            "cache as the dataset, or remove cache=",
            argument="cache",
        )
    tensors = _tensors(options)
    if tensors.gather is not None:
        return EngineChoice(engine="tensors", runs_user_code=False)
    if isinstance(options.dataset, TensorDataset | Subset) and not reasons:
        reasons = (tensors.reason,)
    source = find_feedline_source(options.dataset)
    is_files = source is not None or is_folder(options.dataset)
    warns = is_files and options.schedule is not None  # its sizes need a compiled transform
    nested = _find_nested(options, source)
    choice = EngineChoice(
        engine="dataset",
        reasons=reasons,
        fix=uncompiled.fix or (_FIX if warns else ""),
        uncompiled=warns,
    )
    if nested is None:
        pass
    elif nested.fused and source is None and (nested.has_folder or are_images_lazy()):
        choice = replace(
            choice,
            fused=nested.fused,
            unchanged=nested.unchanged,
            reasons=(*reasons, *nested.reasons),
            fix="",
            uncompiled=False,
            fuses_nested=True,
        )
    elif nested.sets_size and not nested.has_pixels:  # a library's pipeline on images of files
        choice = replace(
            choice,
            reasons=reasons if is_files else (*reasons, *nested.reasons),
            fix=uncompiled.fix or (_FIX_OF_OPENED if nested.fused and not is_files else _FIX),
            uncompiled=is_files,
        )
        warns |= options.num_workers > 0
    return replace(choice, warning=_describe_unfused(choice, options)) if warns else choice


def _describe_unfused(choice: EngineChoice, options: Options) -> str:
    problem = "runs unfused, which is slower"
    if choice.fuses_nested:
        problem = "is fused in parts, which do not follow the image sizes of a schedule"
    if choice.fuses_nested or choice.uncompiled:
        problem += ", and cache= and device= cannot be used"
    name = type(options.dataset).__name__
    return " ".join(
        filter(None, (f"the transform of {name} {problem}:", *choice.reasons, choice.fix))
    )


def _find_nested(options: Options, source: Any) -> NestedPipelines | None:
    """Find the pipelines within a dataset, or in the transform of a feedline source."""
    if "torchvision" not in sys.modules:
        return None
    dataset = options.dataset if source is None else getattr(source, "transform", None)
    try:
        return find_nested(dataset, options.collate_fn)
    except ImportError:  # images cannot be decoded here
        return None


def are_images_lazy() -> bool:
    """Return True if images that Pillow opens stay undecoded until used."""
    module: Any = sys.modules.get("feedline.images.lazy_images")
    return module is not None and module.are_images_lazy()


def _tensors(options: Options) -> BatchedTensors:
    if options.effective_schedule.image_sizes:
        return BatchedTensors(None, "Tensors have a fixed size.")
    if not options.batched:
        return BatchedTensors(None, "batch_size=None makes no batches.")
    if _may_change_dataset(options) and options.num_workers > 0:
        return BatchedTensors(None, "Your worker_init_fn may change the dataset.")
    return batched_tensors(options.dataset, options.collate_fn, options.max_rows)


def _reasons_for_samples(options: Options, pipeline: Any) -> tuple[str, ...]:
    """Reasons why single samples are needed, although rows would be faster."""
    conditions = [
        (not pipeline.writes_rows, pipeline.no_rows),
        (not _stacks_rows(options, pipeline), "Your collate_fn needs single samples."),
        (not options.in_order, "in_order=False is set, but the image-row engine keeps the order."),
        (not options.batched, "batch_size=None makes no batches."),
        (_may_change_dataset(options), "Your worker_init_fn may change the dataset."),
    ]
    return tuple(reason for holds, reason in conditions if holds)


def _may_change_dataset(options: Options) -> bool:
    """Return True if the `worker_init_fn` is the user's, who may change the dataset in it."""
    return options.worker_init_fn is not None and not only_seeds(options.worker_init_fn)


def _stacks_rows(options: Options, pipeline: Any) -> bool:
    """Return True if the collate_fn stacks rows: torch's default, or timm's for uint8 images."""
    if options.collate_fn is default_collate:
        return True
    timm: Any = sys.modules.get("timm.data.loader")
    if timm is None or options.collate_fn is not timm.fast_collate or not pipeline.writes_rows:
        return False
    image, label = pipeline.fields(None)
    return is_original(timm.fast_collate, "fast_collate") and (
        (image.dtype, label.dtype, label.shape) == ("uint8", "int64", ())
    )


def _with_rows(choice: EngineChoice, options: Options) -> EngineChoice:
    """Complete a choice of the image-row engine: transforms on the device, and memory per batch."""
    source = choice.source
    if not options.batched:
        raise UsageError(
            f"None needs single samples, but {type(options.dataset).__name__} makes "
            "batches; use batch_size=1",
            argument="batch_size",
        )
    phases = options.effective_schedule.phases
    if any(phase.strength != 1 for phase in phases) and not getattr(source, "uses_strength", True):
        raise UsageError(
            "has a phase with a strength other than 1, but the transform does not depend on it; "
            "remove the strength, or use feedline.augmentation_strength() in the transform",
            argument="schedule",
        )
    if choice.compiled and options.device is not None and options.device.type != "cpu":
        transforms = DeviceTransforms()
        if source.table is not None:  # uint8 pixels travel, and their values are looked up there
            source, transforms = source.in_pixels(), DeviceTransforms(ValueTable(source.table))
        choice = replace(choice, source=source, device_transforms=transforms)
    batches = [
        (phase.image_size or source.image_size, phase.batch_size or options.max_rows or 1)
        for phase in phases
    ]
    slot_bytes, largest = slot_size(source, batches, options.max_image_size)
    identity: Callable[[], str] | None = getattr(source, "transform_identity", None)
    return replace(
        choice,
        max_image_size=largest,
        slot_bytes=slot_bytes,
        runs_user_code=options.worker_init_fn is not None,
        pixels=identity() if identity else "",
    )


def slot_size(
    source: Source, batches: Sequence[tuple[int, int]], max_image_size: int | None
) -> tuple[int, int | None]:
    """Bytes of a slot, and the largest image size in pixels that may be set; None for any.

    A size may be set in any phase, so the largest batch must fit at `max_image_size`. Without
    `max_image_size`, slots grow if a batch does not fit. `batches` has the image size in pixels and
    the rows of a batch of each phase.
    """
    if max_image_size is not None:
        size = max(max_image_size, *(size for size, _ in batches))
        return batch_bytes(source.fields(size), max(rows for _, rows in batches)), size
    return max(batch_bytes(source.fields(size), rows) for size, rows in batches), None


_log = logging.getLogger("feedline")
_logged: set[str] = set()


def _warn_once(text: str) -> bool:
    """Log a warning once in a process, on rank 0 and not in workers. Return True if logged now."""
    if not text or text in _logged or in_worker() or rank_and_world()[0] != 0:
        return False
    self_check: Any = sys.modules.get("feedline.images.compile.self_check")
    if self_check is not None and self_check.has_warned_of(text):
        return False
    _logged.add(text)
    _log.warning("%s", text)
    return True


class CurrentChoice:
    """Latest choice, and the snapshot of the dataset for which it was made."""

    def __init__(self) -> None:
        self._choice: EngineChoice | None = None
        self._snapshot: AttributeSnapshot | None = None
        self._fingerprint = ""  # of the dataset, computed when a state needs it
        self._cache: CacheStore | None = None
        self._has_warned = False

    def get(
        self, options: Options, filling: CacheFilling, *, compare_lists: bool = False
    ) -> EngineChoice:
        """Return the choice for the current dataset. Raises like `choose_engine`.

        `compare_lists`: also compare the long lists of folders and Subsets by entries.
        """
        copies = filling.reads_copies(lambda: choose_engine(options).cache_contents)
        before = self._snapshot
        now = AttributeSnapshot(
            *_inputs(options), copies, before=before, compare_lists=compare_lists
        )
        changed = None if before is None else now.change_from(before)
        if self._choice is None or changed is not None:
            opener = (lambda: self._open_cache(options.cache)) if copies else None
            self._choice = replace(choose_engine(options, opener), snapshot=now)
            self._snapshot = now
            self._fingerprint = ""
            reason = "" if changed is None else f"{changed} has changed; "
            name = type(options.dataset).__name__
            _log.info("%sengine for %s: %s", reason, name, self._choice)
            self._has_warned = self._has_warned or _warn_once(self._choice.warning)
        return self._choice

    def _open_cache(self, cache: Any) -> CacheStore:
        """Open the cache of a loader: a path, a URL, or an ImageFolder of a cache."""
        if self._cache is None:
            store = open_cache(cache) if isinstance(cache, str) else cache.store
            if not isinstance(store, CacheStore):
                raise UsageError(f"{cache!r} is not a cache; remove it", argument="cache")
            self._cache = store
        return self._cache

    def forget(self) -> None:
        """Re-read the dataset and the cache."""
        self._choice = self._cache = None

    def identity(self, options: Options) -> dict[str, Any]:
        """Entries of a state about the dataset and the order, after a choice."""
        # Computed once per choice, because hashing a million paths takes a second.
        self._fingerprint = self._fingerprint or fingerprint_of(options.dataset)
        return identity_of(options, self._fingerprint)


def _inputs(options: Options) -> tuple[Any, ...]:
    """Options that affect the choice and may change between iterations."""
    return (
        *(options.dataset, options.collate_fn, options.worker_init_fn),
        *(options.batched, options.max_rows, options.timeout),
        *(options.in_order, options.pin_memory, options.num_workers == 0),
        # ToTensor makes values of it. Persistent workers keep theirs, as in torch.
        None if options.persistent_workers else torch.get_default_dtype(),
    )
