"""timm's loaders yield the same batches with feedline's class as with torch's."""

import importlib.util
import random
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

import feedline
from packages import needs
from slow import slow

pytestmark = needs("timm")

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def _timm():
    """Import timm for these tests alone; see `needs`."""
    global timm, integration
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import timm.data

        from feedline.integrations import timm as integration


def picture(number):
    pixels = np.random.default_rng(number).integers(0, 255, (24, 28, 3), dtype=np.uint8)
    return Image.fromarray(pixels), number


class Pictures(Dataset[Any]):
    transform: Any = None  # timm sets it

    def __len__(self):
        return 22

    def __getitem__(self, number):
        image, label = picture(number)
        return (self.transform(image) if self.transform else image), label


class Stream(IterableDataset[Any]):
    transform: Any = None

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for image, label in map(picture, range(first, 10, step)):
            yield self.transform(image), label


def built_of(kind, monkeypatch):
    """timm's loader module with `kind` instead of torch's class."""
    monkeypatch.setattr(torch.utils.data, "DataLoader", kind)
    spec = importlib.util.find_spec("timm.data.loader")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # workers unpickle from it
    spec.loader.exec_module(module)
    return module


def plain(part):
    if isinstance(part, dict):
        return {name: plain(value) for name, value in part.items()}
    return [str(part.dtype), part.tolist()] if isinstance(part, Tensor) else part


def epochs(loader, *, pixels=True):
    """Three epochs as seen by timm's training loop."""
    found = [] if isinstance(loader.dataset, IterableDataset) else [len(loader)]
    for epoch in range(3):
        for part in (loader.dataset, loader.batch_sampler, loader.sampler):
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        for inputs, labels in loader:
            found.append([plain(inputs) if pixels else inputs.shape, plain(labels)])
    assert found
    return found


def create(timms, dataset=None, *, pixels=True, **options):
    usual = {"no_aug": pixels, "device": CPU, "persistent_workers": False}
    loader = timms.create_loader(dataset or Pictures(), (3, 16, 16), 4, **{**usual, **options})
    return epochs(loader, pixels=pixels)


def distributed(timms, **options):
    found = []
    for rank in range(2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.distributed, "get_world_size", lambda: 2)
            patch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
            found += create(timms, distributed=True, is_training=True, **options)
    return found


def mixed(timms):
    """Mixed pictures, and then those that follow when mixing is switched off."""
    mixup = timm.data.FastCollateMixup(mixup_alpha=0.5, num_classes=22)
    options = {"collate_fn": mixup, "num_workers": 1, "persistent_workers": False}
    loader = timms.create_loader(
        Pictures(), (3, 16, 16), 4, is_training=True, no_aug=True, device=CPU, **options
    )
    shapes = [[inputs.shape, labels.shape] for inputs, labels in loader]
    loader.mixup_enabled = False
    return [shapes, epochs(loader)]


def seed_of(worker):
    return int(worker.seed)


TRAIN = {"is_training": True, "num_workers": 2}
LASTING = {"persistent_workers": True, "use_multi_epochs_loader": True}
SIZES = {"input_size_choices": (16, 24), "batch_size_choices": (4, 2)}
CASES = {
    "training": lambda timms: create(timms, use_prefetcher=False, **TRAIN),
    "augmented": lambda timms: create(timms, pixels=False, auto_augment="rand-m9", **TRAIN),
    "workers' seeds": lambda timms: create(timms, pixels=False, worker_seeding=seed_of, **TRAIN),
    "one endless epoch": lambda timms: create(timms, **LASTING, **TRAIN),
    "sizes on a schedule": lambda timms: create(timms, **SIZES, **TRAIN),
    "a stream": lambda timms: create(timms, Stream(), num_workers=2, use_prefetcher=False),
    "mixup": mixed,
    "ranks": lambda timms: distributed(timms, num_workers=1),
    "ranks, one endless epoch, repeated": lambda timms: distributed(
        timms, num_aug_repeats=3, num_workers=1, **LASTING
    ),
}


SLOW = ("workers' seeds", "ranks", "training")


def seeded(case, timms):
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    return CASES[case](timms)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("case", [*(each for each in CASES if each not in SLOW), *slow(*SLOW)])
def test_timm_loaders_match_torch_dataloader(case, monkeypatch):
    expected = seeded(case, timm.data)
    if case != "workers' seeds":  # which the integration refuses
        assert seeded(case, integration) == expected
    built = built_of(feedline.DataLoader, monkeypatch)
    assert built.MultiEpochsDataLoader.__base__ is feedline.DataLoader
    assert seeded(case, built) == expected
