"""The contract of all image sources: rows, batches, states and caches of the folder they hold."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from feedline import (
    DataLoader,
    EvalCrop,
    ImageArray,
    ImageFolder,
    ImageList,
    TrainCrop,
    build_cache,
)
from feedline.errors import FeedlineError
from feedline.order.batch_spec import Field
from torchvision_folder import image, item_row

SIZE = 16


def write_photos(root: Path, count: int) -> Path:
    """Create root/CLASS/N.jpg: images of one size, as an array needs them."""
    for number in range(count):
        path = root / ("cats", "dogs")[2 * number // count] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image(number, 48, 40).save(path, quality=92)
    return root


def names_of(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*.jpg"))


def labels_of(root: Path) -> list[str]:
    return [name.partition("/")[0] for name in names_of(root)]


def numbers_of(root: Path) -> list[int]:
    return [("cats", "dogs").index(name) for name in labels_of(root)]


def bytes_of(root: Path) -> list[bytes]:
    return [(root / name).read_bytes() for name in names_of(root)]


def archived(root: Path, scratch: Path, kind: str) -> ImageFolder:
    return ImageFolder(shutil.make_archive(str(scratch / "archive"), kind, root))


def array(root: Path, scratch: Path) -> ImageArray:
    return ImageArray(
        np.stack([Image.open(root / name) for name in names_of(root)]), numbers_of(root)
    )


def array_file(root: Path, scratch: Path) -> ImageArray:
    source = array(root, scratch)
    np.save(scratch / "images.npy", source.images)
    np.save(scratch / "labels.npy", source.targets)
    return ImageArray(scratch / "images.npy", scratch / "labels.npy")


def listed(root: Path, scratch: Path) -> ImageList:
    return ImageList(names_of(root), labels_of(root), root=root)


def csv(root: Path, scratch: Path) -> ImageList:
    lines = map(",".join, zip(names_of(root), labels_of(root), strict=True))
    (scratch / "list.csv").write_text("\n".join(["path,label", *lines]))
    return ImageList.from_csv(scratch / "list.csv", root=root)


def hugging_face(root: Path, scratch: Path, kind: str) -> ImageList:
    datasets = pytest.importorskip("datasets")
    label = datasets.ClassLabel(names=["cats", "dogs"])
    features = datasets.Features({"image": datasets.Image(), "label": label})
    images: list[Any] = [str(root / name) for name in names_of(root)]
    if kind == "bytes":
        images = [{"bytes": data, "path": None} for data in bytes_of(root)]
    columns = {"image": images, "label": numbers_of(root)}
    made = datasets.Dataset.from_dict(columns, features=features)
    if kind == "saved":
        made.save_to_disk(scratch / "saved")
        made = datasets.load_from_disk(scratch / "saved")
    return ImageList.from_hf(made, root=root)


def lmdb(root: Path, scratch: Path) -> ImageList:
    images = list(zip(bytes_of(root), labels_of(root), strict=True))
    opened = pytest.importorskip("lmdb").open(str(scratch / "lmdb"), map_size=1 << 24)
    with opened, opened.begin(write=True) as writing:
        for number, (data, label) in enumerate(images, 1):
            writing.put(b"image-%09d" % number, data)
            writing.put(b"label-%09d" % number, label.encode())
    return ImageList.from_lmdb(scratch / "lmdb", "image-%09d", "label-%09d")


def shards(root: Path, scratch: Path) -> ImageList:
    images = list(zip(bytes_of(root), labels_of(root), strict=True))
    for number, start in enumerate(range(0, len(images), 4)):
        with tarfile.open(scratch / f"{number}.tar", "w") as tar:
            for key, (data, label) in enumerate(images[start : start + 4]):
                for name, content in ((f"{key}.jpg", data), (f"{key}.txt", label.encode())):
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    return ImageList.from_webdataset(scratch / "*.tar", label="txt")


KINDS: dict[str, Callable[[Path, Path], Any]] = {
    "zip": lambda root, scratch: archived(root, scratch, "zip"),
    "tar": lambda root, scratch: archived(root, scratch, "tar"),
    "array": array,
    "array file": array_file,
    "list": listed,
    "csv": csv,
    "hf bytes": lambda root, scratch: hugging_face(root, scratch, "bytes"),
    "hf paths": lambda root, scratch: hugging_face(root, scratch, "paths"),
    "hf saved": lambda root, scratch: hugging_face(root, scratch, "saved"),
    "lmdb": lmdb,
    "shards": shards,
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos") / "photos", 12)


@pytest.fixture(params=KINDS)
def create(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Path], Any]:
    """A function that makes a source of the images of a folder."""

    def of(root: Path) -> Any:
        scratch = tmp_path / f"of {len(names_of(root))}"
        scratch.mkdir()
        return KINDS[request.param](root, scratch)

    return of


def batches(loader: Any) -> list[Any]:
    return [(images.clone(), labels.clone()) for _ in range(2) for images, labels in loader]


def same(ours: list[Any], theirs: list[Any]) -> bool:
    return len(ours) == len(theirs) and all(
        torch.equal(one, other)
        for pair in zip(ours, theirs, strict=True)
        for one, other in zip(*pair, strict=True)
    )


@pytest.mark.parametrize("crop", [TrainCrop(), EvalCrop()])
def test_rows_equal_those_of_the_folder(
    create: Callable[[Path], Any], photos: Path, crop: Any
) -> None:
    source, folder = create(photos).with_transform(crop), ImageFolder(photos, crop)
    assert len(source) == len(folder) == 12
    assert source.targets.tolist() == folder.targets.tolist()
    assert source.classes in (["cats", "dogs"], [])
    assert source.fields(SIZE) == (
        Field("image", "uint8", (SIZE, SIZE, 3)),
        Field("label", "int64", ()),
    )
    copy = pickle.loads(pickle.dumps(source, protocol=5))
    assert copy.fingerprint() == source.fingerprint()
    for sample in range(12):
        wanted, number = item_row(folder, sample, SIZE, seed=sample)
        for each in (source, copy):
            pixels, label = item_row(each, sample, SIZE, seed=sample)
            assert np.array_equal(pixels, wanted)
            assert label == number
    for sample in (12, 10**9):
        with pytest.raises(IndexError):
            item_row(source, sample, SIZE)


def test_batches_and_states_are_those_of_the_folder(
    create: Callable[[Path], Any], photos: Path
) -> None:
    options: dict[str, Any] = {"schedule": "8x1,16x1", "seed": 4, "prefetch": 1}
    source = create(photos)
    with DataLoader(ImageFolder(photos), 5, num_workers=0, **options) as loader:
        wanted = batches(loader)
    with DataLoader(source, 5, num_workers=2, **options) as loader:
        assert same(batches(loader), wanted)
    with DataLoader(source, 5, num_workers=0, **options) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with DataLoader(source.with_transform(source.transform), 5, num_workers=0, **options) as loader:
        loader.load_state_dict(state)
        assert same(batches(loader), wanted[1:])


def test_a_state_of_other_images_does_not_fit(
    create: Callable[[Path], Any], photos: Path, tmp_path: Path
) -> None:
    other = create(write_photos(tmp_path / "photos", 11))
    with DataLoader(create(photos), 4, image_size=SIZE, seed=1) as loader:
        state = loader.state_dict()
    with (
        DataLoader(other, 4, image_size=SIZE, seed=1) as loader,
        pytest.raises(FeedlineError, match="cannot resume"),
    ):
        loader.load_state_dict(state)


@pytest.mark.parametrize("kind", ["list", "lmdb", "shards"])
def test_a_cache_of_it_is_that_of_the_folder(kind: str, photos: Path, tmp_path: Path) -> None:
    source = KINDS[kind](photos, tmp_path)
    for name, data in (("ours", source), ("folder", photos)):
        build_cache(data, tmp_path / name, (24,), workers=0)
    ours, folder = (ImageFolder(tmp_path / name, EvalCrop()) for name in ("ours", "folder"))
    assert list(ours.classes) == ["cats", "dogs"]
    assert ours.targets.tolist() == folder.targets.tolist()
    for sample in range(12):
        assert np.array_equal(item_row(ours, sample, SIZE)[0], item_row(folder, sample, SIZE)[0])
    assert not [name for name in os.listdir(photos) if name not in ("cats", "dogs")]
