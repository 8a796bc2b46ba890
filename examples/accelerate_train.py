"""Hugging Face Accelerate: save_state and load_state keep the loader's place in the epoch.

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


def train(folder: str, *, resume: bool) -> list[list[int]]:
    """Train, saving after STOPPED steps, or from there on; the samples of each step."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    accelerator.free_memory()  # of an earlier call
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 4),
    )
    # After the Accelerator: then the loader knows the processes it shares its samples among.
    loader = feedline.DataLoader(Pictures(), batch_size=8, shuffle=True, num_workers=2, seed=1)
    net, optimizer = accelerator.prepare(net, torch.optim.Adam(net.parameters(), lr=0.01))
    prepared = prepare(accelerator, loader)
    assert prepared is loader, "Accelerate made another loader"
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
            if not resume and len(seen) == STOPPED:
                accelerator.save_state(folder)
        assert accelerator.sync_gradients, "the epoch's last batch ends an accumulation"
    return seen


def main() -> None:
    """Train once, then again from the state in the middle of the second epoch."""
    with tempfile.TemporaryDirectory() as folder:
        whole = train(folder, resume=False)
        rest = train(folder, resume=True)
    assert rest == whole[STOPPED:], (rest, whole[STOPPED:])
    print(f"accelerate: went on after step {STOPPED} with the {len(rest)} batches that were left")


if __name__ == "__main__":
    main()
