"""The CUDA carrier, where there is a CUDA device: same results, safe to keep, overlapped."""

from __future__ import annotations

import pytest
import torch

from feedline.loader import DataLoader
from sources import Rows

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

OPTIONS = {"schedule": "16x2,24x2@12", "num_workers": 2, "seed": 3}


def batches(device: str, **options: object) -> list[tuple[torch.Tensor, torch.Tensor]]:
    with DataLoader(Rows(100), 16, device=device, **OPTIONS, **options) as loader:  # type: ignore[arg-type]
        return [(images, labels) for _ in range(4) for images, labels in loader]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batches_kept_on_the_device_are_those_of_the_cpu(dtype: torch.dtype) -> None:
    pairs = zip(batches("cuda", dtype=dtype), batches("cpu", dtype=dtype), strict=True)
    for (images, labels), (wanted, names) in pairs:
        assert images.is_cuda
        assert images.dtype == dtype
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(images.cpu(), wanted)
        assert torch.equal(labels.cpu(), names)


def test_batches_are_right_while_the_device_lags_far_behind() -> None:
    sums = []
    with DataLoader(Rows(100), 16, device="cuda", **OPTIONS) as loader:  # type: ignore[arg-type]
        for _ in range(4):
            for images, _ in loader:
                torch.cuda._sleep(20_000_000)
                sums.append(images.double().sum())
    wanted = [images.double().sum() for images, _ in batches("cpu")]
    torch.testing.assert_close(torch.stack(sums).cpu(), torch.stack(wanted))


def test_the_ring_is_pinned_and_let_go() -> None:
    loader = DataLoader(Rows(100), 16, device="cuda", **OPTIONS)  # type: ignore[arg-type]
    ring = torch.from_numpy(loader._maker.feed._crew.block)
    assert ring.is_pinned()
    next(iter(loader))
    loader.close()
    assert not ring.is_pinned()


def test_a_change_of_size_and_a_restored_state_leave_nothing_stale() -> None:
    with DataLoader(Rows(100), 16, device="cuda", **OPTIONS) as loader:  # type: ignore[arg-type]
        state = loader.state_dict()
        first = [images for images, _ in loader]
        loader.load_state_dict(state)
        again = iter(loader)
        assert torch.equal(next(again)[0], first[0])
        loader.set_image_size(20)
        assert next(again)[0].shape[-1] == 20
        loader.set_image_size(None)
        assert torch.equal(next(again)[0], first[2])


def test_the_split_of_a_step_finds_the_devices_own_work() -> None:
    with DataLoader(Rows(100), 16, device="cuda", **OPTIONS) as loader:  # type: ignore[arg-type]
        for _ in range(4):
            for _ in loader:
                torch.cuda._sleep(20_000_000)
        torch.cuda.synchronize()
        split = loader.timing.read()
    assert split.steps > 10
    assert split.compute_ms > split.copy_ms >= 0
    assert split.wait_ms >= 0
