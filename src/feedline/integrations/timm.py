"""timm's `create_loader` with feedline's engine.

Guarantees: every argument has timm's meaning, because timm's own function reads it: transform,
samplers, collate_fn, transfer to the device, normalisation and random erasing there are timm's
objects; only the torch DataLoader within is replaced. Evaluation gives timm's pixels, training
pixels of the same distribution. Arguments that cannot be followed raise an error.

On the CPU workers normalise, with the same values: there is no transfer that would overlap it.

Relies on: attributes of `torch.utils.data.DataLoader` and `timm.data.loader.PrefetchLoader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from timm.data import create_loader as timm_create_loader
from timm.data.loader import PrefetchLoader, fast_collate
from timm.data.transforms import MaybePILToTensor, ToTensor
from torch.utils.data import BatchSampler, RandomSampler, default_collate
from torchvision.transforms import Compose, Normalize

from feedline.errors import UsageError
from feedline.images.compile.datasets import is_timm_folder, is_torchvision_folder
from feedline.loader.dataloader import DataLoader


def create_loader(*args: Any, **kwargs: Any) -> Any:
    """Create a loader like `timm.data.create_loader`, with feedline's engine.

        dataset = timm.data.create_dataset("", root="imagenet", split="train")
        loader = feedline.integrations.timm.create_loader(
            dataset, (3, 224, 224), 128, is_training=True, re_prob=0.25, num_workers=8
        )
        for images, labels in loader:  # normalised floats on the device

    An `ImageDataset` of a folder, torchvision's ImageFolder and feedline's own sources are compiled
    with the transform that timm makes; any other dataset runs unchanged in feedline's workers. Each
    sample has its own seed, from torch's random state at each epoch, instead of each worker.

    Args:
        *args, **kwargs: arguments of the installed timm's `create_loader`. With
            `use_multi_epochs_loader`, workers persist by feedline's own means.

    Returns:
        timm's PrefetchLoader around a feedline.DataLoader: batches of images, normalised, of
        `img_dtype` and shape (N, C, H, W), and labels, on `device`. With `use_prefetcher=False` the
        feedline.DataLoader itself.

    Raises:
        UsageError: `worker_seeding` is not "all": samples are seeded, not workers.
        Exception: any error of `timm.data.create_loader`.
    """
    arguments = signature(timm_create_loader).bind(*args, **kwargs)
    arguments.apply_defaults()
    values = arguments.arguments
    if values.get("worker_seeding", "all") != "all":
        raise UsageError(
            f'must be "all", got {values["worker_seeding"]!r}: feedline seeds each sample, so no '
            "random numbers depend on the worker",
            argument="worker_seeding",
        )
    if values.get("use_multi_epochs_loader"):
        values.update(use_multi_epochs_loader=False, persistent_workers=True)
    timm_loader = timm_create_loader(*arguments.args, **arguments.kwargs)
    if not values.get("use_prefetcher"):
        return _replace(timm_loader)
    if timm_loader.device.type == "cpu" and timm_loader.img_dtype is torch.float32:
        timm_loader = _CpuPrefetchLoader.of(timm_loader)
    timm_loader.loader = _replace(timm_loader.loader)
    return timm_loader


class _CpuPrefetchLoader(PrefetchLoader):  # type: ignore[misc]
    """PrefetchLoader whose batches are normalised by the workers."""

    collate_fn: Any

    @classmethod
    def of(cls, loader: Any) -> _CpuPrefetchLoader:
        """Create from timm's loader, whose dataset and collate_fn then normalise."""
        own = cls.__new__(cls)
        own.__dict__.update(vars(loader))
        inner = own.loader
        own.collate_fn = inner.collate_fn
        steps = getattr(getattr(inner.dataset, "transform", None), "transforms", [None])
        is_folder = is_timm_folder(inner.dataset) or is_torchvision_folder(inner.dataset)
        is_fast = own.collate_fn is fast_collate and type(steps[-1]) is MaybePILToTensor
        if is_fast and is_folder:  # rows are a table of pixel values
            statistics = (each.flatten().tolist() for each in (own.mean, own.std))
            tail = [ToTensor(torch.float32), Normalize(*statistics)]
            inner.dataset.transform = Compose([*steps[:-1], *tail])
            inner.collate_fn = default_collate
        else:
            inner.collate_fn = _NormalizedCollate(own.collate_fn, own.mean, own.std)
        return own

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        is_long = self.collate_fn is fast_collate
        for images, labels in self.loader:
            if self.random_erasing is not None:
                images = self.random_erasing(images)
            yield images, labels.long() if is_long and labels.ndim == 1 else labels

    @property
    def mixup_enabled(self) -> bool:
        """True if the collate_fn mixes images."""
        return bool(getattr(self.collate_fn, "mixup_enabled", False))

    @mixup_enabled.setter
    def mixup_enabled(self, enabled: bool) -> None:
        if hasattr(self.collate_fn, "mixup_enabled"):
            self.collate_fn.mixup_enabled = enabled
            # A new object, which workers that persist get.
            self.loader.collate_fn = _NormalizedCollate(self.collate_fn, self.mean, self.std)


@dataclass(eq=False)
class _NormalizedCollate:
    """A collate_fn of uint8 images, and timm's normalisation of its batches."""

    collate_fn: Callable[[list[Any]], Any]
    mean: torch.Tensor
    std: torch.Tensor

    def __call__(self, samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = self.collate_fn(samples)
        return images.to(torch.float32).sub_(self.mean).div_(self.std), labels


def _replace(loader: Any) -> DataLoader[Any]:
    """Create the feedline.DataLoader with the dataset, samplers and options of a torch one."""
    order: dict[str, Any]
    if type(loader.batch_sampler) not in (BatchSampler, type(None)):  # sizes drawn per batch
        order = {"batch_sampler": loader.batch_sampler}
    else:
        order = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        if type(loader.sampler) is RandomSampler:
            order["shuffle"] = True
        elif hasattr(loader.sampler, "num_replicas"):
            order["sampler"] = loader.sampler
    return DataLoader(
        loader.dataset,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        persistent_workers=loader.persistent_workers,
        **order,
    )
