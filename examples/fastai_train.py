"""fastai: a Learner on feedline's loaders that goes on in the middle of an epoch.

fastai takes torch's loaders as they are. It saves no loader's state, so a callback does. Needs
`pip install fastai`.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from fastai.callback.core import Callback, CancelFitException
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from torch import Tensor, nn
from torch.utils.data import Dataset

import feedline

EPOCHS, STOPPED = 2, 17  # of 12 steps each


class Pictures(Dataset[Any]):
    """Made-up pictures, labelled by the quadrant that is bright; with each sample's number."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, number: int) -> tuple[Tensor, int, int]:
        image = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(number))
        label = number % 4
        row, column = 16 * (label // 2), 16 * (label % 2)
        image[:, row : row + 16, column : column + 16] += 1
        return image, label, number


class Place(Callback):
    """Saves model and loader after some steps, and notes which samples each step saw."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.stop_after = stop_after
        self.seen: list[list[int]] = []

    def after_batch(self) -> None:
        if not self.training:
            return
        self.seen.append(self.yb[1].tolist())
        if len(self.seen) == self.stop_after:
            self.learn.save("place")
            state = self.dls.train.state_dict()
            (self.learn.path / "place.json").write_text(json.dumps(state))
            raise CancelFitException


def cross_entropy(logits: Tensor, labels: Tensor, numbers: Tensor) -> Tensor:
    """The loss; a sample's number is no part of it."""
    return nn.functional.cross_entropy(logits, labels)


def fit(folder: Path, stop_after: int | None = None, *, resume: bool = False) -> list[list[int]]:
    """Train as far as asked, or from where it was saved on; the samples of each step."""
    train = feedline.DataLoader(Pictures(), batch_size=8, shuffle=True, num_workers=2, seed=1)
    valid = feedline.DataLoader(Pictures(), batch_size=8)
    loaders = DataLoaders(train, valid, device=torch.device("cpu"))
    loaders.n_inp = 1  # of a batch's three parts, the first is the input
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 4),
    )
    place = Place(stop_after)
    learner = Learner(loaders, net, loss_func=cross_entropy, cbs=place, path=folder)
    start = 0
    if resume:
        learner.load("place")
        train.load_state_dict(json.loads((folder / "place.json").read_text()))
        start = train.state_dict()["epoch"]
    with learner.no_logging():
        learner.fit(EPOCHS, lr=0.01, start_epoch=start)
    return place.seen


def main() -> None:
    """Train as a whole, then up to the middle of the second epoch, then the rest."""
    with tempfile.TemporaryDirectory() as name:
        whole = fit(Path(name))
        first = fit(Path(name), STOPPED)
        rest = fit(Path(name), resume=True)
    assert first == whole[:STOPPED], (first, whole[:STOPPED])
    assert rest == whole[STOPPED:], (rest, whole[STOPPED:])
    print(f"fastai: went on after step {STOPPED} with the {len(rest)} batches that were left")


if __name__ == "__main__":
    main()
