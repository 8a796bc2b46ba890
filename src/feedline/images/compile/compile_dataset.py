"""Compiler of datasets: an image folder with its transform to a pipeline, if certainly equivalent.

Guarantees: never raises and changes nothing, for any object; torchvision and timm are not imported
(their objects exist only if they were); only what is certainly equivalent is compiled, and there is
a reason for everything else. Only the libraries' own code runs, on small generated images; no user
code, except the function of a `feedline.per_size`, which makes a transform.

Relies on: a folder of torchvision or timm being a list of (path, label), a loader and two
transforms, as long as the methods that return a sample are the original ones, which is checked. On
a feedline source returning the images of its store.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from operator import is_
from pathlib import Path
from typing import Any, cast

import numpy as np

from feedline.images.compile.compile_pipeline import compile_transform
from feedline.images.compile.datasets import (
    file_store,
    is_timm_folder,
    is_torchvision_folder,
    select_folders,
    select_indices,
    unwrap_subsets,
)
from feedline.images.compile.fused_transform import FusedTransform
from feedline.images.compile.image_input import PillowSettings, ReadOptions
from feedline.images.compile.library_steps import (
    CompileError,
    PerSizeResolver,
    check_libraries,
    error_text,
    replaced_method,
    step_text,
    why_modified,
)
from feedline.images.compile.pipeline import (
    ImagePipeline,
    PipelinePerSize,
    SamplePipeline,
    ViewsPipeline,
)
from feedline.images.compile.self_check import check_folder
from feedline.images.compile.views import Compiled, Views
from feedline.images.rows import ImageSource, ImageSubset
from feedline.order.pixel_layout import RGB
from feedline.sources.store import SampleStore

_LOOKUPS = ("__getattr__", "__getattribute__", "__getitem__", "__getitems__", "__len__")
"""Methods by which a loader gets a sample."""

_FOLDER_ATTRIBUTES = ("loader", "samples", "target_transform", "transform")
"""Attributes that torchvision's `__getitem__` reads, of the dataset, not of its class."""

_PATH_LOADERS = (str, os.fspath, Path)
"""Loaders that leave reading the file to a compiled transform."""

_TIMM_MAX_TRIES = 50
"""Samples that versions of timm without `_max_retries` try."""


@dataclass(frozen=True)
class CompiledDataset:
    """Result of compiling a dataset: a pipeline, None if nothing was compiled, and texts.

    `reasons` are sentences: why it, or a part of it, was not compiled, or makes no rows. `fix` says
    what to change, if the reason itself does not.
    """

    pipeline: SamplePipeline | None
    fused: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    fix: str = ""


def compile_dataset(dataset: object, sizes: Sequence[int] = ()) -> CompiledDataset:
    """Compile a torchvision or timm image folder, or Subsets and ConcatDatasets of such folders.

    Also accepts feedline sources with transforms of other libraries, and Subsets of such sources.
    A `feedline.per_size` is compiled at each size of the loader, in pixels, or else at its default.
    """
    try:
        pipeline = _compile(dataset, tuple(dict.fromkeys(sizes)) or (None,))
        steps = pipeline.describe()
        unchanged = steps.unchanged
        if pipeline.target_transform is not None:
            unchanged += (f"target_transform {step_text(pipeline.target_transform)}",)
        return CompiledDataset(pipeline, steps.fused, unchanged, steps.notes)
    except CompileError as why:
        return CompiledDataset(None, reasons=(str(why),), fix=why.fix)
    except Exception as error:
        kind = type(dataset).__name__
        return CompiledDataset(None, reasons=(f"{kind} cannot be inspected: {error_text(error)}.",))


