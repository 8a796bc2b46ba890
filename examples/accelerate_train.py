"""Hugging Face Accelerate: save_state and load_state save and restore the loader's position.

feedline's `prepare` returns the same loader. Needs `pip install accelerate`.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import Dataset

import feedline
from feedline.integrations.accelerate import prepare

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


def train(folder: str, *, resume: bool) -> list[list[int]]:
    """Train and save after SAVE_STEP steps, or resume; return the samples of each step."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    accelerator.free_memory()  # release the objects of an earlier call
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 4),
    )
    # Created after the Accelerator, so that the loader knows the other processes.
    loader = feedline.DataLoader(Pictures(), batch_size=8, shuffle=True, num_workers=2, seed=1)
    net, optimizer = accelerator.prepare(net, torch.optim.Adam(net.parameters(), lr=0.01))
    prepared = prepare(accelerator, loader)
    assert prepared is loader, "Accelerate replaced the loader"
    if resume:
        accelerator.load_state(folder)
    seen: list[list[int]] = []
    for _ in range(loader.state_dict()["epoch"], EPOCHS):
        for images, labels, numbers in prepared:
            with accelerator.accumulate(net):
                accelerator.backward(nn.functional.cross_entropy(net(images), labels))
                optimizer.step()
                optimizer.zero_grad()
            seen.append(accelerator.gather_for_metrics(numbers).tolist())
            if not resume and len(seen) == SAVE_STEP:
                accelerator.save_state(folder)
        assert accelerator.sync_gradients, "the last batch of an epoch ends an accumulation"
    return seen


def main() -> None:
    """Train once, then resume from the state in the middle of the second epoch."""
    with tempfile.TemporaryDirectory() as folder:
        whole = train(folder, resume=False)
        rest = train(folder, resume=True)
    assert rest == whole[SAVE_STEP:], (rest, whole[SAVE_STEP:])
    print(f"accelerate: resumed after step {SAVE_STEP} with the remaining {len(rest)} batches")


if __name__ == "__main__":
    main()
