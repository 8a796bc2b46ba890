"""`feedline.find_batch_size`: arguments, errors, and results on a GPU."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import feedline
from feedline.errors import UsageError
from feedline.order.schedule import Schedule

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def small_model(width: int = 16) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
        nn.Conv2d(width, 2 * width, 3, stride=2), nn.BatchNorm2d(2 * width), nn.GELU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10),
    ).to(memory_format=torch.channels_last)  # fmt: skip


def test_an_estimate_needs_no_gpu_and_grows_with_the_memory() -> None:
    model = small_model()
    found = [
        feedline.find_batch_size(model, "64x2,128x1", gpu_memory=memory, max_batch_size=1 << 20)
        for memory in (1, 2, 4)
    ]
    rows = [[phase.rows for phase in each.phases] for each in found]
    assert rows[0][0] < rows[1][0] < rows[2][0]
    for each in rows:
        assert each[0] == pytest.approx(4 * each[1], rel=0.1)
        assert not each[0] % 8
    assert found[2].how == "estimate"
    assert "estimated, not measured, for a GPU of 4 GB" in str(found[2])
    assert f"128 px {rows[2][1]:6} images" in str(found[2])
    assert str(found[2].schedule) == f"64x2@{rows[2][0]},128x1@{rows[2][1]}"
    assert json.loads(json.dumps(found[2].as_dict()))["phases"][0]["batch_size"] == rows[2][0]
    for phase in found[2].phases:
        assert phase.peak_bytes <= found[2].usable_bytes


SCHEDULE = Schedule.parse("64x1")


@pytest.mark.parametrize("schedule", [64, "64x1", SCHEDULE.phases[0], SCHEDULE])
def test_a_schedule_comes_in_any_form(schedule: Any) -> None:
    found = feedline.find_batch_size(small_model(), schedule, gpu_memory=2, max_batch_size=100)
    assert str(found.schedule) == "64x1@96"
    assert found.phases[0].bound == "most"


@pytest.mark.slow
def test_lower_precision_has_room_for_more() -> None:
    plain, lower = (
        feedline.find_batch_size(
            small_model(), 64, gpu_memory=2, precision=precision, max_batch_size=1 << 20
        )
        for precision in (torch.float32, torch.bfloat16)
    )
    assert lower.largest > 1.3 * plain.largest


def test_batch_size_of_schedule_is_kept_or_does_not_fit() -> None:
    found = feedline.find_batch_size(small_model(), "64x1@100,128x1", gpu_memory=2)
    assert [phase.bound for phase in found.phases] == ["asked", "memory"]
    assert found.phases[0].rows == 100
    with pytest.raises(UsageError, match=r"a batch of 100000 at 64 px .* the largest"):
        feedline.find_batch_size(small_model(), "64x1@100000", gpu_memory=2)
    with pytest.raises(UsageError, match=r"a batch of 1 at 64 px"):
        feedline.find_batch_size(small_model(), "64x1", gpu_memory=0.5)


LAZY = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
FROZEN = nn.Linear(3, 3).requires_grad_(False)


@pytest.mark.parametrize(
    ("model", "schedule", "options", "said"),
    [
        (print, 64, {"gpu_memory": 8}, r"torch\.nn\.Module"),
        (None, "ownx3", {"gpu_memory": 8}, "needs an image size"),
        (None, 0, {"gpu_memory": 8}, "size"),
        (None, 64, {"gpu_memory": 0}, "above 0"),
        (None, 64, {"gpu_memory": float("nan")}, "above 0"),
        (None, 64, {"gpu_memory": True}, "above 0"),
        (None, 64, {"gpu_memory": "8"}, "above 0"),
        (None, 64, {"gpu_memory": 8, "precision": torch.int8}, "precision"),
        (None, 64, {"gpu_memory": 8, "max_batch_size": 0}, "max_batch_size"),
        (None, 64, {"gpu_memory": 8, "step": print}, "step and batch"),
        (None, 64, {"step": print}, "optimizer="),
        (LAZY, 64, {"gpu_memory": 8}, "uninitialized"),
        (FROZEN, 64, {"gpu_memory": 8}, "no parameter"),
    ],
)
def test_unsupported_model_is_rejected(
    model: Any, schedule: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        feedline.find_batch_size(model or small_model(), schedule, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_gpu_raises_with_hint() -> None:
    with pytest.raises(UsageError, match=r"(?s)torch sees none .*gpu_memory=8"):
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
        assert found.how == "trial"
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
def test_gpu_estimate_is_close_to_torch_allocation() -> None:
    from feedline.tuning.step_bytes import count_step_bytes
    from feedline.tuning.training_step import class_loss, noise_batches, training_step

    device = torch.device("cuda", 0)
    model = small_model(64).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    counted = count_step_bytes(
        model, 128, loss=class_loss, optimizer=optimizer, precision=torch.float16
    )
    step = training_step(
        model, optimizer, class_loss, lambda: torch.autocast("cuda", torch.float16)
    )
    make = noise_batches(device)
    step(make(64, 128))
    optimizer.zero_grad()
    torch.cuda.reset_peak_memory_stats()
    batch, ahead = make(64, 128), make(64, 128)
    step(batch)
    assert len(ahead) == 2
    # Kernels' workspace is torch's there, too, and is not counted.
    assert 0.7 * torch.cuda.max_memory_allocated() <= counted.at(64)
    assert counted.at(64) <= 1.1 * torch.cuda.max_memory_allocated()


@needs_cuda
def test_cpu_model_with_gpu_raises() -> None:
    with pytest.raises(UsageError, match=r"model\.cuda\(\)"):
        feedline.find_batch_size(small_model(), 64)
