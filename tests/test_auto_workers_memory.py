"""`num_workers="auto"` and `feedline doctor` use the same rule if memory is scarce."""

from __future__ import annotations

import numpy as np
import pytest

from feedline import DataLoader, ImageArray, TrainCrop
from feedline.engine import defaults
from feedline.engine.defaults import auto_workers
from feedline.profile.doctor import suggest_settings
from feedline.profile.doctor_machine import BATCH_SLOTS, IMAGE_PX, slot_bytes
from feedline.system import CoreLimits, MemoryLimits

MB = 1 << 20


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 cores, of which 14 are for workers, and a gigabyte."""
    monkeypatch.setattr(defaults, "usable_cores", lambda: 16)
    monkeypatch.setattr(defaults, "own_memory_bytes", lambda: 1024 * MB)


def workers_at(**options: object) -> int:
    pixels = np.zeros((512, 8, 8, 3), np.uint8)
    images = ImageArray(pixels, np.zeros(512, np.int64), transform=TrainCrop())
    with DataLoader(images, 256, num_workers="auto", **options) as loader:  # type: ignore[arg-type]
        return loader.num_workers


def test_images_that_are_larger_leave_less_to_workers() -> None:
    sizes = [workers_at(image_size=size) for size in (8, 160, 224, 448)]
    assert sizes == [7, 6, 5, 1]
    assert workers_at(schedule="112x1,224x1") == 5
    assert workers_at(schedule="112x1@256,224x1@64") == 7
    assert workers_at(image_size=112, max_image_size=224) == 5
    assert workers_at(image_size=224, prefetch=6) == 3


def test_doctor_reports_same_number() -> None:
    limits = CoreLimits(machine=16, affinity=16, quota=float("inf"), allotted=None, processes=1)
    slots = BATCH_SLOTS * slot_bytes()
    workers = auto_workers(16, available_bytes=1024 * MB, batches_bytes=slots)
    assert workers == workers_at(image_size=IMAGE_PX)
    memory = MemoryLimits(machine=1 << 40, limit=None, available=1024 * MB)
    (said, *_) = suggest_settings(limits, memory, workers, gpu=False)
    assert said.value == workers
    assert "half of the 1.1 GB" in said.reason
    (plenty, *_) = suggest_settings(limits, None, auto_workers(16), gpu=False)
    assert "available" not in plenty.reason
