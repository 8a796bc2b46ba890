"""`feedline.pair`: unknown steps run unchanged, and `explain()` gives the reason."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

import feedline
from pair_inputs import preset, usual, values


class Narrower(v2.RandomCrop):
    """A user-defined crop."""

    def make_params(self, flat_inputs):
        return {**super().make_params(flat_inputs), "left": 0}


class Whole(v2.Compose):
    """A user-defined subclass of Compose with unknown behaviour."""


def own(image, mask):
    return image, mask


def assert_as_it_is(pipeline, pairs):
    """Assert that nothing is fused, and that the result is that of the pipeline."""
    joint = feedline.pair(pipeline)
    assert joint.explain().startswith("unchanged   all: ")
    for seed in range(2):
        torch.manual_seed(seed)
        ours = joint(*pairs[0])
        torch.manual_seed(seed)
        theirs = usual(pipeline, *pairs[0])
        for one, other in zip(ours, theirs, strict=True):
            assert type(one) is type(other)
            assert one == other if isinstance(one, Image.Image) else torch.equal(one, other)
    return joint.explain()


def test_pipeline_with_unknown_first_step_runs_unchanged(pairs):
    crop = v2.RandomCrop(20)
    for first in (own, v2.RandomRotation(5), v2.ElasticTransform(), Narrower(20)):
        said = assert_as_it_is(v2.Compose([first, crop]), pairs)
        assert "cannot be fused" in said
    assert_as_it_is(Whole([crop]), pairs)
    assert_as_it_is(own, pairs)


def test_steps_that_change_targets_run_unchanged(pairs):
    dtypes = {tv_tensors.Image: torch.uint8, tv_tensors.Mask: torch.int64, "others": None}
    for step in (v2.ToPureTensor(), v2.ToDtype(dtypes)):
        joint = feedline.pair(v2.Compose([v2.ToImage(), step, v2.RandomCrop(20)]))
        assert "move it before them" in joint.explain()
    for again in (v2.Resize(20), v2.RandomResizedCrop(20)):
        joint = feedline.pair(v2.Compose([v2.Resize(50), again]))
        assert "resizes a second time" in joint.explain()
    joint = feedline.pair(v2.Compose([v2.CenterCrop(90), v2.Resize(50)]))
    assert "resizes a second time, or after padding" in joint.explain()
    for padding in ({"padding_mode": "reflect"}, {"fill": (1, 2)}):
        joint = feedline.pair(v2.Compose([v2.Resize(50), v2.RandomCrop(40, 3, **padding)]))
        assert "unchanged   RandomCrop" in joint.explain()
    for cuts in (v2.Pad(-2), v2.Pad((3, -1)), v2.RandomCrop(20, padding=-3)):
        assert "negative padding" in assert_as_it_is(v2.Compose([cuts]), pairs)
    joint = feedline.pair(v2.Compose([v2.Pad(2, fill=1), v2.Pad(2, fill=2)]))
    assert "pads again, with another colour" in joint.explain()
    flips = v2.Compose([v2.RandomCrop(20), v2.ColorJitter(0.2), v2.RandomHorizontalFlip()])
    assert "unchanged   RandomHorizontalFlip" in feedline.pair(flips).explain()
    held = v2.RandomApply([v2.RandomHorizontalFlip(1.0)], p=1.0)
    assert (
        "unchanged   RandomApply" in feedline.pair(v2.Compose([v2.RandomCrop(20), held])).explain()
    )


def test_steps_after_refusal_match_pipeline(pairs):
    pipelines = [
        v2.Compose([v2.RandomCrop(20), v2.ColorJitter(0.2), v2.RandomHorizontalFlip(), *values()]),
        v2.Compose([v2.RandomCrop(20), v2.RandomApply([v2.RandomHorizontalFlip(1)]), *values()]),
        v2.Compose([v2.ToImage(), v2.CenterCrop(80), v2.Resize(50), *values()]),
        v2.Compose([v2.ToImage(), v2.RandomCrop(20), v2.Lambda(lambda x: x), v2.ToPureTensor()]),
    ]
    for pipeline in pipelines:
        joint = feedline.pair(pipeline)
        assert "unchanged" in joint.explain()
        for seed in range(4):
            torch.manual_seed(seed)
            ours = joint(*pairs[0])
            torch.manual_seed(seed)
            theirs = usual(pipeline, *pairs[0])
            assert all(map(torch.equal, ours, theirs))
            assert list(map(type, ours)) == list(map(type, theirs))


def test_replaced_step_runs_unchanged(pairs, monkeypatch):
    pipeline = v2.Compose([v2.RandomCrop(20), *values()])
    with monkeypatch.context() as patch:
        patch.setattr(v2.RandomCrop, "make_params", lambda *_: pytest.fail("not called"))
        assert "make_params was replaced" in feedline.pair(pipeline).explain()
    with monkeypatch.context() as patch:
        kept = v2.functional.crop
        patch.setattr("torchvision.transforms.v2._geometry.F.crop", lambda *a, **k: kept(*a, **k))
        assert "crop was replaced" in feedline.pair(pipeline).explain()
    with monkeypatch.context() as patch:
        kept = Image.Image.resize
        patch.setattr(Image.Image, "resize", lambda *a, **k: kept(*a, **k))
        assert "PIL.Image.Image.resize was replaced" in feedline.pair(pipeline).explain()
    own_transform = v2.RandomCrop(20)
    own_transform.transform = lambda thing, params: thing
    assert "has its own transform" in assert_as_it_is(v2.Compose([own_transform]), pairs)
    hooked, calls = v2.RandomCrop(20), []
    hooked.register_forward_hook(lambda *_: calls.append(1))
    assert "has hooks" in assert_as_it_is(v2.Compose([hooked]), pairs)
    assert calls
    everywhere = register_module_forward_hook(lambda *_: calls.append(1))
    try:
        assert "all torch modules" in assert_as_it_is(v2.Compose([v2.RandomCrop(20)]), pairs)
    finally:
        everywhere.remove()
    whole = v2.Compose([v2.RandomCrop(20)])
    whole.register_forward_pre_hook(lambda *_: calls.append(1))
    assert_as_it_is(whole, pairs)


def test_pipeline_without_mask_support_raises(pairs):
    for pipeline in (
        v1.Compose([v1.RandomCrop(20)]),
        nn.Sequential(v2.RandomCrop(20)),
        v2.Compose([v2.Compose([nn.Identity()])]),
    ):
        joint = feedline.pair(pipeline)
        with pytest.raises(TypeError):
            joint(*pairs[0])


def test_the_explanation_names_a_step_of_the_user_and_the_size():
    lines = feedline.pair(preset(48, own)).explain().splitlines()
    said = {line.partition(" ")[0]: line for line in lines}
    assert "own cannot be fused" in said["because"]
    assert "48 px" in said["size"]
    assert "differs from image to image" in feedline.pair(v2.Resize(30)).explain()
