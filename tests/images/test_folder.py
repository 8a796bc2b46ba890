"""The image folder as a source of rows."""

import gc
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder as TorchvisionFolder
from torchvision.transforms import CenterCrop, Compose, Resize

from feedline.errors import ImageError, SampleError, UsageError
from feedline.images.crops import EvalCrop, TrainCrop
from feedline.images.folder import ImageFolder
from feedline.order.batch_spec import Item
from row_of import row


def photograph(seed, width=90, height=70):
    coarse = np.random.default_rng(seed).integers(0, 255, (6, 8, 3)).astype(np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture
def root(tmp_path):
    top = tmp_path / "pets"
    for number, name in enumerate(
        ("cats/1.jpg", "cats/2.png", "dogs/a/3.webp", "dogs/4.jpg", "eels/5.bmp")
    ):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        photograph(number, 90 + 40 * number, 70).save(top / name)
    return top


def test_row_equals_pixels_and_label_of_torchvision_dataset(root):
    transform = Compose([Resize(round(32 / 0.875)), CenterCrop(32)])
    theirs = TorchvisionFolder(str(root), transform)
    ours = ImageFolder(root, EvalCrop())
    assert len(ours) == len(theirs)
    assert ours.classes == theirs.classes
    assert ours.class_to_idx == theirs.class_to_idx
    assert ours.targets.dtype == np.int64
    assert ours.targets.tolist() == theirs.targets
    for sample, (image, label) in enumerate(theirs):
        pixels, number = row(ours, sample, 32)
        assert ours.path(sample) == theirs.samples[sample][0]
        assert number == label
        assert np.abs(pixels.astype(int) - np.asarray(image)).mean() < 0.35


@pytest.mark.parametrize("transform", [TrainCrop(scale=(0.5, 1.0), flip=0.0), EvalCrop()])
@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_scaled_decoding_shows_the_same_part_of_the_image(tmp_path, transform, suffix):
    (tmp_path / "a").mkdir()
    photograph(3, 803, 601).save(tmp_path / "a" / f"1.{suffix}")
    exact = ImageFolder(tmp_path, transform)
    scaled = ImageFolder(tmp_path, transform, decode="scaled")
    for size in (32, 100, 224):
        for seed in range(5):
            a = row(exact, 0, size, seed)[0]
            b = row(scaled, 0, size, seed)[0]
            # A crop of another place differs by 60 or more.
            assert np.abs(a.astype(int) - b).mean() < 8


DEFECTS = {
    "missing": (lambda path: None, r"No such file.*removed, or"),
    "folder": (os.mkdir, "a folder, not a file"),
    "pipe": (os.mkfifo, "a named pipe, not a file"),
    "device": (lambda path: os.symlink("/dev/zero", path), "a device, not a file"),
    "circle": (lambda path: os.symlink(os.path.basename(path), path), "symbolic links"),
    "huge": (lambda path: (open(path, "wb").close(), os.truncate(path, 2**30 + 1)), "1073741825 b"),
    "empty": (lambda path: open(path, "wb").close(), "empty"),
    "text": (lambda path: Path(path).write_text("not a picture"), "not a supported image"),
    "truncated": (
        lambda path: (photograph(1).save(path), os.truncate(path, os.path.getsize(path) // 2)),
        "ends before its last pixel",
    ),
}


@pytest.mark.parametrize("kind", DEFECTS)
@pytest.mark.parametrize("decode", ["exact", "scaled"])
@pytest.mark.timeout(20)
def test_any_defect_of_a_file_raises_image_error_with_its_name(root, kind, decode):
    data = ImageFolder(root, decode=decode)
    path, (defect, message) = data.path(0), DEFECTS[kind]
    os.unlink(path)
    defect(path)
    descriptors = []
    for _ in range(5):
        with pytest.raises(ImageError, match=message) as caught:
            row(data, 0)
        assert path in str(caught.value)
        assert "sample 0" in str(caught.value)
        assert isinstance(caught.value, SampleError)
        descriptors.append(len(os.listdir("/dev/fd")))
    # Files of earlier tests may be closed in between.
    assert descriptors[-1] <= descriptors[0]
    assert row(data, 1)[1] == 0


def test_a_file_that_is_read_in_short_parts_arrives_whole(root, monkeypatch):
    data = ImageFolder(root, EvalCrop())
    expected = row(data, 0)[0]
    read = os.read
    monkeypatch.setattr("feedline.sources.files.os.read", lambda fd, n: read(fd, min(n, 100)))
    assert np.array_equal(row(data, 0)[0], expected)


def test_non_utf8_file_names_load_and_print(tmp_path):
    (tmp_path / "a").mkdir()
    odd = os.fsencode(tmp_path / "a") + b"/\xff\n\xe9.jpg"
    photograph(1).save(tmp_path / "1.jpg")
    os.rename(tmp_path / "1.jpg", odd)
    data = ImageFolder(tmp_path)
    assert os.fsencode(data.path(0)) == odd
    data.name(0).encode("utf-8")
    assert r"\xff" in data.name(0)
    row(data, 0)
    os.truncate(odd, 0)
    with pytest.raises(ImageError, match=r"\\xff"):
        row(data, 0)


def test_loading_keeps_no_memory(root):
    data = ImageFolder(root)
    row = np.zeros((32, 32, 3), np.uint8), np.zeros((), np.int64)
    for seed in range(50):
        data.load(Item(seed % 5, 32, seed, 1.0), row)
    gc.collect()
    tracemalloc.start()
    for seed in range(300):
        data.load(Item(seed % 5, 32, seed, 1.0), row)
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 50_000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decode": "fast"}, r"decode.*got 'fast'"),
        ({"max_pixels": 0}, r"max_pixels.*got 0"),
        ({"transform": "crop"}, r"transform must be TrainCrop.*got 'crop'"),
        ({"transform": TrainCrop}, r"transform.*got <class"),
        *(({"extensions": each}, "extensions.*got") for each in (".jpg", ("jpg",), (), (3,))),
        ({"mode": "CMYK"}, r"mode.*got 'CMYK'"),
    ],
)
def test_settings_are_checked(root, settings, message):
    with pytest.raises(UsageError, match=message):
        ImageFolder(root, **settings)


@pytest.mark.parametrize("name", ["cats/._1.jpg", "dogs/a/.b.png", "dogs/.c/d.png", ".ipynb/1.jpg"])
def test_hidden_files_are_numbered_as_by_torchvision_with_one_warning(root, name):
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_bytes(b"\0\5\x16\7" + bytes(99))
    with pytest.warns(UserWarning, match="hidden") as caught:
        ours = ImageFolder(root)
    assert len(caught) == 1
    assert (name.split("/")[0] if name.startswith(".") else name) in str(caught[0].message)
    theirs = TorchvisionFolder(str(root))
    assert [ours.path(sample) for sample in range(len(ours))] == [path for path, _ in theirs.imgs]
    with pytest.raises(ImageError, match="metadata"):
        row(ours, [ours.path(k) for k in range(len(ours))].index(str(root / name)))
