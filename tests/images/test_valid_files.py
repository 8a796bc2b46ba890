"""Valid files of every format, orientation and chroma layout: Pillow's pixels from each source."""

import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms
from valid_files import SIDE, SIGNATURES, OwnFormat, all_files, by_pillow, is_own, write_files

import feedline
from feedline import EvalCrop, ImageFolder, ImageList
from feedline.cache.damage import broken_images
from feedline.errors import ImageError
from feedline.images import jpeg

ORIGINAL = "ignore:.*16-bit grey:UserWarning"

pytestmark = pytest.mark.filterwarnings(ORIGINAL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("files") / "set", all_files())


def endings():
    return {Path(name).suffix for name in all_files()}


def read_folder(root, scratch, **options):
    return ImageFolder(root, EvalCrop(1.0), extensions=endings(), **options)


def read_archive(root, scratch, **options):
    with zipfile.ZipFile(scratch / "set.zip", "w") as archive:
        for name in all_files():
            archive.write(root / "class" / name, f"class/{name}")
    return ImageFolder(scratch / "set.zip", EvalCrop(1.0), extensions=endings(), **options)


def read_list(root, scratch, **options):
    paths = [root / "class" / name for name in all_files()]
    return ImageList(paths, range(len(all_files())), np.array, **options)


def read_hugging_face(root, scratch, exif):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    columns = {
        "image": [{"bytes": all_files()[name], "path": None} for name in all_files()],
        "label": list(range(len(all_files()))),
    }
    data = datasets.Dataset.from_dict(columns, features=features)
    # Upright is its default.
    return ImageList.from_hf(data, transform=np.array, **({} if exif else {"exif": False}))


def read_cache(root, scratch, **options):
    feedline.build_cache(read_list(root, scratch, **options), scratch / "cache", (SIDE,), workers=0)
    return ImageFolder(scratch / "cache", EvalCrop(1.0), **options)


def read_raw_cache(root, scratch, **options):
    source = read_folder(root, scratch, **options)
    feedline.build_cache(source, scratch / "cache", (SIDE,), raw=True, workers=0)
    return ImageFolder(scratch / "cache", np.array, **options)


SOURCES = [read_folder, read_archive, read_list, read_hugging_face, read_cache, read_raw_cache]


@pytest.mark.parametrize("exif", [False, True])
@pytest.mark.parametrize(
    ("source", "decoder"),
    [*((source, "compiled") for source in SOURCES), (read_folder, "simplejpeg")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_every_source_reads_the_pixels_of_pillow(
    folder, tmp_path, source, decoder, exif, monkeypatch
):
    if decoder == "simplejpeg":
        monkeypatch.setattr(jpeg, "compiled", None)
    data = source(folder, tmp_path, exif=exif)
    is_crop = isinstance(data.transform, EvalCrop)
    size = {"image_size": SIDE} if is_crop else {}
    different = []
    for name, (images, _) in zip(all_files(), feedline.DataLoader(data, 1, **size), strict=True):
        expected = by_pillow(all_files()[name], exif=exif)
        if is_crop:
            top, left = (expected.shape[0] - SIDE) // 2, (expected.shape[1] - SIDE) // 2
            expected = expected[top : top + SIDE, left : left + SIDE].transpose(2, 0, 1)
        if not np.array_equal(images[0], expected):
            different.append(name)
    assert different == []


def same(found, expected):
    return found.dtype == expected.dtype and torch.equal(found, expected)


@pytest.mark.parametrize("is_fused", [True, False])
def test_a_compiled_pipeline_reads_the_pixels_of_pillow_in_every_form(folder, is_fused):
    first = transforms.Resize(SIDE) if is_fused else transforms.Lambda(Image.Image.copy)
    pipeline = transforms.Compose([first, transforms.CenterCrop(SIDE), transforms.PILToTensor()])
    compiled, state, different = feedline.compile(pipeline), torch.get_rng_state(), []
    assert compiled.explain().startswith("fused" if is_fused else "unchanged")
    for name, data in all_files().items():
        path, pixels = folder / "class" / name, by_pillow(all_files()[name], exif=False)
        forms = [str(path), path, data, bytearray(data), memoryview(data), Image.fromarray(pixels)]
        expected = pipeline(Image.fromarray(pixels))
        different += [(name, type(form)) for form in forms if not same(compiled(form), expected)]
        if name == "camera.heic":  # Pillow needs another package
            continue
        with Image.open(path) as one, Image.open(path) as other:  # in their mode
            is_known = hasattr(torch, "uint16") or not one.mode.startswith("I;16")
            if is_known and not same(compiled(one), pipeline(other)):
                different.append((name, type(one)))
    assert different == []
    assert torch.equal(torch.get_rng_state(), state), "nothing is drawn here"


def test_doctor_finds_nothing_broken(folder):
    assert broken_images([folder / "class" / name for name in all_files()], workers=1) == []


UNREADABLE = {
    "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n",
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(99),
    "MPEG": b"\0\0\1\xb3\x01\x00\x10" + bytes(99),
}
"""Files that Pillow knows, and does not decode by itself."""


@pytest.mark.parametrize("format", UNREADABLE)
def test_a_format_that_is_not_read_is_named_by_every_source(tmp_path, format):
    root = write_files(tmp_path / "set", {"0.png": all_files()["format-PNG-RGB.png"]})
    path = root / "class" / "1.jpg"
    path.write_bytes(UNREADABLE[format])
    data = ImageFolder(root)
    reads = [
        lambda: list(feedline.DataLoader(data, 1, image_size=SIDE)),
        lambda: feedline.build_cache(root, tmp_path / "cache", (SIDE,), workers=0),
        lambda: feedline.compile(transforms.Resize(SIDE))(path),
    ]
    for read in reads:
        with pytest.raises(ImageError) as caught:
            read()
        assert format in str(caught.value)
        assert path.name in str(caught.value)
    ((_, reason),) = broken_images([path], workers=1)
    assert format in reason


@pytest.mark.parametrize(("name", "workers"), [("OWN", 0), ("JXL", 0), ("OWN", 2)])
def test_a_format_that_was_added_to_pillow_is_read(tmp_path, name, workers, monkeypatch):
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
