"""Compilation of a dataset into a feedline pipeline, if it is certainly equivalent.

Guarantees: never raises and changes nothing, for any object; torchvision is not imported (its
objects exist only if it was); what is not certainly understood is not compiled, and the reason is
given. Only torchvision's own code runs, on small generated images; no user code, except the
function of a `feedline.per_size`, which makes a transform.

Relies on: torchvision's ImageFolder and DatasetFolder, and subclasses, being a list of (path,
label), a loader and two transforms, as long as the methods that return a sample are the original
ones, which is checked. On a feedline source returning the images of its store.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

from feedline.images.compile.compiled import Compiled
from feedline.images.compile.folders import folders_of, numbers_of, unwrapped
from feedline.images.compile.library_code import replaced_method
from feedline.images.compile.pipeline import ImagePipeline, SamplePipeline
from feedline.images.compile.pipeline_per_size import PipelinePerSize
from feedline.images.compile.reading import Reading
from feedline.images.compile.recognised_transform import RecognisedTransform
from feedline.images.compile.samples import store_of
from feedline.images.compile.steps import (
    AtSize,
    NotRecognised,
    check_libraries,
    error_text,
    step_text,
)
from feedline.images.compile.transform_reader import read
from feedline.images.compile.views import Views
from feedline.images.compile.views_pipeline import ViewsPipeline
from feedline.images.rows import ImageSource, ImageSubset
from feedline.order.pixel_layout import RGB
from feedline.sources.store import SampleStore

__all__ = ["Recognition", "recognise", "source_within"]

_LOOKED_UP = ("__getattr__", "__getattribute__", "__getitem__", "__getitems__", "__len__")
"""Methods by which a loader gets a sample."""

_READ = ("loader", "samples", "target_transform", "transform")
"""Attributes that torchvision's `__getitem__` reads, of the dataset, not of its class."""

_GIVES_PATHS = (str, os.fspath, Path)
"""Loaders that leave reading the file to a compiled transform."""


@dataclass(frozen=True)
class Recognition:
    """Result of compiling a dataset.

    Args:
        pipeline: makes its rows or samples; None: everything must run unchanged, elsewhere.
        fused: fused steps of its pipeline.
        unchanged: steps that run unchanged after them, in the same place.
        refused: reasons why it, or a part of it, was not compiled, or makes no rows, as sentences.
    """

    pipeline: SamplePipeline | None
    fused: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class _Recipe:
    """Transform of a dataset's images, independent of the images.

    Args:
        reading: how images are read.
        transforms: one per folder; they must be equivalent.
        target: called on each label; None for none.
    """

    reading: Reading
    transforms: tuple[Any, ...]
    target: Any

    def recognised(self, store: SampleStore, at: AtSize) -> Recognition:
        """Compile the transforms, at one size if a `per_size` is among them.

        Raises:
            NotRecognised: everything must run unchanged.
        """
        first, *others = self.transforms
        for other in others:
            _check_alike(first, other, at)
        transform = at.transform_of(first)
        if type(transform) is Views:
            return _of_views(transform, store, self, at)
        recognised = read(_pipeline_of(transform), at)
        notes = recognised.notes
        if recognised.no_rows:
            notes += (f"{recognised.no_rows} So samples are made, and collated afterwards.",)
        pipeline = ImagePipeline(store, recognised, self.reading, self.target)
        return Recognition(pipeline, recognised.fused, recognised.unchanged, notes)


def recognise(dataset: object, sizes: Sequence[int] = ()) -> Recognition:
    """Compile a torchvision ImageFolder or DatasetFolder, or a Subset or ConcatDataset of them.

    Or a feedline source with a transform of another library, or a Subset of one.

    Args:
        dataset: any dataset.
        sizes: image sizes of the loader, in pixels: a `feedline.per_size` in the transform is
            compiled at each of them; without one, at its default.
    """
    try:
        found = _recognised(dataset, tuple(dict.fromkeys(sizes)) or (None,))
        target = getattr(found.pipeline, "target_transform", None)
        if target is None:
            return found
        return replace(found, unchanged=(*found.unchanged, f"target_transform {step_text(target)}"))
    except NotRecognised as why:
        return Recognition(None, refused=(str(why),))
    except Exception as error:
        kind = type(dataset).__name__
        return Recognition(None, refused=(f"{kind} cannot be inspected: {error_text(error)}.",))


