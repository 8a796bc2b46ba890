"""Pixels other than uint8 RGB: a property of the source, kept from file to batch."""

import json
import pickle
import warnings
import zipfile
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

import row_of
from feedline import (
    DataLoader,
    EvalCrop,
    ImageArray,
    ImageFolder,
    ImageList,
    TrainCrop,
    build_cache,
)
from feedline.cache.build import add_size
from feedline.errors import ImageError, UsageError
from feedline.images.crops import Box, Window
from feedline.images.resize import FILTERS, fill
from feedline.order.batch_spec import Field
from feedline.order.pixel_layout import RGB, PixelLayout

FORMATS = {"I;16": ("png", "tif"), "L": ("png", "jpg", "tif", "webp", "bmp")}

needs_uint16 = pytest.mark.skipif(not hasattr(torch, "uint16"), reason="needs torch 2.3")


def grey(number, mode, size=(60, 50)):
    coarse = np.random.default_rng(number).integers(0, 255, (6, 8)).astype(np.float32)
    pixels = np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)).clip(0, 255)
    if mode == "L":
        return Image.fromarray(pixels.astype(np.uint8))
    return Image.fromarray((pixels * 257).astype(np.uint16))


def write(root, mode):
    for number, ending in enumerate(FORMATS[mode]):
        path = root / "ab"[number % 2] / f"{number}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        grey(number, mode).save(path)
    return root


def row(source, sample, size=32):
    return row_of.row(source, sample, size)[0]


@pytest.mark.parametrize("transform", [TrainCrop(), EvalCrop(), TrainCrop(filter="nearest")])
def test_grey_rows_are_a_channel_of_the_rgb_rows(tmp_path, transform):
    root = write(tmp_path, "L")
    one, three = ImageFolder(root, transform, mode="L"), ImageFolder(root, transform)
    assert one.fields(32)[0] == Field("image", "uint8", (32, 32, 1))
    for sample in range(len(one)):
        difference = row(one, sample).astype(int) - row(three, sample)[..., :1]
        assert np.abs(difference).max() <= (3 if one.path(sample).endswith("webp") else 1)


def test_colours_become_grey_as_pillow_converts_them(tmp_path):
    (tmp_path / "a").mkdir()
    noise = np.random.default_rng(3).integers(0, 255, (40, 40, 3)).astype(np.uint8)
    for name, options in (("1.jpg", {}), ("2.png", {}), ("3.jpg", {"progressive": True})):
        Image.fromarray(noise).save(tmp_path / "a" / name, **options)
    source = ImageFolder(tmp_path, EvalCrop(1.0), mode="L")
    for sample in range(3):
        expected = np.asarray(Image.open(source.path(sample)).convert("L"))
        assert np.array_equal(row(source, sample, 40)[..., 0], expected)


def test_grey_16_bit_values_are_kept(tmp_path):
    source = ImageFolder(write(tmp_path, "I;16"), EvalCrop(1.0), mode="I;16")
    assert source.fields(50)[0] == Field("image", "uint16", (50, 50, 1))
    for sample in range(len(source)):
        whole = np.asarray(Image.open(source.path(sample)))
        assert whole.max() > 60_000
        assert np.array_equal(row(source, sample, 50)[..., 0], whole[:, 5:55])


@needs_uint16
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_have_the_layout_of_rgb_batches(tmp_path, workers):
    with zipfile.ZipFile(tmp_path / "grey.zip", "w") as archive:
        for path in sorted(write(tmp_path / "grey", "I;16").rglob("*.*")):
            archive.write(path, path.relative_to(tmp_path / "grey"))
    expected = None
    for root in (tmp_path / "grey", tmp_path / "grey.zip"):
        source = ImageFolder(root, EvalCrop(), mode="I;16")
        loader = DataLoader(source, 2, image_size=24, num_workers=workers)
        (images, _), *_ = list(loader)
        assert images.dtype is torch.uint16
        assert images.shape == (2, 1, 24, 24)
        assert np.array_equal(images[1, 0].numpy(), row(source, 1, 24)[..., 0])
        assert expected is None or torch.equal(images.int(), expected.int())
        expected = images


def test_torch_without_16_bit_integers_is_named(monkeypatch):
    monkeypatch.delattr(torch, "uint16", raising=False)
    source = ImageArray(np.zeros((4, 8, 8, 1), np.uint16), np.arange(4))
    with pytest.raises(UsageError, match=r"uint16 .* need torch 2\.3"):
        DataLoader(source, 2, image_size=8)


