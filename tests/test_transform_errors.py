"""An error of a transform is not taken for a broken file, whichever engine runs the transform."""

import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision import datasets
from torchvision.transforms import ToTensor, v2

from feedline import DataLoader, ImageFolder
from sets import Made

WORKERS = [0, 1]


class Stumble:
    """A step that fails for some images, all of which are fine."""

    def __init__(self, error=ValueError):
        self.error = error

    def __call__(self, image):
        if image.size[0] == 32 and sum(image.getpixel((3, 5))) % 2:
            raise self.error("cannot be augmented")
        return image


class Own(torch.utils.data.Dataset[Any]):
    def __init__(self, folder, transform):
        self.paths, self.transform = sorted(folder.rglob("*.jpg")), transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.transform(Image.open(self.paths[index]).convert("RGB")), index


def pipeline(step):
    return v2.Compose([v2.Resize((32, 32)), step, v2.ToImage()])


class Opaque:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, image):
        with torch.no_grad():
            return self.steps(image)


MAKERS = {
    "fused": lambda root, step: datasets.ImageFolder(root, pipeline(step)),
    "unfused": lambda root, step: datasets.ImageFolder(root, Opaque(pipeline(step))),
    "source": lambda root, step: ImageFolder(root, transform=pipeline(step)),
    "unfused source": lambda root, step: ImageFolder(root, transform=Opaque(pipeline(step))),
    "own": lambda root, step: Own(root, pipeline(step)),
}


def told(error):
    notes = " ".join(getattr(error, "__notes__", ()))
    return "".join(traceback.format_exception(error)) + notes + str(getattr(error, "hint", ""))


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", MAKERS)
def test_error_names_the_transform_and_not_the_file(jpeg_folder, name, workers):
    data = MAKERS[name](jpeg_folder, Stumble())
    with DataLoader(data, 4, num_workers=workers) as loader:
        with pytest.raises((ValueError, RuntimeError)) as caught:
            list(loader)
        said = told(caught.value)
        assert "cannot be augmented" in said
        assert "the file is fine" in said
        assert "ransform " in said
        assert "remove" not in said


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("error", [ValueError, OSError])
def test_skip_warns_once_of_a_failing_transform(jpeg_folder, name, workers, error):
    data = MAKERS[name](jpeg_folder, Stumble(error))
    with DataLoader(data, 4, num_workers=workers, on_error="skip") as loader:
        with pytest.warns(RuntimeWarning, match="cannot be augmented") as warned:
            batches = [*loader, *loader]
        count = sum(len(labels) for _, labels in batches)
        assert [warning.filename for warning in warned] == [__file__]
        assert count + len(loader.skipped) == 24
        assert 0 < len(loader.skipped) < 24


def overlay(image):
    return Image.blend(image, Image.open("no such overlay.png"), 0.5)


@pytest.mark.parametrize("name", MAKERS)
def test_file_that_a_transform_misses_is_not_the_sample(jpeg_folder, name):
    with DataLoader(MAKERS[name](jpeg_folder, overlay), 1, on_error="skip") as loader:
        with pytest.warns(RuntimeWarning) as warned:
            assert list(loader) == []
        assert "overlay.png" in str(warned[0].message)
        assert "the file is fine" in str(warned[0].message)


@pytest.mark.parametrize("name", MAKERS)
def test_broken_file_in_front_of_a_transform_is_skipped_without_a_warning(tmp_path, name):
    for number in range(4):
        (tmp_path / "a").mkdir(exist_ok=True)
        Image.effect_noise((64, 64), 40).convert("RGB").save(tmp_path / "a" / f"{number}.jpg")
    torn = tmp_path / "a" / "2.jpg"
    torn.write_bytes(torn.read_bytes()[:400])
    with DataLoader(MAKERS[name](tmp_path, v2.Identity()), 2, on_error="skip") as loader:
        assert sum(len(batch[1]) for batch in loader) == 3
        assert len(loader.skipped) == 1


