"""timm's `create_loader` with feedline's engine.

Guarantees: every argument has timm's meaning, because timm's own function reads it: transform,
samplers, collate_fn, transfer to the device, normalisation and random erasing there are timm's
objects; only the torch DataLoader within is replaced. Evaluation gives timm's pixels, training
pixels of the same distribution. Arguments that cannot be followed raise an error.

Relies on: the attributes of torch's DataLoader and of timm's PrefetchLoader.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch.utils.data import BatchSampler, RandomSampler

from feedline.errors import UsageError
from feedline.loader.dataloader import DataLoader

__all__ = ["create_loader"]


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
        Exception: any error of timm's own function.
    """
    from timm.data import create_loader as timm_create_loader

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
    timm_loader.loader = _replace(timm_loader.loader)
    return timm_loader


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
