"""Recipes in other libraries: DALI on the CPU, albumentations, timm's own loader.

Guarantees: the same files, crops from the same distributions, normalised floats (batch, 3, 224,
224) or a list of them for several views, the same batch size and number of workers or threads. A
peer is skipped if it is not installed or has no such recipe. Pixels differ slightly: filters of the
same name differ in DALI and OpenCV, and albumentations uses other colour formulas.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from recipe_list import MEAN, RECIPES, STD
from recipe_views import DINO, SIMCLR, View, albumentations_view, dali_view
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder

__all__ = ["peers_of"]

Epochs = Callable[[Path, int, int], Callable[[], Iterator[int]]]
"""From a folder, a batch size and a number of workers: a function that reads an epoch and yields
the number of images of each batch."""


def peers_of(recipe: str) -> dict[str, Epochs]:
    """Installed peers that have a recipe, by name."""
    results: dict[str, Epochs] = {}
    for peer, (package, recipes) in _PEERS.items():
        if recipe in recipes and _installed(package):
            results[peer] = recipes[recipe]
    return results


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the parent package is missing, too
        return False


def _dali(*, cubic: bool = False, central: bool = False, smallest: float = 0.08) -> Epochs:
    def begun(folder: Path, batch: int, workers: int) -> Callable[[], Iterator[int]]:
        from nvidia.dali import fn, pipeline_def, types
        from nvidia.dali.plugin.pytorch import DALIClassificationIterator, LastBatchPolicy

        paths, labels = zip(*ImageFolder(str(folder)).samples, strict=True)
        filter = types.INTERP_CUBIC if cubic else types.INTERP_TRIANGULAR
        values = {"mean": [m * 255 for m in MEAN], "std": [s * 255 for s in STD]}

        @pipeline_def(batch_size=batch, num_threads=workers, device_id=None)
        def pipeline() -> tuple[Any, Any]:
            files, numbers = fn.readers.file(
                files=list(paths), labels=list(labels), random_shuffle=True, name="files"
            )
            if central:
                images = fn.decoders.image(files, adjust_orientation=False)
                images = fn.resize(images, resize_shorter=256, interp_type=filter)
                flip = 0
            else:
                images = fn.decoders.image_random_crop(
                    files, random_area=[smallest, 1.0], adjust_orientation=False
                )
                images = fn.resize(images, size=[224, 224], interp_type=filter)
                flip = fn.random.coin_flip()
            images = fn.crop_mirror_normalize(
                images, crop=(224, 224), mirror=flip, dtype=types.FLOAT, **values
            )
            return images, numbers

        batches = DALIClassificationIterator(
            pipeline(), reader_name="files", last_batch_policy=LastBatchPolicy.DROP, auto_reset=True
        )

        def epoch() -> Iterator[int]:
            for (made,) in batches:
                yield len(made["data"])

        return epoch

    return begun


def _dali_views(*views: View) -> Epochs:
    """Several views of an image that is decoded once, as a whole."""

    def begun(folder: Path, batch: int, workers: int) -> Callable[[], Iterator[int]]:
        from nvidia.dali import fn, pipeline_def
        from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

        paths, labels = zip(*ImageFolder(str(folder)).samples, strict=True)

        @pipeline_def(batch_size=batch, num_threads=workers, device_id=None)
        def pipeline() -> tuple[Any, ...]:
            files, numbers = fn.readers.file(
                files=list(paths), labels=list(labels), random_shuffle=True, name="files"
            )
            images = fn.decoders.image(files, adjust_orientation=False)
            return *(dali_view(images, view) for view in views), numbers

        batches = DALIGenericIterator(
            pipeline(),
            [*(f"view {number}" for number in range(len(views))), "label"],
            reader_name="files",
            last_batch_policy=LastBatchPolicy.DROP,
            auto_reset=True,
        )

        def epoch() -> Iterator[int]:
            for (made,) in batches:
                yield len(made["label"])

        return epoch

    return begun


class _OpenCV(Dataset[Any]):
    """Folder read with OpenCV as in albumentations' documentation: one view, or a list."""

    def __init__(self, folder: Path, *transforms: Callable[..., Any]) -> None:
        self._samples = ImageFolder(str(folder)).samples
        self._transforms = transforms

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import cv2

        cv2.setNumThreads(0)
        path, label = self._samples[index]
        image = cv2.imread(path, cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)
        made = [transform(image=image)["image"] for transform in self._transforms]
        return made[0] if len(made) == 1 else made, label