def read_or_none(path):
    """Read a file, as `cv2.imread` does: None if it is broken."""
    try:
        return Image.open(path).convert("RGB")
    except OSError:
        return None


def read_step(path):
    if path.read_bytes()[:2] != b"\xff\xd8":
        raise ValueError("no JPEG")
    return Image.open(path).convert("RGB")


class OwnReader(Own):
    def __init__(self, folder, read):
        super().__init__(folder, v2.Identity())
        self.read = read

    def __getitem__(self, index):
        return self.read(self.paths[index]), index


READERS = {
    "attribute": lambda root: OwnReader(root, lambda path: [read_or_none(path).size]),
    "step": lambda root: OwnReader(root, v2.Compose([read_step, v2.ToImage()])),
    "loader": lambda root: datasets.ImageFolder(root, v2.ToImage(), loader=read_or_none),
    "v1 loader": lambda root: datasets.ImageFolder(root, ToTensor(), loader=read_or_none),
}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", READERS)
def test_broken_file_is_not_called_fine_if_own_code_reads_it(tmp_path, name, workers):
    (tmp_path / "a").mkdir()
    for number in range(4):
        Image.new("RGB", (16, 16)).save(tmp_path / "a" / f"{number}.jpg")
    (tmp_path / "a" / "2.jpg").write_bytes(b"no image")
    with DataLoader(READERS[name](tmp_path), 2, num_workers=workers) as loader:
        with pytest.raises(Exception, match=r".") as caught:
            list(loader)
        assert "the file is fine" not in told(caught.value)


class Refuse:
    def __init__(self, error):
        self.error = error

    def __call__(self, image):
        raise self.error("refused")


@pytest.mark.parametrize(
    ("error", "sample", "is_fine"),
    [
        (OSError, np.zeros((4, 4)), True),
        (OSError, np.zeros(4), False),  # the bytes of a file
        (OSError, ["a.jpg", {"image": torch.zeros(3, 4, 4)}], True),
        (OSError, Path("a.jpg"), False),
        (ValueError, np.zeros(4), True),
        (ValueError, (), True),
        (ValueError, "a.jpg", False),
        (ValueError, (b"a.jpg", 3), False),
    ],
)
def test_transform_of_a_decoded_image_shows_that_its_file_is_fine(error, sample, is_fine):
    steps = v2.Compose([Refuse(error)])
    with DataLoader(Made(1, lambda _: steps(sample))) as loader:
        with pytest.raises(error) as caught:
            list(loader)
        assert ("the file is fine" in told(caught.value)) == is_fine


def test_mistake_in_a_dataset_is_warned_of_once():
    mistaken = Made(6, lambda index: index if index % 2 else index.missing)
    with DataLoader(mistaken, 1, on_error="skip") as loader:
        with pytest.warns(RuntimeWarning, match="missing") as warned:
            assert [int(batch) for batch in loader] == [1, 3, 5]
        assert len(warned) == 1


@pytest.mark.parametrize("name", ["fused", "unfused", "own"])
def test_posterize_to_no_bits_names_cause_and_cure(jpeg_folder, name):
    timm = pytest.importorskip("timm.data.auto_augment")
    try:
        ImageOps.posterize(Image.new("RGB", (4, 4)), 0)
        pytest.skip("this Pillow takes 0 bits")
    except ValueError:
        pass
    for policy, fails in (("rand-m10-inc1-n9", True), ("rand-m10-mmax9-inc1-n9", False)):
        step = timm.rand_augment_transform(policy, {"img_mean": (124, 116, 104)})
        loader = DataLoader(MAKERS[name](jpeg_folder, step), 4, num_workers=1)

        def read(loader=loader):
            for _ in range(20 if fails else 1):  # noqa: B023
                list(loader)

        with loader:
            if not fails:
                read()
                continue
            with pytest.raises((ValueError, RuntimeError)) as caught:
                read()
            assert "mmax9" in told(caught.value)
            assert "remove" not in told(caught.value)
