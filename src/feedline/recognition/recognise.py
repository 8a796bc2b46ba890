"""A torchvision dataset as a pipeline of feedline's own, where it surely means the same.

Guarantees: never raises and changes nothing, whatever the object; torchvision is not imported (an
object of it can only come from where it was); what is not surely understood is not recognised, and
why is said. Only code of torchvision's own is run, on small made-up images; no code of the user's.

Relies on: torchvision's ImageFolder and DatasetFolder being no more than a list of (path, label), a
loader and a transform, as long as their methods are the original ones, which is looked at.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from feedline.recognition.originals import Originals
from feedline.recognition.pillow_reading import PillowSettings
from feedline.recognition.pipeline import ImagePipeline
from feedline.recognition.samples import store_of
from feedline.recognition.steps import NotRecognised, altered, said, words
from feedline.recognition.subsets import unwrapped
from feedline.recognition.transform_reader import read

__all__ = ["Recognition", "recognise"]


@dataclass(frozen=True)
class Recognition:
    """What was made of a dataset.

    Args:
        pipeline: makes its rows or samples; None: everything has to run as it is, elsewhere.
        fast: the steps of its pipeline that run on the fast path.
        as_is: those that run unchanged after them, in the same place.
        refused: why it, or a part of it, was not recognised, or makes no rows: sentences.
    """

    pipeline: ImagePipeline | None
    fast: tuple[str, ...] = ()
    as_is: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def recognise(dataset: object) -> Recognition:
    """Recognise a torchvision ImageFolder or DatasetFolder, or a Subset of one."""
    try:
        originals = Originals()
        folder, subsets = unwrapped(dataset, lambda subset: altered(subset, originals))
        _check(folder, originals)
        transform = read(folder.transform, originals)
        pipeline = ImagePipeline(store_of(folder, subsets), transform, PillowSettings.now())
        return Recognition(pipeline, transform.fast, transform.as_is, transform.notes)
    except NotRecognised as why:
        return Recognition(None, refused=(str(why),))
    except Exception as error:
        kind = type(dataset).__name__
        return Recognition(None, refused=(f"{kind} cannot be looked into: {said(error)}.",))


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
    why_not = originals.replaced_in_loader(dataset.loader)
    if why_not is None:
        raise NotRecognised(f"The loader {words(dataset.loader)} is not torchvision's own.")
    if why_not:
        raise NotRecognised(f"{why_not}.")
    if sys.modules["torchvision"].get_image_backend() != "PIL":
        raise NotRecognised("torchvision's image backend is not PIL.")
    if dataset.target_transform is not None:
        raise NotRecognised(
            f"The target_transform {words(dataset.target_transform)} may make anything of a label."
        )
    if dataset.transform is None:
        raise NotRecognised("The dataset has no transform, so it gives PIL images.")
