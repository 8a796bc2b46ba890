"""Changes of a dataset in place, between epochs, reach the next one as with torch's workers."""

import os
import weakref
from functools import cached_property
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, Subset, get_worker_info
from torch.utils.data import DataLoader as TorchDataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from feedline import DataLoader
from processes import eventually
from sets import Made
from slow import slow

MANY = 1200
"""Entries of a list that is too long for one that is compared in any dataset."""


class State:
    epoch = 0


class Own(Dataset[Any]):
    """Samples of all that may change in place, and how often this copy gave them."""

    def __init__(self):
        self.state = State()
        self.array, self.tensor = np.zeros(MANY), torch.zeros(MANY)
        self.deep = [State() for _ in range(MANY)]
        self.given = {}

    def __len__(self):
        return 4

    def __getitem__(self, index):
        self.given[index] = self.given.get(index, 0) + 1
        held = (self.state.epoch, self.array[index], self.tensor[index], self.deep[index].epoch)
        return torch.tensor([*held, self.given[index], os.getpid()])


def epoch_of(loader):
    """Result of an epoch, equal for each sample, without the id of its process."""
    rows = torch.cat(list(loader)).tolist()
    assert all(row[:-1] == rows[0][:-1] for row in rows)
    return list(map(float, rows[0][:-1]))


def change(data):
    data.state.epoch = 1
    data.array[:] = 1
    data.tensor[:] = 1
    for each in data.deep:
        each.epoch = 1


@pytest.mark.parametrize("workers", [0, 1])
def test_seeded_epoch_sees_changes_like_torch(workers):
    found = []
    for kind, options in ((TorchDataLoader, {}), (DataLoader, {}), (DataLoader, {"seed": 0})):
        data = Own()
        loader = kind(data, 2, num_workers=workers, **options)
        first = epoch_of(loader)
        change(data)
        found.append((first, epoch_of(loader), epoch_of(loader)))
    assert found[0] == found[1] == found[2]
    assert found[0][1][:4] == [1, 1, 1, 1]


def test_seeded_workers_end_with_epoch_and_prefetch_none_of_the_next():
    made = torch.zeros(30).share_memory_()
    data = Made(30, lambda index: made[index].add_(1).clone())
    with DataLoader(data, 1, num_workers=1, seed=0) as loader:
        for epoch in (1, 2):
            batches = iter(loader)
            workers = batches._workers
            assert len(list(batches)) == 30
            assert loader.worker_pids == []
            assert eventually(lambda: not any(worker.is_alive() for worker in workers))  # noqa: B023
            assert (made == epoch).all()
        assert "new ones each epoch" in loader.explain()


KEPT = {
    "persistent": {"persistent_workers": True},
    "seed": {"persistent_workers": True, "seed": 0},
    "schedule": {"schedule": "ownx9", "shuffle": False},
}


@pytest.mark.parametrize("way", KEPT)
def test_persistent_workers_see_set_attributes_and_changed_tensors(way):
    data = Own()
    with DataLoader(data, 2, num_workers=1, **KEPT[way]) as loader:
        assert epoch_of(loader) == [0, 0, 0, 0, 1]
        pids = loader.worker_pids
        assert epoch_of(loader) == [0, 0, 0, 0, 2]
        assert loader.worker_pids == pids
        data.tensor.add_(1)
        assert epoch_of(loader) == [0, 0, 1, 0, 1]
        pids = loader.worker_pids
        data.state.epoch = 2
        *seen, given = epoch_of(loader)
        assert (seen, given >= 2) == ([2, 0, 1, 0], True)  # discarded batches count, too
        assert loader.worker_pids == pids
        change(data)
        data.state.epoch, data.tensor = 2, data.tensor
        loader.refresh()
        assert epoch_of(loader) == [2, 1, 1, 1, 1]
        assert loader.worker_pids != pids
        pids = loader.worker_pids
        data.state.epoch = 3
        assert epoch_of(loader)[0] == 3
        assert loader.worker_pids == pids  # `refresh` is over
        data.state.epoch = 4  # which could be sent to the workers
        loader.refresh()
        assert epoch_of(loader)[0] == 4
        assert loader.worker_pids != pids


class Counting(Dataset[Any]):
    """Samples show the attributes, and how often the worker has made a sample."""

    counted = 0

    def __init__(self):
        self.epoch, self.made = 0, [0]
        self.names = ["a"]
        self.settings = {"p": 0.5}
        self.note = None

    def __len__(self):
        return 40

    def __getitem__(self, index):
        self.made.append(index)
        seen = self.epoch, tuple(self.names), self.settings.get("p"), self.note
        return seen, len(self.made) - 1, os.getpid()


class Wrapped(Dataset[Any]):
    __slots__ = ("offset", "parts")

    def __init__(self, data):
        self.parts = {"only": (data,)}
        self.offset = 0

    def __len__(self):
        return 40

    def __getitem__(self, index):
        (seen, *others) = self.parts["only"][0][index]
        return ((*seen, self.offset), *others)


def seen_by(loader):
    """Attributes that all samples of an epoch show, and the number of samples made by a worker."""
    rows = [row for batch in loader for row in batch]
    assert len(rows) == 40
    ((seen, _),) = {(row[0], row[2]) for row in rows}
    return seen, max(row[1] for row in rows)


