"""Workers live on with a dataset that stays as it is, and make way for one that has changed."""

from __future__ import annotations

import argparse
import copy
import dis
import inspect
import os
import typing
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import project
import project_config
import pytest
import torch
from project import Asking
from sets import Closed, Kept, as_it_is
from torchvision.transforms import Compose

from feedline.dataset import code
from feedline.dataset.renewal import digest
from feedline.loader import DataLoader


def loader(data: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(data, 2, num_workers=2, collate_fn=as_it_is, **options)


def epoch(batches: DataLoader[Any]) -> tuple[Any, set[int]]:
    """What the workers hold, all the same, and who they were."""
    samples = [sample for batch in batches for sample in batch]
    assert len(samples) == 4
    values = [value.tolist() if hasattr(value, "tolist") else value for value, _ in samples]
    assert all(value == values[0] for value in values)
    return values[0], {pid for _, pid in samples}


def set_attribute(data: Kept) -> None:
    data.value = "other"


def change_in_place(data: Kept) -> None:
    data.value[1] = 5


def change_within(data: Kept) -> None:
    data.value["a"][0].append(7)


def change_last_byte(data: Kept) -> None:
    data.value.view(-1)[-1] += 1


CHANGES: dict[str, tuple[Any, Callable[[Kept], None]]] = {
    "attribute": ("one", set_attribute),
    "tensor": (torch.arange(5), change_in_place),
    "array": (np.arange(5), change_in_place),
    "array of kilobytes": (np.arange(5000), change_in_place),
    "turned tensor": (torch.arange(6.0).view(2, 3).t(), change_in_place),
    "list in a list": ({"a": [[1, 2]]}, change_within),
    "large tensor": (torch.zeros(1000, 100, dtype=torch.uint8), change_last_byte),
}


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_between_epochs_is_seen_in_the_next(name: str, persistent: bool) -> None:
    value, change = CHANGES[name]
    data = Kept(copy.deepcopy(value))
    with loader(data, persistent_workers=persistent) as batches:
        first, before = epoch(batches)
        for _ in range(3):
            assert epoch(batches)[0] == first
            assert set(batches.worker_pids) >= before
        change(data)
        then, after = epoch(batches)
        wanted = data.value.tolist() if hasattr(data.value, "tolist") else data.value
        assert then == wanted
        assert then != first
        assert not before & after


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_change_is_seen_by_workers_that_got_the_dataset_by_pickle(method: str) -> None:
    data = Kept(torch.arange(3))
    with loader(data, start_method=method) as batches:
        assert epoch(batches)[0] == [0, 1, 2]
        pids = set(batches.worker_pids)  # one may be heard of only later
        assert epoch(batches)[0] == [0, 1, 2]
        assert pids <= set(batches.worker_pids)
        data.value += 1
        assert epoch(batches)[0] == [1, 2, 3]


def test_a_change_that_was_taken_back_is_none() -> None:
    data = Kept([1])
    with loader(data) as batches:
        epoch(batches)
        before = set(batches.worker_pids)
        data.value.append(2)
        data.value.pop()
        epoch(batches)
        assert before <= set(batches.worker_pids)


def test_a_dataset_that_does_not_pickle_has_new_workers_for_each_epoch() -> None:
    data = Closed([1])
    with loader(data) as batches:
        seen: set[int] = set()
        for number in range(3):
            data.value[0] = number
            value, pids = epoch(batches)
            assert value == [number]
            assert not pids & seen
            seen |= pids


def test_persistent_workers_keep_a_dataset_that_does_not_pickle() -> None:
    data = Closed([1])
    with loader(data, persistent_workers=True) as batches:
        epoch(batches)
        before = set(batches.worker_pids)
        data.value[0] = 2
        assert epoch(batches)[0] == [1]
        assert before <= set(batches.worker_pids)


def test_a_change_in_mid_epoch_is_of_the_next_epoch() -> None:
    data = Kept("one")
    with loader(data) as batches:
        samples = []
        for batch in batches:
            samples += batch
            data.value = "two"
        assert {value for value, _ in samples} == {"one"}
        assert epoch(batches)[0] == "two"


def test_renewing_workers_loses_nothing_that_was_skipped_or_has_died() -> None:
    data = Skipping(0)
    with DataLoader(data, 2, num_workers=1, on_error="skip") as batches:
        for number in range(3):
            data.value = number
            batch = next(iter(batches))
            assert batch.tolist() == [number]
        assert len(batches.skipped) == 3


class Skipping(Kept):
    def __getitem__(self, index: int) -> Any:
        if index == 1:
            raise ValueError("not this one")
        return self.value


def test_without_workers_a_change_is_seen_at_once() -> None:
    data = Kept("one")
    batches = iter(DataLoader(data, 2, collate_fn=as_it_is))
    assert next(batches) == [("one", os.getpid())] * 2
    data.value = "two"
    assert next(batches) == [("two", os.getpid())] * 2


CODE: dict[str, tuple[Any, Any, str, Any, Any]] = {
    "class attribute": (project.Scaled(0), project.Scaled, "scale", 5, 5),
    "base's attribute": (project.Further(0), project.Scaled, "scale", 5, 5),
    "attribute anew": (project.Further(0), project.Further, "scale", 5, 5),
    "method": (project.Scaled(0), project.Scaled, "value_of", lambda self, value: 7, 7),
    "global": (Asking(project.of_a_global), project, "OFFSET", 20, 21),
    "settings": (Asking(project.of_settings), project.SETTINGS, "size", 160, 161),
    "array": (Asking(project.of_an_array), project, "TABLE", np.arange(2, 5), 4),
    "tensor": (Asking(project.of_a_tensor), project, "TENSOR", torch.arange(2, 5), 4),
    "helper": (Asking(project.of_a_helper), project, "_helper", lambda value: 7, 7),
    "helper's global": (Asking(project.of_a_helper), project, "DEEP", 20, 21),
    "lambda": (Asking(project.of_a_lambda), project, "PLUS", lambda value: value + 2, 3),
    "closure": (Asking(project.of_a_closure), project.HELD, "size", 5, 6),
    "default": (Asking(project.of_a_default), project.of_a_default, "__defaults__", (5,), 6),
    "module's attribute": (Asking(project.of_a_module), project_config, "SIZE", 5, 6),
    "import within": (Asking(project.of_an_import), project_config, "SIZE", 5, 6),
    "class as settings": (Asking(project.of_a_class), project_config.Limits, "most", 0, 0),
    "wrapped by torch": (Asking(project.of_a_wrapped), project, "OFFSET", 20, 21),
    "cached": (Asking(project.of_a_cached), project, "OFFSET", 20, 21),
    "beside a lock": (Asking(project.of_a_holder), project.HOLDER, "size", 5, 6),
    "functions in a circle": (Asking(project.odd), project_config, "EVEN", False, False),
    "transform": (Asking(Compose([project.Shift()])), project.Shift, "by", 5, 6),
}


@pytest.mark.parametrize("name", CODE)
def test_a_change_of_what_the_code_goes_by_is_seen(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, holder, attribute, value, wanted = CODE[name]
    with loader(data) as batches:
        first, before = epoch(batches)
        before = set(batches.worker_pids)
        for _ in range(3):
            assert epoch(batches)[0] == first
            assert set(batches.worker_pids) >= before
        monkeypatch.setattr(holder, attribute, value)
        then, after = epoch(batches)
        assert then == wanted
        assert then != first
        assert not before & after


def test_a_change_of_what_the_code_does_not_name_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with loader(Asking(project.of_a_helper)) as batches:
        epoch(batches)
        before = set(batches.worker_pids)
        monkeypatch.setattr(project, "OFFSET", 20)
        monkeypatch.setattr(project_config, "SIZE", 20)
        epoch(batches)
        assert before <= set(batches.worker_pids)


def test_code_that_goes_by_what_does_not_pickle_keeps_its_workers() -> None:
    with loader(project.Troublesome(0)) as batches:
        epoch(batches)
        before = set(batches.worker_pids)
        for _ in range(3):
            project.of_a_cached(1)
            epoch(batches)
            assert before <= set(batches.worker_pids)


def test_a_collate_fn_goes_by_globals_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with DataLoader([1, 2], 2, num_workers=1, collate_fn=collate) as batches:
        assert list(batches) == [[1, 2]]
        monkeypatch.setitem(globals(), "FACTOR", 3)
        assert list(batches) == [[3, 6]]


FACTOR = 1


def collate(samples: list[int]) -> list[int]:
    return [sample * FACTOR for sample in samples]


def test_what_code_goes_by_is_told_in_time_or_not_at_all() -> None:
    assert digest(project.of_a_slow) is not None
    assert digest(project.of_a_slow, within_s=0.04) is None


def test_code_of_installed_packages_is_a_name() -> None:
    assert not any(map(code.is_users, (os, torch, np, pytest, Compose, dis.dis, DataLoader)))
    assert all(map(code.is_users, (project, Asking, collate, eval("lambda: 0", {}))))


def bodies(found: CodeType) -> list[CodeType]:
    within = [each for each in found.co_consts if isinstance(each, CodeType)]
    return [found, *(each for body in within for each in bodies(body))]


def test_the_globals_that_code_loads_are_those_that_dis_says() -> None:
    functions = [
        value
        for module in (argparse, inspect, typing, code)
        for holder in (module, *filter(inspect.isclass, vars(module).values()))
        for value in vars(holder).values()
        if isinstance(value, FunctionType)
    ]
    many: dict[str, Any] = {}
    exec(f"def many(): return {[f'name{number}' for number in range(600)]}".replace("'", ""), many)
    assert len(functions) > 200
    for function in [*functions, many["many"]]:
        said = {
            each.argval
            for body in bodies(function.__code__)
            for each in dis.get_instructions(body)
            if each.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
        }
        assert set(code._body(function.__code__).loads) == said
