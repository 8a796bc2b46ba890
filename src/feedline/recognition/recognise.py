"""A torchvision dataset as a source of rows, where it surely means the same.

Guarantees: never raises and changes nothing, whatever the object; torchvision is not imported (an
object of it can only come from where it was); what is not surely understood is not recognised, and
why is said. Steps that run as they are run once, on a made-up image, to see what they give.

Relies on: torchvision's ImageFolder and DatasetFolder being no more than a list of (path, label), a
loader and a transform, as long as nobody put another method into them.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
from torch.utils.data import Subset

from feedline.images.paths import LabelledPaths, starts_of
from feedline.recognition.pillow_reading import PillowSettings
from feedline.recognition.pipeline import ImagePipeline
from feedline.recognition.result import Recognition
from feedline.recognition.steps import NotRecognised, said, unaltered, words
from feedline.recognition.transform_reader import read

__all__ = ["recognise"]

_DEEPEST = 100  # subsets of subsets


def recognise(dataset: object) -> Recognition:
    """Recognise a torchvision ImageFolder or DatasetFolder, or a Subset of one."""
    try:
        folder, subsets = _unwrapped(dataset)
        _check(folder)
        recipe = read(folder.transform)
        paths, prefix = _paths(folder, _chosen(folder, subsets))
        source = ImagePipeline(paths, prefix, recipe, PillowSettings.now())
        return Recognition(source, recipe.fast, recipe.as_is, recipe.notes)
    except NotRecognised as why:
        return Recognition(None, refused=(str(why),))
    except Exception as error:
        kind = type(dataset).__name__
        return Recognition(None, refused=(f"{kind} cannot be looked into: {said(error)}.",))


def _unwrapped(dataset: Any) -> tuple[Any, list[Any]]:
    """The dataset within any subsets, and those, the outer one first."""
    subsets: list[Any] = []
    while type(dataset) is Subset and unaltered(dataset):
        if len(subsets) == _DEEPEST:
            raise NotRecognised(f"The Subset is one of more than {_DEEPEST}, one in another.")
        subsets.append(dataset)
        dataset = dataset.dataset
    return dataset, subsets


def _chosen(folder: Any, subsets: list[Any]) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """Which of the folder's samples the subsets choose; None for all."""
    chosen: np.ndarray[Any, np.dtype[np.int64]] | None = None
    for subset in reversed(subsets):
        indices = np.asarray(subset.indices)
        if indices.shape == (0,):
            indices = indices.astype(np.int64)
        if indices.ndim != 1 or indices.dtype.kind not in "iu":
            raise NotRecognised("The indices of the Subset are no list of whole numbers.")
        length = len(folder.samples) if chosen is None else len(chosen)
        if indices.size and not (-length <= indices.min() and indices.max() < length):
            raise NotRecognised(f"The indices of the Subset go beyond its {length} samples.")
        # Negative ones count from the end of what they choose from.
        own = indices.astype(np.int64) % max(length, 1)
        chosen = own if chosen is None else chosen[own]
    return chosen


def _check(dataset: Any) -> None:
    """Raise NotRecognised where something else than the pipeline could matter."""
    kind = type(dataset)
    module: Any = sys.modules.get("torchvision.datasets.folder")
    known = (module.ImageFolder, module.DatasetFolder) if module else ()
    if kind not in known:
        own = ", and a subclass may do anything" if any(issubclass(kind, k) for k in known) else ""
        raise NotRecognised(
            f"{kind.__name__} is not torchvision's ImageFolder or DatasetFolder{own}."
        )
    if not unaltered(dataset) or hasattr(dataset, "__getitems__"):
        raise NotRecognised(f"A method of {kind.__name__} was replaced.")
    if not any(dataset.loader is own for own in (module.default_loader, module.pil_loader)):
        raise NotRecognised(f"The loader {words(dataset.loader)} is not torchvision's own.")
    if sys.modules["torchvision"].get_image_backend() != "PIL":
        raise NotRecognised("torchvision's image backend is not PIL.")
    if dataset.target_transform is not None:
        raise NotRecognised(
            f"The target_transform {words(dataset.target_transform)} may make anything of a label."
        )
    if dataset.transform is None:
        raise NotRecognised("The dataset has no transform, so it gives PIL images.")
    standard: Any = sys.modules["torchvision.datasets.vision"]
    both = dataset.transforms
    if type(both) is not standard.StandardTransform or (
        both.transform is not dataset.transform or both.target_transform is not None
    ):
        raise NotRecognised(
            "The dataset's transforms and its transform differ: give the transform when it is made."
        )


def _paths(
    dataset: Any, chosen: np.ndarray[Any, np.dtype[np.int64]] | None
) -> tuple[LabelledPaths, bytes]:
    """The samples of a dataset, and what stands before their paths."""
    samples = dataset.samples
    if type(samples) not in (list, tuple):
        raise NotRecognised(f"The samples are a {type(samples).__name__}, not a list.")
    if chosen is not None:
        samples = [samples[number] for number in chosen.tolist()]
    labels = [label for _, label in samples]
    for kind in set(map(type, labels)) - {int}:
        raise NotRecognised(f"Labels are of type {kind.__name__}, and the fast path's are int.")
    names = [os.fsdecode(path) for path, _ in samples]
    here = os.getcwd()
    root = os.path.join(os.path.expanduser(os.fsdecode(dataset.root)), "")
    if all(name.startswith(root) for name in names):
        # Without it a moved folder has the same fingerprint, and paths are shorter.
        names = [name[len(root) :] for name in names]
        prefix = os.path.join(here, root)
    else:
        names = [os.path.join(here, name) for name in names]
        prefix = ""
    blob = np.frombuffer(os.fsencode("".join(f"{name}\0" for name in names)), np.uint8)
    starts = starts_of(blob)
    if len(starts) != len(names) + 1:
        raise NotRecognised("A path has a zero byte, which no file's has.")
    return LabelledPaths(blob, starts, np.array(labels, np.int64)), os.fsencode(prefix)
