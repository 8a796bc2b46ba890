"""Replaced transforms: equal to the original ones for the same random numbers."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from feedline.images.compile import supported_transforms
from feedline.images.compile.compile_dataset import compile_dataset
from feedline.images.compile.supported_transforms import pixel_step
from feedline.order.batch_spec import Item
from feedline.randomness import fingerprint, seed_all

pytestmark = pytest.mark.skipif(supported_transforms.photometric is None, reason="not compiled")

BILINEAR, BICUBIC = v1.InterpolationMode.BILINEAR, v1.InterpolationMode.BICUBIC
FLOATS = [v1.ToTensor(), v1.Normalize([0.5], [0.2])]

STEPS = {
    f"{name}, {version.__name__.rpartition('.')[2]}": make(version)
    for version in (v1, v2)
    for name, make in {
        "all colours": lambda v: v.ColorJitter(0.8, 0.8, 0.8, 0.4),
        "none": lambda v: v.ColorJitter(),
        "grey": lambda v: v.RandomGrayscale(0.5),
        "blur": lambda v: v.GaussianBlur(9, (0.1, 2.0)),
        "a kernel without room": lambda v: v.GaussianBlur(49),
        "flip": lambda v: v.RandomHorizontalFlip(0.5),
        "flip down": lambda v: v.RandomVerticalFlip(0.5),
        "perhaps solarize at a fraction": lambda v: v.RandomSolarize(99.5, 0.5),
        "solarize nothing": lambda v: v.RandomSolarize(255.5, 1.0),
        "perhaps posterize": lambda v: v.RandomPosterize(3, 0.5),
        "posterize to none": lambda v: v.RandomPosterize(8, 1.0),
        "perhaps invert": lambda v: v.RandomInvert(0.5),
        "perhaps a Compose": lambda v: v.RandomApply(
            [v.Compose([v.RandomInvert(0.5), v.ColorJitter(0.4), v.Compose([v.RandomGrayscale()])])]
        ),
        "perhaps this or that": lambda v: v.RandomApply(
            [v.RandomChoice([v.RandomSolarize(99), v.RandomInvert()], p=[0.2, 0.8])]
        ),
        "choice": lambda v: v.RandomChoice([v.RandomSolarize(99, 1.0), v.ColorJitter(0.4)]),
        "choice of blurs": lambda v: v.RandomChoice(
            [v.GaussianBlur(3), v.Compose([v.RandomInvert(), v.GaussianBlur(5)])], p=[0.3, 0.7]
        ),
        "perhaps equalize": lambda v: v.RandomEqualize(0.5),
        "perhaps autocontrast": lambda v: v.RandomAutocontrast(0.5),
        "perhaps sharpen": lambda v: v.RandomAdjustSharpness(2.3, 0.5),
        "affine": lambda v: v.RandomAffine(30, (0.2, 0.1), (0.7, 1.4), 10),
        "affine, filled": lambda v: v.RandomAffine(
            30, shear=(3, 9, 0, 9), interpolation=BILINEAR, fill=(1, 20, 255)
        ),
        "rotation, bicubic": lambda v: v.RandomRotation(60, BICUBIC, center=(3, 4)),
        "rotation by quarters": lambda v: v.RandomRotation((90, 90)),
        "no rotation": lambda v: v.RandomRotation((0, 0)),
        "two maps": lambda v: v.Compose([v.RandomAffine(30), v.RandomRotation(40)]),
        "rand, filled": lambda v: v.RandAugment(interpolation=BILINEAR, fill=[1, 2, 3]),
        "trivial": lambda v: v.TrivialAugmentWide(),
        **{
            f"auto, {policy.value}": lambda v, policy=policy: v.AutoAugment(policy)
            for policy in v1.AutoAugmentPolicy
        },
        "order": lambda v: v.RandomOrder(
            [v.RandomSolarize(99, 1.0), v.ColorJitter(0.4), v.RandomPosterize(2, 0.3)]
        ),
        "never": lambda v: v.RandomHorizontalFlip(0.0),
        "perhaps": lambda v: v.RandomApply([v.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.6),
        "perhaps two": lambda v: v.RandomApply(
            nn.ModuleList([v.RandomGrayscale(0.5), v.GaussianBlur(5)]), 0.5
        ),
    }.items()
}
TIMMS = ("rand-m9-mstd0.5-inc1", "rand-m6-n4-p0.7-t1", "v0r", "originalr-mstd0.5")


def timms_policy(config):
    from timm.data import auto_augment as timm

    if config.startswith(("v0", "original")):
        return timm.auto_augment_transform(config, {})
    return timm.rand_augment_transform(config, {"img_mean": (9, 99, 199)})


def noise(seed):
    return np.random.default_rng(seed).integers(0, 256, (24, 30, 3), dtype=np.uint8)


def test_flip_of_one_column_matches_torch():
    step = pixel_step(v1.RandomHorizontalFlip(1.0))
    assert step is not None
    assert torch.from_numpy(step(np.zeros((5, 1, 3), np.uint8))).shape == (5, 1, 3)


@pytest.mark.parametrize("case", [*STEPS, *(f"timm, {config}" for config in TIMMS)])
def test_replacement_draws_and_returns_like_original_step(case):
    step = STEPS[case] if case in STEPS else timms_policy(case.removeprefix("timm, "))
    fast = pixel_step(step)
    assert fast is not None
    fast = pickle.loads(pickle.dumps(fast))
    changed = 0
    for seed in range(30):
        image = noise(seed)
        if "without room" in case:
            with pytest.raises(RuntimeError):
                step(Image.fromarray(image))
            with pytest.raises(RuntimeError):
                fast(image)
            continue
        seed_all(seed)
        theirs = np.asarray(step(Image.fromarray(image)))
        drawn = fingerprint()
        for writable in (True, False):
            given = image.copy()
            given.flags.writeable = writable
            seed_all(seed)
            ours = fast(given)
            assert fingerprint() == drawn
            assert ours.flags.c_contiguous
            difference = np.abs(ours.astype(int) - theirs)
            assert difference.max() <= ("blur" in case or "two" in case)
            assert writable or np.array_equal(given, image)
        changed += not np.array_equal(theirs, image)
    if any(word in case for word in ("never", "none", "nothing", "room", "no rot")):
        assert changed == 0
    elif any(word in case for word in ("grey", "flip", "perhaps", "auto", "trivial")):
        assert 0 < changed < 30
    else:
        assert changed > 20  # a narrow blur may change nothing


class Own(v1.ColorJitter):
    pass


def replaced(step):
    step.forward = lambda image: image
    return step


@pytest.mark.parametrize(
    "step",
    [
        *(Own(0.4), replaced(v1.ColorJitter(0.4)), v1.RandomPerspective(), v1.GaussianBlur(129)),
        *(v1.RandomApply([Own(0.4)]), v1.RandomApply([v1.RandomPerspective()]), v1.ToTensor()),
        *(v1.RandomChoice([v1.ColorJitter(0.4), v1.RandomPerspective()]), lambda image: image),
        *(v1.RandomOrder([Own(0.4)]), v1.RandomApply([v1.Compose([Own(0.4)])])),
        *(
            v1.Compose([v1.RandomInvert(), Own(0.4)]),
            v2.RandomChoice([replaced(v2.RandomInvert())]),
        ),
        *(replaced(v1.RandomSolarize(9)), replaced(v2.RandomVerticalFlip())),
    ],
)
def test_unknown_step_runs_unchanged(step):
    assert pixel_step(step) is None


def test_timm_policies_with_other_functions_run_themselves():
    policy = timms_policy("rand-m9-inc1")
    assert pixel_step(policy) is not None
    policy.ops[0].aug_fn = lambda image: image
    assert pixel_step(policy) is None


def test_steps_on_tensors_run_themselves(root):
    steps = [v2.ToImage(), v2.RandomResizedCrop(32), v2.ColorJitter(0.4), v2.ToDtype(torch.float32)]
    recognition = compile_dataset(ImageFolder(str(root), v2.Compose(steps)))
    assert [step.partition("(")[0] for step in recognition.unchanged] == ["ColorJitter"]


def test_a_user_s_array_is_not_taken_for_pixels(root):
    def doubled(image):
        return np.asarray(image).astype(np.float32) * 2

    def back(array):
        return Image.fromarray((array / 2).astype(np.uint8))

    steps = [v1.RandomResizedCrop(32), doubled, back, v1.ColorJitter(0.4), v1.ToTensor()]
    recognition = compile_dataset(ImageFolder(str(root), v1.Compose(steps)))
    assert recognition.pipeline is not None
    other = compile_dataset(ImageFolder(str(root), v1.Compose([steps[0], *steps[3:]])))
    assert other.pipeline is not None
    item = Item(1, None, 5, 1.0)
    assert torch.equal(recognition.pipeline.sample(item)[0], other.pipeline.sample(item)[0])
