"""`feedline.patch`: torch's DataLoader replaced within a program."""

import copy
import inspect
import io
import os
import pickle
import re
from multiprocessing.context import SpawnContext
from typing import Any

import PIL
import pytest
import torch
from packaging.version import Version
from PIL import Image
from torch.utils.data import DataLoader as EarlyLoader
from torch.utils.data import Dataset, TensorDataset

import feedline
from feedline.errors import UsageError
from feedline.images.lazy_images import undecoded
from feedline.timing.run_file import read_run
from packages import needs
from sets import Made
from torchvision_folder import write_images


class Earlier(EarlyLoader[Any]):
    """A subclass of torch's class, defined before it is replaced."""

    def __init__(self, *args, factor=1, **kwargs):
        self.factor = factor
        super().__init__(*args, **kwargs)

    def __iter__(self):
        for batch in super().__iter__():
            yield self.factor * batch


class Explicit(EarlyLoader[Any]):
    """A subclass that names torch's methods instead of using super()."""

    def __init__(self, *args, **kwargs):
        EarlyLoader.__init__(self, *args, **kwargs)

    def __iter__(self):
        return iter(EarlyLoader.__iter__(self))


class OwnContext(SpawnContext):
    """A context that starts workers in its own way, like that of MONAI's ThreadDataLoader."""


class Private(EarlyLoader[Any]):
    """A subclass that overrides a private method."""

    def _get_iterator(self):
        return super()._get_iterator()


class OwnNames(EarlyLoader[Any]):
    """A subclass whose attributes have the names of arguments that only feedline has."""

    @property
    def dtype(self):
        return self.kind

    @dtype.setter
    def dtype(self, kind):
        self.kind = kind

    def cache(self):
        return "method"

    def __init__(self, *args, **kwargs):
        self.seed, self.image_size = "early", 224
        super().__init__(*args, **kwargs)
        self.device, self.schedule, self.prefetch = torch.device("meta"), [3], "late"
        self.dtype = "half"


class Prefetching(EarlyLoader[Any]):
    """A loader that is its own iterator, with attributes and methods named as those of feedline."""

    epoch = property(lambda self: self._epoch)

    def __init__(self, *args, **kwargs):
        self.phase = "train"
        super().__init__(*args, **kwargs)
        self.order, self._epoch = "random", -1

    def __iter__(self):
        self.iterator = super().__iter__()
        self.batch = next(self.iterator, None)
        return self

    def __next__(self):
        batch, self.batch = self.batch, next(self.iterator, None)
        if batch is None:
            raise StopIteration
        return batch

    def set_epoch(self, epoch):
        self._epoch = epoch

    def steps_in(self):
        raise AssertionError


NUMBERS = list(range(10))
BATCHES = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def batches(loader):
    return [batch.tolist() for batch in loader]


def is_replaced(loader):
    return isinstance(loader, feedline.DataLoader)


def test_every_name_of_the_class_builds_loaders_of_feedline():
    parameters = list(inspect.signature(EarlyLoader).parameters)
    with feedline.patch():
        for kind in (
            EarlyLoader,
            torch.utils.data.DataLoader,
            torch.utils.data.dataloader.DataLoader,
        ):
            loader = kind(NUMBERS, 4)
            assert is_replaced(loader)
            assert isinstance(loader, EarlyLoader)
            assert repr(loader).startswith("<torch.utils.data.dataloader.DataLoader object at ")
            assert batches(loader) == BATCHES
        assert list(inspect.signature(EarlyLoader).parameters) == parameters
    assert type(EarlyLoader(NUMBERS, 4)) is EarlyLoader
    assert batches(loader) == BATCHES


def test_subclasses_keep_their_methods_and_get_those_of_feedline():
    with feedline.patch():

        class Later(EarlyLoader[Any]):
            pass

        for kind in (Earlier, Later, Explicit):
            loader = kind(NUMBERS, 4)
            assert is_replaced(loader)
            assert isinstance(loader, kind)
            assert type(loader).__name__ == kind.__name__
            assert batches(loader) == BATCHES
        assert [batch.sum().item() for batch in Earlier(NUMBERS, 10, factor=3)] == [135]
    assert not is_replaced(Earlier(NUMBERS, 4))


def test_copies_and_pickles_keep_their_kind():
    torch_loader = Earlier(NUMBERS, 4)
    with feedline.patch():
        own = Earlier(NUMBERS, 4, factor=1)
        assert not is_replaced(copy.copy(torch_loader))
        assert batches(copy.copy(torch_loader)) == BATCHES
        plain = pickle.loads(pickle.dumps(EarlyLoader(NUMBERS, 4)))
    for loader in copy.copy(own), pickle.loads(pickle.dumps(own)), plain:
        assert is_replaced(loader)
        assert batches(loader) == BATCHES
    assert pickle.loads(pickle.dumps(own)).factor == 1


