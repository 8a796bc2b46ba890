"""Pipelines within a user's transform: fused where a folder's batches are made."""

import contextlib
import copy
import pickle
import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter, ImageOps
from torchvision import datasets, transforms
from torchvision.transforms import v2

import feedline
from slow import slow

NORMALIZE = [transforms.ToTensor(), transforms.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))]
ONE_LEVEL = 1.01 / 255 / 0.2


def train_pipeline(size=32):
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(size, scale=(0.2, 1.0)),
            transforms.RandomHorizontalFlip(),
            *NORMALIZE,
        ]
    )


def eval_pipeline():
    return transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32), *NORMALIZE])


class Preset:
    """As torchvision's reference scripts wrap a pipeline."""

    def __init__(self, pipeline):
        self.transforms = pipeline

    def __call__(self, image):
        with torch.no_grad():
            return self.transforms(image)


class Passing(Preset):
    """Only calls the pipeline, so it is compiled like the pipeline itself."""

    def __call__(self, image):
        return self.transforms(image)


class TwoCrops:
    """Two views of an image, as in MoCo."""

    def __init__(self, base):
        self.base_transform = base

    def __call__(self, image):
        return [self.base_transform(image), self.base_transform(image)]


class Invert:
    """A step of the user's own."""

    def __call__(self, image):
        return ImageOps.invert(image) if random.random() < 0.5 else image


class MultiCrop:
    """Pipelines in slots, a list, a tuple, a dict, a partial and a closure, and a cycle."""

    __slots__ = ("bound", "by_name", "function", "itself", "listed", "tupled")

    def __init__(self):
        self.listed = [train_pipeline(32)]
        self.tupled = ({"local": train_pipeline(16)},)
        self.by_name = {
            "v2": v2.Compose(
                [
                    v2.RandomResizedCrop(24),
                    Invert(),
                    v2.ToImage(),
                    v2.ToDtype(torch.float32, scale=True),
                ]
            )
        }
        self.bound = partial(call, train_pipeline(20))
        pipeline = eval_pipeline()
        self.function = lambda image: pipeline(image)
        self.itself = self

    @property
    def never_read(self):
        raise AssertionError("properties are not read")

    def __call__(self, image):
        parts = self.listed[0], self.tupled[0]["local"], self.by_name["v2"], self.bound
        return [*(part(image) for part in parts), self.function(image)]


def call(pipeline, image):
    return pipeline(image)


def batches(root, transform, **options):
    torch.manual_seed(7)
    dataset = datasets.ImageFolder(str(root), transform=transform)
    with feedline.DataLoader(dataset, batch_size=3, **options) as loader:
        return [images for images, _ in loader]


class Own(torch.utils.data.Dataset[Any]):
    """Opens images itself, as scripts do."""

    def __init__(self, root, transform, times=1):
        self.samples = datasets.ImageFolder(str(root)).samples * times
        self.transform = transform

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        return self.transform(Image.open(path).convert("RGB")), label


def unfused(root, transform, collate=None):
    """Batches with the same seeds, of a loader whose images are read by the user's own function."""
    torch.manual_seed(7)
    dataset = Own(root, transform)
    with feedline.DataLoader(dataset, batch_size=3, num_workers=0, collate_fn=collate) as loader:
        assert "\nfused" not in loader.explain()
        return [images for images, _ in loader]


def views(made):
    """Tensors or images of batches, in any nesting of lists and tuples."""
    if not isinstance(made, (list, tuple)):
        return [made]
    return [each for part in made for each in views(part) if not isinstance(each, int)]


def explained(root, transform, line):
    """The lines of a loader's explanation that begin with a word."""
    dataset = datasets.ImageFolder(str(root), transform=transform)
    with feedline.DataLoader(dataset, batch_size=3, num_workers=0) as loader:
        lines = [each for each in loader.explain().splitlines() if each.startswith(line)]
        return "\n".join(lines)


@pytest.mark.parametrize(
    "create",
    [
        lambda: Preset(eval_pipeline()),
        lambda: Preset(train_pipeline()),
        lambda: TwoCrops(train_pipeline()),
        MultiCrop,
    ],
)
def test_fused_pipelines_draw_as_the_library_does(root, create):
    assert "Crop" in explained(root, create(), "fused")
    made, stock = views(batches(root, create(), num_workers=0)), views(unfused(root, create()))
    assert len(made) == len(stock)
    for one, other in zip(made, stock, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


class OwnSteps:
    """Steps of the user's own, as in DINO, MoCo and solo-learn, that read and change images."""

    def __init__(self):
        self.images = []

    def __call__(self, image):
        self.images = self.images[-20:]
        for step in (
            lambda image: image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2))),
            lambda image: image.filter(ImageFilter.GaussianBlur((0.5, 9.0))),
            lambda image: image.filter(ImageFilter.SHARPEN),
            lambda image: ImageOps.solarize(image),
            lambda image: image.point(lambda level: 255 - level // 2),
            lambda image: image.copy(),
            lambda image: Image.fromarray(np.asarray(image)[::-1]),
            lambda image: Image.frombytes("RGB", image.size, image.tobytes()),
            lambda image: Image.frombytes("RGB", image.size, image.tobytes("raw", "BGR")),
            lambda image: pickle.loads(pickle.dumps(image)),
            self.draw_on,
        ):
            if random.random() < 0.4:
                image = step(image)
        assert isinstance(image, Image.Image)
        if random.random() < 0.5:
            self.images.append((image, image.copy().tobytes()))
        return image

    def draw_on(self, image):
        image.putpixel((3, 2), (1, 2, 3))
        image.info["drawn"] = True
        return image


