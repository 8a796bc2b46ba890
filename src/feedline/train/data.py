"""Training and validation images of a run, and their loaders.

Two folder layouts: `train/` with `val/`, `valid/`, `validation/` or `test/` next to it; or a folder
of class folders, with validation images only if `--val-dir` names some.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from feedline.cache.source import list_splits
from feedline.errors import DatasetError, FeedlineError, StateError
from feedline.images.crops import EvalCrop, TrainCrop
from feedline.images.folder import ImageFolder
from feedline.loader import DataLoader
from feedline.sources.folder import TRAIN_NAME, VAL_NAMES, table_hint
from feedline.sources.remote_filesystem import was_url
from feedline.system import LONG_PATH_HINT, long_path_problem
from feedline.train.augment import BatchAugmentation
from feedline.train.config import differences, read_config
from feedline.train.recipe import Recipe, RunSettings
from feedline.train.run_folder import RECIPE_NAME


@dataclass(frozen=True, kw_only=True, slots=True)
class Splits:
    """Folders of class folders; `note` is a message for the user, or ""."""

    train: Path
    val: Path | None
    note: str = ""


def _has_folders(folder: Path) -> bool:
    return folder.is_dir() and any(child.is_dir() for child in folder.iterdir())


def find_splits(root: Path, *, val: Path | None = None) -> Splits:
    """Find the images of a dataset, in one of the two layouts; `val` overrides its own."""
    for folder in (root, val):
        if folder is None or folder.is_dir():
            continue
        if was_url(folder):
            raise DatasetError(
                f"{folder} is a URL; this command reads local folders",
                hint="copy the images or the cache to a local disk. In Python, "
                "feedline.ImageFolder reads a cache at a URL",
            )
        if problem := long_path_problem(folder):
            raise DatasetError(f"{folder}: {problem}", hint=LONG_PATH_HINT)
        found = "a file, expected a folder" if folder.exists() else "no such folder"
        raise DatasetError(
            f"{folder}: {found}",
            hint="name a folder with train/ and val/, or a folder of class folders; "
            f"`feedline demo-data demo-data` makes one to try{table_hint(str(folder))}",
        )
    train, note = root, ""
    others = [root / name for name in VAL_NAMES if _has_folders(root / name)]
    if TRAIN_NAME in list_splits(root) and _has_folders(root / TRAIN_NAME):
        train = root / TRAIN_NAME
        if val is None and others:
            val, *unused = others
            names = ", ".join(f"{path.name}/" for path in unused)
            note = f"validating on {val}, not on {names}" if unused else ""
        elif val is None:
            names = ", ".join(f"{name}/" for name in VAL_NAMES)
            note = f"no validation: none of {names} next to {train}; --val-dir names one"
    elif others:
        raise DatasetError(
            f"{root}: found {others[0].name}/ but no train/ with class folders",
            hint="name a folder with both, or a folder of class folders",
        )
    elif val is None:
        note = f"no validation: {root} is a folder of class folders; --val-dir names one"
    for folder in (train, val):
        if folder is not None and not _has_folders(folder):
            name = min((child.name for child in folder.iterdir()), default="")
            content = f"only files such as {name!r}" if name else "it is empty"
            raise DatasetError(
                f"{folder}: no class folders, {content}",
                hint="make a folder for each class, or train/ and val/ with one for each class",
            )
    return Splits(train=train, val=val, note=note)


def val_folder(root: Path) -> Path:
    """The folder of validation images under `root`, or `root` itself if it has class folders."""
    splits = find_splits(root)
    return splits.val or splits.train


def run_val_folder(weights: Path) -> Path:
    """The validation images of a run, by its file of weights (DatasetError if unknown)."""
    config, hint = weights.with_name(RECIPE_NAME), f"feedline evaluate {weights} DIR"
    if not config.is_file():
        raise DatasetError(f"no validation images are known: {config} is missing", hint=hint)
    run = read_config(config)[1]
    root = run.val_dir or run.data
    if root is None or not root.is_dir():
        raise DatasetError(f"{config}: the validation images, in {root}, are missing", hint=hint)
    folder = run.val_dir or find_splits(root).val
    if folder is None:
        raise DatasetError(f"{config}: the run had no validation images", hint=hint)
    return folder


def label_map(train: Sequence[str], val: Sequence[str]) -> list[int] | None:
    """The training label of each validation label, or None if they are equal."""
    numbers = {name: label for label, name in enumerate(train)}
    unknown = [name for name in val if name not in numbers]
    if unknown:
        raise DatasetError(
            f"{len(unknown)} class{'es' * (len(unknown) > 1)} of the validation images not in the "
            f"training images, e.g. {unknown[0]!r}; training has {', '.join(list(train)[:8])}"
            f"{', ...' if len(train) > 8 else ''}",
            hint="class folders must have the same names in both",
        )
    mapped = [numbers[name] for name in val]
    return None if mapped == list(range(len(train))) else mapped


@dataclass(frozen=True, slots=True)
class TrainData:
    """Images of a run, with what identifies the training images in a checkpoint."""

    train: ImageFolder
    val: ImageFolder | None
    labels: Sequence[int] | None  # see `label_map`
    identity: dict[str, Any]
    note: str

    @classmethod
    def find(cls, root: Path, val: Path | None) -> TrainData:
        """Find the images of a dataset; see `find_splits`."""
        splits = find_splits(root, val=val)
        train = ImageFolder(splits.train, transform=TrainCrop())
        if len(train.classes) < 2:
            raise DatasetError(
                f"{splits.train}: one class only ({', '.join(train.classes)}); training needs two "
                "class folders or more",
                hint="is this the folder of one class? Name its parent",
            )
        images = None if splits.val is None else ImageFolder(splits.val, transform=EvalCrop())
        labels = None if images is None else label_map(train.classes, images.classes)
        files = train.fingerprint()
        identity = {"classes": list(train.classes), "images": len(train), "files": files}
        return cls(train, images, labels, identity, splits.note)

    def check_resumable(self, saved: Mapping[str, Any], checkpoint: Path) -> None:
        """Check that these are the images of a checkpoint; raise StateError otherwise."""
        if found := differences(saved, self.identity):
            raise StateError(
                f"cannot resume: {checkpoint} has another dataset ({found})",
                hint="name the folder it was trained on, with the same files, or start a new run "
                "without --resume",
            )


def train_loader(
    recipe: Recipe, images: ImageFolder, run: RunSettings, device: torch.device, stack: ExitStack
) -> DataLoader[Any]:
    """Make the loader of the training images; it closes with the stack."""
    augmentation = BatchAugmentation(recipe, len(images.classes))
    loader = _loader(recipe, run, device)(
        images,
        recipe.batch_size,
        schedule=recipe.loader_schedule,
        pixel_transform=augmentation.pixels,
        batch_transform=augmentation.batch,
        cache=run.cache,
        # A last batch of one or two images upsets batch normalisation.
        drop_last=len(images) >= recipe.largest_batch,
    )
    return stack.enter_context(loader)


def no_image_error(loader: DataLoader[Any]) -> FeedlineError:
    """Error of an epoch of which no image could be read."""
    return FeedlineError(f"no image of an epoch could be read; the last: {loader.skipped[-1][1]}")


def val_loader(
    recipe: Recipe, data: TrainData, run: RunSettings, device: torch.device, stack: ExitStack
) -> DataLoader[Any] | None:
    """Make the loader of the validation images, if there are any; it closes with the stack."""
    if data.val is None:
        return None
    loader = _loader(recipe, run, device)(
        data.val,
        recipe.largest_batch,
        image_size=recipe.val_image_size,
        max_image_size=max(phase.val_image_size or 0 for phase in recipe.phases),
        shuffle=False,
    )
    return stack.enter_context(loader)


def without_padding(loader: DataLoader[Any]) -> Iterator[tuple[torch.Tensor, ...]]:
    """Batches without the rows that only give each rank the same number of them."""
    for tensors in loader:
        padding = 0 if loader.batch is None else loader.batch.padding
        yield tuple(tensor[: len(tensor) - padding] for tensor in tensors)


def _loader(recipe: Recipe, run: RunSettings, device: torch.device) -> partial[DataLoader[Any]]:
    """Arguments that both loaders share."""
    return partial(
        DataLoader,
        seed=recipe.seed,
        num_workers="auto" if run.workers is None and run.settings is None else run.workers,
        settings=run.settings,
        device=str(device),
        on_error=recipe.on_error,
    )