def test_attributes_of_a_program_may_have_the_names_of_feedlines_arguments():
    with feedline.patch():
        loader = OwnNames(NUMBERS, 4)
        assert is_replaced(loader)
        for each in loader, copy.copy(loader), pickle.loads(pickle.dumps(loader)):
            assert batches(each) == BATCHES
            assert (each.seed, each.image_size, each.prefetch) == ("early", 224, "late")
            assert (each.device, each.schedule) == (torch.device("meta"), [3])
            assert (each.cache(), each.dtype, each.kind) == ("method", "half", "half")
        loader.device = "cpu"
        assert (loader.device, batches(loader)) == ("cpu", BATCHES)


@needs("torchvision")
def test_attributes_of_a_program_do_not_change_how_rows_are_made(tmp_path):
    from torchvision import datasets
    from torchvision import transforms as T

    steps = T.Compose([T.Resize((8, 8)), T.ToTensor()])
    data = datasets.ImageFolder(str(write_images(tmp_path)), steps)
    with feedline.patch():
        loader = OwnNames(data, 4, num_workers=1)
        assert "image-row" in loader.explain()
        assert sum(len(labels) for _, labels in loader) == len(data)


def test_attributes_of_a_program_may_have_the_names_of_feedlines_properties():
    with feedline.patch():
        loader = Prefetching(NUMBERS, 4)
        assert is_replaced(loader)
        for each in loader, copy.copy(loader), pickle.loads(pickle.dumps(loader)):
            each.set_epoch(3)
            assert len(each) == 3
            assert batches(each) == BATCHES
            assert (each.batch, each.phase, each.order, each.epoch) == (None, "train", "random", 3)
        loader = EarlyLoader(NUMBERS, 4)
        assert (len(list(loader)), loader.batch.rows) == (3, 2)


def test_a_subclass_with_private_methods_stays_that_of_torch():
    with feedline.patch() as patched:
        loader = Private(NUMBERS, 4)
        assert type(loader) is Private
        assert batches(loader) == BATCHES
        assert "_get_iterator" in patched.summary()


def test_a_loader_that_feedline_cannot_build_is_that_of_torch(monkeypatch):
    with feedline.patch() as patched:
        with pytest.raises(TypeError) as error:
            EarlyLoader(NUMBERS, 4, unknown=1)
        assert "feedline" not in str(error.value)
        with pytest.raises(ValueError, match="mutually exclusive"):
            EarlyLoader(NUMBERS, shuffle=True, sampler=NUMBERS)

        def refuse(self, *_, **__):
            raise UsageError("not today")

        monkeypatch.setattr(feedline.DataLoader, "__init__", refuse)
        for kind in EarlyLoader, Earlier:
            loader = kind(NUMBERS, 4)
            assert type(loader) is kind
            assert batches(loader) == BATCHES
        assert "not today" in patched.summary()


def test_patches_can_be_nested():
    outer = feedline.patch()
    inner = feedline.patch(off="list")
    assert not is_replaced(EarlyLoader(NUMBERS, 4))
    inner.stop()
    assert is_replaced(EarlyLoader(NUMBERS, 4))
    outer.stop()
    outer.stop()
    assert not is_replaced(EarlyLoader(NUMBERS, 4))


class Split(Dataset[Any]):
    """Part of a dataset; all parts have one length."""

    def __init__(self, split):
        self.split = split

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index


@pytest.mark.parametrize("watch", [False, True])
def test_a_summary_lists_loaders_of_several_datasets_of_one_length(watch):
    train, val = TensorDataset(torch.arange(10)), TensorDataset(torch.arange(10))
    with feedline.patch(watch=watch) as patched:
        loaders = [EarlyLoader(train, 5), EarlyLoader(val, 5)]
        for loader in loaders * 2:
            list(loader)
        for split in ["train", "val"] * 3:
            list(EarlyLoader(Split(split), 5))
        EarlyLoader(NUMBERS, 4)  # is not iterated, so not counted
        summary = patched.summary()
    assert "4 loaders" in summary
    assert "diagnosis: There are too few steps" in summary
    counts = re.findall(r"(\d+) samples read", summary)
    assert sorted(counts) in (["20", "20", "30"], ["20", "30", "30"])  # three are described


def test_watch_records_loaders_of_torch(tmp_path):
    with feedline.patch(watch=True, run=tmp_path / "here") as patched:
        for kind in EarlyLoader, Earlier:
            loader = kind(NUMBERS, 4, num_workers=1)
            assert type(loader) is kind
            assert batches(loader) == BATCHES
        lines = patched.summary().splitlines()
    assert all("torch's loader" in line for line in lines[1:5:2])
    runs = [read_run(folder) for folder in sorted((tmp_path / "here").iterdir())]
    assert [[loader.kind for loader in each.loaders] for each in runs] == [["torch"], ["torch"]]
    assert [sum(part.samples or 0 for part in each.passes) for each in runs] == [10, 10]


class Kept(list[int]):
    pass


