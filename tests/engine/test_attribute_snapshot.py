"""Attributes set on a dataset are compared; nested or unset ones are not."""

from collections import Counter, OrderedDict, defaultdict, deque
from functools import partial
from operator import setitem
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, random_split
from torchvision.datasets import ImageFolder

from feedline.engine.attribute_snapshot import AttributeSnapshot


class Listed(Dataset[Any]):
    def __init__(self, samples):
        self.samples = samples


def assert_seen(data, change, undo=None):
    """A change is seen, and nothing is without it or after it is undone."""
    before = AttributeSnapshot(data)
    assert AttributeSnapshot(data, before=before) == AttributeSnapshot(data) == before
    change()
    after = AttributeSnapshot(data, before=before)
    assert after != before
    assert AttributeSnapshot(data) != before
    if undo is not None:
        undo()
        assert AttributeSnapshot(data, before=after) != after
        assert AttributeSnapshot(data) == before


def test_list_extended_in_place_differs_for_any_length():
    for length in (0, 3, 1000, 1001, 50_000):
        data = Listed([0.5] * length)
        for seen in (data, Subset(data, [0])):
            assert_seen(seen, partial(data.samples.append, 0.5), data.samples.pop)


def test_another_part_or_key_differs():
    other = [2]  # equal, and another
    of_lists = {"a": [1], "b": [2]}
    of_keys = (of_lists, OrderedDict(of_lists), defaultdict(list, of_lists), Counter(of_lists))
    for samples in ([[1], [2]], deque([[1], [2]]), *of_keys):
        key = "b" if isinstance(samples, dict) else 1
        kept = samples[key]
        put = partial(setitem, samples, key)
        assert_seen(Listed(samples), partial(put, other), partial(put, kept))
    data = Listed({"cat": 0})

    def rename(old, new):
        data.samples[new] = data.samples.pop(old)

    assert_seen(data, partial(rename, "cat", "ant"), partial(rename, "ant", "cat"))
    assert_seen(Listed(members := {1, 2}), lambda: members.symmetric_difference_update({2, 3}))


class Views:
    def __init__(self, transform, number):
        self.transform, self.number = transform, number

    def __call__(self, image):
        return [self.transform(image) for _ in range(self.number)]


def test_attribute_set_on_user_transform_is_detected(monkeypatch):
    inner = Views(nn.Sequential(nn.Identity()), 1)
    views = Views(inner, 2)
    data = Listed([])
    data.transform = views
    before = AttributeSnapshot(data)
    for thing, name, value in ((views, "number", 3), (inner, "number", 2), (inner, "transform", 5)):
        with monkeypatch.context() as patch:
            patch.setattr(thing, name, value)
            assert AttributeSnapshot(data) != before
        assert AttributeSnapshot(data) == before
    with monkeypatch.context() as patch:
        patch.setattr(Views, "__call__", lambda self, image: image)
        assert AttributeSnapshot(data) != before
    inner.transform.append(nn.Identity())
    assert AttributeSnapshot(data) != before


def folder(root, images):
    """A folder whose lists name more images than it has."""
    (root / "class").mkdir()
    Image.new("RGB", (4, 4)).save(root / "class" / "0.png")
    data = ImageFolder(root)
    data.samples = data.imgs = [(data.samples[0][0], k % 2) for k in range(images)]
    data.targets = [label for _, label in data.samples]
    return data


def test_changed_label_of_a_folder_is_detected_at_any_index(tmp_path):
    data = folder(tmp_path, 3000)
    wrapped = ConcatDataset([Subset(data, range(2000)), data])
    for seen in (data, Subset(data, [0]), wrapped, random_split(data, [0.5, 0.5])[1]):
        for listed, value in ((data.samples, ("other", 1)), (data.targets, 7)):
            put = partial(setitem, listed, 2900)
            assert_seen(seen, partial(put, value), partial(put, listed[2900]))
    data.samples = [list(sample) for sample in data.samples]
    assert_seen(data, lambda: setitem(data.samples[1900], 1, 5))


@pytest.mark.parametrize("indices", [list(range(2000)), np.arange(2000), torch.arange(2000)])
def test_another_index_of_a_subset_differs(indices):
    assert_seen(Subset(Listed([]), indices), lambda: setitem(indices, 1500, 3))


class State:
    """A user-defined object that is neither a dataset nor a transform."""

    def __init__(self):
        self.epoch, self.names, self._cache = 0, ["a"], 0

    @property
    def trap(self):
        raise AssertionError("user code was run")


def test_attribute_set_on_nested_object_is_detected_and_named():
    data = Listed(State())
    before = AttributeSnapshot(data)
    assert AttributeSnapshot(data) == before
    data.samples._cache = 1
    assert AttributeSnapshot(data) == before
    data.samples.names.append("b")
    assert AttributeSnapshot(data) != before
    before = AttributeSnapshot(data)
    data.samples.epoch = 1
    assert AttributeSnapshot(data).change_from(before) == "dataset.samples.epoch"


@pytest.mark.parametrize("hold", [lambda x: x, lambda x: [x], lambda x: {"a": x}])
def test_tensor_changed_in_place_differs_unless_shared_with_workers(hold):
    weights, shared = torch.zeros(3), torch.zeros(3).share_memory_()
    data, sharing = Listed(hold(weights)), Listed(hold(shared))
    before, before_shared = AttributeSnapshot(data), AttributeSnapshot(sharing)
    assert AttributeSnapshot(data) == before
    weights[1] = shared[1] = 1
    assert AttributeSnapshot(data) != before
    assert AttributeSnapshot(sharing) == before_shared
    with torch.inference_mode():
        uncounted = Listed(hold(torch.zeros(3)))
    assert AttributeSnapshot(uncounted) == AttributeSnapshot(uncounted)
