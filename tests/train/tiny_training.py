"""A small data set, a report that remembers, and whether two runs ended alike."""

import numpy as np
import simplejpeg
import torch

from feedline.train.history import TrainReport
from feedline.train.run_folder import load_checkpoint


def write_tiny_set(folder, *, classes=2, train=20, val=6):
    """A set of 48 px JPEGs; class k is brighter than class k - 1."""
    rng = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val)):
        for label in range(classes):
            place = folder / split / f"class{label}"
            place.mkdir(parents=True)
            for number in range(count):
                level = 40 + 170 * label // max(classes - 1, 1)
                noise = rng.integers(-20, 20, (48, 48, 3))
                pixels = np.clip(level + noise, 0, 255).astype(np.uint8)
                jpeg = simplejpeg.encode_jpeg(pixels, quality=90)
                (place / f"{number:03d}.jpg").write_bytes(jpeg)
    return folder


class Recorder(TrainReport):
    """A report that stores its input, and can interfere after a given step."""

    def __init__(self, *, after=None, do=lambda: None):
        self.notes = []
        self.begun = []
        self.steps = []
        self.validated = []
        self.records = []
        self._after, self._do = after, do

    def note(self, text):
        self.notes.append(text)

    def begin(self, now):
        self.begun.append((now.epoch, now.size_px, now.step))

    def stepped(self, now):
        self.steps.append(now.step)
        if now.step == self._after:
            self._do()

    def validating(self, *, done):
        self.validated.append(done)

    def ended(self, record, *, epochs):
        self.records.append(record)


def assert_same_training(one, two):
    """Both runs ended with the same weights, statistics, optimizer, rate and random state."""
    a, b = load_checkpoint(one), load_checkpoint(two)
    for name in ("state", "random", "loader"):
        assert_equal(a[name], b[name], name)


def assert_equal(a, b, where):
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_equal(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_equal(x, y, f"{where}[{k}]")
    else:
        assert a == b, where