def test_loaders_can_stay_those_of_torch(capfd):
    with feedline.patch(off=("Kept", "Earlier"), compare=1) as patched:
        loaders = EarlyLoader(Kept(NUMBERS), 4), EarlyLoader(NUMBERS, 4), Earlier(NUMBERS, 4)
        assert [batches(loader) for loader in loaders] == [BATCHES] * 3
        assert [is_replaced(loader) for loader in loaders] == [False, True, False]
        text = patched.summary()
    assert capfd.readouterr().err.count("1 batch: torch ") == 1
    assert "--off Kept" in text
    assert "--off Earlier" in text


@pytest.mark.parametrize("arguments", [{"workers": 3}, {"watch": True, "workers": "auto"}])
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(UsageError):
        feedline.patch(**arguments)
    assert not is_replaced(EarlyLoader(NUMBERS, 4))


def test_opened_images_stay_undecoded_while_it_is_active():
    file = io.BytesIO()
    Image.new("RGB", (32, 32)).save(file, "JPEG")

    def is_undecoded():
        return undecoded(Image.open(io.BytesIO(file.getvalue())).convert("RGB")) is not None

    with feedline.patch():
        assert is_undecoded() == (Version(PIL.__version__) >= Version("11.1"))
    assert not is_undecoded()
    with feedline.patch(watch=True):
        assert not is_undecoded()


@needs("accelerate")
def test_accelerate_builds_a_replaced_loader_without_a_warning():
    from accelerate import Accelerator

    with feedline.patch():
        prepared = Accelerator(cpu=True).prepare(EarlyLoader(NUMBERS, 4))
        assert is_replaced(prepared.base_dataloader)
        assert batches(prepared) == BATCHES


def test_a_comparison_finds_differences(capfd):
    data = Made(4, lambda index: (torch.zeros(3, 2, 2) + os.getpid(), index))
    with feedline.patch(compare=2):
        for _ in range(2):  # compared once
            list(EarlyLoader(data, 2, num_workers=1))
    _, parts = capfd.readouterr().err.splitlines()
    assert "equal: shapes, labels; different: pixels (by at most " in parts


@needs("torchvision")
def test_a_comparison_reads_the_cache_if_the_program_will(tmp_path, capfd):
    from torchvision import datasets
    from torchvision import transforms as T

    write_images(tmp_path / "photos")
    steps = T.Compose([T.Resize((8, 8)), T.ToTensor()])
    data = datasets.ImageFolder(str(tmp_path / "photos"), steps)
    for compare, said in (2, "originals"), (0, ""), (2, "copies of the cache"):
        with feedline.patch(cache=tmp_path / "caches", compare=compare):
            loader = EarlyLoader(data, 4)
            for _ in range(2 - bool(compare)):
                list(loader)
            loader.close()
        assert said in capfd.readouterr().err


def test_a_comparison_leaves_errors_to_the_program(capfd):
    with feedline.patch(compare=2), pytest.raises(KeyError, match="mine"):
        list(EarlyLoader(Made(4, lambda index: {}["mine"]), 2))
    assert "Made is not compared: KeyError" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["__init__", "__iter__", "__len__"])
def test_loaders_stay_those_of_torch_if_a_method_was_wrapped(name, monkeypatch):
    with feedline.patch() as patched:
        original = getattr(EarlyLoader, name)

        def wrap(self, *args, **kwargs):
            if name == "__init__":
                kwargs.setdefault("drop_last", True)
            calls.append(name)
            return original(self, *args, **kwargs)

        calls = []
        monkeypatch.setattr(EarlyLoader, name, wrap)
        for kind in EarlyLoader, Earlier:
            loader = kind(NUMBERS, 4)
            assert not is_replaced(loader)
            assert batches(loader) == BATCHES[: len(loader)]
            assert len(loader) == (2 if name == "__init__" else 3)
        assert set(calls) == {name}
        assert f"DataLoader.{name}" in patched.summary()
        monkeypatch.undo()
        assert is_replaced(EarlyLoader(NUMBERS, 4))


@needs("torchvision")
def test_a_summary_names_fused_steps_without_their_arguments(tmp_path):
    from torchvision import datasets
    from torchvision import transforms as T

    long = T.Normalize(3 * [1 / 3], 3 * [2 / 3])  # too long for one line
    steps = [T.RandomResizedCrop((8, 8)), T.RandomHorizontalFlip(), T.ToTensor(), long]
    data = datasets.ImageFolder(str(write_images(tmp_path)), T.Compose(steps))
    with feedline.patch() as patched:
        list(EarlyLoader(data, 2))
    line = patched.summary().splitlines()[1]
    assert line.partition("fused: ")[2] == ", ".join(type(step).__name__ for step in steps)


def test_loader_whose_workers_are_started_by_other_code_stays_torch():
    options = {"num_workers": 1, "multiprocessing_context": OwnContext()}
    with pytest.raises(UsageError, match="multiprocessing_context OwnContext starts"):
        feedline.DataLoader(range(4), 2, **options)
    with feedline.patch():
        assert type(torch.utils.data.DataLoader(range(4), 2, **options)) is EarlyLoader