@pytest.mark.parametrize("version", [transforms, v2])
def test_own_steps_between_fused_ones_get_images_like_pillow_s(root, version):
    own = OwnSteps()
    steps = [
        version.RandomResizedCrop(32),
        version.RandomApply([version.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.5),
        own,
        version.RandomSolarize(99),
        version.RandomApply([own], p=0.5),
        version.RandomGrayscale(0.5),
    ]
    for end in ([*NORMALIZE], [own, *NORMALIZE], [own]):
        pipeline = version.Compose([*steps, *end])
        collate = (lambda samples: (samples, 0)) if end == [own] else None
        made = batches(root, TwoCrops(pipeline), num_workers=0, collate_fn=collate)
        assert own.images
        assert all(image.tobytes() == pixels for image, pixels in own.images), "overwritten"
        stock = unfused(root, TwoCrops(pipeline), collate)
        assert "RandomResizedCrop" in explained(root, TwoCrops(pipeline), "fused")
        for one, other in zip(views(made), views(stock), strict=True):
            assert type(one) is type(other)
            assert np.array_equal(np.asarray(one), np.asarray(other))


class KeepBlurred:
    """Step of the user's own that keeps the image it returns."""

    def __call__(self, image):
        self.image = image.filter(ImageFilter.GaussianBlur(1))
        self.pixels = self.image.tobytes()
        return self.image


def test_an_image_kept_by_an_own_step_is_not_overwritten(root):
    own = KeepBlurred()
    steps = [transforms.Resize((32, 32)), own, transforms.RandomSolarize(99, p=1.0), *NORMALIZE]
    feedline.compile(transforms.Compose(steps))(root / "cats" / "a.jpg")
    assert own.image.tobytes() == own.pixels


@pytest.mark.parametrize("method", ["fork", *slow("spawn")])
def test_workers_make_the_same_batches(root, method):
    transform = TwoCrops(train_pipeline())
    made = batches(root, transform, num_workers=2, multiprocessing_context=method)
    expected = batches(root, transform, num_workers=0)
    assert all(map(torch.equal, views(made), views(expected)))


def test_the_users_objects_keep_their_classes_and_state(root):
    class Counting(Preset):
        calls = 0

        def __call__(self, image):
            assert isinstance(self.transforms, transforms.Compose)
            assert len(self.transforms.transforms) == 4
            pickled = pickle.loads(pickle.dumps(self.transforms))
            assert type(pickled) is type(copy.copy(self.transforms)) is transforms.Compose
            self.calls += 1
            return super().__call__(image)

    transform = Counting(train_pipeline())
    batches(root, transform, num_workers=0)
    assert transform.calls == 7
    assert type(transform.transforms) is transforms.Compose


def test_a_step_changed_for_each_image_takes_effect(root):
    class Growing(Preset):
        def __call__(self, image):
            self.transforms.transforms[0].scale = (1.0, 1.0)
            self.transforms.transforms[0].ratio = (1.0, 1.0)
            return super().__call__(image)

    made = batches(root, Growing(train_pipeline()), num_workers=0)
    assert all(map(torch.equal, made, unfused(root, Growing(train_pipeline()))))


@pytest.mark.parametrize("kind", [Preset, Passing])
def test_a_pipeline_replaced_between_epochs_takes_effect(root, kind):
    dataset = datasets.ImageFolder(str(root), transform=kind(train_pipeline()))
    with feedline.DataLoader(
        dataset, batch_size=3, num_workers=1, persistent_workers=True
    ) as loader:
        assert next(iter(loader))[0].shape[-1] == 32
        dataset.transform.transforms = train_pipeline(24)
        assert next(iter(loader))[0].shape[-1] == 24


class OwnTensor:
    """Conversion in a class of its own, as in lightly."""

    def __init__(self):
        self.transform = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])

    def __call__(self, *inputs, **named):
        return self.transform(*inputs, **named)


