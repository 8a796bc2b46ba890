"""`feedline.find_batch_size`: arguments, errors, and results on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import feedline
from feedline.errors import UsageError

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def small_model(width: int = 16) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
        nn.Conv2d(width, 2 * width, 3, stride=2), nn.BatchNorm2d(2 * width), nn.GELU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10),
    ).to(memory_format=torch.channels_last)  # fmt: skip


LAZY = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
FROZEN = nn.Linear(3, 3).requires_grad_(False)


@pytest.mark.parametrize(
    ("model", "schedule", "options", "said"),
    [
        (print, 64, {}, r"torch\.nn\.Module"),
        (None, "ownx3", {}, "needs an image size"),
        (None, 0, {}, "size"),
        (None, 64, {"precision": torch.int8}, "precision"),
        (None, 64, {"max_batch_size": 0}, "max_batch_size"),
        (None, 64, {"step": print}, "optimizer="),
        (LAZY, 64, {}, "uninitialized"),
        (FROZEN, 64, {}, "no parameter"),
    ],
)
def test_unsupported_model_is_rejected(
    model: Any, schedule: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        feedline.find_batch_size(model or small_model(), schedule, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_gpu_raises_with_hint() -> None:
    with pytest.raises(UsageError, match=r"torch sees none"):
        feedline.find_batch_size(small_model(), 64)


@needs_cuda
def test_on_a_gpu_the_largest_is_found_and_runs_within_the_memory() -> None:
    model = small_model(64).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.cuda.get_rng_state()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(2 * 2**30 / total)
    try:
        found = feedline.find_batch_size(
            model, "64x1,160x1", optimizer=optimizer, precision=torch.float16
        )
        assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
        assert not optimizer.state
        assert torch.equal(torch.cuda.get_rng_state(), random)
        torch.cuda.reset_peak_memory_stats()
        for phase in [*found.phases, *found.phases]:
            size = phase.phase.image_size
            assert size is not None
            images = torch.randn(phase.rows, 3, size, size, device="cuda")
            labels = torch.zeros(phase.rows, dtype=torch.int64, device="cuda")
            with torch.autocast("cuda", torch.float16):
                loss = functional.cross_entropy(model(images).float(), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert torch.cuda.max_memory_reserved() <= 2 * 2**30
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@needs_cuda
def test_cpu_model_with_gpu_raises() -> None:
    with pytest.raises(UsageError, match=r"model\.cuda\(\)"):
        feedline.find_batch_size(small_model(), 64)