def _albumentations(steps: Callable[[Any, Any], list[Any]]) -> Epochs:
    def begun(folder: Path, batch: int, workers: int) -> Callable[[], Iterator[int]]:
        import albumentations
        import cv2
        from albumentations.pytorch import ToTensorV2

        floats = [albumentations.Normalize(MEAN, STD), ToTensorV2()]
        transform = albumentations.Compose([*steps(albumentations, cv2), *floats])
        data = _OpenCV(folder, transform)
        return _under_torch(data, batch, workers)

    return begun


def _albumentations_views(*views: View) -> Epochs:
    def begun(folder: Path, batch: int, workers: int) -> Callable[[], Iterator[int]]:
        data = _OpenCV(folder, *map(albumentations_view, views))
        return _under_torch(data, batch, workers)

    return begun


def _albumentations_crop(smallest: float, *, cubic: bool) -> Epochs:
    """Random crop of at least a share of the area, and a flip."""

    def steps(library: Any, cv2: Any) -> list[Any]:
        by = cv2.INTER_CUBIC if cubic else cv2.INTER_LINEAR
        crop = library.RandomResizedCrop((224, 224), (smallest, 1.0), interpolation=by)
        return [crop, library.HorizontalFlip()]

    return _albumentations(steps)


def _under_torch(data: Any, batch: int, workers: int) -> Callable[[], Iterator[int]]:
    loader = DataLoader(
        data, batch, shuffle=True, num_workers=workers, persistent_workers=True, drop_last=True
    )

    def epoch() -> Iterator[int]:
        for _, labels in loader:
            yield len(labels)

    return epoch


def _timm(recipe: str) -> Epochs:
    """timm's `create_loader` on the CPU: uint8 batches, converted to floats in the main process."""

    def begun(folder: Path, batch: int, workers: int) -> Callable[[], Iterator[int]]:
        import torch
        from timm.data import create_loader

        loader = create_loader(
            ImageFolder(str(folder)),
            (3, 224, 224),
            batch,
            is_training=True,
            num_workers=workers,
            use_prefetcher=True,
            device=torch.device("cpu"),
            persistent_workers=True,
            **_OF_TIMM[recipe],
        )

        def epoch() -> Iterator[int]:
            for images, _ in loader:
                yield len(images)

        return epoch

    return begun


_OF_TIMM: dict[str, dict[str, Any]] = {
    "timm, training": {},
    "timm, training, bicubic": {"interpolation": "bicubic", "color_jitter": None},
    "timm, RandAugment": {
        "interpolation": "bicubic",
        "auto_augment": "rand-m9-mstd0.5",
        "re_prob": 0.25,
    },
}

_PEERS: dict[str, tuple[str, dict[str, Epochs]]] = {
    "DALI": (
        "nvidia.dali",
        {
            "torchvision, training": _dali(),
            "MAE": _dali(cubic=True, smallest=0.2),
            "timm, evaluation": _dali(cubic=True, central=True),
            "timm, training, bicubic": _dali(cubic=True),
            "SimCLR, a single view": _dali_views(SIMCLR),
            "SimCLR, two views": _dali_views(SIMCLR, SIMCLR),
            "DINO, 2 + 8 views": _dali_views(*DINO),
        },
    ),
    "albumentations": (
        "albumentations",
        {
            "torchvision, training": _albumentations_crop(0.08, cubic=False),
            "MAE": _albumentations_crop(0.2, cubic=True),
            "timm, training, bicubic": _albumentations_crop(0.08, cubic=True),
            "timm, evaluation": _albumentations(
                lambda library, cv2: [
                    library.SmallestMaxSize(256, interpolation=cv2.INTER_CUBIC),
                    library.CenterCrop(224, 224),
                ]
            ),
            "SimCLR, a single view": _albumentations_views(SIMCLR),
            "SimCLR, two views": _albumentations_views(SIMCLR, SIMCLR),
            "DINO, 2 + 8 views": _albumentations_views(*DINO),
        },
    ),
    "timm's loader": ("timm", {recipe: _timm(recipe) for recipe in _OF_TIMM}),
}

assert all(recipe in RECIPES for _, recipes in _PEERS.values() for recipe in recipes)
