"""Valid files of every format, orientation and chroma layout: Pillow's pixels from each source."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile
from torchvision import transforms
from valid_files import SIDE, all_files, by_pillow, write_files

import feedline
from feedline import EvalCrop, ImageFolder, ImageList
from feedline.cache.damage import broken_images
from feedline.errors import ImageError
from feedline.images import jpeg

FILES = all_files()
NAMES = sorted(FILES)
ENDINGS = tuple({Path(name).suffix for name in NAMES})
ORIGINAL = "ignore:.*16-bit grey:UserWarning"

pytestmark = pytest.mark.filterwarnings(ORIGINAL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("files") / "set", FILES)


@pytest.fixture(params=["compiled", "simplejpeg"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "simplejpeg":
        monkeypatch.setattr(jpeg, "compiled", None)


def whole(image: Image.Image) -> np.ndarray[Any, Any]:
    return np.array(image)


def read_folder(root: Path, scratch: Path, **options: Any) -> Any:
    return ImageFolder(root, EvalCrop(1.0), extensions=ENDINGS, **options)


def read_archive(root: Path, scratch: Path, **options: Any) -> Any:
    with zipfile.ZipFile(scratch / "set.zip", "w") as archive:
        for name in NAMES:
            archive.write(root / "class" / name, f"class/{name}")
    return ImageFolder(scratch / "set.zip", EvalCrop(1.0), extensions=ENDINGS, **options)


def read_list(root: Path, scratch: Path, **options: Any) -> Any:
    paths = [root / "class" / name for name in NAMES]
    return ImageList(paths, range(len(NAMES)), whole, **options)


def read_hugging_face(root: Path, scratch: Path, exif: bool) -> Any:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    columns = {
        "image": [{"bytes": FILES[name], "path": None} for name in NAMES],
        "label": list(range(len(NAMES))),
    }
    data = datasets.Dataset.from_dict(columns, features=features)
    # Upright is its default.
    return ImageList.from_hf(data, transform=whole, **({} if exif else {"exif": False}))


def read_cache(root: Path, scratch: Path, **options: Any) -> Any:
    feedline.build_cache(read_list(root, scratch, **options), scratch / "cache", (SIDE,), workers=0)
    return ImageFolder(scratch / "cache", EvalCrop(1.0), **options)


def read_raw_cache(root: Path, scratch: Path, **options: Any) -> Any:
    source = read_folder(root, scratch, **options)
    feedline.build_cache(source, scratch / "cache", (SIDE,), raw=True, workers=0)
    return ImageFolder(scratch / "cache", whole, **options)


SOURCES: list[Callable[..., Any]] = [
    *(read_folder, read_archive, read_list, read_hugging_face),
    *(read_cache, read_raw_cache),
]


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("exif", [False, True])
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_every_source_reads_the_pixels_of_pillow(
    folder: Path, tmp_path: Path, source: Callable[..., Any], exif: bool
) -> None:
    data = source(folder, tmp_path, exif=exif)
    is_crop = isinstance(data.transform, EvalCrop)
    size = {"image_size": SIDE} if is_crop else {}
    different = []
    for name, (images, _) in zip(NAMES, feedline.DataLoader(data, 1, **size), strict=True):
        expected = by_pillow(FILES[name], exif=exif)
        if is_crop:
            top, left = (expected.shape[0] - SIDE) // 2, (expected.shape[1] - SIDE) // 2
            expected = expected[top : top + SIDE, left : left + SIDE].transpose(2, 0, 1)
        if not np.array_equal(images[0], expected):
            different.append(name)
    assert different == []


@pytest.mark.parametrize("is_fused", [True, False])
def test_a_compiled_pipeline_reads_the_pixels_of_pillow(folder: Path, is_fused: bool) -> None:
    steps = [transforms.CenterCrop(SIDE), transforms.PILToTensor()]
    if is_fused:
        steps.insert(0, transforms.Resize(SIDE))
    else:
        steps.insert(0, transforms.Lambda(Image.Image.copy))
    pipeline = transforms.Compose(steps)
    compiled = feedline.compile(pipeline)
    different = []
    for name in NAMES:
        expected = pipeline(Image.fromarray(by_pillow(FILES[name], exif=False)))
        for image in (folder / "class" / name, FILES[name]):
            if not np.array_equal(compiled(image), expected):
                different.append(name)
    assert different == []


def test_doctor_finds_nothing_broken(folder: Path) -> None:
    assert broken_images([folder / "class" / name for name in NAMES], workers=1) == []


UNREADABLE = {
    "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n",
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(99),
    "MPEG": b"\0\0\1\xb3\x01\x00\x10" + bytes(99),
}
"""Files that Pillow knows, and does not decode by itself."""


@pytest.mark.parametrize("format", UNREADABLE)
def test_a_format_that_is_not_read_is_named_by_every_source(tmp_path: Path, format: str) -> None:
    root = write_files(tmp_path / "set", {"0.png": FILES["format-PNG-RGB.png"]})
    path = root / "class" / "1.jpg"
    path.write_bytes(UNREADABLE[format])
    data = ImageFolder(root)
    reads: list[Callable[[], Any]] = [
        lambda: list(feedline.DataLoader(data, 1, image_size=SIDE)),
        lambda: feedline.build_cache(root, tmp_path / "cache", (SIDE,), workers=0),
        lambda: feedline.compile(transforms.Resize(SIDE))(path),
    ]
    for read in reads:
        with pytest.raises(ImageError) as caught:
            read()
        assert f"it is {format}" in str(caught.value)
        assert path.name in str(caught.value)
        assert "repair" not in str(caught.value)
    ((_, reason),) = broken_images([path], workers=1)
    assert f"it is {format}" in reason


class OwnFormat(ImageFile.ImageFile):
    """A format of one file, all red."""

    format = "OWN"

    def _open(self) -> None:
        self._size, self._mode = (2 * SIDE, SIDE), "RGB"
        self.tile = []
        self.im = Image.new("RGB", self.size, "red").im


SIGNATURES = {"OWN": b"own format", "JXL": b"\xff\n"}


def is_own(first: bytes) -> bool:
    return first.startswith(tuple(SIGNATURES.values()))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", SIGNATURES)
def test_a_format_that_was_added_to_pillow_is_read(
    tmp_path: Path, name: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if feedline reads it with a package that is not installed, as JPEG XL."""
    if name == "JXL" and find_spec("pillow_jxl"):
        pytest.skip("pillow_jxl is installed")
    Image.init()
    monkeypatch.setattr(Image, "ID", [*Image.ID])
    monkeypatch.setattr(Image, "OPEN", {**Image.OPEN})
    Image.register_open(name, OwnFormat, is_own)
    files = dict.fromkeys(("0.jpg", "1.jpg"), SIGNATURES[name])
    root = write_files(tmp_path / "set", files)
    loader = feedline.DataLoader(ImageFolder(root), 2, image_size=SIDE, num_workers=workers)
    ((images, _),) = loader
    assert images[:, :, 0, 0].tolist() == [[255, 0, 0]] * 2
