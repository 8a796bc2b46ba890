"""A dataset as a pipeline of feedline's own, where it surely means the same.

Guarantees: never raises and changes nothing, whatever the object; torchvision is not imported (an
object of it can only come from where it was); what is not surely understood is not recognised, and
why is said. Only code of torchvision's own is run, on small made-up images; no code of the user's,
but for the function of a `feedline.per_size`, which makes a transform.

Relies on: torchvision's ImageFolder and DatasetFolder, and what derives from them, being no more
than a list of (path, label), a loader and two transforms, as long as the methods that give a sample
are the original ones, which is looked at. Of a source of feedline's own, that it gives the images
of its store.
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

from feedline.images.chosen_images import ChosenImages
from feedline.images.image_source import ImageSource
from feedline.recognition.compiled import Compiled, calls_of
from feedline.recognition.folders import folders_of
from feedline.recognition.pipeline import ImagePipeline, SamplePipeline
from feedline.recognition.pipeline_per_size import PipelinePerSize
from feedline.recognition.reading import Reading
from feedline.recognition.recognised_transform import RecognisedTransform
from feedline.recognition.replacements import Replacements
from feedline.recognition.samples import store_of
from feedline.recognition.steps import AtSize, NotRecognised, said, words
from feedline.recognition.subsets import numbers_of, unwrapped
from feedline.recognition.transform_reader import read
from feedline.recognition.view_form import Wrapped
from feedline.recognition.views import Views
from feedline.recognition.views_pipeline import ViewsPipeline
from feedline.recognition.wrappers import wrapped_in
from feedline.stores.store import SampleStore

__all__ = ["Recognition", "recognise", "source_within"]

_LOOKED_UP = ("__getattr__", "__getattribute__", "__getitem__", "__getitems__", "__len__")
"""The methods by which a loader reaches a sample."""

_READ = ("loader", "samples", "target_transform", "transform")
"""What torchvision's `__getitem__` reads; attributes of the dataset, not of its class."""

_GIVES_PATHS = (str, os.fspath, Path)
"""Loaders that leave it to a compiled transform to read the file."""


@dataclass(frozen=True)
class Recognition:
    """What was made of a dataset.

    Args:
        pipeline: makes its rows or samples; None: everything has to run as it is, elsewhere.
        fast: the steps of its pipeline that run on the fast path.
        as_is: those that run unchanged after them, in the same place.
        refused: why it, or a part of it, was not recognised, or makes no rows: sentences.
    """

    pipeline: SamplePipeline | None
    fast: tuple[str, ...] = ()
    as_is: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class _Recipe:
    """What is made of the images of a dataset, whichever they are.

    Args:
        reading: how they are read.
        transforms: of each folder; they must mean the same.
        target: is called on each label; None: nothing is.
    """

    reading: Reading
    transforms: tuple[Any, ...]
    target: Any

    def recognised(self, store: SampleStore, replacements: Replacements, at: AtSize) -> Recognition:
        """Recognise the transforms, at one size where a `per_size` is among them.

        Raises:
            NotRecognised: everything has to run as it is.
        """
        first, *others = self.transforms
        calls = _calls_of(first, at)
        for other in others:
            _check_alike(first, other, replacements, at)
        if calls.form != 0:
            return _of_views(calls, store, self, replacements, at)
        recognised = read(calls.transforms[0], replacements, at)
        notes = recognised.notes
        if recognised.no_rows:
            notes += (f"{recognised.no_rows} So samples are made, and collated afterwards.",)
        pipeline = ImagePipeline(store, recognised, self.reading, self.target)
        return Recognition(pipeline, recognised.fast, recognised.as_is, notes)


def recognise(dataset: object, sizes: Sequence[int] = ()) -> Recognition:
    """Recognise a torchvision ImageFolder or DatasetFolder, a Subset or a ConcatDataset of such.

    Or a source of feedline's own that has a transform of another library's, or a Subset of one.

    Args:
        dataset: any.
        sizes: the image sizes that are asked for, in pixels: where the transform has a
            `feedline.per_size` it is recognised at each of them; without one, at its default.
    """
    try:
        found = _recognised(dataset, tuple(dict.fromkeys(sizes)) or (None,))
        target = getattr(found.pipeline, "target_transform", None)
        if target is None:
            return found
        return replace(found, as_is=(*found.as_is, f"target_transform {words(target)}"))
    except NotRecognised as why:
        return Recognition(None, refused=(str(why),))
    except Exception as error:
        kind = type(dataset).__name__
        return Recognition(None, refused=(f"{kind} cannot be looked into: {said(error)}.",))


