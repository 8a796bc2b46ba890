"""What a state says of a dataset."""

from __future__ import annotations

import sys

from torch.utils.data import IterableDataset

__all__ = ["fingerprint_of"]


def fingerprint_of(dataset: object) -> str:
    """A short text that differs where the samples do.

    It is the dataset's own `fingerprint()`, a hash of a torchvision folder's files and labels, or
    else the dataset's class.
    """
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
