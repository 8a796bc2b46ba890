"""Workers import no library after their first sample, whatever the files, and stay small."""

import json
import sys

import numpy as np
import psutil
import pytest
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

from feedline import DataLoader, EvalCrop, ImageArray, ImageFolder, TrainCrop
from feedline.images import resize
from feedline.images.codec_registry import CODECS, register_codec
from processes import all_workers
from reporting_codec import SIGNATURE, ReportingCodec

pytestmark = pytest.mark.own_fork_server  # a shared one may have imported torch for other tests

MB = 1 << 20
DECODERS = {"PIL", "simplejpeg", "_cython", "cython_runtime"}
FILES = {
    "rgb.jpg": ("RGB", (500, 375), {}),
    "grey.jpg": ("L", (500, 375), {}),
    "cmyk.jpg": ("CMYK", (500, 375), {}),
    "progressive.jpg": ("RGB", (500, 375), {"progressive": True}),
    "turned.jpg": (
        "RGB",
        (500, 375),
        {"exif": b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0"},
    ),
    "large.jpg": ("RGB", (2400, 1600), {}),
    "large_grey.jpg": ("L", (2400, 1600), {}),
    "wide.jpg": ("RGB", (3000, 60), {}),
    "tall.png": ("RGB", (20, 3000), {}),
    "thin.png": ("RGB", (1, 900), {}),
    "tiny.png": ("RGB", (2, 3), {}),
    "rgba.png": ("RGBA", (500, 375), {}),
    "palette.png": ("P", (500, 375), {}),
    "bits.png": ("1", (500, 375), {}),
    "grey_16.png": ("I;16", (500, 375), {}),
    "lossy.webp": ("RGB", (500, 375), {}),
    "alpha.webp": ("RGBA", (900, 1800), {"lossless": True}),
    "image.bmp": ("RGB", (500, 375), {}),
    "image.ppm": ("RGB", (500, 375), {}),
    "image.tif": ("RGB", (500, 375), {"compression": "tiff_lzw"}),
}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """Files of many kinds, and two that report the process that reads them: first and last."""
    folder = tmp_path_factory.mktemp("zoo") / "images" / "class"
    folder.mkdir(parents=True)
    dice = np.random.default_rng(0)
    for name, (mode, size, options) in FILES.items():
        if mode == "I;16":
            image = Image.fromarray(dice.integers(0, 256, size[::-1], np.uint16))
        else:
            small = dice.integers(0, 256, (-(-size[1] // 8), -(-size[0] // 8), 3), np.uint8)
            image = Image.fromarray(small).resize(size).convert(mode)
        image.save(folder / name, **options)
    (folder / "unreadable.jpg").write_bytes(b"<html>not found</html>" * 9)
    for name in ("0.jpg", "z.jpg"):
        (folder / name).write_bytes(SIGNATURE)
    return folder.parent


@pytest.fixture
def reports(tmp_path):
    """Folder of the reports."""
    before = list(CODECS)
    register_codec(ReportingCodec("report", (".rep",), (SIGNATURE,), folder=str(tmp_path)))
    yield tmp_path
    CODECS[:] = before


def read(reports):
    return [json.loads(path.read_text()) for path in sorted(reports.iterdir())]


def libraries(modules):
    """Packages of modules that are neither of Python nor of a decoder."""
    names = {module.partition(".")[0] for module in modules}
    known = DECODERS | set(sys.stdlib_module_names)
    return {name for name in names if name not in known and not name.startswith("_cython")}


ROWS = {
    "RGB": ImageFolder,
    "grey": lambda folder: ImageFolder(folder, mode="L"),
    "upright": lambda folder: ImageFolder(folder, exif=True),
    "scaled": lambda folder: ImageFolder(folder, TrainCrop(filter="bicubic"), decode="scaled"),
    "lanczos": lambda folder: ImageFolder(folder, EvalCrop(filter="lanczos")),
    "nearest": lambda folder: ImageFolder(folder, EvalCrop(filter="nearest")),
}


@pytest.mark.skipif(resize.compiled is None, reason="torch resizes, from the start")
@pytest.mark.parametrize("name", ROWS)
def test_workers_of_image_rows_never_import_torch(name, zoo, reports):
    loader = DataLoader(
        *(ROWS[name](zoo), 32),
        schedule="64x1,112x1,224x1,512x1",
        num_workers=1,
        shuffle=False,
        on_error="skip",
    )
    with loader:
        for _ in range(loader.epochs):
            assert sum(len(labels) for _, labels in loader) == len(FILES) + 2
    first, *_, last = found = read(reports)
    assert len(found) == 2 * loader.epochs
    assert first["pid"] == last["pid"]
    assert libraries(last["modules"]) == libraries(first["modules"])
    assert not {"torch", "torchvision"} & libraries(last["modules"])
    # A decoder's memory for the largest image, and what the C library keeps of it.
    assert last["rss_bytes"] - first["rss_bytes"] < 100 * MB


PIPELINES = {
    "v1": lambda: v1.Compose([v1.RandomResizedCrop(64), v1.RandomHorizontalFlip(), v1.ToTensor()]),
    "floats": lambda: v1.Compose([v1.ToTensor(), v1.Resize(64), v1.CenterCrop(64)]),
    "v2": lambda: v2.Compose([v2.ToImage(), v2.RandomResizedCrop(64)]),
    "unchanged steps": lambda: v1.Compose([v1.Resize((64, 64)), v1.RandAugment(), v1.ToTensor()]),
}


@pytest.mark.filterwarnings("ignore:.*16-bit grey")
@pytest.mark.parametrize("name", PIPELINES)
def test_workers_of_a_pipeline_import_nothing_after_their_start(name, zoo, reports):
    data = ImageFolder(zoo, PIPELINES[name]())
    with DataLoader(data, 32, num_workers=1, persistent_workers=True, on_error="skip") as loader:
        for _ in range(2):
            delivered = sum(len(labels) for _, labels in loader)
            assert delivered == len(FILES) + 2, loader.skipped
    first, *_, last = read(reports)
    assert libraries(last["modules"]) == libraries(first["modules"])


@pytest.mark.skipif(resize.compiled is None, reason="torch resizes, from the start")
@pytest.mark.skipif(sys.platform != "linux", reason="reads the files that a process has mapped")
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_workers_of_arrays_do_not_load_torch(channels):
    images = np.random.default_rng(0).integers(0, 256, (8, 70, 90, channels), np.uint8)
    data = ImageArray(images, np.arange(8), EvalCrop())
    with DataLoader(data, 8, schedule="2x1,32x1,128x1", num_workers=1) as loader:
        for _ in range(loader.epochs):
            assert [len(labels) for _, labels in loader] == [8]
        (worker,) = all_workers(loader, 1)
        assert not [m.path for m in psutil.Process(worker).memory_maps() if "libtorch" in m.path]
