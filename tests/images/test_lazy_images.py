"""Lazy images look like Pillow's own, and compiled transforms decode only a part of them."""

import io
import pickle
from typing import Any

import numpy as np
import PIL
import pytest
import torch
from packaging.version import Version
from PIL import Image, ImageOps
from torch.utils.data import Dataset
from torchvision import transforms as T

import feedline
from feedline.images.lazy_images import undecoded
from image_inputs import opened
from slow import slow

pytestmark = pytest.mark.skipif(
    Version(PIL.__version__) < Version("11.1"), reason="lazy_images needs Pillow 11.1"
)

WIDTH, HEIGHT = 300, 200


def jpeg(mode="RGB", **options):
    """A smooth picture as a JPEG file."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    pixels = np.stack([x * 255 // WIDTH, y * 255 // HEIGHT, (x + y) % 256], axis=2).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


@pytest.fixture
def path(tmp_path):
    """A JPEG that is displayed rotated."""
    exif = Image.Exif()
    exif[0x0112] = 6
    file = tmp_path / "photo.jpg"
    file.write_bytes(jpeg(exif=exif, dpi=(300, 300), comment=b"sea"))
    return file


@pytest.fixture
def lazy():
    with feedline.lazy_images():
        yield


USES = {
    "array": np.asarray,
    "bytes": lambda image: image.tobytes(),
    "copy": lambda image: image.copy().tobytes(),
    "crop": lambda image: image.crop((10, 10, 50, 40)).tobytes(),
    "resize": lambda image: image.resize((50, 40)).tobytes(),
    "thumbnail": lambda image: (image.thumbnail((50, 50)), image.size, image.tobytes()),
    "transpose": lambda image: ImageOps.exif_transpose(image).tobytes(),
    "pixel": lambda image: image.load()[20, 30],
    "paste": lambda image: (image.paste((1, 2, 3), (0, 0, 9, 9)), image.tobytes()),
    "pickle": lambda image: pickle.loads(pickle.dumps(image)).tobytes(),
    "grey": lambda image: image.convert("L").tobytes(),
    "statistics": lambda image: image.getextrema(),
    "equal": lambda image: image == image.copy(),
    "closed": lambda image: (image.close(), image.size),
    "header": lambda image: (
        type(image), image.mode, image.size, image.info, dict(image.getexif()), image.format,
        image.getbands(), image.readonly, image.has_transparency_data,
    ),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_a_lazy_image_looks_like_pillows(use, path):
    expected = USES[use](opened(path))
    with feedline.lazy_images():
        image = opened(path)
        assert undecoded(image) is not None
    np.testing.assert_equal(USES[use](image), expected)


def test_the_opened_image_is_loaded_and_its_file_closed(path):
    def state():
        image = Image.open(path)
        file = image.fp
        converted = image.convert("RGB")
        converted.paste(0, (0, 0, 9, 9))
        image.load()
        assert file is not None
        return [file.closed, image.fp, image.tile, image.tobytes(), converted.tobytes()]

    expected = state()
    with feedline.lazy_images():
        assert state() == expected


@pytest.mark.usefixtures("lazy")
def test_other_images_are_decoded_at_once(path, tmp_path):
    grey = Image.open(io.BytesIO(jpeg("L"))).convert("RGB")
    cmyk = Image.open(io.BytesIO(jpeg("CMYK"))).convert("RGB")
    drafted = Image.open(path)
    drafted.draft("RGB", (100, 100))
    drafted = drafted.convert("RGB")
    loaded = Image.open(path)
    loaded.load()
    Image.open(path).save(tmp_path / "photo.png")
    png = Image.open(tmp_path / "photo.png").convert("RGB")
    for image in (grey, cmyk, drafted, loaded.convert("RGB"), png):
        assert undecoded(image) is None
    assert grey.mode == cmyk.mode == "RGB"
    assert drafted.size == (WIDTH // 2, HEIGHT // 2)
    assert Image.open(path).convert("L").mode == "L"
    assert Image.open(path).convert("RGB", None).mode == "RGB"


@pytest.mark.usefixtures("lazy")
@pytest.mark.parametrize("kept", [0.5, 0.99])
def test_the_error_of_a_truncated_file_is_raised_by_convert(kept):
    data = jpeg(quality=95)
    image = Image.open(io.BytesIO(data[: int(len(data) * kept)]))
    with pytest.raises(OSError, match="truncated"):
        image.convert("RGB")


@pytest.mark.parametrize(
    "transform",
    [
        T.Compose([T.Resize(64), T.CenterCrop(56), T.ToTensor()]),
        T.Compose([T.RandomResizedCrop(56), T.RandomHorizontalFlip(), T.ToTensor()]),
    ],
)
def test_a_compiled_transform_gives_what_it_gives_for_the_path(transform, path):
    compiled = feedline.compile(transform)
    torch.manual_seed(1)
    expected = compiled(path)
    with feedline.lazy_images():
        image = opened(path)
    torch.manual_seed(1)
    assert torch.equal(compiled(image), expected)
    assert undecoded(image) is not None  # only a part was decoded
    assert image.tobytes() == opened(path).tobytes()


class Photos(Dataset[Any]):
    """A user's own dataset; a sample tells whether its image was undecoded."""

    def __init__(self, path):
        self.path = path
        self.transform = feedline.compile(T.Compose([T.CenterCrop(8), T.ToTensor()]))

    def __len__(self):
        return 4

    def __getitem__(self, index):
        image = Image.open(self.path).convert("RGB")
        return undecoded(image) is not None, self.transform(image)


@pytest.mark.parametrize("method", ["fork", *slow("forkserver", "spawn")])
def test_workers_are_lazy_as_the_training_process(method, path):
    def load():
        with feedline.DataLoader(
            Photos(path), 4, num_workers=1, multiprocessing_context=method
        ) as loader:
            return *next(iter(loader)), loader.explain()

    is_lazy, pixels, text = load()
    assert not is_lazy.any()
    assert "undecoded" not in text
    with feedline.lazy_images():
        is_lazy, same, text = load()
    assert is_lazy.all()
    assert torch.equal(same, pixels)
    assert "undecoded" in text


def test_a_block_within_another_leaves_it_on(path):
    with feedline.lazy_images():
        with feedline.lazy_images():
            pass
        assert undecoded(opened(path)) is not None
    assert undecoded(opened(path)) is None