@needs_uint16
@pytest.mark.parametrize(("mode", "white"), [("L", 255), ("I;16", 65535)])
def test_values_are_normalised_by_white_and_the_channels_own_statistics(tmp_path, mode, white):
    source = ImageFolder(write(tmp_path, mode), EvalCrop(), mode=mode)
    settings = {"image_size": 24, "device": "cpu"}
    with pytest.raises(UsageError, match="1 channel"):
        DataLoader(source, 2, **settings)
    (images, _), *_ = list(DataLoader(source, 2, mean=(0.4,), std=(0.2,), **settings))
    expected = (torch.from_numpy(row(source, 1, 24)[..., 0].astype(np.float32)) / white - 0.4) / 0.2
    torch.testing.assert_close(images[1, 0], expected)


def test_lists_have_the_rows_of_the_folder(tmp_path):
    folder = ImageFolder(write(tmp_path / "grey", "I;16"), EvalCrop(), mode="I;16")
    paths = [folder.path(sample) for sample in range(2)]
    (tmp_path / "list.csv").write_text("path,label\n{},0\n{},1".format(*paths))
    for source in (
        ImageList(paths, [0, 1], EvalCrop(), mode="I;16"),
        ImageList.from_csv(tmp_path / "list.csv", transform=EvalCrop(), mode="I;16"),
    ):
        for sample in range(2):
            assert np.array_equal(row(source, sample), row(folder, sample))


def test_16_bits_read_as_8_are_clipped_with_one_warning_that_names_the_first_file(tmp_path):
    source = ImageFolder(write(tmp_path, "I;16"), EvalCrop())
    with pytest.warns(UserWarning, match=r"0\.png has 16-bit grey.*I;16") as caught:
        pixels = [row(source, sample) for sample in (0, 1, 0)]
    assert len(caught) == 1
    assert pixels[0].mean() > 250
    other = pickle.loads(pickle.dumps(source))
    other.open(1, 2)  # only the first worker warns
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        row(other, 0)
        row(ImageFolder(tmp_path, EvalCrop(), mode="I;16"), 0)


@pytest.mark.parametrize("ending", ["jpg", "png", "webp"])
def test_8_bits_read_as_16_raise_with_mode(tmp_path, ending):
    (tmp_path / "a").mkdir()
    grey(1, "L").save(tmp_path / "a" / f"1.{ending}")
    with pytest.raises(ImageError, match="16-bit grey, got an image of Pillow's mode"):
        row(ImageFolder(tmp_path, mode="I;16"), 0)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float16", "float32"])
@pytest.mark.parametrize("channels", [1, 7])
@pytest.mark.parametrize(
    "placement",
    [
        Box(0, 0, 40, 50, True),
        Box(0, 0, 40, 50, False, (3.2137, 1.4071, 30.517, 40.1093)),
        Window(31, 44, 4, 9),
        Window(90, 70, 40, 20, True),
    ],
)
def test_any_pixels_are_resized_as_rgb_is(dtype, channels, placement):
    """Against the compiled resize of three channels of bytes, to within its two roundings."""
    image = np.random.default_rng(2).integers(90, 160, (40, 50, channels))
    made = np.zeros((20, 24, channels), dtype)
    for filter, channel in product(FILTERS, range(channels)):
        placement = placement._replace(filter=filter)
        fill(made, image.astype(dtype), placement)
        expected = np.zeros((20, 24, 3), np.uint8)
        fill(expected, np.repeat(image[..., channel, None], 3, 2).astype(np.uint8), placement)
        difference = made[..., channel].astype(float) - expected[..., 0]
        assert np.abs(difference).max() <= (0 if dtype == "uint8" else 2)


def test_resize_in_floats_equals_torch():
    image = np.random.default_rng(4).random((70, 90, 5)).astype(np.float32)
    made = np.zeros((33, 41, 5), np.float32)
    for filter in ("bilinear", "bicubic"):
        fill(made, image, Box(0, 0, 70, 90, False, None, filter))
        theirs = torch.nn.functional.interpolate(
            torch.from_numpy(image).permute(2, 0, 1)[None], (33, 41), mode=filter, antialias=True
        )
        torch.testing.assert_close(torch.from_numpy(made).permute(2, 0, 1)[None], theirs)


