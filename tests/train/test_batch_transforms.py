"""MixUp, CutMix, policies and erasing on whole batches: torchvision's, drawn from a seed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2

from feedline.plan.batches import Plan
from feedline.plan.schedule import Schedule
from feedline.train.erasing import erased
from feedline.train.mixing import Mixing, mixed
from feedline.train.policy import augmented
from feedline.train.recipe import Recipe
from feedline.train.transforms import RecipeTransforms


def batch(rows: int = 6, size: int = 16, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(rows, 3, size, size, generator=generator)
    return images.contiguous(memory_format=torch.channels_last), torch.arange(rows) % 4


def pixels(rows: int = 6, size: int = 32) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    made = torch.randint(0, 256, (rows, 3, size, size), generator=generator)
    return made.to(torch.uint8).contiguous(memory_format=torch.channels_last)


MIXUP = Mixing(mixup=0.4, cutmix=0.0, classes=4)
CUTMIX = Mixing(mixup=0.0, cutmix=1.0, classes=4)


def test_mixup_is_torchvisions_at_the_same_share() -> None:
    images, labels = batch()
    made, targets = mixed(images, labels, MIXUP, seed=3)
    share = float(np.random.Generator(np.random.PCG64(3)).beta(0.4, 0.4))
    theirs: Any = v2.MixUp(alpha=0.4, num_classes=4)
    params = {"lam": share, "labels": labels, "batch_size": len(labels)}
    assert torch.allclose(made, theirs.transform(images, params), atol=1e-6)
    assert torch.allclose(targets, theirs.transform(labels, params), atol=1e-6)
    assert made.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("seed", range(20))
def test_cutmix_takes_a_box_of_the_image_before(seed: int) -> None:
    images, labels = batch()
    before = images.clone()
    made, targets = mixed(images, labels, CUTMIX, seed)
    assert torch.equal(images, before), "what was given stays as it is"
    changed = (made != images).any(dim=1)
    share = 1 - float(changed[0].float().mean())
    boxes = changed.nonzero()
    if len(boxes):
        (_, top, left), (_, bottom, right) = boxes.amin(0), boxes.amax(0)
        part = (..., slice(top, bottom + 1), slice(left, right + 1))
        assert torch.equal(made[part], images.roll(1, 0)[part])
        assert changed[part].all()
    expected = torch.nn.functional.one_hot(labels, 4).float()
    assert torch.allclose(targets, expected * share + expected.roll(1, 0) * (1 - share), atol=1e-5)
    assert torch.allclose(targets.sum(1), torch.ones(6))


def test_shares_have_the_distribution_of_torchvisions() -> None:
    images, labels = batch(2, 64)
    areas = []
    for seed in range(2000):
        _, targets = mixed(images, labels, CUTMIX, seed)
        areas.append(float(targets[0, 0]))
    torch.manual_seed(0)
    theirs: Any = v2.CutMix(alpha=1.0, num_classes=4)
    reference = [float(theirs(images, labels)[1][0, 0]) for _ in range(2000)]
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        own, other = (float(np.quantile(each, share)) for each in (areas, reference))
        assert own == pytest.approx(other, abs=0.04)


def test_where_both_are_wanted_each_batch_gets_one() -> None:
    images, labels = batch()
    both = Mixing(mixup=0.4, cutmix=1.0, classes=4)
    kinds = []
    for seed in range(400):
        made, _ = mixed(images, labels, both, seed)
        kinds.append(bool(((made == images) | (made == images.roll(1, 0))).all()))
    assert 150 < sum(kinds) < 250


def test_a_batch_of_one_or_without_mixing_is_let_alone() -> None:
    images, labels = batch()
    nothing = Mixing(mixup=0.0, cutmix=0.0, classes=4)
    assert mixed(images, labels, nothing, 0)[0] is images
    assert mixed(images[:1], labels[:1], MIXUP, 0)[1].dtype == torch.int64


def test_erased_rectangles_have_torchvisions_sizes_and_odds() -> None:
    images = torch.ones(400, 3, 32, 32)
    made = erased(images, 0.25, seed=5)
    gone = (made == 0).all(dim=1)
    hit = gone.flatten(1).any(dim=1)
    assert 70 < int(hit.sum()) < 130
    areas = gone[hit].flatten(1).float().mean(dim=1)
    assert float(areas.min()) > 0.005
    assert float(areas.max()) < 0.36
    torch.manual_seed(0)
    theirs = v2.RandomErasing(p=1.0)
    other = torch.stack([(theirs(image) == 0)[0].float().mean() for image in images])
    assert float(areas.mean()) == pytest.approx(float(other.mean()), abs=0.03)
    for each in gone[hit]:
        rows, columns = each.any(1).nonzero(), each.any(0).nonzero()
        assert each[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].all()
    assert torch.equal(images, torch.ones(400, 3, 32, 32))
    assert erased(images, 0.0, 0) is images


@pytest.mark.parametrize("policy", ["rand", "trivial"])
def test_a_policy_does_torchvisions_operations(policy: str) -> None:
    """Whatever becomes of an image is what one of torchvision's operations makes of it."""
    image = pixels(1, 32)
    theirs: Any = v2.RandAugment(num_ops=1) if policy == "rand" else v2.TrivialAugmentWide()
    space = theirs._AUGMENTATION_SPACE
    names, possible = [], []
    for name, (values_of, signed) in space.items():
        values = values_of(31, 32, 32)
        at = [0.0] if values is None else [float(v) for v in values]
        at = [at[9]] if policy == "rand" and values is not None else at
        if name.startswith("Translate"):
            at += [float(round(v)) for v in at]  # theirs cuts 15.9999990 px to 15
        for value in [*at, *([-v for v in at] if signed else [])]:
            made = theirs._apply_image_or_video_transform(
                image, name, value, interpolation=theirs.interpolation, fill=theirs._fill
            )
            names.append(name)
            possible.append(made)
    every, met = torch.cat(possible).int(), set()
    for seed in range(400):
        made = augmented(image, policy, 1.0, seed)
        # Values of other precision round some pixels, or where they are from, to a neighbour.
        away = ((every - made.int()).abs() > 1).flatten(1).float().mean(1)
        if float(away.min()) <= 0.03:  # of "rand" where one of the two was Identity
            met.add(names[int(away.argmin())])
        else:
            assert policy == "rand"
    assert len(met) >= len(space) - 2  # some values leave this image as another one does


