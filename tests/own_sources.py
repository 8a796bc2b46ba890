"""Every kind of feedline's sources with the same images, and pipelines for them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

import feedline
from feedline import DataLoader, ImageArray, ImageFolder, ImageList
from tars import write_tar

CLASSES = ["cats", "dogs"]


def colours(size: int = 24) -> v1.Compose:
    return v1.Compose(
        [
            v1.RandomResizedCrop(size),
            v1.RandomHorizontalFlip(),
            v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
            v1.RandomGrayscale(0.2),
            v1.GaussianBlur(5),
            v1.ToTensor(),
            v1.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
        ]
    )


def policy() -> v2.Compose:
    """A transform that is not fused."""
    return v2.Compose(
        [v2.RandomResizedCrop(24), v2.RandAugment(), v2.ToImage(), v2.ToDtype(torch.float32, True)]
    )


def views() -> Any:
    return feedline.views(colours(), colours(), colours(12))


class Two:
    """A user's wrapper."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, image: Any) -> list[Any]:
        return [self.transform(image), self.transform(image)]


PIPELINES: dict[str, Callable[[], Any]] = {
    "colours": colours,
    "policy": policy,
    "evaluation": lambda: v1.Compose([v1.Resize(28), v1.CenterCrop(24), v1.PILToTensor()]),
    "compiled": lambda: feedline.compile(colours()),
    "views": views,
    "wrapper": lambda: Two(colours()),
}


def csv(folder: Path, tmp: Path, transform: Any) -> Any:
    lines = [f"{path.relative_to(folder)},{path.parent.name}" for path in files(folder)]
    (tmp / "list.csv").write_text("\n".join(["path,label", *lines]))
    return ImageList.from_csv(tmp / "list.csv", root=folder, transform=transform)


def paths(folder: Path, tmp: Path, transform: Any) -> Any:
    return ImageList(files(folder), [path.parent.name for path in files(folder)], transform)


def zipped(folder: Path, tmp: Path, transform: Any) -> Any:
    return ImageFolder(shutil.make_archive(str(tmp / "all"), "zip", folder), transform)


def tarred(folder: Path, tmp: Path, transform: Any) -> Any:
    return ImageFolder(shutil.make_archive(str(tmp / "all"), "tar", folder), transform)


def a_folder(folder: Path, tmp: Path, transform: Any) -> Any:
    return ImageFolder(folder, transform)


def shards(folder: Path, tmp: Path, transform: Any) -> Any:
    members = [
        (f"{number:04}.{ending}", data)
        for number, path in enumerate(files(folder))
        for ending, data in (("jpg", path.read_bytes()), ("cls", path.parent.name.encode()))
    ]
    write_tar(tmp / "0.tar", members)
    return ImageList.from_webdataset(str(tmp / "0.tar"), transform=transform)


def lmdb(folder: Path, tmp: Path, transform: Any) -> Any:
    library = pytest.importorskip("lmdb")
    environment = library.open(str(tmp / "lmdb"), map_size=1 << 24)
    with environment.begin(write=True) as writing:
        for path in files(folder):
            writing.put(str(path.relative_to(folder)).encode(), path.read_bytes())
    environment.close()
    return ImageList.from_lmdb(
        tmp / "lmdb", labels=lambda key: key.partition("/")[0], transform=transform
    )


def hugging_face(folder: Path, tmp: Path, transform: Any, kind: str = "paths") -> Any:
    """Images in a Dataset as paths, as bytes, or as `save_to_disk` writes and reads them."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES)}
    )
    images = [
        {"bytes": path.read_bytes(), "path": None} if kind == "bytes" else str(path)
        for path in files(folder)
    ]
    columns = {
        "image": images,
        "label": [CLASSES.index(path.parent.name) for path in files(folder)],
    }
    split = datasets.Dataset.from_dict(columns, features=features)
    if kind == "saved":
        split.save_to_disk(tmp / "saved")
        split = datasets.load_from_disk(tmp / "saved")
    return ImageList.from_hf(split, transform=transform, root=folder)


def array(folder: Path, tmp: Path, transform: Any) -> Any:
    pixels = [np.asarray(Image.open(path).resize((48, 40))) for path in files(folder)]
    return ImageArray(np.stack(pixels), [CLASSES.index(p.parent.name) for p in files(folder)])


SOURCES = [a_folder, csv, paths, zipped, tarred, shards, lmdb, hugging_face]


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.jpg"))


def epochs(dataset: Any, **options: Any) -> list[Any]:
    with DataLoader(dataset, 5, **{"seed": 3, "shuffle": True, **options}) as loader:
        return [batch for _ in range(2) for batch in loader]


def flat(batches: Any) -> Iterator[torch.Tensor]:
    for part in batches:
        if isinstance(part, torch.Tensor):
            yield part
        else:
            yield from flat(part)


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    for one, other in zip(flat(ours), flat(theirs), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
