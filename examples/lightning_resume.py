"""PyTorch Lightning: a run stopped in the middle of an epoch resumes with the remaining batches.

Lightning saves and restores the state of a loader that has one. Needs `pip install lightning`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
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


class Learner(lightning.LightningModule):
    """A tiny network that records the samples it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32, 4),
        )
        self.seen: list[list[int]] = []

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], _: int) -> Tensor:
        images, labels, numbers = batch
        self.seen.append(numbers.tolist())
        return nn.functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def fit(folder: Path, checkpoint: Path | None = None) -> list[list[int]]:
    """Train, optionally from a checkpoint; return the samples of each step."""
    loader = feedline.DataLoader(Pictures(), batch_size=8, shuffle=True, num_workers=2, seed=1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=EPOCHS,
        callbacks=ModelCheckpoint(
            folder, filename="{step}", every_n_train_steps=SAVE_STEP, save_top_k=-1
        ),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    learner = Learner()
    trainer.fit(learner, loader, ckpt_path=checkpoint)
    assert trainer.train_dataloader is loader, "Lightning replaced the loader"
    return learner.seen


def main() -> None:
    """Train once, then resume from the checkpoint in the middle of the second epoch."""
    with tempfile.TemporaryDirectory() as folder:
        whole = fit(Path(folder))
        rest = fit(Path(folder) / "again", checkpoint=Path(folder) / f"step={SAVE_STEP}.ckpt")
    assert rest == whole[SAVE_STEP:], (rest, whole[SAVE_STEP:])
    print(f"lightning: resumed after step {SAVE_STEP} with the remaining {len(rest)} batches")


if __name__ == "__main__":
    main()
