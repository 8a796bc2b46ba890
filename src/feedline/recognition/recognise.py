"""A torchvision dataset as a pipeline of feedline's own, where it surely means the same.

Guarantees: never raises and changes nothing, whatever the object; torchvision is not imported (an
object of it can only come from where it was); what is not surely understood is not recognised, and
why is said. Only code of torchvision's own is run, on small made-up images; no code of the user's.

Relies on: torchvision's ImageFolder and DatasetFolder being no more than a list of (path, label), a
loader and a transform, as long as their methods are the original ones, which is looked at.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.recognition.compiled import Compiled
from feedline.recognition.originals import Originals
from feedline.recognition.pillow_reading import PillowSettings
from feedline.recognition.pipeline import ImagePipeline, SamplePipeline
from feedline.recognition.recognised_transform import RecognisedTransform
from feedline.recognition.samples import store_of
from feedline.recognition.steps import NotRecognised, altered, said, words
from feedline.recognition.subsets import unwrapped
from feedline.recognition.transform_reader import read
from feedline.recognition.views import Views
from feedline.recognition.views_pipeline import ViewsPipeline
from feedline.stores.file_store import FileStore
from feedline.stores.path_table import LabelledPaths

__all__ = ["Recognition", "recognise"]

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


def recognise(dataset: object) -> Recognition:
    """Recognise a torchvision ImageFolder or DatasetFolder, or a Subset of one."""
    try:
        originals = Originals()
        folder, subsets = unwrapped(dataset, lambda subset: altered(subset, originals))
        _check(folder, originals)
        store, settings = store_of(folder, subsets), PillowSettings.now()
        if type(folder.transform) is Views:
            return _of_views(folder.transform, store, settings, originals)
        compiled = type(folder.transform) is Compiled
        transform = folder.transform.transform if compiled else folder.transform
        recognised = read(transform, originals)
        notes = recognised.notes
        if recognised.no_rows:
            notes += (f"{recognised.no_rows} So samples are made, and collated afterwards.",)
        pipeline = ImagePipeline(store, recognised, settings)
        return Recognition(pipeline, recognised.fast, recognised.as_is, notes)
    except NotRecognised as why:
        return Recognition(None, refused=(str(why),))
    except Exception as error:
        kind = type(dataset).__name__
        return Recognition(None, refused=(f"{kind} cannot be looked into: {said(error)}.",))


def _of_views(
    views: Views, store: FileStore[LabelledPaths], settings: PillowSettings, originals: Originals
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
            known[id(transform)] = found = read(transform, originals)
        except NotRecognised as why:
            raise NotRecognised(f"Of the views, number {number} runs as it is: {why}") from None
        fast += [f"view {number}: {found.fast[0]}", *found.fast[1:]]
        as_is += found.as_is
        notes += found.notes
    recognised = tuple(known[id(transform)] for transform in views.transforms)
    pipeline = ViewsPipeline(store, recognised, settings)
    return Recognition(pipeline, tuple(fast), tuple(as_is), tuple(notes))


def _check(dataset: Any, originals: Originals) -> None:
    """Raise NotRecognised where something else than the pipeline could matter."""
    kind = type(dataset)
    module: Any = sys.modules.get("torchvision.datasets.folder")
    known = (module.ImageFolder, module.DatasetFolder) if module else ()
    if kind not in known:
        own = ", and a subclass may do anything" if any(issubclass(kind, k) for k in known) else ""
        raise NotRecognised(
            f"{kind.__name__} is not torchvision's ImageFolder or DatasetFolder{own}."
        )
    why = altered(dataset, originals, ("__getitem__", "__len__"))
    if why or hasattr(dataset, "__getitems__"):
        why = why or "it has a __getitems__"
        raise NotRecognised(f"A method of {kind.__name__} was replaced: {why}.")
    _check_loader(dataset, originals)
    if dataset.target_transform is not None:
        raise NotRecognised(
            f"The target_transform {words(dataset.target_transform)} may make anything of a label."
        )
    if dataset.transform is None:
        raise NotRecognised("The dataset has no transform, so it gives PIL images.")


def _check_loader(dataset: Any, originals: Originals) -> None:
    """Raise NotRecognised where images may be read otherwise than by torchvision's loader."""
    paths = any(dataset.loader is each for each in _GIVES_PATHS)
    if paths and type(dataset.transform) in (Compiled, Views):
        if replaced := originals.replaced_in_pillow():
            raise NotRecognised(f"{replaced}.")
        return
    why_not = originals.replaced_in_loader(dataset.loader)
    if why_not is None:
        raise NotRecognised(f"The loader {words(dataset.loader)} is not torchvision's own.")
    if why_not:
        raise NotRecognised(f"{why_not}.")
    if sys.modules["torchvision"].get_image_backend() != "PIL":
        raise NotRecognised("torchvision's image backend is not PIL.")
