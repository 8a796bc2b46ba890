"""A training loop like timm's train.py, with a loader that resumes within an epoch.

On a GPU, pass `device="cuda"` to the loader instead of wrapping it in timm's PrefetchLoader, which
holds back a batch, so that the loader's state would be one batch ahead.
Needs `pip install timm`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import timm
import timm.optim
import timm.scheduler
import timm.utils
import torch
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


def train(file: Path, *, resume: bool) -> list[list[int]]:
    """Train and save after SAVE_STEP steps, or resume; return the samples of each step."""
    loader = feedline.DataLoader(Pictures(), batch_size=8, shuffle=True, num_workers=2, seed=1)
    model = timm.create_model("test_resnet", num_classes=4)
    optimizer = timm.optim.create_optimizer_v2(model, opt="sgd", lr=0.01)
    scheduler, _ = timm.scheduler.create_scheduler_v2(
        optimizer, num_epochs=EPOCHS, warmup_epochs=0, updates_per_epoch=len(loader)
    )
    first = 0
    if resume:
        saved = torch.load(file)
        model.load_state_dict(saved["state_dict"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        first = saved["loader"]["epoch"]
    seen: list[list[int]] = []
    for epoch in range(first, EPOCHS):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        losses = timm.utils.AverageMeter()
        model.train()
        for images, labels, numbers in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.update(loss.item(), len(images))
            seen.append(numbers.tolist())
            if not resume and len(seen) == SAVE_STEP:
                torch.save(
                    {
                        "state_dict": timm.utils.get_state_dict(model),
                        "optimizer": optimizer.state_dict(),
                        "loader": loader.state_dict(),
                    },
                    file,
                )
        scheduler.step(epoch + 1, losses.avg)
    return seen


def main() -> None:
    """Train once, then resume from the checkpoint in the middle of the second epoch."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "checkpoint.pth.tar"
        whole = train(file, resume=False)
        rest = train(file, resume=True)
    assert rest == whole[SAVE_STEP:], (rest, whole[SAVE_STEP:])
    print(f"timm: resumed after step {SAVE_STEP} with the remaining {len(rest)} batches")


if __name__ == "__main__":
    main()