@pytest.mark.parametrize("method", ["fork", *slow("forkserver", "spawn")])
@pytest.mark.parametrize("way", KEPT)
def test_plain_attributes_are_sent_to_running_workers(way, method):
    data = Counting()
    whole = Wrapped(data)
    options = {"num_workers": 1, "collate_fn": list, "start_method": method}
    with DataLoader(whole, 4, **options, **KEPT[way]) as loader:
        assert seen_by(loader) == ((0, ("a",), 0.5, None, 0), 40)
        pids, before = loader.worker_pids, 40
        for value in (1, 2, 0, 0):
            data.epoch, data.note = value, (value, "text")
            data.names.append(str(value))  # in place
            data.settings = {"p": value}
            whole.offset = value
            shown, made = seen_by(loader)
            assert shown == (value, tuple(data.names), value, (value, "text"), value)
            assert made >= before + 40, "what a worker holds is lost"
            before = made
        assert loader.worker_pids == pids


class Deriving(Dataset[Any]):
    """Each attribute but `epoch` is derived from it in the worker, in one of the usual ways."""

    def __init__(self):
        self.table = None
        self.given = {}
        self.set_epoch(0)

    def set_epoch(self, epoch):
        self.epoch, self.table = epoch, None
        self.__dict__.pop("double", None)
        self.__dict__.pop("lazy", None)

    @cached_property
    def double(self):
        return 2 * self.epoch

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if self.table is None:
            self.table = [self.epoch] * 4
        if not hasattr(self, "lazy"):
            self.lazy = self.epoch
        self.given[index] = self.given.get(index, 0) + 1
        held = self.opened, self.given[index] > self.epoch
        return torch.tensor([self.table[index], self.double, self.lazy, *held])


def open_file(worker):
    info = get_worker_info()
    info.dataset.opened = 7


@pytest.mark.parametrize("way", KEPT)
def test_values_derived_in_running_workers_follow_sent_attributes(way):
    data = Deriving()
    options = {"num_workers": 1, "worker_init_fn": open_file}
    seen = set()
    with DataLoader(data, 4, **options, **KEPT[way]) as loader:
        for epoch in (0, 1, 2, 1, 0):
            data.set_epoch(epoch)
            (batch,) = loader
            assert batch.tolist() == [[epoch, 2 * epoch, epoch, 7, 1]] * 4
            seen.update(loader.worker_pids)
        assert len(seen) == 1


class Replacing(Dataset[Any]):
    """Replaces an attribute when the first sample is made."""

    def __init__(self):
        self.table = Own()
        self.first = weakref.ref(self.table)

    def __len__(self):
        return 1

    def __getitem__(self, index):
        self.table = None
        return self.first() is None


def test_workers_of_one_epoch_free_what_the_dataset_replaces():
    assert list(DataLoader(Replacing(), num_workers=1, collate_fn=list)) == [[True]]


def test_replaced_worker_has_sent_attributes():
    data = Counting()
    with DataLoader(data, 4, num_workers=1, collate_fn=list, persistent_workers=True) as loader:
        seen_by(loader)
        data.epoch = 5
        seen_by(loader)
        psutil.Process(loader.worker_pids[0]).kill()
        assert {row[0][0] for batch in loader for row in batch} == {5}
        assert loader.worker_deaths


@pytest.mark.parametrize("change", ["class", "deleted", "shared list", "object", "large", "nested"])
def test_other_changes_restart_workers_and_the_second_warns(change, caplog, monkeypatch):
    data = Counting()
    data.names = [["a"]] if change == "nested" else ["a"]
    data.first, data.second, data.third = 1, 2, 3
    with DataLoader(data, 4, num_workers=1, collate_fn=len, persistent_workers=True) as loader:
        list(loader)
        for count, name in enumerate(("first", "second", "third"), 1):
            data.epoch = count
            if change == "class":
                monkeypatch.setattr(Counting, "counted", count)
            elif change == "deleted":
                delattr(data, name)
            elif change == "shared list":
                data.names = data.note = [name]
            elif change == "object":
                data.note = State()
            elif change == "large":
                data.note = "x" * 10_000 * count
            else:
                data.names[0].append("b")
            pids = loader.worker_pids
            list(loader)
            assert loader.worker_pids != pids
            warned = [each for each in caplog.records if each.levelname == "WARNING"]
            assert len(warned) == (count > 1)
    assert "dataset." in warned[0].getMessage()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    (root / "class").mkdir()
    Image.new("RGB", (8, 8)).save(root / "class" / "0.jpg")
    return root


def folder(root):
    steps = [transforms.Resize(8), transforms.CenterCrop(8), transforms.ToTensor()]
    data = ImageFolder(root, transforms.Compose(steps))
    data.samples = data.imgs = data.samples * MANY
    return data


@pytest.mark.parametrize(
    ("form", "options"),
    [
        (lambda data: data, {}),
        (lambda data: data, {"collate_fn": list}),
        (lambda data: Subset(data, range(MANY - 200, MANY)), {"seed": 0}),
        (
            lambda data: ConcatDataset([Subset(data, [0]), Subset(data, [MANY - 1])]),
            {"schedule": "8x9"},
        ),
    ],
    ids=["folder", "samples", "subset", "concatenated"],
)
def test_changed_labels_of_folder_are_used_in_next_epoch(root, form, options):
    data = folder(root)
    with DataLoader(form(data), 100, num_workers=1, **options) as loader:
        for label in (0, 3):
            data.samples[MANY - 1] = (data.samples[MANY - 1][0], label)
            labels = set()
            for batch in loader:
                found = batch[1].tolist() if "collate_fn" not in options else [y for _, y in batch]
                labels.update(found)
            assert "\nfused " in loader.explain()
            assert labels == {0, label}
