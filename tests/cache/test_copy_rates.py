"""Rates of copies, measured on a sample of a source."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from feedline import ImageFolder, TrainCrop
from feedline.cache.rates import loader_rate, measure_copies, measure_rates
from feedline.cache.source import open_source
from feedline.sources.manifest import Level


def test_each_resolution_is_measured_at_its_sizes_and_cleaned_up(
    jpeg_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    small, large = Level(side=24, quality=95), Level(side=32, quality=95)
    rates, originals = measure_copies(
        open_source(jpeg_folder),
        [(small,), (large,)],
        (16, 28),
        crop=TrainCrop(),
        workers=0,
        images=8,
        seconds=0.1,
    )
    assert len(originals.names) == 8
    assert set(rates) == {(16, None), (16, small), (16, large), (28, None), (28, large)}
    assert all(rate > 0 for rate in rates.values())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_rate_is_counted_over_epochs(jpeg_folder: Path, workers: int) -> None:
    folder = ImageFolder(jpeg_folder)
    assert loader_rate(folder, 16, workers=workers, seconds=0.05) > 0
    turns: list[tuple[str, int, int]] = []
    rates = measure_rates(
        {(16, None): folder, (24, None): folder},
        workers=workers,
        seconds=0.01,
        progress=lambda *turn: turns.append(turn),
    )
    assert set(rates) == {(16, None), (24, None)}
    assert turns == [("measuring", turn, 6) for turn in range(6)]
