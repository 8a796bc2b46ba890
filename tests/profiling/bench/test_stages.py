"""The cost of one image, by stage."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from feedline.images.folder import ImageFolder
from feedline.profile.bench.stages import StageCosts, measure_stages


def measured(folder: ImageFolder, images: int, seconds: float = 60.0) -> StageCosts:
    return measure_stages(folder, list(range(images)), 64, seconds)


def test_every_stage_is_timed(folder: ImageFolder) -> None:
    stages = measured(folder, 20)
    assert stages.images == 20
    assert min(stages.read_ms, stages.decode_ms, stages.resize_ms) > 0
    assert stages.total_ms == stages.read_ms + stages.decode_ms + stages.resize_ms
    assert (stages.read_cold_ms is None) == bool(stages.cold_not_measured)
    assert stages.read_cold_ms is None or stages.read_cold_ms > 0


def test_stages_end_with_time_limit_after_the_first_few(folder: ImageFolder) -> None:
    assert measured(folder, 20, seconds=0.0).images == 8


def test_single_image_has_no_cold_read(folder: ImageFolder) -> None:
    stages = measured(folder, 1)
    assert stages.read_cold_ms is None
    assert stages.cold_not_measured


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/shm")
def test_files_that_stay_in_memory_are_not_read_cold(photos: Path) -> None:
    root = Path("/dev/shm") / f"feedline-test-{photos.parent.name}-{photos.name}"
    try:
        shutil.copytree(photos, root)
    except OSError as error:
        pytest.skip(f"no room in /dev/shm: {error}")
    try:
        stages = measured(ImageFolder(root), 4)
    finally:
        shutil.rmtree(root)
    assert stages.read_cold_ms is None
    assert "stay in memory" in stages.cold_not_measured
