"""Rates of copies, measured on a sample of a source."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from feedline import ImageFolder, TrainCrop, build_cache
from feedline.cache.rates import loader_rate, measure_copies, measure_rates
from feedline.errors import UsageError
from feedline.sources.manifest import Level


def test_each_resolution_is_measured_at_the_sizes_that_it_serves_and_nothing_is_left(
    jpeg_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rates = measure_copies(
        jpeg_folder, (16, 28), (24, 32), crop=TrainCrop(), workers=0, images=8, seconds=0.1
    )
    small, large = Level(side=24, quality=95), Level(side=32, quality=95)
    assert set(rates) == {(16, None), (16, small), (16, large), (28, None), (28, large)}
    assert all(rate > 0 for rate in rates.values())
    assert not list(tmp_path.iterdir())


def test_copies_of_copies_are_refused(jpeg_folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    build_cache(jpeg_folder, root, (16,), workers=0)
    with pytest.raises(UsageError, match="cache"):
        measure_copies(root, (16,), (16,), crop=TrainCrop(), workers=0)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_rate_is_counted_over_epochs(jpeg_folder: Path, workers: int) -> None:
    folder = ImageFolder(jpeg_folder)
    assert loader_rate(folder, 16, workers=workers, seconds=0.05) > 0
    turns: list[tuple[str, int, int]] = []
    rates = measure_rates(
        {"small": (folder, 16), "large": (folder, 24)},
        workers=workers,
        seconds=0.01,
        progress=lambda *turn: turns.append(turn),
    )
    assert set(rates) == {"small", "large"}
    assert turns == [("measuring", turn, 6) for turn in range(6)]