def test_images_of_a_batch_are_changed_each_by_itself() -> None:
    images = pixels(64)
    made = augmented(images, "trivial", 1.0, 0)
    changed = (made != images).flatten(1).any(1)
    assert 40 < int(changed.sum()) < 64
    assert torch.equal(augmented(images, "trivial", 1.0, 0), made)
    assert not torch.equal(augmented(images, "trivial", 1.0, 1), made)
    for none in (augmented(images, "none", 1.0, 0), augmented(images, "rand", 0.0, 0)):
        assert none is images
    assert augmented(images[:0], "rand", 1.0, 0).shape == (0, 3, 32, 32)


def test_no_random_state_is_touched() -> None:
    states = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    images, labels = batch()
    mixed(images, labels, CUTMIX, 0)
    erased(images, 1.0, 0)
    augmented(pixels(), "rand", 1.0, 0)
    assert torch.equal(states[0], torch.get_rng_state())
    assert (states[1] == np.random.get_state()[1]).all()  # type: ignore[index]


def test_a_phase_says_what_is_done_to_its_batches() -> None:
    recipe = Recipe(schedule="16x1,32x1", mixup=0.4, erasing=1.0, policy="trivial")
    transforms = RecipeTransforms(recipe, classes=4)
    plan = Plan(length=12, schedule=Schedule.parse("16x1,32x1"), batch_size=6, seed=3)
    images, labels = batch()
    early, late = plan.batch(0, 0), plan.batch(1, 0)
    assert transforms.whole(images, labels, batch=early)[0] is images
    assert transforms.pixels(pixels(), early) is not None
    made, targets = transforms.whole(images, labels, batch=late)
    assert made is not images
    assert targets.shape == (6, 4)
    again, _ = RecipeTransforms(recipe, classes=4).whole(images, labels, batch=late)
    assert torch.equal(made, again)
    other, _ = transforms.whole(images, labels, batch=plan.batch(1, 1))
    assert not torch.equal(made, other)
    assert math.isfinite(float(made.sum()))
