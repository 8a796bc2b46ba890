"""Plain PyTorch on two processes: each reads its share of every batch, and both resume.

The loader gets its rank from torch.distributed, so no DistributedSampler is needed. Run it directly
or with `torchrun --nproc-per-node 2 examples/ddp_torchrun.py`.
"""

from __future__ import annotations

import os
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.run
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

import feedline

EPOCHS, SAVE_STEP = 2, 9  # 6 steps per epoch


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
    """Train and save after SAVE_STEP steps, or resume; return this rank's samples of each step."""
    loader = feedline.DataLoader(Pictures(), batch_size=8, shuffle=True, num_workers=1, seed=1)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 4),
    )
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if resume:
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    seen: list[list[int]] = []
    for epoch in range(loader.state_dict()["epoch"], EPOCHS):
        loader.set_epoch(epoch)
        for images, labels, numbers in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            seen.append(numbers.tolist())
            if not resume and len(seen) == SAVE_STEP:
                if dist.get_rank() == 0:  # the loader's state is the same on every rank
                    torch.save(
                        {
                            "model": model.state_dict(),
                            "optimizer": optimizer.state_dict(),
                            "loader": loader.state_dict(),
                        },
                        file,
                    )
                dist.barrier()
    return seen


def over_all_ranks(seen: list[list[int]]) -> list[list[int]]:
    """Samples of each step, of all ranks together."""
    shares: list[list[list[int]]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(shares, seen)
    return [sorted(chain(*step)) for step in zip(*shares, strict=True)]


def main() -> None:
    """Train once, then resume from the checkpoint in the middle of the second epoch."""
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as folder:
        places = [folder]
        dist.broadcast_object_list(places)  # rank 0
        file = Path(places[0]) / "checkpoint.pt"
        whole, rest = train(file, resume=False), train(file, resume=True)
        assert rest == whole[SAVE_STEP:], (rest, whole[SAVE_STEP:])
        steps = over_all_ranks(whole)
    for epoch in (steps[:6], steps[6:]):
        assert sorted(chain(*epoch)) == list(range(96)), epoch
    if dist.get_rank() == 0:
        print(f"ddp: resumed after step {SAVE_STEP} with the remaining {len(rest)} batches")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main()
    else:
        torch.distributed.run.main(["--standalone", "--nproc-per-node=2", __file__])
