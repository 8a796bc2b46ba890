"""RandomErasing without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

import feedline
from feedline.images.compile.transform_tail import erase_in_place


@pytest.mark.parametrize("value", [0, (0.1, 0.2, 0.3), "random"])
@pytest.mark.parametrize("kind", [v1.RandomErasing, v2.RandomErasing])
def test_it_erases_the_same_in_the_input_itself(kind: Any, value: Any) -> None:
    step = kind(1.0, value=value)
    given = tv_tensors.Image(torch.rand(3, 20, 24))
    torch.manual_seed(3)
    wanted = step(given)
    assert not torch.equal(wanted, given)
    torch.manual_seed(3)
    made = erase_in_place(step)(given)
    assert torch.equal(made, wanted)
    assert type(made) is type(wanted)
    assert made.data_ptr() == given.data_ptr()
    assert not step.inplace


def test_what_is_set_on_the_step_is_followed() -> None:
    step = v1.RandomErasing(1.0)
    given = torch.ones(3, 20, 24)
    step.p = 0.0
    assert torch.equal(erase_in_place(step)(given), torch.ones(3, 20, 24))


def test_other_steps_are_left_as_they_are() -> None:
    class RandomErasing(torch.nn.Module):
        pass

    for step in (v1.Normalize([0.5], [0.5]), RandomErasing(), torch.neg):
        assert erase_in_place(step) is step


def test_an_image_of_the_users_is_not_written_to() -> None:
    image = Image.new("RGB", (40, 40), (9, 8, 7))
    pipeline = v1.Compose([v1.Resize((40, 40)), v1.ToTensor(), v1.RandomErasing(1.0, value=5)])
    compiled = feedline.compile(pipeline)
    torch.manual_seed(0)
    first = compiled(image)
    kept = first.clone()
    torch.manual_seed(1)
    assert not torch.equal(compiled(image), first)
    assert torch.equal(first, kept)
    assert image.getcolors() == [(1600, (9, 8, 7))]
    assert "RandomErasing" in compiled.explain()


@pytest.mark.parametrize("before", [[], [v1.Grayscale(3)]])
def test_behind_a_step_whose_output_shares_memory_it_erases_as_by_itself(before: Any) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    rest = [*before, v1.RandomErasing(1.0, value=(1, 2, 3))]
    floats = v1.Compose([v1.Resize((40, 40)), v1.ToTensor()])
    compiled = feedline.compile(v1.Compose([*floats.transforms, *rest]))
    assert compiled.explain().startswith("fused")
    for seed in range(5):
        torch.manual_seed(seed)
        made = compiled(Image.fromarray(noise))
        torch.manual_seed(seed)
        assert torch.equal(made, v1.Compose(rest)(floats(Image.fromarray(noise))))