def test_objects_that_only_call_a_pipeline_make_rows_like_it(root):
    crop, normalize = [v2.Resize(40), v2.CenterCrop(32)], v2.Normalize((0.5,) * 3, (0.2,) * 3)
    for transform in (
        Passing(eval_pipeline()),
        Passing(Passing(v2.Compose([*crop, OwnTensor(), normalize]))),
    ):
        assert "row" in explained(root, transform, "engine")
        made, stock = batches(root, transform, num_workers=0), unfused(root, transform)
        assert all(map(torch.equal, made, stock))


class WithDefault(Preset):
    def __call__(self, image, unused=3):
        return self.transforms(image)


class WithProperty(Preset):
    @property
    def pipeline(self):
        return Invert() if random.random() < 0.5 else self.transforms

    def __call__(self, image):
        return self.pipeline(image)


class WithLookup(Passing):
    def __getattribute__(self, name):
        return super().__getattribute__(name)


class Twice(Preset):
    def __call__(self, image):
        return self.transforms(self.transforms(image))


@pytest.mark.parametrize("kind", [Preset, WithDefault, WithProperty, WithLookup, Twice])
def test_objects_that_may_do_more_make_samples(root, kind):
    assert "row" not in explained(root, kind(eval_pipeline()), "engine")


def test_many_views_of_an_image_that_is_decoded_lazily(root):
    """From the third image on, all its views share one decode."""
    dataset = Own(root, MultiCrop(), 4)
    made = []
    for context in (contextlib.nullcontext, feedline.lazy_images):
        torch.manual_seed(7)
        with context(), feedline.DataLoader(dataset, batch_size=3, num_workers=0) as loader:
            made.append([view for views, _ in loader for view in views])
    assert all(map(torch.equal, *made))


class Looking(Preset):
    """Looks at the image, as any code may."""

    def __call__(self, image):
        stock = Image.open(image_path(image)).convert("RGB") if image_path(image) else image
        assert isinstance(image, Image.Image)
        assert image.mode == "RGB"
        small = self.transforms(image)
        pixels = np.asarray(image)
        assert type(image) is Image.Image
        assert pixels.shape[:2] == image.size[::-1] == stock.size[::-1]
        assert pickle.loads(pickle.dumps(image)) == image.copy() == image
        assert image.load()[0, 0] == tuple(pixels[0, 0])
        return small, torch.from_numpy(pixels.mean((0, 1)))


def image_path(image):
    return str(getattr(image, "filename", ""))


def test_other_code_finds_the_loaded_image(root):
    made = batches(root, Looking(eval_pipeline()), num_workers=0)
    stock = unfused(root, Looking(eval_pipeline()))
    assert all(map(torch.equal, views(made), views(stock)))


def test_a_dataset_that_adds_to_the_sample_is_fused(root):
    class WithIndex(datasets.ImageFolder):
        def __getitem__(self, index):
            image, label = super().__getitem__(index)
            return image, label, index

    dataset = WithIndex(str(root), transform=eval_pipeline())
    with feedline.DataLoader(dataset, batch_size=3, num_workers=0) as loader:
        assert "CenterCrop" in loader.explain()
        made = [(images, numbers.tolist()) for images, _, numbers in loader]
    assert [number for _, numbers in made for number in numbers] == list(range(7))
    stock = unfused(root, eval_pipeline())
    assert all(torch.equal(one, other) for (one, _), other in zip(made, stock, strict=True))


def test_a_damaged_file_is_named(root, tmp_path):
    (tmp_path / "one").mkdir()
    data = (root / "cats" / "a.jpg").read_bytes()
    (tmp_path / "one" / "damaged.jpg").write_bytes(data[: len(data) // 2])
    dataset = datasets.ImageFolder(str(tmp_path), transform=Preset(eval_pipeline()))
    with (
        feedline.DataLoader(dataset, batch_size=1, num_workers=0) as loader,
        pytest.raises(OSError, match="truncated"),
    ):
        list(loader)


def test_timm_pipelines_are_fused(root):
    create_transform = pytest.importorskip("timm.data").create_transform
    for is_training in (True, False):
        pipeline = create_transform(32, is_training=is_training, interpolation="bilinear")
        assert "Crop" in explained(root, Preset(pipeline), "fused")
        made = batches(root, Preset(pipeline), num_workers=0)
        for one, other in zip(made, unfused(root, Preset(pipeline)), strict=True):
            assert (one - other).abs().mean() < ONE_LEVEL


def test_tiny_images_are_cropped_by_the_library(tmp_path):
    """timm's crops of them may be empty."""
    timm = pytest.importorskip("timm.data.transforms")
    (tmp_path / "one").mkdir()
    for number in range(12):
        Image.new("RGB", (1 + number % 2, 1), (9, 99, 199)).save(tmp_path / "one" / f"{number}.png")

    def create():
        return Preset(transforms.Compose([timm.RandomResizedCropAndInterpolation(8), *NORMALIZE]))

    made, stock = batches(tmp_path, create(), num_workers=0), unfused(tmp_path, create())
    assert all(map(torch.equal, made, stock))