def _recognised(dataset: object, sizes: tuple[int | None, ...]) -> Recognition:
    replacements, folders = Replacements(), list[Any]()
    source = source_within(dataset)
    if source is None:
        chosen = folders_of(dataset, replacements, lambda folder: _check(folder, replacements))
        folders = chosen.folders
        _check_targets(folders)
        transforms = tuple(folder.transform for folder in folders)
        recipe = _Recipe(Reading.as_torchvision(), transforms, folders[0].target_transform)
    else:
        recipe = _Recipe(Reading.of(source), (source.transform,), None)
    store: SampleStore | None = None if source is None else source.store
    found: dict[int, Recognition] = {}
    at_sizes = [AtSize(size) for size in sizes]
    try:
        for at in at_sizes:
            for folder in folders:
                _check_loader(folder, replacements, at)
            if store is None:
                store = store_of(chosen)
            one = recipe.recognised(store, replacements, at)
            if not at.used:
                return one
            found[_checked(one, at)] = one
    except BaseException:
        for at in at_sizes:
            at.forget()
        raise
    return _per_size(found, recipe)


def _checked(found: Recognition, at: AtSize) -> int:
    """The size in pixels that a pipeline was made for; NotRecognised if it makes another one."""
    assert found.pipeline is not None, "it was recognised"
    made = found.pipeline.image_size
    if at.size is None or made != at.size:
        raise NotRecognised(f"At {at.size} px the transform makes images of {made} px.")
    return made


def _per_size(found: dict[int, Recognition], recipe: _Recipe) -> Recognition:
    """What is said of a transform that is another one at each size."""
    pipelines = {size: each.pipeline for size, each in found.items() if each.pipeline is not None}
    fast = list[str]()
    for size, each in found.items():
        own = [step for step in each.fast if step not in fast]
        fast += [f"at {size} px: {own[0]}", *own[1:]] if own else []
    as_is = dict.fromkeys(step for each in found.values() for step in each.as_is)
    notes = dict.fromkeys(note for each in found.values() for note in each.refused)
    pipeline = PipelinePerSize(pipelines, partial(_pipeline_at, recipe))
    return Recognition(pipeline, tuple(fast), tuple(as_is), tuple(notes))


def _pipeline_at(recipe: _Recipe, store: SampleStore, size: int) -> SamplePipeline:
    """The pipeline of a size; NotRecognised if there is none."""
    at = AtSize(size)
    found = recipe.recognised(store, Replacements(), at)
    _checked(found, at)
    assert found.pipeline is not None, "it was recognised"
    return found.pipeline


def source_within(dataset: object) -> ImageSource[Any] | None:
    """The source of feedline's own that a dataset is, or what its Subsets choose of one.

    Returns:
        None for any other dataset.

    Raises:
        NotRecognised: it may give something else than its images, or the indices of a Subset are
            no numbers of samples.
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
                    f"{type(source).__name__} has a {name} of its own, which may do anything."
                )
    return ChosenImages(source, numbers_of(subsets, len(source)))


def _is_users(kind: type) -> bool:
    return not kind.__module__.startswith("feedline.")


def _of_views(
    views: Wrapped, store: SampleStore, recipe: _Recipe, replacements: Replacements, at: AtSize
) -> Recognition:
    """What is made of a dataset with several views; NotRecognised if one of them runs as it is."""
    known: dict[int, RecognisedTransform] = {}
    fast: list[str] = []
    as_is: list[str] = []
    notes: list[str] = []
    for number, transform in enumerate(views.transforms, 1):
        if id(transform) in known:
            continue
        try:
            known[id(transform)] = found = read(transform, replacements, at)
        except NotRecognised as why:
            raise NotRecognised(f"Of the views, number {number} runs as it is: {why}") from None
        fast += [f"view {number}: {found.fast[0]}", *found.fast[1:]]
        as_is += found.as_is
        notes += found.notes
    recognised = tuple(known[id(transform)] for transform in views.transforms)
    pipeline = ViewsPipeline(store, recognised, views.form, recipe.reading, recipe.target)
    return Recognition(pipeline, tuple(fast), tuple(as_is), tuple(notes))


def _check_source(source: ImageSource[Any]) -> None:
    """Raise NotRecognised where a source of feedline's own may give something else."""
    kind = type(source)
    own = [
        name
        for name in (*_LOOKED_UP, "label", "load")
        if getattr(kind, name, None) is not getattr(ImageSource, name, None) or name in vars(source)
    ]
    if own:
        raise NotRecognised(f"{kind.__name__} has a {own[0]} of its own, which may do anything.")


