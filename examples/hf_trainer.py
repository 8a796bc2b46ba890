"""transformers.Trainer: resume_from_checkpoint continues with the next batch.

The Trainer skips batches by building a new loader from the dataset and batch sampler of its loader.
With Stepwise, feedline's workers also make the batches of that loader, except the skipped ones.
Needs `pip install transformers accelerate`.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import feedline
from feedline.integrations.transformers import Stepwise

EPOCHS, SAVE_STEP = 2, 17  # 12 steps per epoch


class Pictures(Dataset[Any]):
    """Generated images, labelled by their bright quadrant, with the number of each sample."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, number: int) -> dict[str, Any]:
        image = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(number))
        label = number % 4
        row, column = 16 * (label // 2), 16 * (label % 2)
        image[:, row : row + 16, column : column + 16] += 1
        return {"images": image, "labels": label, "numbers": number}


class Net(nn.Module):
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

    def forward(self, images: Tensor, labels: Tensor, numbers: Tensor) -> dict[str, Tensor]:
        self.seen.append(numbers.tolist())
        logits = self.net(images)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Trainer(transformers.Trainer):
    """A Trainer that uses feedline's loader."""

    def get_train_dataloader(self) -> DataLoader[Any]:
        loader = feedline.DataLoader(
            Pictures(),
            batch_size=self.args.per_device_train_batch_size,
            shuffle=True,
            num_workers=2,
            seed=self.args.seed,
        )
        return Stepwise(loader)


def train(folder: str, checkpoint: str | None = None) -> list[list[int]]:
    """Train, optionally from a checkpoint; return the samples of each step."""
    arguments = transformers.TrainingArguments(
        folder,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=8,
        save_steps=SAVE_STEP,
        use_cpu=True,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    net = Net()
    trainer = Trainer(net, arguments)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=checkpoint)
    return net.seen


def main() -> None:
    """Train once, then resume from the checkpoint in the middle of the second epoch."""
    with tempfile.TemporaryDirectory() as folder:
        whole = train(folder)
        rest = train(folder, checkpoint=f"{folder}/checkpoint-{SAVE_STEP}")
    assert rest == whole[SAVE_STEP:], (rest, whole[SAVE_STEP:])
    print(f"transformers: resumed after step {SAVE_STEP} with the remaining {len(rest)} batches")


if __name__ == "__main__":
    main()