def _recognised(dataset: object, sizes: tuple[int | None, ...]) -> Recognition:
    folders = list[Any]()
    source = source_within(dataset)
    if source is None:
        chosen = folders_of(dataset, _check)
        folders = chosen.folders
        _check_targets(folders)
        transforms = tuple(folder.transform for folder in folders)
        recipe = _Recipe(Reading.as_torchvision(), transforms, folders[0].target_transform)
    else:
        recipe = _Recipe(Reading.of(source), (source.transform,), None)
    check_libraries()
    store: SampleStore | None = None if source is None else source.store
    found: dict[int, Recognition] = {}
    at_sizes = [AtSize(size) for size in sizes]
    try:
        for at in at_sizes:
            for folder in folders:
                _check_loader(folder, at)
            if store is None:
                store = store_of(chosen)
            one = recipe.recognised(store, at)
            if not at.used:
                return one
            found[_checked(one, at)] = one
    except BaseException:
        for at in at_sizes:
            at.forget()
        raise
    return _per_size(found, recipe)


def _checked(found: Recognition, at: AtSize) -> int:
    """Size in pixels that a pipeline was made for; NotRecognised if it makes another one."""
    assert found.pipeline is not None, "the pipeline was compiled"
    made = found.pipeline.image_size
    if at.size is None or made != at.size:
        raise NotRecognised(f"At {at.size} px the transform makes images of {made} px.")
    return made


def _per_size(found: dict[int, Recognition], recipe: _Recipe) -> Recognition:
    """Description of a transform that differs at each size."""
    pipelines = {size: each.pipeline for size, each in found.items() if each.pipeline is not None}
    fused = list[str]()
    for size, each in found.items():
        own = [step for step in each.fused if step not in fused]
        fused += [f"at {size} px: {own[0]}", *own[1:]] if own else []
    unchanged = dict.fromkeys(step for each in found.values() for step in each.unchanged)
    notes = dict.fromkeys(note for each in found.values() for note in each.refused)
    pipeline = PipelinePerSize(pipelines, partial(_pipeline_at, recipe))
    return Recognition(pipeline, tuple(fused), tuple(unchanged), tuple(notes))


def _pipeline_at(recipe: _Recipe, store: SampleStore, size: int) -> SamplePipeline:
    """Pipeline of a size; NotRecognised if there is none."""
    at = AtSize(size)
    found = recipe.recognised(store, at)
    _checked(found, at)
    assert found.pipeline is not None, "the pipeline was compiled"
    return found.pipeline


def source_within(dataset: object) -> ImageSource[Any] | None:
    """feedline source that a dataset is, or that its Subsets select from.

    Returns:
        None for any other dataset.

    Raises:
        NotRecognised: it may return something else than its images, or the indices of a Subset are
            not sample indices.
    """
    inner, subsets = unwrapped(dataset)
    if ImageSource not in type(inner).__mro__:  # isinstance may run code of the user's
        return None
    source = cast("ImageSource[Any]", inner)
    _check_source(source)
    if not subsets:
        return source
    for base in takewhile(_is_users, type(source).__mro__):
        for name in vars(base):
            if hasattr(ImageSource, name) and not name.startswith("__"):
                raise NotRecognised(
                    f"{type(source).__name__} overrides {name}, which may return anything."
                )
    return ImageSubset(source, numbers_of(subsets, len(source)))


def _is_users(kind: type) -> bool:
    return not kind.__module__.startswith("feedline.")


def _of_views(views: Views, store: SampleStore, recipe: _Recipe, at: AtSize) -> Recognition:
    """Compile a dataset with several views; NotRecognised if one of them runs unchanged."""
    known: dict[int, RecognisedTransform] = {}
    fused: list[str] = []
    unchanged: list[str] = []
    notes: list[str] = []
    for number, transform in enumerate(views.transforms, 1):
        if id(transform) in known:
            continue
        try:
            known[id(transform)] = found = read(transform, at)
        except NotRecognised as why:
            raise NotRecognised(f"View {number} runs unchanged: {why}") from None
        fused += [f"view {number}: {found.fused[0]}", *found.fused[1:]]
        unchanged += found.unchanged
        notes += found.notes
    recognised = tuple(known[id(transform)] for transform in views.transforms)
    pipeline = ViewsPipeline(store, recognised, recipe.reading, recipe.target)
    return Recognition(pipeline, tuple(fused), tuple(unchanged), tuple(notes))


