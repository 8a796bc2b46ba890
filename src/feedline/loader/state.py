"""State entries of dataset, order and engine, and their comparison on resume."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from torch.utils.data import IterableDataset

from feedline.errors import StateError
from feedline.loader.dataset_kind import own_source
from feedline.loader.options import Options
from feedline.loader.samplers import share_of
from feedline.recognition.steps import NotRecognised

__all__ = [
    "compare_made_by",
    "fingerprint_of",
    "identity_of",
    "warn_of",
]


def fingerprint_of(dataset: object) -> str:
    """Short text that differs if the samples do.

    It is the dataset's own `fingerprint()`, a hash of a torchvision folder's files and labels, or
    otherwise the dataset's class.
    """
    whole = own_source(dataset)
    if whole is not None and whole is not dataset:  # a Subset chooses some of it
        from feedline.recognition.recognise import source_within  # loads decoders

        with contextlib.suppress(NotRecognised):
            dataset = source_within(dataset)
    own = getattr(dataset, "fingerprint", None)
    if callable(own) and not isinstance(dataset, IterableDataset):
        return str(own())
    if "torchvision" in sys.modules:
        from feedline.recognition.samples import folder_fingerprint  # loads decoders

        folder = folder_fingerprint(dataset)
        if folder is not None:
            return folder
    kind = type(dataset)
    return f"{kind.__module__}.{kind.__qualname__}"


def identity_of(options: Options, dataset: str) -> dict[str, Any]:
    """Values that a state and the resuming loader must have in common, JSON-able.

    `PlannedPosition.state` adds the values of a planned order.

    Args:
        options: options of the loader.
        dataset: fingerprint of its dataset.
    """
    if options.order is not None or options.iterable:
        return {"dataset": dataset}
    _, ranks = share_of(options.index_sampler)
    phases = options.phases
    return {
        "dataset": dataset,
        "length": len(options.dataset) if hasattr(options.dataset, "__len__") else None,
        "global_batch_size": None if options.batch_size is None else options.batch_size * ranks,
        "drop_last": options.drop_last,
        "schedule": str(phases) if phases.image_sizes or options.schedule else None,
    }


def compare_made_by(state: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """Differences between how a state's batches were made and now, as texts.

    Args:
        state: saved state.
        now: `EngineChoice.made_by` of the loader.

    Raises:
        StateError: the state is damaged.
    """
    saved = state.get("made_by", now)
    known = isinstance(saved, Mapping) and saved.keys() == now.keys()
    if not known or not all(isinstance(text, str) for text in saved.values()):
        raise StateError("cannot resume: the state is damaged: invalid 'made_by'")
    different = [name for name in now if saved[name] != now[name]]
    return [f"{name} was {saved[name]!r}, is {now[name]!r}" for name in different]


def warn_of(differences: list[str], *, stacklevel: int) -> None:
    """Warn of the differences from `compare_made_by`."""
    warnings.warn(
        "the state's batches were made in another way: the samples are the same, but their pixels "
        f"may differ: {'; '.join(differences)}",
        RuntimeWarning,
        stacklevel=stacklevel,
    )
