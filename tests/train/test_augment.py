"""Augmentation of whole batches: operations of torchvision and timm, drawn from a seed."""

import pytest
import torch

from feedline.order.sample_order import Order
from feedline.order.schedule import Schedule
from feedline.randomness import fingerprint
from feedline.train.augment import BatchAugmentation, apply_policy, erase_and_mix
from feedline.train.recipe import Recipe, TrainPhase


def batch(rows=6, size=16):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(rows, 3, size, size, generator=generator)
    return images.contiguous(memory_format=torch.channels_last), torch.arange(rows) % 4


def pixels(rows=6, size=32):
    generator = torch.Generator().manual_seed(1)
    made = torch.randint(0, 256, (rows, 3, size, size), generator=generator)
    return made.to(torch.uint8).contiguous(memory_format=torch.channels_last)


def changed(images, labels, seed, **settings):
    phase = TrainPhase(size=16, epochs=1, **settings)
    return erase_and_mix(images, labels, phase, classes=4, seed=seed)


def test_mixup_blends_each_image_with_the_previous_one():
    images, labels = batch()
    made, targets = changed(images, labels, 3, mixup=0.4)
    share = float(targets[0, 0])
    assert torch.allclose(made, images * share + images.roll(1, 0) * (1 - share), atol=1e-5)
    assert torch.allclose(targets.sum(1), torch.ones(6))
    assert made.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("seed", range(5))
def test_cutmix_pastes_a_box_of_the_previous_image(seed):
    images, labels = batch()
    before = images.clone()
    made, targets = changed(images, labels, seed, cutmix=1.0)
    assert torch.equal(images, before), "the argument does not change"
    pasted = (made != images).any(dim=1)
    assert torch.equal(made, torch.where(pasted[:, None], images.roll(1, 0), images))
    share = 1 - float(pasted[0].float().mean())
    assert float(targets[0, 0]) == pytest.approx(share, abs=1e-5)


def test_with_both_each_batch_of_two_images_or_more_gets_one():
    images, labels = batch()
    boxes = 0
    for seed in range(100):
        made, _ = changed(images, labels, seed, mixup=0.4, cutmix=1.0)
        boxes += bool(((made == images) | (made == images.roll(1, 0))).all())
    assert 30 < boxes < 70
    # A batch of one and a phase without mixing are unchanged.
    assert changed(images, labels, 0)[0] is images
    assert changed(images[:1], labels[:1], 0, mixup=0.4)[1].dtype == torch.int64


def test_erasing_sets_rectangles_of_some_images_to_the_mean():
    images, labels = torch.ones(400, 3, 32, 32), torch.zeros(400, dtype=torch.int64)
    made, _ = changed(images, labels, 5, reprob=0.25)
    gone = (made == 0).all(dim=1)
    hit = gone.flatten(1).any(dim=1)
    assert 70 < int(hit.sum()) < 130
    for each in gone[hit]:
        rows, columns = each.any(1).nonzero(), each.any(0).nonzero()
        assert each[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].all()
    assert torch.equal(images, torch.ones(400, 3, 32, 32)), "the argument does not change"


@pytest.mark.parametrize("policy", ["rand", "trivial"])
def test_a_policy_grows_with_its_strength(policy):
    images = pixels(64)
    changes = []
    for strength in (0.1, 0.5, 1.0):
        made = [apply_policy(images, policy, strength, seed) for seed in range(8)]
        changes.append(sum(float((each.int() - images.int()).abs().sum()) for each in made))
    assert 0 < changes[0] < changes[1] < changes[2]


def test_a_policy_draws_for_groups_of_images():
    images = pixels(64)
    made = apply_policy(images, "trivial", 1.0, 0)
    assert made.is_contiguous(memory_format=torch.channels_last)
    same = pixels(1).expand(64, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    kinds = len(torch.unique(apply_policy(same, "trivial", 1.0, 0), dim=0))
    assert 8 < kinds <= 17
    assert torch.equal(apply_policy(images, "trivial", 1.0, 0), made)
    assert not torch.equal(apply_policy(images, "trivial", 1.0, 1), made)
    for none in (apply_policy(images, "none", 1.0, 0), apply_policy(images, "rand", 0.0, 0)):
        assert none is images
    assert apply_policy(images[:0], "rand", 1.0, 0).shape == (0, 3, 32, 32)


def test_a_batch_is_changed_by_its_phase_and_its_seed_and_no_random_state_is():
    before = fingerprint()
    recipe = Recipe(schedule="16x1,32x1", mixup=0.4, cutmix=1.0, reprob=1.0, aa="trivial")
    augmentation = BatchAugmentation(recipe, classes=4)
    order = Order(length=12, schedule=Schedule.parse("16x1,32x1"), batch_size=6, seed=3)
    images, labels = batch()
    early, late = order.batch(0, 0), order.batch(1, 0)
    assert augmentation.batch(images, labels, batch=early)[0] is images
    assert torch.equal(augmentation.pixels(pixels(), early), pixels())
    made, targets = augmentation.batch(images, labels, batch=late)
    assert targets.shape == (6, 4)
    again, _ = BatchAugmentation(recipe, classes=4).batch(images, labels, batch=late)
    assert torch.equal(made, again)
    other, _ = augmentation.batch(images, labels, batch=order.batch(1, 1))
    assert not torch.equal(made, other)
    assert not torch.equal(augmentation.pixels(pixels(), late), pixels())
    assert fingerprint() == before
