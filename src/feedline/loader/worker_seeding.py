"""`worker_init_fn` that only seeds random states: functions of libraries and users.

feedline seeds these states again for each batch or row, so such a function cannot change a sample.

Guarantees: never raises and runs no user code. Functions of libraries are recognised by identity,
so one that was replaced in its library is not recognised. Own functions are recognised by their
byte code: it calls the seeding functions of torch, numpy and random, computes with numbers, and
stores nothing but local variables.
"""

from __future__ import annotations

import argparse
import builtins
import dis
import os
import random
import re
import sys
import time
from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

_FUNCTIONS = {
    ("timm.data.loader", "_worker_init"),
    ("lightning.fabric.utilities.seed", "pl_worker_init_function"),
    ("lightning_fabric.utilities.seed", "pl_worker_init_function"),
    ("transformers.trainer_utils", "seed_worker"),
    ("mmengine.dataset.utils", "worker_init_fn"),
}
_CALLABLE: tuple[object, ...] = (
    *(random.seed, random.getstate, np.random.seed, np.random.get_state),
    *(torch.manual_seed, torch.seed, torch.initial_seed, get_worker_info),
    *(torch.cuda.manual_seed, torch.cuda.manual_seed_all),
    *(os.getpid, time.time, time.time_ns, int, abs, min, max),
)
"""Functions that change nothing but random states. Their results are numbers, tuples and arrays of
numbers, and torch's `WorkerInfo`."""
_READABLE = {"id", "num_workers", "seed"}  # attributes of a `WorkerInfo`
_PLAIN = (int, float, str, bool, type(None))
_NAMESPACES = (ModuleType, argparse.Namespace, SimpleNamespace)
_MAX_DEPTH = 4
_OPERATIONS = re.compile(
    r"BINARY_\w+|INPLACE_\w+|UNARY_\w+|COMPARE_OP|IS_OP|TO_BOOL|BUILD_TUPLE"
    r"|CALL|CALL_(KW|METHOD|FUNCTION(_KW)?)|PRECALL|KW_NAMES|PUSH_NULL"
    r"|LOAD_(FAST\w*|CONST|SMALL_INT)|STORE_FAST\w*|COPY|SWAP|DUP_TOP|ROT_TWO|POP_TOP"
    r"|POP_JUMP_\w+|JUMP_FORWARD|NOT_TAKEN|RETURN_(VALUE|CONST)"
    r"|RESUME|NOP|CACHE|EXTENDED_ARG|COPY_FREE_VARS"
)
"""Operations on numbers without effects, in Python 3.10 to 3.14; others are not recognised."""


def only_seeds(function: object) -> bool:
    """Return True for a `worker_init_fn` that only seeds random states, also in a
    `functools.partial` without functions of the user.
    """
    return _only_seeds(function, _MAX_DEPTH)


def _only_seeds(function: object, depth: int) -> bool:
    arguments: tuple[object, ...] = ()
    if type(function) is partial:
        arguments = (*function.args, *function.keywords.values())
        if any(callable(each) for each in arguments):
            return False  # timm calls it
        function = function.func
    if type(function) is not FunctionType:
        return False
    if (function.__module__, function.__name__) in _FUNCTIONS:
        module = sys.modules.get(function.__module__, object)
        return vars(module).get(function.__name__) is function
    arguments += (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    if not all(map(_is_plain, arguments)) or not depth:
        return False
    return all(_is_harmless(value, depth) for value in _values(function))


def _is_harmless(value: object, depth: int) -> bool:
    """Return True if calling a value, or computing with it, only changes random states."""
    return (
        _is_plain(value)
        or any(_unwrapped(value) is _unwrapped(each) for each in _CALLABLE)
        or _only_seeds(value, depth - 1)
    )


def _unwrapped(value: Any) -> object:
    """Function in a wrapper of torch, which torch.compile puts around `manual_seed`."""
    while type(value) is FunctionType and "__wrapped__" in vars(value):
        if not str(value.__globals__.get("__name__")).startswith("torch."):
            break
        value = vars(value)["__wrapped__"]
    return value


def _is_plain(value: object) -> bool:
    return any(type(value) is kind for kind in _PLAIN)


_UNKNOWN = object()
"""A value that is not harmless."""


def _values(function: FunctionType) -> Iterator[object]:
    """Values of all names that a function reads; `_UNKNOWN` for anything else that it does."""
    scopes = {**vars(builtins), **function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            scopes[name] = cell.cell_contents
        except ValueError:  # not set yet
            scopes[name] = _UNKNOWN
    value: object = None
    is_name = False  # the last operation read `value`, whose attribute the next one may read
    for step in dis.get_instructions(function):
        if step.opname in ("LOAD_GLOBAL", "LOAD_DEREF"):
            if is_name:
                yield value
            value, is_name = scopes.get(step.argval, _UNKNOWN), True
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if is_name:
                value = _attribute(value, step.argval)
            elif step.argval not in _READABLE:
                yield _UNKNOWN
        else:
            if is_name:
                yield value
            is_name = False
            if not _OPERATIONS.fullmatch(step.opname) or isinstance(step.argval, CodeType):
                yield _UNKNOWN


def _attribute(value: Any, name: str) -> object:
    """Attribute of a module or namespace, without running code."""
    is_namespace = any(type(value) is kind for kind in _NAMESPACES)
    return vars(value).get(name, _UNKNOWN) if is_namespace else _UNKNOWN
