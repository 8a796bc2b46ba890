"""The line "forecast" of `explain()`, after some training."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from feedline import DataLoader, ImageArray, ImageFolder

FORECAST = re.compile(r"(?m)^forecast    (.*)$")


def said(loader: DataLoader[Any]) -> str:
    found = FORECAST.findall(loader.explain())
    return found[0] if found else ""


def images(count: int = 400) -> ImageArray:
    pixels = np.zeros((count, 24, 24, 3), np.uint8)
    return ImageArray(pixels, np.arange(count) % 10)


def test_what_was_trained_says_what_each_phase_needs() -> None:
    with DataLoader(images(), 8, schedule="8x1,16x2", num_workers=1, seed=0) as loader:
        assert said(loader) == ""
        for _ in loader:
            pass
        first = said(loader)
        assert re.match(r"at 8 px the step reaches [\d.]+ times .* of 16 px", first), first
        assert "at 16 px the step reaches" in first
        assert "not measured: scaled from 8 px" in first
        for _ in loader:
            pass
        both = said(loader)
        assert "not measured" not in both
        assert re.search(r"; 3 epochs of 400 images take .*; all at 16 px .* as long$", both)


def test_without_a_schedule_or_enough_steps_nothing_is_said(jpeg_folder: Path) -> None:
    with DataLoader(images(), 8, image_size=8, num_workers=1) as loader:
        for _ in loader:
            pass
        assert said(loader) == ""
    with DataLoader(ImageFolder(jpeg_folder), 4, schedule="8x1,16x1", num_workers=0) as loader:
        for _ in loader:
            pass
        assert said(loader) == ""
