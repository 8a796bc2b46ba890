"""With untested versions of the libraries, a pipeline is fused if it is equal to its steps."""

import random
import sys
import textwrap
import warnings
from itertools import count

import numpy as np
import pytest
import timm.data
import torch
from PIL import Image, ImageFilter
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import feedline
from feedline.images.compile.compile_dataset import compile_dataset
from feedline.images.compile.library_steps import untested_versions
from feedline.private_names import TESTED_VERSIONS
from feedline.randomness import fingerprint
from torchvision_folder import DRAW, TRANSFORM, image

NORMALIZE = v1.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
BICUBIC = v1.InterpolationMode.BICUBIC
numbers = count()


@pytest.fixture(params=["torchvision 0.30", "timm 1.1", "PIL 14.0"])
def untested(request, monkeypatch):
    """Name and version of a library that was not tested."""
    return new_version(monkeypatch, *request.param.split())


def new_version(monkeypatch, library, version):
    version = f"{version}.{next(numbers)}"  # nothing has been checked with it yet
    monkeypatch.setattr(f"{library}.__version__", version)
    return f"{library.replace('PIL', 'Pillow')} {version}"


def pipelines():
    found = {
        "timm train": lambda: timm.data.create_transform(
            32, is_training=True, auto_augment="rand-m9-mstd0.5-inc1", interpolation="random"
        ),
        "timm eval": lambda: timm.data.create_transform(32),
        "v2 tensors": lambda: v2.Compose(
            [
                *(v2.ToImage(), v2.RandomResizedCrop(32), v2.RandomHorizontalFlip()),
                *(v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.2])),
            ]
        ),
    }
    for version, v in (("v1", v1), ("v2", v2)):
        floats = [v.PILToTensor(), v.ConvertImageDtype(torch.float32)]
        cases = {
            "train": [v.RandomResizedCrop(32), v.RandomHorizontalFlip(), *floats, NORMALIZE],
            "eval": [v.Resize(40), v.CenterCrop(32), *floats, NORMALIZE],
            "a crop of a flip": [v.Resize((40, 50)), v.RandomHorizontalFlip(), v.RandomCrop(32)],
            "tensors": [
                *(v.PILToTensor(), v.Resize(40, BICUBIC, antialias=True), v.CenterCrop(40)),
                v.ConvertImageDtype(torch.float32),
            ],
            "colours": [
                v.RandomResizedCrop(32),
                v.RandomApply([v.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8),
                *(v.RandomGrayscale(0.2), v.GaussianBlur(5), v.RandomSolarize(128, 0.2)),
                *floats,
            ],
            "own step": [v.RandomResizedCrop(32), OwnBlur(), *floats],
            "a policy": [v.Resize(40), v.CenterCrop(32), v.TrivialAugmentWide(), *floats],
        }
        for name, steps in cases.items():
            found[f"{version} {name}"] = lambda v=v, steps=steps: v.Compose(steps)
    return found


class OwnBlur:
    """A step of the user's own."""

    def __call__(self, image):
        return image.filter(ImageFilter.GaussianBlur(1.5))


PIPELINES = pipelines()


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_are_fused_with_untested_versions(name, untested):
    pipeline = PIPELINES[name]()
    before = fingerprint()
    explanation = feedline.compile(pipeline).explain()
    assert explanation.startswith("fused")
    own = "own step" in name
    assert own == ("unchanged" in explanation.replace("unchanged   RandomErasing", ""))
    assert fingerprint() == before


def test_folders_and_pairs_are_fused_with_untested_versions(root, untested):
    steps = v1.Compose([v1.RandomResizedCrop(32), v1.ToTensor()])
    for dataset in (ImageFolder(root, steps), timm.data.ImageDataset(str(root), transform=steps)):
        assert compile_dataset(dataset).pipeline is not None
    pair = feedline.pair(
        v2.Compose([v2.ToImage(), v2.RandomResizedCrop(32), v2.RandomHorizontalFlip()])
    )
    assert pair.explain().startswith("fused")


def test_steps_of_a_user_are_not_run_by_the_check(untested):
    calls = []
    pipeline = v1.Compose([v1.Resize((9, 9)), v1.Lambda(calls.append), v1.ToTensor()])
    assert feedline.compile(pipeline).explain().startswith("fused")
    assert calls == []


def define(monkeypatch, where, source):
    """Define a function as if the file of its module did."""
    path, _, new_name = where.rpartition(".")
    name = {"make_params": DRAW, "transform": TRANSFORM}.get(new_name, new_name)
    source = source.replace(f"def {new_name}(", f"def {name}(")
    is_method = path not in sys.modules
    module_name, _, class_name = path.rpartition(".") if is_method else (path, "", "")
    module = sys.modules[module_name]
    text = textwrap.dedent(source)
    if is_method:
        text = f"class {class_name}:\n{textwrap.indent(text, '    ')}"
    made = {}
    exec(compile(text, str(module.__file__), "exec"), vars(module), made)
    owner, kind = (getattr(module, class_name), made[class_name]) if is_method else (module, None)
    value = made[name] if kind is None else vars(kind)[name]
    monkeypatch.setattr(owner, name, value)


CHANGES = {
    "other boxes": (
        "torchvision 0.30",
        "torchvision.transforms.transforms.RandomResizedCrop.get_params",
        """
        @staticmethod
        def get_params(img, scale, ratio):
            _, height, width = F.get_dimensions(img)
            side = int(min(height, width) * torch.empty(1).uniform_(*scale).item()) + 1
            return 0, 0, min(side, height), min(side, width)
        """,
        "v1 train",
    ),
    "another resize of tensors": (
        "torchvision 0.30",
        "torchvision.transforms._functional_tensor.resize",
        """
        def resize(img, size, interpolation="bilinear", antialias=True):
            return interpolate(img[None].float(), size).round()[0].to(img.dtype)
        """,
        "v1 tensors",
    ),
    "another order of colours": (
        "torchvision 0.30",
        "torchvision.transforms.v2._color.ColorJitter.transform",
        """
        def transform(self, inpt, params):
            for kind in ("brightness", "contrast", "saturation", "hue"):
                factor = params[f"{kind}_factor"]
                if factor is not None:
                    inpt = getattr(F, f"adjust_{kind}")(inpt, factor)
            return inpt
        """,
        "v2 colours",
    ),
    "another resized crop": (
        "timm 1.1",
        "timm.data.transforms.RandomResizedCropAndInterpolation.__call__",
        """
        def __call__(self, img):
            i, j, h, w = self.get_params(img, self.scale, self.ratio)
            img = F.resize(F.crop(img, i, j, h, w), (36, 36))
            return F.center_crop(img, self.size)
        """,
        "timm train",
    ),
    "another resize": (
        "PIL 14.0",
        "PIL.Image.Image.resize",
        """
        def resize(self, size, resample=None, box=None, reducing_gap=None):
            self.load()
            return self._new(self.im.resize(size, Resampling.NEAREST, box or (0, 0, *self.size)))
        """,
        "v1 eval",
    ),
    "another Gaussian blur": (
        "PIL 14.0",
        "PIL.ImageFilter.GaussianBlur.filter",
        "def filter(self, image): return image.box_blur((self.radius, self.radius), 2)",
        "v1 own step",
    ),
    "a white background": (
        "PIL 14.0",
        "PIL.Image.Image.convert",
        """
        def convert(self, mode=None, matrix=None, dither=None, palette=0, colors=256):
            self.load()
            if self.mode == "RGBA" and mode == "RGB":
                return merge("RGB", self.split()[:3]).point(lambda level: level // 2 + 127)
            return self._new(self.im.convert(mode, dither or 3))
        """,
        "v1 eval",
    ),
}


def outputs(transform, inputs):
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    return [transform(each) for each in inputs]


@pytest.mark.parametrize("change", CHANGES)
def test_a_pipeline_of_changed_code_runs_unchanged(change, root, monkeypatch):
    library, where, source, name = CHANGES[change]
    version = new_version(monkeypatch, *library.split())
    define(monkeypatch, where, source)
    pipeline = PIPELINES[name]()
    with pytest.warns(RuntimeWarning, match=version) as raised:
        compiled = feedline.compile(pipeline)
    assert len(raised) == 1
    explanation = compiled.explain()
    assert explanation.startswith("unchanged")
    assert version in explanation
    pictures = [image(seed, 61, 50) for seed in range(3)]
    expected = outputs(pipeline, pictures)
    assert all(map(torch.equal, outputs(compiled, pictures), expected))
    files = sorted(map(str, root.rglob("*.png")))
    opened = [Image.open(file).convert("RGB") for file in files]
    assert all(map(torch.equal, outputs(compiled, files), outputs(pipeline, opened)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the warning is not repeated
        reasons = compile_dataset(ImageFolder(root, pipeline)).reasons
    assert version in reasons[0]


def test_a_loader_does_not_repeat_the_warning(root, monkeypatch, caplog):
    version = new_version(monkeypatch, "torchvision", "0.30")
    define(monkeypatch, *CHANGES["other boxes"][1:3])
    dataset = ImageFolder(root, PIPELINES["v1 train"]())
    with feedline.DataLoader(dataset, batch_size=3, num_workers=1) as loader:
        with pytest.warns(RuntimeWarning, match=version) as raised:
            next(iter(loader))
        assert len(raised) == 1
        assert version in loader.explain()
    assert [each for each in caplog.records if version in each.message and each.levelno > 20] == []


@pytest.mark.parametrize(
    ("formula", "is_fused"),
    [("tensor.sub(mean[0]) / (std[0] + 0.5)", True), ("tensor.sub(tensor.mean())", False)],
)
def test_changed_values_are_followed(formula, is_fused, monkeypatch):
    new_version(monkeypatch, "torchvision", "0.30")
    define(
        monkeypatch,
        "torchvision.transforms.functional.normalize",
        f"def normalize(tensor, mean, std, inplace=False): return {formula}",
    )
    pipeline = v1.Compose([v1.Resize((50, 61)), v1.ToTensor(), NORMALIZE])
    compiled = feedline.compile(pipeline)
    assert compiled.explain().startswith("fused" if is_fused else "unchanged")
    pictures = [image(seed, 61, 50) for seed in range(3)]
    assert all(map(torch.equal, outputs(compiled, pictures), outputs(pipeline, pictures)))


def test_crops_that_read_the_size_of_pillow_images_are_fused(monkeypatch):
    new_version(monkeypatch, "timm", "0.3.2")
    kind = timm.data.transforms.RandomResizedCropAndInterpolation
    monkeypatch.setattr(timm.data.transforms, "draw", kind.get_params, raising=False)
    define(
        monkeypatch,
        "timm.data.transforms.RandomResizedCropAndInterpolation.get_params",
        """
        @staticmethod
        def get_params(img, scale, ratio):
            return draw(torch.empty(3, img.size[1], img.size[0]), scale, ratio)
        """,
    )
    steps = [kind(24, interpolation="bilinear"), v1.ToTensor()]
    assert feedline.compile(v1.Compose(steps)).explain().startswith("fused")


def test_a_pair_whose_masks_are_cropped_in_another_way_runs_unchanged(monkeypatch):
    version = new_version(monkeypatch, "torchvision", "0.30")
    define(
        monkeypatch,
        "torchvision.transforms.v2._geometry.RandomResizedCrop.transform",
        """
        def transform(self, inpt, params):
            size = params["height"], params["width"]
            if isinstance(inpt, tv_tensors.Mask):
                inpt = F.resize(inpt, size)
            return self._call_kernel(
                F.resized_crop, inpt, **params, size=self.size, interpolation=self.interpolation
            )
        """,
    )
    pipeline = v2.Compose([v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.ToImage()])
    with pytest.warns(RuntimeWarning, match=version):
        pair = feedline.pair(pipeline)
    assert pair.explain().startswith("unchanged")
    assert version in pair.explain()


@pytest.mark.parametrize(
    ("library", "where", "source"),
    [
        (
            "torchvision 0.30",
            "torchvision.datasets.folder.pil_loader",
            "def pil_loader(path): return Image.open(path).convert('L').convert('RGB')",
        ),
        (
            "torchvision 0.30",
            "torchvision.datasets.folder.DatasetFolder.__getitem__",
            """
            def __getitem__(self, index):
                path, target = self.samples[index]
                return self.transform(self.loader(path)), target + 1
            """,
        ),
        (
            "timm 1.1",
            "timm.data.dataset.ImageDataset.__getitem__",
            """
            def __getitem__(self, index):
                img, target = self.reader[index]
                with img:
                    img = Image.open(img).convert("RGB").transpose(Image.Transpose.ROTATE_180)
                return self.transform(img) if self.transform else img, target
            """,
        ),
    ],
)
def test_a_folder_of_changed_code_is_not_compiled(library, where, source, root, monkeypatch):
    version = new_version(monkeypatch, *library.split())
    define(monkeypatch, where, source)
    steps = v1.Compose([v1.Resize((32, 32)), v1.ToTensor()])
    dataset = ImageFolder(root, steps)
    if library.startswith("timm"):
        dataset = timm.data.ImageDataset(str(root), transform=steps)
    with pytest.warns(RuntimeWarning, match=version):
        compiled = compile_dataset(dataset)
    assert compiled.pipeline is None
    assert version in compiled.reasons[0]
    with feedline.DataLoader(dataset, batch_size=3) as loader:
        images, labels = next(iter(loader))
    expected = [dataset[index] for index in range(3)]
    assert torch.equal(images, torch.stack([each for each, _ in expected]))
    assert labels.tolist() == [label for _, label in expected]


@pytest.mark.parametrize(
    ("library", "version", "is_tested"),
    [
        ("torchvision", "0.17.0+cpu", True),
        ("torchvision", "0.30.0a0+5f2d4f4", False),
        ("torchvision", "", False),
        ("timm", "0.9.16", False),
        ("PIL", "13.0.1", True),
        ("PIL", "13.1.0", False),
    ],
)
def test_versions_that_were_not_tested_are_named(library, version, is_tested, monkeypatch):
    monkeypatch.setattr(f"{library}.__version__", version)
    names = untested_versions()
    assert (names == "") == is_tested
    assert is_tested or (version in names and TESTED_VERSIONS[library] in names)
