"""Default number of workers, also if memory is scarce; `feedline doctor` uses the same rule."""

import numpy as np
import pytest

from feedline import DataLoader, ImageArray, TrainCrop
from feedline.engine import defaults
from feedline.engine.defaults import auto_workers
from feedline.profile.doctor import suggest_settings
from feedline.profile.doctor_machine import BATCH_SLOTS, IMAGE_PX, slot_bytes
from feedline.system import CoreLimits, MemoryLimits
from feedline.throughput.step_model import MAX_WORKERS


@pytest.mark.parametrize(
    ("cores", "workers"),
    [(1, 1), (5, 5), (6, 5), (8, 7), (15, 14), (16, 14), (64, 62), (10 * MAX_WORKERS, MAX_WORKERS)],
)
def test_cores_are_reserved_for_training_on_large_machines(cores, workers):
    assert auto_workers(cores) == workers


MB = 1 << 20


@pytest.mark.parametrize(
    ("available", "batches", "workers"),
    [
        (None, 0, 14),
        (64 << 30, 0, 14),
        (1024 * MB, 0, 8),  # half of it, 64 MB each
        (1024 * MB, 128 * MB, 6),
        (1024 * MB, 154 * MB, 5),
        (1024 * MB, 2048 * MB, 1),
        (0, 0, 1),
    ],
)
def test_workers_and_batches_have_half_of_the_memory(available, batches, workers):
    assert auto_workers(16, available_bytes=available, batches_bytes=batches) == workers


def test_processes_of_a_machine_share_its_memory(monkeypatch):
    monkeypatch.setattr(defaults, "available_memory_bytes", lambda: 800)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert defaults.own_memory_bytes() == 200

    def unknown():
        raise OSError("this machine does not say")

    monkeypatch.setattr(defaults, "available_memory_bytes", unknown)
    assert defaults.own_memory_bytes() is None


@pytest.fixture
def large_machine(monkeypatch):
    """16 cores, of which 14 are for workers, and a gigabyte."""
    monkeypatch.setattr(defaults, "usable_cores", lambda: 16)
    monkeypatch.setattr(defaults, "own_memory_bytes", lambda: 1024 * MB)


def workers_at(**options):
    pixels = np.zeros((512, 8, 8, 3), np.uint8)
    images = ImageArray(pixels, np.zeros(512, np.int64), transform=TrainCrop())
    with DataLoader(images, 256, num_workers="auto", **options) as loader:
        return loader.num_workers


@pytest.mark.usefixtures("large_machine")
def test_images_that_are_larger_leave_less_to_workers():
    sizes = [workers_at(image_size=size) for size in (8, 160, 224, 448)]
    assert sizes == [7, 6, 5, 1]
    assert workers_at(schedule="112x1,224x1") == 5
    assert workers_at(schedule="112x1@256,224x1@64") == 7
    assert workers_at(image_size=112, max_image_size=224) == 5
    assert workers_at(image_size=224, prefetch=6) == 3


@pytest.mark.usefixtures("large_machine")
def test_doctor_reports_same_number():
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
