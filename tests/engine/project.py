"""A user's code: functions whose result depends on other objects, in every possible form."""

from __future__ import annotations

import abc
import functools
import logging
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import project_config
import torch
from project_config import Limits

from sets import Kept

OFFSET = 10
DEEP = 1
SETTINGS = SimpleNamespace(size=1)
TABLE = np.arange(3)
TENSOR = torch.arange(3)
PLUS: Callable[[int], int] = lambda value: value + 1  # noqa: E731
LOCK = threading.Lock()
FILE = sys.__stderr__
LOGGER = logging.getLogger(__name__)
HOLDER = SimpleNamespace(lock=threading.Lock(), size=1)
REFERENCE = weakref.ref(Kept)


class Scaled(Kept):
    scale = 1

    def value_of(self, value: int) -> int:
        return value * self.scale

    def __getitem__(self, index: int) -> Any:
        return self.value_of(1), super().__getitem__(index)[1]


class Further(Scaled):
    """Depends on an attribute of its base class."""


class Asking(Kept):
    """A dataset whose samples are results of a function."""

    def __getitem__(self, index: int) -> Any:
        return self.value(1), super().__getitem__(index)[1]


def of_a_global(value: int) -> int:
    return value + OFFSET


def of_settings(value: int) -> int:
    return value + SETTINGS.size


def of_an_array(value: int) -> int:
    return value + int(TABLE[1])


def of_a_tensor(value: int) -> int:
    return value + int(TENSOR[1])


def of_a_helper(value: int) -> int:
    return sum(_helper(each) for each in [value])


def _helper(value: int) -> int:
    return value + DEEP


def of_a_lambda(value: int) -> int:
    return PLUS(value)


def holding(box: SimpleNamespace) -> Callable[[int], int]:
    return lambda value: value + box.size


HELD = SimpleNamespace(size=1)
HOLDING = holding(HELD)


def of_a_closure(value: int) -> int:
    return HOLDING(value)


def of_a_default(value: int, more: int = 1) -> int:
    return value + more


def of_a_module(value: int) -> int:
    return value + project_config.SIZE


def of_an_import(value: int) -> int:
    from project_config import SIZE

    return value + SIZE


def of_a_class(value: int) -> int:
    return min(value, Limits.most)


@torch.no_grad()
def of_a_wrapped(value: int) -> int:
    return value + OFFSET


@functools.lru_cache
def of_a_cached(value: int) -> int:
    return value + OFFSET


def of_a_holder(value: int) -> int:
    with HOLDER.lock:
        return value + HOLDER.size


def even(value: int) -> bool:
    return value == 0 or odd(value - 1)


def odd(value: int) -> bool:
    return value != 0 and even(value - 1) == project_config.EVEN


@dataclass
class Shift:
    """A transform."""

    name: str = field(default="shift", metadata={"lock": LOCK})
    by = 1

    def __call__(self, value: int) -> int:
        return value + self.by


class Troublesome(abc.ABC, Kept):
    """Goes by much that does not pickle, and changes in a worker."""

    lock = threading.Lock()
    __slots__ = ("slot",)

    @functools.cached_property
    def cached(self) -> int:
        return 1

    @property
    def own(self) -> Troublesome:
        return self

    @staticmethod
    def still(value: int) -> int:
        return value

    @classmethod
    def of_class(cls) -> type:
        return cls

    def __getitem__(self, index: int) -> Any:
        with LOCK, self.lock:
            LOGGER.debug("%s %s", FILE, REFERENCE())
            of_a_cached(index)
            assert self.of_class() is type(self.own)
            return self.still(1) * self.cached, super().__getitem__(index)[1]


class Slow:
    """An object that pickles slowly."""

    def __init__(self, event: threading.Event) -> None:
        self.event = event

    def __reduce__(self) -> Any:
        self.event.wait(0.05)
        return "SLOW"


SLOW = Slow(threading.Event())


def of_a_slow(value: int) -> Any:
    return SLOW