def _check_source(source: ImageSource[Any]) -> None:
    """Raise NotRecognised if a feedline source may return something else."""
    kind = type(source)
    own = [
        name
        for name in (*_LOOKED_UP, "label", "load")
        if getattr(kind, name, None) is not getattr(ImageSource, name, None) or name in vars(source)
    ]
    if own:
        raise NotRecognised(f"{kind.__name__} overrides {own[0]}, which may return anything.")
    if source.layout != RGB:
        raise NotRecognised(f"Its images are {source.layout}; only RGB, uint8, is compiled.")


def _check(dataset: Any) -> None:
    """Raise NotRecognised if anything else than the pipeline may matter."""
    kind = type(dataset)
    module: Any = sys.modules.get("torchvision.datasets.folder")
    if ImageSource in kind.__mro__:
        raise NotRecognised(
            f"{kind.__name__} is a feedline source within another dataset; only torch's Subset is "
            "supported: make one ImageList of all images."
        )
    if module is None or module.DatasetFolder not in kind.__mro__:
        raise NotRecognised(
            f"{kind.__name__} is not torchvision's ImageFolder or DatasetFolder, nor a subclass."
        )
    for base in kind.__mro__:
        for name in (*_LOOKED_UP, *_READ) if base not in module.ImageFolder.__mro__ else ():
            if name in vars(base):
                raise NotRecognised(
                    f"{kind.__name__} is a subclass of a torchvision dataset that overrides {name} "
                    f"({base.__name__}.{name}), which may return anything."
                )
    why = replaced_method(kind)
    own = [name for name in _LOOKED_UP if name in vars(dataset)]
    if why or own or hasattr(kind, "__getitems__"):
        why = why or f"this {kind.__name__} has its own {', '.join(own) or '__getitems__'}"
        raise NotRecognised(f"A method of {kind.__name__} was replaced: {why}.")
    missing = [name for name in _READ if name not in vars(dataset)]
    if missing:
        raise NotRecognised(f"This {kind.__name__} has no {', '.join(missing)}.")
    if dataset.transform is None:
        raise NotRecognised("The dataset has no transform, so it returns PIL images.")


def _check_loader(dataset: Any, at: AtSize) -> None:
    """Raise NotRecognised if images may be read differently than by torchvision's loader."""
    paths = any(dataset.loader is each for each in _GIVES_PATHS)
    if paths and type(at.transform_of(dataset.transform)) in (Compiled, Views):
        return
    folder: Any = sys.modules["torchvision.datasets.folder"]
    if not any(dataset.loader is each for each in (folder.default_loader, folder.pil_loader)):
        raise NotRecognised(f"The loader {step_text(dataset.loader)} is not torchvision's own.")
    if sys.modules["torchvision"].get_image_backend() != "PIL":
        raise NotRecognised("torchvision's image backend is not PIL.")


def _pipeline_of(transform: Any) -> Any:
    """Pipeline within a result of `feedline.compile`; any other transform itself."""
    return transform.transform if type(transform) is Compiled else transform


def _check_targets(folders: Sequence[Any]) -> None:
    """Raise NotRecognised if folders have different target_transforms."""
    if any(folder.target_transform is not folders[0].target_transform for folder in folders):
        raise NotRecognised("The parts of the ConcatDataset have different target_transforms.")


def _check_alike(first: Any, other: Any, at: AtSize) -> None:
    """Raise NotRecognised if two transforms are not equivalent."""
    if other is first:
        return
    both = [_pipeline_of(at.transform_of(each)) for each in (first, other)]
    several = any(type(each) is Views for each in both)
    if several or not _alike(*(read(each, at) for each in both)):
        raise NotRecognised(
            f"The parts of the ConcatDataset have different transforms, {step_text(first)} and "
            f"{step_text(other)}, but only one for all can be compiled."
        )


def _alike(one: RecognisedTransform, other: RecognisedTransform) -> bool:
    """Return True if two transforms are equivalent. Steps that run must be the very same
    objects.
    """
    tables = [transform.tail.table for transform in (one, other)]
    values = [None if table is None else (table.dtype, table.tobytes()) for table in tables]
    steps, others = ((*each.tail.before, *each.tail.after) for each in (one, other))
    return (
        one.crop == other.crop
        and one.resize_mode == other.resize_mode
        and one.shape == other.shape
        and one.tail.form == other.tail.form
        and values[0] == values[1]
        and list(map(id, steps)) == list(map(id, others))
        # What a step that runs is given follows from those that stand before it.
        and (not steps or one.fused == other.fused)
    )
