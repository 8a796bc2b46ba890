"""Normalisation: arithmetic and rejected arguments."""

from __future__ import annotations

import pytest
import torch
from torchvision.transforms import v2

from feedline.engine.normalise import IMAGENET_MEAN, IMAGENET_STD, Normalise
from feedline.errors import UsageError


def pixels() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (5, 3, 16, 16)
    random = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    return random.contiguous(memory_format=torch.channels_last)


def test_every_pixel_value_matches_torchvision_normalize() -> None:
    ramp = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 3, 16, 16)
    usual = v2.Compose(
        [v2.ToDtype(torch.float32, scale=True), v2.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    )
    normalise = Normalise()
    ours = normalise(ramp, normalise.constants(torch.device("cpu")))
    torch.testing.assert_close(ours, usual(ramp), rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_layout_is_preserved_and_dtype_is_converted(dtype: torch.dtype) -> None:
    normalise = Normalise(dtype=dtype)
    result = normalise(pixels(), normalise.constants(torch.device("cpu")))
    assert result.dtype == dtype
    assert result.is_contiguous(memory_format=torch.channels_last)
    exact = Normalise()(pixels(), normalise.constants(torch.device("cpu")))
    assert torch.equal(result, exact.to(dtype))


@pytest.mark.parametrize(
    "arguments",
    [{"std": (0.2, 0.0, 0.2)}, {"mean": (0.5,)}, {"std": (1.0, 1.0)}, {"dtype": torch.uint8}],
)
def test_unsupported_normalisation_raises_with_arguments(arguments: dict) -> None:
    with pytest.raises(UsageError, match="got"):
        Normalise(**arguments)
