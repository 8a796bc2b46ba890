"""fastai: a Learner on feedline's loaders that resumes in the middle of an epoch.

fastai accepts PyTorch loaders. It does not save a loader's state, so a callback does. Needs
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

EPOCHS, SAVE_STEP = 2, 17  # 12 steps per epoch


class Pictures(Dataset[Any]):
    """Generated images, labelled by their bright quadrant, with the number of each sample."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, number: int) -> tuple[Tensor, int, int]:
        image = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(number))
        label = number % 4
        row, column = 16 * (label // 2), 16 * (label % 2)
        image[:, row : row + 16, column : column + 16] += 1
        return image, label, number


class SavePosition(Callback):
    """Callback: save model and loader after some steps, and record the samples of each step."""

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
    """The loss; ignores the sample's number."""
    return nn.functional.cross_entropy(logits, labels)


def fit(folder: Path, stop_after: int | None = None, *, resume: bool = False) -> list[list[int]]:
    """Train to the end or to `stop_after`, optionally resuming; return the samples of each step."""
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
    place = SavePosition(stop_after)
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
    """Train to the end, then to the middle of the second epoch, then resume."""
    with tempfile.TemporaryDirectory() as name:
        whole = fit(Path(name))
        first = fit(Path(name), SAVE_STEP)
        rest = fit(Path(name), resume=True)
    assert first == whole[:SAVE_STEP], (first, whole[:SAVE_STEP])
    assert rest == whole[SAVE_STEP:], (rest, whole[SAVE_STEP:])
    print(f"fastai: resumed after step {SAVE_STEP} with the remaining {len(rest)} batches")


if __name__ == "__main__":
    main()