@needs_uint16
@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_arrays_keep_their_channels_and_dtype(tmp_path, dtype):
    images = np.random.default_rng(1).integers(0, 9999, (6, 40, 40, 5)).astype(dtype)
    np.save(tmp_path / "images.npy", images)
    for given in (images, tmp_path / "images.npy"):
        source = pickle.loads(pickle.dumps(ImageArray(given, range(6), EvalCrop(1.0))))
        assert source.layout == PixelLayout(5, dtype)
        assert "5 channels" in repr(source)
        (batch, _), *_ = list(DataLoader(source, 6, image_size=40, num_workers=1))
        assert np.array_equal(batch.permute(0, 2, 3, 1).numpy(), images)
    other = ImageArray(images.astype("int16"), range(6), EvalCrop(1.0))
    assert other.fingerprint() != source.fingerprint()
    np.save(tmp_path / "images.npy", images.astype("int16"))
    with pytest.raises(Exception, match="overwritten"):
        pickle.loads(pickle.dumps(source))


@needs_uint16
@pytest.mark.parametrize(("mode", "raw"), [("L", False), ("L", True), ("I;16", True)])
@pytest.mark.parametrize("format", ["webdataset", "folder"])
def test_caches_keep_the_layout(tmp_path, mode, raw, format):
    root = write(tmp_path / "grey", mode)
    settings = {"format": format, "raw": raw, "workers": 0}
    manifest = build_cache(root, tmp_path / "cache", (32,), mode=mode, **settings)
    assert manifest.mode == mode
    cached, originals = ImageFolder(tmp_path / "cache", EvalCrop()), ImageFolder(root, mode=mode)
    assert cached.layout == originals.layout
    whole = 255 if mode == "L" else 65535
    for sample in range(len(cached)):
        expected = row(originals.with_transform(EvalCrop()), sample, 24).astype(float)
        assert np.abs(row(cached, sample, 24) - expected).mean() < whole / 100
    (images, _), *_ = list(DataLoader(cached, 2, image_size=24))
    assert images.shape == (2, 1, 24, 24)
    add_size(tmp_path / "cache", 40, workers=0)
    assert row(ImageFolder(tmp_path / "cache", EvalCrop(1.0)), 0, 40).dtype == images.numpy().dtype
    with pytest.raises(UsageError) as caught:
        ImageFolder(tmp_path / "cache", mode="RGB")
    assert caught.value.argument == "mode"
    with pytest.raises(UsageError, match=f"mode {mode}"):
        build_cache(root, tmp_path / "cache", (32, 40), **settings)


def test_jpeg_copies_of_16_bits_are_rejected(tmp_path):
    with pytest.raises(UsageError, match="8 bits") as caught:
        build_cache(write(tmp_path / "grey", "I;16"), tmp_path / "cache", (32,), mode="I;16")
    assert (caught.value.argument, caught.value.fix) == ("mode", {"raw": True})


def test_a_cache_without_a_mode_is_rgb(tmp_path):
    build_cache(write(tmp_path / "grey", "L"), tmp_path / "cache", (32,), workers=0)
    path = tmp_path / "cache/feedline-cache.json"
    fields = json.loads(path.read_text())
    assert fields.pop("mode") == "RGB"
    path.write_text(json.dumps(fields))
    assert ImageFolder(tmp_path / "cache").layout == RGB


@needs_uint16
def test_pipelines_of_other_layouts_run_unchanged(tmp_path):
    steps = [v2.Resize(24), v2.CenterCrop(20), v2.PILToTensor()]
    source = ImageFolder(write(tmp_path, "I;16"), v2.Compose(steps), mode="I;16")
    loader = DataLoader(source, 2, num_workers=1)
    assert "uint16" in str(loader.explain())
    (images, _), *_ = list(loader)
    assert images.shape == (2, 1, 20, 20)
    assert images.int().max() > 30_000


def test_unsupported_steps_raise_with_mode(tmp_path):
    source = ImageFolder(write(tmp_path, "I;16"), v2.ColorJitter(0.5), mode="I;16")
    with pytest.raises(Exception, match=r".") as caught:
        source[0]
    assert 'mode "I;16"' in "".join(getattr(caught.value, "__notes__", [str(caught.value)]))
    images = np.zeros((2, 9, 9, 5), np.float32)
    with pytest.raises(UsageError, match="5 channels"):
        ImageArray(images, [0, 1], v2.Resize(5))[0]
