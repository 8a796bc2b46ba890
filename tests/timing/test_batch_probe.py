"""Recorded facts of a batch: size, bytes and form."""

from collections import UserDict, namedtuple
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from feedline.timing.batch_probe import BatchInfo, BatchProbe
from feedline.timing.steps import device_event

Pair = namedtuple("Pair", "image label")
IMAGES = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
LABELS = torch.zeros(4, dtype=torch.int64)
BOTH = BatchInfo(32, 4, 4 * 3 * 32 * 32 + 32, 0, False)


class Lazy(Sequence[Any]):
    def __len__(self):
        return 3

    def __getitem__(self, key):
        raise RuntimeError("must not be called")


@pytest.mark.parametrize(
    ("batch", "seen"),
    [
        ((IMAGES, LABELS), BOTH),
        (UserDict(image=IMAGES, label=LABELS), BOTH),
        (Pair(IMAGES, LABELS), BOTH),
        ([{"image": IMAGES}, "names", (LABELS,)], BOTH),
        (torch.zeros(2, 8, 8, 3), BatchInfo(8, 2, 1536, 1536, False)),
        (np.zeros((2, 3, 8, 8), np.float32), BatchInfo(8, 2, 1536, 1536, None)),
        (np.zeros((2, 3, 8, 8), np.uint8), BatchInfo(8, 2, 384, 0, None)),
        (torch.zeros(2, 3, 8, 9), BatchInfo(None, 2, 1728, 1728, False)),
        (torch.zeros(5, 7), BatchInfo(None, 5, 140, 0, None)),
        (torch.tensor(3.0), BatchInfo(None, None, 4, 0, None)),
        ((torch.zeros(9, 4), IMAGES), replace(BOTH, bytes=BOTH.bytes + 112)),  # boxes come first
        ("text", BatchInfo()),
        ([], BatchInfo()),
        (Lazy(), BatchInfo()),
        ([torch.eye(3).to_sparse()], None),
    ],
)
def test_known_facts_of_any_batch_form_are_reported(batch, seen):
    looker = BatchProbe()
    looker.inspect((IMAGES, LABELS))
    found = looker.inspect(batch)
    assert found == BatchProbe().inspect(batch)
    assert found == seen or (seen is None and found.image_size is found.samples is None)


def test_a_batch_like_the_one_before_is_the_same_object():
    looker = BatchProbe()
    first = looker.inspect((IMAGES, LABELS))
    assert looker.inspect((IMAGES.clone(), LABELS)) is first
    assert looker.inspect((IMAGES[:2], LABELS[:2])) == BatchInfo(32, 2, 2 * 3072 + 16, 0, False)
    assert looker.inspect((IMAGES.float(), LABELS)).float_bytes == 4 * 4 * 3072
    assert looker.inspect([IMAGES, LABELS]) == BOTH
    assert looker.inspect((IMAGES,)).bytes == 4 * 3072


def test_batch_of_thousands_of_parts_is_sampled():
    seen = BatchProbe().inspect([[IMAGES] * 1000] * 1000)
    assert (seen.samples, seen.bytes) == (4, 254 * IMAGES.nbytes)
    endless = range(10**15)  # a list of its numbers would raise MemoryError
    assert BatchProbe().inspect([IMAGES, endless]).samples == 4


def test_batch_probe_keeps_no_reference():
    import weakref

    looker = BatchProbe()
    images = IMAGES.clone()
    gone = weakref.ref(images)
    looker.inspect((images, LABELS))
    del images
    assert gone() is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_batch_after_plain_one_is_unknown():
    looker = BatchProbe()
    looker.inspect([torch.zeros(4, 3)])
    nested = torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(4, 3)])
    assert looker.inspect([nested]).samples is None
    assert looker.inspect([torch.zeros(4, 3)]).samples == 4


def test_no_device_is_set_up_to_look(monkeypatch):
    def asked(*_):
        raise AssertionError("this sets up CUDA")

    monkeypatch.setattr(torch.Tensor, "is_pinned", asked)
    monkeypatch.setattr(torch.cuda, "is_available", asked)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert BatchProbe().inspect((IMAGES, LABELS)) == BOTH
    assert device_event() is None
