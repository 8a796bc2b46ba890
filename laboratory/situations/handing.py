"""Bottlenecks between the workers and the training step."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision import transforms

from samples import Arrays, Computed
from situation import CORES, Outcome, paced, situation, train


def listed(samples: Any) -> Any:
    """Build a batch number by number, like code written for single samples."""
    images = [[float(value) for value in image.flatten().tolist()] for image, _ in samples]
    return torch.tensor(images), torch.tensor([label for _, label in samples])


@situation("collate", "torch")
def slow_collate(fixed: bool) -> Outcome:
    """collate_fn builds lists of numbers; fix: torch's default."""
    data = Computed(4000 if fixed else 2000, 0.3, (3, 48, 48))
    loader = DataLoader(data, 16, num_workers=CORES, collate_fn=None if fixed else listed)
    return train(loader, paced(6))


class _Boxes(Dataset):
    """Samples of many small tensors."""

    def __init__(self, parts: int) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return 1920

    def __getitem__(self, number: int) -> Any:
        return [torch.zeros(4) for _ in range(self.parts)]


def unstacked(samples: Any) -> Any:
    """Return the samples unchanged."""
    return samples


def stacked(samples: Any) -> Any:
    """Stack all tensors into one."""
    return torch.stack([torch.stack(each) for each in samples])


@situation("hand-over", "torch")
def many_small_tensors(fixed: bool) -> Outcome:
    """Batches of 96 tensors; fix: one tensor."""
    data = _Boxes(6)
    loader = DataLoader(data, 16, num_workers=CORES, collate_fn=stacked if fixed else unstacked)
    return train(loader, paced(5))


@situation("float-copy", "torch")
def floats(fixed: bool) -> Outcome:
    """Workers normalise to floats; fix: uint8, normalised on the device."""
    steps = [transforms.ToPILImage(), transforms.RandomHorizontalFlip()]
    if fixed:
        steps.append(transforms.PILToTensor())
    else:
        mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        steps += [transforms.ToTensor(), transforms.Normalize(mean, std)]
    data = Arrays(3000, 224, transforms.Compose(steps))
    return train(DataLoader(data, 64, num_workers=CORES), paced(20))


@situation("shallow-prefetch", "torch")
def one_batch_ahead(fixed: bool) -> Outcome:
    """Every fifth step writes a log, one batch ahead; fix: more batches ahead."""
    number = 0

    def step(batch: Any) -> None:
        nonlocal number
        number += 1
        time.sleep(0.12 if number % 5 == 0 else 0.005)

    loader = DataLoader(
        Computed(16 * 180, 2.4),
        16,
        num_workers=CORES,
        prefetch_factor=8 if fixed else 1,
    )
    return train(loader, step)


@situation("small-batch", "torch", predicts=False)
def two_samples_a_batch(fixed: bool) -> Outcome:
    """Batches of two small samples."""
    data = TensorDataset(torch.zeros(12000, 3, 32, 32, dtype=torch.uint8), torch.zeros(12000))
    return train(DataLoader(data, 2, num_workers=CORES), lambda batch: None)


@situation("small-batch", "torch", predicts=False)
def one_sample_a_batch(fixed: bool) -> Outcome:
    """Batches of one sample, steps of 0.1 ms."""
    data = TensorDataset(torch.zeros(8000, 64), torch.zeros(8000))
    return train(DataLoader(data, 1, num_workers=1), lambda batch: None)


def _shared_memory_of(megabytes: int) -> bool:
    """Mount a private /dev/shm for this process and its children; return False if not permitted."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x20000) != 0:  # CLONE_NEWNS
        return False
    libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None)  # MS_REC | MS_PRIVATE
    size = f"size={megabytes}m".encode()
    return libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, size) == 0


def _may_mount() -> bool:
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(_shared_memory_of, (8,))


@situation("shared-memory", "torch", predicts=False, needs=_may_mount)
def little_shared_memory(fixed: bool) -> Outcome:
    """/dev/shm holds one batch more than the workers have ready."""
    megabytes = 5
    batch_bytes = megabytes << 20
    _shared_memory_of(int(megabytes * (2 * CORES + 2.2)))
    pixels = batch_bytes // 16
    data = Computed(16 * 120, 0.1, (pixels,))
    return train(DataLoader(data, 16, num_workers=CORES), paced(15))
