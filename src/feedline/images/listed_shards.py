"""WebDataset tar shards as a store with labels.

Guarantees: those of `webdataset_index`; an incomplete sample raises an error, or is listed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedline.errors import DatasetError, UsageError
from feedline.images.labels import Labels, labels_of
from feedline.images.tables import typed
from feedline.sources.label_places import endings_of, label_places
from feedline.sources.path_table import LabelledPaths
from feedline.sources.shard_names import shard_paths
from feedline.sources.webdataset_index import look_through
from feedline.sources.webdataset_store import WebDatasetStore

__all__ = ["sharded_samples", "texts_typed"]


def sharded_samples(
    shards: Any, image: Any, label: Any, incomplete: str, classes: Any
) -> tuple[WebDatasetStore, Labels, list[tuple[str, str]]]:
    """Samples of shards, their labels, and the names of incomplete samples.

    Arguments and errors are those of `ImageList.from_webdataset`.
    """
    if incomplete not in ("raise", "skip"):
        raise UsageError(f'incomplete must be "raise" or "skip", got {incomplete!r}')
    places = () if label is None else label_places(label)
    found = look_through(shard_paths(shards), endings_of(image, "image"), places)
    count = len(found.labels) + len(found.left_out)
    if found.left_out and (incomplete == "raise" or not found.labels):
        name, why = found.left_out[0]
        raise DatasetError(
            f"{len(found.left_out)} of {count} samples are incomplete, the first {name!r}: {why}. "
            f"Requested: image={image!r}, label={label!r}"
            + ('; use incomplete="skip" to skip such samples' if found.labels else "")
        )
    names = LabelledPaths(found.blob, found.starts, found.entries)

    def called(sample: int) -> str:
        return f"sample {sample}, {names.path(sample)!r},"

    given = texts_typed(f"the dataset in {found.folder!r}", found.labels, classes, called)
    labels = labels_of(given, len(names), classes, called)
    return WebDatasetStore(found, labels.values), labels, found.left_out


def texts_typed(
    where: str, labels: list[Any], classes: Any, called: Callable[[int], str]
) -> list[Any]:
    """Labels with texts converted like a CSV column, unless they are `classes`."""
    places = [sample for sample, label in enumerate(labels) if isinstance(label, str)]
    texts = [labels[sample] for sample in places]
    if not texts or (classes is not None and set(texts) & set(classes)):
        return labels
    given = list(labels)
    values = typed(where, texts, lambda place: called(places[place]))
    for sample, value in zip(places, values, strict=True):
        given[sample] = value
    return given
