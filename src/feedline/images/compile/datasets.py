"""Image folders of torchvision and timm, and the samples that Subsets and ConcatDatasets select.

Guarantees: the files and labels of the dataset, in its order; the same fingerprint for a moved
folder and for any transform; no work per sample beyond listing them in Python. A Subset or a
ConcatDataset is unwrapped only if it is exactly torch's, unmodified; its indices and lengths must
match the inner dataset, which is checked before it is read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from feedline.images.compile.library_steps import CompileError, why_modified
from feedline.sources.folder import FileStore
from feedline.sources.store import Numbers, PathTable, common_folder, path_starts
from feedline.system import find_attribute, slashed

_MAX_DEPTH = 100  # datasets in datasets
_TOO_DEEP = f"is nested more than {_MAX_DEPTH} levels deep."


@dataclass(frozen=True, eq=False)
class FolderSelection:
    """Selected samples of folders, which are listed once each, in the order of their first use.

    `indices` count from the start of the first folder through all of them, in the dataset's order;
    None selects all samples of a single folder.
    """

    folders: list[Any]
    indices: Numbers | None


def is_torchvision_folder(dataset: object) -> bool:
    """Return True for torchvision's DatasetFolder, or a subclass. No user code runs."""
    module: Any = sys.modules.get("torchvision.datasets.folder")
    return module is not None and module.DatasetFolder in type(dataset).__mro__


def is_timm_folder(dataset: object) -> bool:
    """Return True for exactly timm's ImageDataset of a folder. No user code runs."""
    module: Any = sys.modules.get("timm.data.dataset")
    readers: Any = sys.modules.get("timm.data.readers.reader_image_folder")
    if module is None or readers is None or type(dataset) is not module.ImageDataset:
        return False
    return type(vars(dataset).get("reader")) is readers.ReaderImageFolder


def is_folder(dataset: object) -> bool:
    """Return True for a folder, or Subsets or ConcatDatasets of one. No user code runs."""
    for _ in range(_MAX_DEPTH):
        bases = type(dataset).__mro__
        if is_torchvision_folder(dataset) or is_timm_folder(dataset):
            return True
        if Subset in bases:
            dataset = vars(dataset).get("dataset")
        elif ConcatDataset in bases:
            parts = vars(dataset).get("datasets")
            dataset = parts[0] if type(parts) is list and parts else None
        else:
            return False
    return False


def is_source_class(kind: type) -> bool:
    """Return True for a feedline image source class, or a subclass."""
    # The module, which loads decoders, was imported if there is such a class.
    module: Any = sys.modules.get("feedline.images.rows")
    return module is not None and module.ImageSource in kind.__mro__


def _check_is_folder(folder: object) -> None:
    if not is_torchvision_folder(folder) and not is_timm_folder(folder):
        raise CompileError("It is not a folder.")


def select_folders(
    dataset: Any, check: Callable[[Any], None] = _check_is_folder
) -> FolderSelection:
    """Unwrap unmodified Subsets and ConcatDatasets of a dataset; `check` raises CompileError for an
    inner dataset that is not a supported folder.
    """
    folders: list[Any] = []
    starts: dict[int, int] = {}

    def select(dataset: Any, depth: int) -> Numbers:
        inner, subsets = unwrap_subsets(dataset)
        if type(inner) is ConcatDataset and not why_modified(inner):
            if depth == _MAX_DEPTH:
                raise CompileError(f"The ConcatDataset {_TOO_DEEP}")
            parts = [select(part, depth + 1) for part in inner.datasets]
            if np.cumsum([len(part) for part in parts]).tolist() != inner.cumulative_sizes:
                raise CompileError("The parts of the ConcatDataset have changed their lengths.")
            return select_indices(subsets, np.concatenate(parts))
        if id(inner) not in starts:
            check(inner)
            starts[id(inner)] = sum(len(_samples_of(folder)) for folder in folders)
            folders.append(inner)
        start = starts[id(inner)]
        return select_indices(subsets, np.arange(start, start + len(_samples_of(inner))))

    indices = select(dataset, 0)
    return FolderSelection(folders, None if folders[0] is dataset else indices)


def unwrap_subsets(dataset: Any) -> tuple[Any, list[Any]]:
    """Dataset within unmodified Subsets, and these, the outer one first."""
    subsets: list[Any] = []
    while type(dataset) is Subset and not why_modified(dataset):
        if len(subsets) == _MAX_DEPTH:
            raise CompileError(f"The Subset {_TOO_DEEP}")
        subsets.append(dataset)
        dataset = dataset.dataset
    return dataset, subsets


