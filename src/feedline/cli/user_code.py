"""Functions named "module:function" on the command line, and the loaders that they return.

Imports and runs the user's own code.
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
from feedline.engine.defaults import worker_count
from feedline.errors import UsageError
from feedline.loader import DataLoader
from feedline.loader.dataset_kind import is_row_source

__all__ = ["build_loader", "import_function", "is_function_name"]

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def is_function_name(text: str) -> bool:
    """Return True if a text has the form "package.module:function"."""
    return _NAME.fullmatch(text) is not None


def import_function(text: str) -> Callable[..., Any]:
    """Import a function. The current folder is searched first, as with `python -m`.

    Raises:
        UsageError: the module does not exist or raises when it is imported, or the name is not a
            function.
    """
    name, _, inner = text.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _code_error(f"importing {name!r}", error) from error  # of a module that it needs
        raise UsageError(
            f"{text!r}: module {name!r} not found",
            hint="run the command in its folder, or install it",
        ) from None
    except Exception as error:
        raise _code_error(f"importing {name!r}", error) from error
    for part in inner.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise UsageError(
            f"{text!r} is not a function: the module {name!r} "
            f"({getattr(sys.modules[name], '__file__', 'built in')}) has no function {inner!r}"
        )
    called: Callable[..., Any] = found
    return called


def build_loader(
    text: str, *, schedule: str | None = None, batch_size: int | None = None
) -> TorchDataLoader[Any]:
    """Return the loader that a function returns, or one over the dataset that it returns.

    Args:
        text: name of the function, which is called without arguments.
        schedule, batch_size: for a dataset, whose loader shuffles. Default: no schedule, and 64
            samples.

    Raises:
        UsageError: the function does not exist, raises, or returns another type or less than one
            batch; or a loader is combined with `schedule` or `batch_size`.
    """
    function = import_function(text)
    try:
        returned: Any = function()
    except Exception as error:
        raise _code_error(f"{text!r}, called without arguments,", error) from error
    if isinstance(returned, TorchDataLoader):
        named = {"--schedule": schedule, "--batch-size": batch_size}
        if useless := [name for name, value in named.items() if value is not None]:
            raise UsageError(
                f"{', '.join(useless)} has no effect: {text!r} returns a loader with its own",
                hint="remove the option, or return the dataset",
            )
        return returned
    rows = 64 if batch_size is None else batch_size
    if isinstance(returned, IterableDataset):
        return TorchDataLoader(returned, rows, num_workers=worker_count("auto"))
    indexed = hasattr(returned, "__len__") and hasattr(returned, "__getitem__")
    if not (indexed or is_row_source(returned)):
        raise UsageError(
            f"{text!r} must return a DataLoader or a Dataset, got {type(returned).__name__}"
        )
    if schedule is None and len(returned) < rows:  # a schedule may set batch sizes
        raise UsageError(
            f"{text!r} returns a dataset of {len(returned)} samples, fewer than one batch of "
            f"{rows}",
            hint="use a smaller --batch-size",
        )
    return DataLoader(
        returned, rows, shuffle=True, schedule=schedule, num_workers="auto", drop_last=True
    )


def _code_error(action: str, error: Exception) -> UsageError:
    """Build the error for an exception in user code, with its source lines."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if _is_user_code(frame.filename)
    ]
    where = "".join(f"\n  {frame.filename}, line {frame.lineno}: {frame.line}" for frame in own)
    message = "".join(traceback.format_exception_only(error)).strip()
    return UsageError(f"{action} raised {message}{where}")


def _is_user_code(file: str) -> bool:
    """Return True if a file is not part of feedline, Python or an installed package."""
    paths = sysconfig.get_paths()
    libraries = (paths[name] for name in ("stdlib", "purelib", "platlib"))
    return not file.startswith(("<frozen ", str(Path(feedline.__file__).parent), *libraries))