def _check(dataset: Any, replacements: Replacements) -> None:
    """Raise NotRecognised where something else than the pipeline could matter."""
    kind = type(dataset)
    module: Any = sys.modules.get("torchvision.datasets.folder")
    if ImageSource in kind.__mro__:
        raise NotRecognised(
            f"{kind.__name__} is a source of feedline's own within another dataset, of which only "
            "torch's Subset is taken apart: make one ImageList of all images."
        )
    if module is None or module.DatasetFolder not in kind.__mro__:
        raise NotRecognised(
            f"{kind.__name__} is not torchvision's ImageFolder or DatasetFolder, nor a subclass."
        )
    for base in kind.__mro__:
        for name in (*_LOOKED_UP, *_READ) if base not in module.ImageFolder.__mro__ else ():
            if name in vars(base):
                raise NotRecognised(
                    f"{kind.__name__} is a subclass of torchvision's with a {name} of its own "
                    f"({base.__name__}.{name}), which may do anything."
                )
    why = replacements.replaced_in(kind, _LOOKED_UP)
    own = [name for name in _LOOKED_UP if name in vars(dataset)]
    if why or own or hasattr(kind, "__getitems__"):
        why = why or f"this {kind.__name__} has a {', '.join(own) or '__getitems__'} of its own"
        raise NotRecognised(f"A method of {kind.__name__} was replaced: {why}.")
    missing = [name for name in _READ if name not in vars(dataset)]
    if missing:
        raise NotRecognised(f"This {kind.__name__} has no {', '.join(missing)}.")
    if dataset.transform is None:
        raise NotRecognised("The dataset has no transform, so it gives PIL images.")


def _check_loader(dataset: Any, replacements: Replacements, at: AtSize) -> None:
    """Raise NotRecognised where images may be read otherwise than by torchvision's loader."""
    paths = any(dataset.loader is each for each in _GIVES_PATHS)
    if paths and type(at.transform_of(dataset.transform)) in (Compiled, Views):
        if replaced := replacements.replaced_in_pillow():
            raise NotRecognised(f"{replaced}.")
        return
    why_not = replacements.replaced_in_loader(dataset.loader)
    if why_not is None:
        raise NotRecognised(f"The loader {words(dataset.loader)} is not torchvision's own.")
    if why_not:
        raise NotRecognised(f"{why_not}.")
    if sys.modules["torchvision"].get_image_backend() != "PIL":
        raise NotRecognised("torchvision's image backend is not PIL.")


def _calls_of(transform: Any, at: AtSize) -> Wrapped:
    """What is called with an image; NotRecognised where a user's wrapper does more than that."""
    transform = at.transform_of(transform)
    found = wrapped_in(transform)
    if isinstance(found, Wrapped):
        return found
    if found:
        raise NotRecognised(found)
    return calls_of(transform)


def _check_targets(folders: Sequence[Any]) -> None:
    """Raise NotRecognised where folders make different things of their labels."""
    if any(folder.target_transform is not folders[0].target_transform for folder in folders):
        raise NotRecognised("The parts of the ConcatDataset have different target_transforms.")


def _check_alike(first: Any, other: Any, replacements: Replacements, at: AtSize) -> None:
    """Raise NotRecognised where two transforms make different things of an image."""
    if other is first:
        return
    calls = [_calls_of(each, at) for each in (first, other)]
    several = any(each.form != 0 for each in calls)
    if several or not _alike(*(read(each.transforms[0], replacements, at) for each in calls)):
        raise NotRecognised(
            "The parts of the ConcatDataset have different transforms, "
            f"{words(first)} and {words(other)}, and the fast path has one for all."
        )


def _alike(one: RecognisedTransform, other: RecognisedTransform) -> bool:
    """Whether two make the same of an image. Steps that run must be the very same objects."""
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
        and (not steps or one.fast == other.fast)
    )
