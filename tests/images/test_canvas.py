"""Moves of an image, folded into one: against the moves one after another."""

from __future__ import annotations

import numpy as np
import pytest

from feedline.images.canvas import Axis, Canvas, image_on
from feedline.images.crops import Window, cut
from feedline.images.resize import FILTERS, fill_as, nearest_pixels

FILLED = -1


def moved(rng: np.random.Generator, filter: str) -> tuple[Axis, np.ndarray]:
    """An axis after random moves, and the source pixel at each position after the same moves."""
    pixels = int(rng.integers(1, 40))
    axis, where = Axis.of(pixels), np.arange(pixels)
    resized = padded = False
    for move in rng.choice(["crop", "pad", "mirror", "resize"], 6):
        if move == "crop":
            first = int(rng.integers(0, len(where)))
            length = int(rng.integers(1, len(where) - first + 1))
            axis, where = axis.crop(first, length), where[first : first + length]
        elif move == "mirror":
            axis, where = axis.mirror(), where[::-1]
        elif move == "pad":
            sides = tuple(rng.integers(0, 9, 2).tolist())
            axis, where, padded = axis.pad(*sides), np.pad(where, sides, constant_values=-1), True
        elif not (resized or padded):
            to, resized = int(rng.integers(1, 60)), True
            axis = axis.resize(to)
            if to != len(where):
                where = where[nearest_pixels(filter, len(where), 0.0, len(where), to)]
    return axis, where


@pytest.mark.parametrize("filter", ["nearest", "nearest-exact"])
def test_sequence_of_moves_matches_stepwise_result(filter):
    rng = np.random.default_rng(0)
    for _ in range(2000):
        axis, where = moved(rng, filter)
        found = np.full(axis.length, FILLED)
        found[axis.at : axis.at + axis.count] = axis.nearest_pixels(filter)
        assert np.array_equal(found, where)
        assert axis.count == np.count_nonzero(where != FILLED)


def canvases(rng: np.random.Generator, filter: str):
    """Windows of resized images, each with height, width and the whole image."""
    for _ in range(60):
        height, width = rng.integers(2, 70, 2).tolist()
        tall, wide = (int(rng.integers(max(1, side // 6), 90)) for side in (height, width))
        canvas = Canvas.of(height, width).resize(tall, wide)
        top, left = int(rng.integers(0, tall)), int(rng.integers(0, wide))
        rows = int(rng.integers(1, tall - top + 1))
        columns = int(rng.integers(1, wide - left + 1))
        yield canvas.crop(top, left, rows, columns), (height, width), (tall, wide), (top, left)


class Read:
    """Returns regions of an image, and records them."""

    def __init__(self, image):
        self.image, self.parts = image, []

    def __call__(self, part):
        self.parts.append(part)
        return cut(self.image, part)


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("mode", ["pillow", "bytes"])
def test_window_equals_resized_whole_exactly(filter, mode):
    rng, read_less = np.random.default_rng(1), 0
    for canvas, source, whole, corner in canvases(rng, filter):
        image = rng.integers(0, 256, (*source, 3), np.uint8)
        read = Read(image)
        made = image_on(canvas, read, filter, mode, (0, 0, 0))
        expected = np.empty((*canvas.size, 3), np.uint8)
        fill_as(mode, expected, image, Window(*whole, *corner, False, filter))
        assert np.array_equal(made, expected)
        ((_, _, height, width),) = read.parts
        read_less += height * width < source[0] * source[1]
    assert read_less > 20
