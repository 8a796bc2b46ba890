"""A function of the user's, named on a command line as "module:function", and what it gives.

It is the user's own code that is imported and run.
"""

from __future__ import annotations

import importlib
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

import feedline
from feedline.errors import UsageError
from feedline.loader import DataLoader
from feedline.loader.checks import is_native, worker_count

__all__ = ["function_named", "is_function_name", "loader_of"]

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def is_function_name(text: str) -> bool:
    """Whether a text may name a function: "package.module:function"."""
    return _NAME.fullmatch(text) is not None


def function_named(text: str) -> Callable[..., Any]:
    """Import a function. Modules of the current folder are found first, as by `python -m`.

    Raises:
        UsageError: there is no such module, it raises something when it is imported, or there is
            nothing in it that can be called.
    """
    name, _, inner = text.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _raised(f"importing {name!r}", error) from error  # of a module that it needs
        raise UsageError(
            f"{text!r} names the module {name!r}, which cannot be found; run this in the folder "
            "that it lies in, or install it"
        ) from None
    except Exception as error:
        raise _raised(f"importing {name!r}", error) from error
    for part in inner.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise UsageError(
            f"{text!r} names nothing that can be called: the module {name!r} "
            f"({getattr(sys.modules[name], '__file__', 'built in')}) has no function {inner!r}"
        )
    called: Callable[..., Any] = found
    return called


def loader_of(
    text: str, *, schedule: str | None = None, batch_size: int | None = None
) -> TorchDataLoader[Any]:
    """The loader that a function gives, or one over the dataset that it gives.

    Args:
        text: names the function, which is called without arguments.
        schedule, batch_size: of a dataset's loader, which shuffles; None for no schedule, and for
            64 samples. A loader has its own.

    Raises:
        UsageError: there is no such function, it raises something, it gives something else or less
            than a batch, or a loader was given settings that it has itself.
    """
    function = function_named(text)
    try:
        given: Any = function()
    except Exception as error:
        raise _raised(f"{text!r}, called without arguments,", error) from error
    if isinstance(given, TorchDataLoader):
        named = {"--schedule": schedule, "--batch-size": batch_size}
        if useless := [name for name, value in named.items() if value is not None]:
            raise UsageError(
                f"{', '.join(useless)} was given, and {text!r} gives a loader that has its own; "
                "leave it out, or let the function give its dataset"
            )
        return given
    rows = 64 if batch_size is None else batch_size
    if isinstance(given, IterableDataset):
        return TorchDataLoader(given, rows, num_workers=worker_count("auto"))
    indexed = hasattr(given, "__len__") and hasattr(given, "__getitem__")
    if not (indexed or is_native(given)):
        raise UsageError(
            f"{text!r} gives a value of type {type(given).__name__}; it must give a DataLoader or "
            "a Dataset"
        )
    if schedule is None and len(given) < rows:  # a schedule may have batches of its own
        raise UsageError(
            f"{text!r} gives a dataset of {len(given)} samples, which are fewer than a batch of "
            f"{rows}; give it more, or name a smaller batch with --batch-size"
        )
    return DataLoader(
        given, rows, shuffle=True, schedule=schedule, num_workers="auto", drop_last=True
    )


def _raised(doing: str, error: Exception) -> UsageError:
    """What to say where the user's own code raises something: that, and where."""
    own = [
        frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)
    ]
    where = "".join(f"\n  {frame.filename}, line {frame.lineno}: {frame.line}" for frame in own)
    said = "".join(traceback.format_exception_only(error)).strip()
    return UsageError(f"{doing} raised {said}{where}")


def _is_users(file: str) -> bool:
    """Whether code is a user's: neither feedline's, nor Python's, nor of an installed package."""
    paths = sysconfig.get_paths()
    libraries = (paths[name] for name in ("stdlib", "purelib", "platlib"))
    return not file.startswith(("<frozen ", str(Path(feedline.__file__).parent), *libraries))