@dataclass(frozen=True, eq=False)
class _Recipe:
    """Settings for reading and transforming a dataset's images."""

    options: ReadOptions
    transforms: tuple[Any, ...]  # one per folder; they must be equivalent
    target: Any  # the target_transform, called on each label; None for none

    def compile(self, store: SampleStore, sizes: PerSizeResolver) -> SamplePipeline:
        """Compile the transforms, at one size if they contain a `per_size`."""
        transform = sizes.resolve(self.transforms[0])
        for other in self.transforms[1:]:
            _check_equivalent(self.transforms[0], other, sizes)
        pipeline: SamplePipeline
        if type(transform) is Views:
            views = _compile_views(transform, sizes)
            pipeline = ViewsPipeline(store, views, self.options, self.target)
        else:
            fused = compile_transform(_without_wrapper(transform), sizes)
            pipeline = ImagePipeline(store, fused, self.options, self.target)
        size = pipeline.image_size
        if sizes.is_used and size != sizes.size:
            raise CompileError(f"At {sizes.size} px the transform makes images of {size} px.")
        return pipeline


def _compile_views(views: Views, sizes: PerSizeResolver) -> tuple[FusedTransform, ...]:
    """Compile several views; CompileError if one of them runs unchanged."""
    by_id: dict[int, FusedTransform] = {}
    for number, transform in enumerate(views.transforms, 1):
        if id(transform) not in by_id:
            try:
                by_id[id(transform)] = compile_transform(transform, sizes)
            except CompileError as why:
                raise CompileError(f"View {number} runs unchanged: {why}", why.fix) from None
    return tuple(by_id[id(transform)] for transform in views.transforms)


def _compile(dataset: object, sizes: tuple[int | None, ...]) -> SamplePipeline:
    folders = list[Any]()
    source = find_source(dataset)
    if source is None:
        selection = select_folders(dataset, _check_folder)
        folders = selection.folders
        if len({is_timm_folder(folder) for folder in folders}) > 1:
            raise CompileError("The ConcatDataset has folders of torchvision and of timm.")
        if any(folder.target_transform is not folders[0].target_transform for folder in folders):
            raise CompileError("The parts of the ConcatDataset have different target_transforms.")
        tries, settings = 1, PillowSettings.now()
        if is_timm_folder(folders[0]):  # which skips unreadable images
            tries = max(1, getattr(folders[0], "_max_retries", _TIMM_MAX_TRIES))
        recipe = _Recipe(
            ReadOptions(settings.max_pixels, pillow=settings, max_tries=tries),
            tuple(folder.transform for folder in folders),
            folders[0].target_transform,
        )
    else:
        if source.layout != RGB:
            raise CompileError(f"Its images are {source.layout}; only RGB, uint8, is compiled.")
        recipe = _Recipe(ReadOptions(**vars(source.options)), (source.transform,), None)
    check_libraries()
    store: SampleStore | None = None if source is None else source.store
    pipelines: dict[int, SamplePipeline] = {}
    resolvers = [PerSizeResolver(size) for size in sizes]
    try:
        for resolver in resolvers:
            for folder in folders:
                _check_loader(folder, resolver)
            if store is None:
                store = file_store(selection)
            pipeline = recipe.compile(store, resolver)
            if not resolver.is_used:
                return pipeline
            pipelines[pipeline.image_size] = pipeline
    except BaseException:
        for resolver in resolvers:
            resolver.forget()
        raise
    return PipelinePerSize(pipelines, recipe.compile)


def find_source(dataset: object) -> ImageSource[Any] | None:
    """Find the feedline source that a dataset is, or that its Subsets select from."""
    inner, subsets = unwrap_subsets(dataset)
    if ImageSource not in type(inner).__mro__:  # isinstance may run user code
        return None
    source = cast("ImageSource[Any]", inner)
    kind = type(source)
    replaced = [
        name
        for name in (*_LOOKUPS, "label", "load")
        if getattr(kind, name, None) is not getattr(ImageSource, name, None) or name in vars(source)
    ]
    if subsets:
        bases = takewhile(lambda base: not base.__module__.startswith("feedline."), kind.__mro__)
        names = (name for base in bases for name in vars(base) if not name.startswith("__"))
        replaced += [name for name in names if hasattr(ImageSource, name)]
    if replaced:
        raise CompileError(f"{kind.__name__} overrides {replaced[0]}, which may return anything.")
    if not subsets:
        return source
    return ImageSubset(source, select_indices(subsets, np.arange(len(source))))


