"""What was set on a dataset is compared; what is deeper inside, or not set, is not."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from torch.utils.data import Dataset, Subset

from feedline.dataset.outline import outline


class Listed(Dataset[Any]):
    def __init__(self, samples: Any) -> None:
        self.samples = samples


def test_a_list_that_has_grown_in_place_differs_however_long_it_is() -> None:
    for length in (0, 3, 1000, 1001, 50_000):
        data = Listed([0.5] * length)
        for seen in (data, Subset(data, [0])):
            before = outline(seen)
            assert outline(seen) == before
            data.samples.append(0.5)
            assert outline(seen) != before
            data.samples.pop()
            assert outline(seen) == before


def test_another_part_of_a_short_list_or_dict_differs() -> None:
    for samples in ([[1], [2]], {"a": [1], "b": [2]}):
        data = Listed(samples)
        before = outline(data)
        key: Any = 1 if isinstance(samples, list) else "b"
        kept, data.samples[key] = data.samples[key], [2]  # equal, and another
        assert outline(data) != before
        data.samples[key] = kept
        assert outline(data) == before


def test_another_key_of_a_dict_differs_though_its_value_is_the_same() -> None:
    data = Listed({"cat": 0})
    before = outline(data)
    data.samples["ant"] = data.samples.pop("cat")
    assert outline(data) != before
    data.samples["cat"] = data.samples.pop("ant")
    assert outline(data) == before


class Views:
    """A transform of a user's."""

    def __init__(self, transform: Any, number: int) -> None:
        self.transform, self.number = transform, number

    def __call__(self, image: Any) -> list[Any]:
        return [self.transform(image) for _ in range(self.number)]


def test_what_is_set_on_a_transform_of_a_users_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = Views(nn.Sequential(nn.Identity()), 1)
    views = Views(inner, 2)
    data = Listed([])
    data.transform = views
    before = outline(data)
    for thing, name, value in ((views, "number", 3), (inner, "number", 2), (inner, "transform", 5)):
        with monkeypatch.context() as patch:
            patch.setattr(thing, name, value)
            assert outline(data) != before
        assert outline(data) == before
    with monkeypatch.context() as patch:
        patch.setattr(Views, "__call__", lambda self, image: image)
        assert outline(data) != before
    inner.transform.append(nn.Identity())
    assert outline(data) != before