def select_indices(subsets: list[Any], selection: Numbers) -> Numbers:
    """Select from sample indices by Subsets, the outer one first."""
    for subset in reversed(subsets):
        indices = np.asarray(subset.indices)
        if indices.shape == (0,):
            indices = indices.astype(np.int64)
        if indices.ndim != 1 or indices.dtype.kind not in "iu":
            raise CompileError("The indices of the Subset are not a list of whole numbers.")
        length = len(selection)
        if indices.size and not (-length <= indices.min() and indices.max() < length):
            raise CompileError(f"The indices of the Subset exceed its {length} samples.")
        # Negative indices count from the end.
        selection = selection[indices.astype(np.int64) % max(length, 1)]
    return selection


def _list_of(folder: Any) -> Any:
    """Object with a folder's samples and root: timm's reader, or the dataset itself."""
    return folder.reader if is_timm_folder(folder) else folder


def _samples_of(folder: Any) -> list[Any] | tuple[Any, ...]:
    """Sample list of a folder."""
    samples = _list_of(folder).samples
    if type(samples) not in (list, tuple):
        raise CompileError(f"The samples are a {type(samples).__name__}, not a list.")
    return samples  # type: ignore[no-any-return]


def class_names(folders: Sequence[Any]) -> list[str] | None:
    """Class names; None if folders have none, or different ones."""
    first, *others = map(_classes_of, folders)
    if not isinstance(first, list) or not all(isinstance(name, str) for name in first):
        return None
    return list(first) if all(other == first for other in others) else None


def _classes_of(folder: Any) -> Any:
    if not is_timm_folder(folder):
        return find_attribute(folder, "classes")
    numbers = folder.reader.class_to_idx
    names = sorted(numbers, key=numbers.get)
    return names if [numbers[name] for name in names] == list(range(len(names))) else None


def folder_root(folders: Sequence[Any]) -> str | None:
    """Folder of a single dataset, with a trailing separator; None without one."""
    root = find_attribute(_list_of(folders[0]), "root") if len(folders) == 1 else None
    if not isinstance(root, (str, bytes, os.PathLike)):
        return None
    return os.path.join(os.path.expanduser(os.fsdecode(root)), "")


def folder_fingerprint(dataset: object) -> str | None:
    """Fingerprint of the paths and labels of a folder of torchvision or timm, or of parts of some.

    Equal to the `fingerprint()` of a compiled pipeline; None for any other dataset, and if samples
    are not (path, int). 1.3 million samples take about half a second.
    """
    try:
        return file_store(select_folders(dataset)).fingerprint()
    except Exception:
        return None


def file_store(selection: FolderSelection) -> FileStore:
    """Files and labels of selected folders."""
    folders, indices = selection.folders, selection.indices
    samples: Sequence[Any] = _samples_of(folders[0])
    if len(folders) > 1:
        samples = [sample for folder in folders for sample in _samples_of(folder)]
    root = folder_root(folders)
    if root is None:  # that of all samples, so that it is the same for any selection of them
        labels = [label for _, label in samples]
        samples = list(zip(_absolute(samples), labels, strict=True))
        root = common_folder([path for path, _ in samples])
    if indices is not None:
        samples = [samples[index] for index in indices.tolist()]
    labels = [label for _, label in samples]
    for kind in set(map(type, labels)) - {int}:
        raise CompileError(f"Labels are of type {kind.__name__}, not int.")
    names = [path for path, _ in samples]
    if set(map(type, names)) - {str}:
        names = list(map(os.fsdecode, names))
    # With a zero byte before each name, one search finds the root at all beginnings.
    text = "\0".join(["", *names])
    if text.count(f"\0{root}") == len(names):
        # Without the root a moved folder has the same fingerprint, and paths are shorter.
        text = text.replace(f"\0{root}", "\0")
        prefix = os.path.join(os.getcwd(), root)
    else:
        text = "\0".join(["", *_absolute(samples)])
        prefix = ""
    blob = np.frombuffer(os.fsencode(slashed(text[1:]) + "\0" * bool(names)), np.uint8)
    starts = path_starts(blob)
    if len(starts) != len(names) + 1:
        raise CompileError("A path contains a zero byte.")
    paths = PathTable(blob, starts, np.array(labels, np.int64))
    return FileStore(paths, os.fsencode(prefix))


def _absolute(samples: Sequence[Any]) -> Iterator[str]:
    here = os.getcwd()
    return (os.path.join(here, os.fsdecode(path)) for path, _ in samples)