def _check_folder(dataset: Any) -> None:
    """Raise CompileError if a dataset's samples may depend on anything else than the pipeline."""
    kind = type(dataset)
    if ImageSource in kind.__mro__:
        raise CompileError(
            f"{kind.__name__} is a feedline source within another dataset; only torch's Subset is "
            "supported: make one ImageList of all images."
        )
    if is_timm_folder(dataset):
        _check_timm_folder(dataset)
    elif is_torchvision_folder(dataset):
        _check_torchvision_folder(dataset)
    else:
        raise CompileError(
            f"{kind.__name__} is not torchvision's ImageFolder or DatasetFolder, nor a subclass, "
            "nor timm's ImageDataset of a folder."
        )
    if dataset.transform is None:
        raise CompileError("The dataset has no transform, so it returns PIL images.")


def _check_torchvision_folder(dataset: Any) -> None:
    kind = type(dataset)
    own_classes = sys.modules["torchvision.datasets.folder"].ImageFolder.__mro__
    for base in kind.__mro__:
        for name in (*_LOOKUPS, *_FOLDER_ATTRIBUTES) if base not in own_classes else ():
            if name in vars(base):
                raise CompileError(
                    f"{kind.__name__} is a subclass of a torchvision dataset that overrides {name} "
                    f"({base.__name__}.{name}), which may return anything."
                )
    why = replaced_method(kind)
    own = [name for name in _LOOKUPS if name in vars(dataset)]
    if why or own or hasattr(kind, "__getitems__"):
        why = why or f"this {kind.__name__} has its own {', '.join(own) or '__getitems__'}"
        raise CompileError(f"A method of {kind.__name__} was replaced: {why}.")
    missing = [name for name in _FOLDER_ATTRIBUTES if name not in vars(dataset)]
    if missing:
        raise CompileError(f"This {kind.__name__} has no {', '.join(missing)}.")


def _check_timm_folder(dataset: Any) -> None:
    if why := why_modified(dataset) or why_modified(dataset.reader):
        raise CompileError(f"A method of timm's ImageDataset was replaced: {why}.")
    for name, supported in (
        ("load_bytes", not dataset.load_bytes),
        ("input_img_mode", dataset.input_img_mode == "RGB"),
        ("additional_features", getattr(dataset, "additional_features", None) is None),
    ):
        if not supported:
            raise CompileError(f"{name}={getattr(dataset, name)!r} of ImageDataset is unsupported.")


def _check_equivalent(first: Any, other: Any, sizes: PerSizeResolver) -> None:
    """Raise CompileError if the transforms of two folders are not equivalent."""
    if first is other:
        return
    one, two = (
        compile_transform(_without_wrapper(sizes.resolve(each)), sizes) for each in (first, other)
    )
    # Unchanged steps must be the same objects: each may keep something of its own.
    if one.identity() != two.identity() or not all(map(is_, one.tail.steps, two.tail.steps)):
        raise CompileError(
            f"The parts of the ConcatDataset have different transforms, {step_text(first)} and "
            f"{step_text(other)}, but only one for all can be compiled."
        )


def _check_loader(dataset: Any, sizes: PerSizeResolver) -> None:
    """Raise CompileError if images may be read differently than by torchvision's loader."""
    if is_timm_folder(dataset):
        check_folder(dataset)
        return
    path_loader = any(dataset.loader is each for each in _PATH_LOADERS)
    if path_loader and type(sizes.resolve(dataset.transform)) in (Compiled, Views):
        return
    folder: Any = sys.modules["torchvision.datasets.folder"]
    if not any(dataset.loader is each for each in (folder.default_loader, folder.pil_loader)):
        raise CompileError(f"The loader {step_text(dataset.loader)} is not torchvision's own.")
    if sys.modules["torchvision"].get_image_backend() != "PIL":
        raise CompileError("torchvision's image backend is not PIL.")
    check_folder(dataset)


def _without_wrapper(transform: Any) -> Any:
    """Pipeline within a result of `feedline.compile`; any other transform itself."""
    return transform.transform if type(transform) is Compiled else transform
