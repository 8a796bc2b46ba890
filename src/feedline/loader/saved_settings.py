"""File of loader settings, written by `feedline tune` and read by `DataLoader(settings=)`.

Guarantees: settings from a file are complete and in range; a file that is damaged, too large or of
a newer version raises a UsageError that names the file. A file from another machine is used, with a
warning about the differences. Explicit arguments override the file.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated

import msgspec
import torch

from feedline.errors import UsageError
from feedline.loader.options import Arguments
from feedline.machine import this_machine
from feedline.sources.files import read_small
from feedline.throughput.step_model import MAX_WORKERS

_VERSION = 1
_MAX_BYTES = 1 << 20
_GB = 1 << 30
_MEMORY_TOLERANCE = 0.9  # the memory a system reserves differs a little from boot to boot


class SavedSettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Arguments of a DataLoader that change its speed, but not its batches; None for the default.

    `prefetch` and `task_ms` are for loaders that make rows, `prefetch_factor` and `pin_memory` for
    loaders that make whole batches, and for torch's DataLoader.
    """

    num_workers: Annotated[int, msgspec.Meta(ge=0, le=MAX_WORKERS)]
    prefetch: Annotated[int, msgspec.Meta(ge=1, le=64)] | None = None
    task_ms: Annotated[float, msgspec.Meta(gt=0, le=60_000)] | None = None
    prefetch_factor: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None
    pin_memory: bool | None = None

    def as_text(self) -> str:
        """File contents with the settings and a description of this machine."""
        file = _File(
            feedline_settings=_VERSION,
            loader=self,
            found_on=_Machine.current(),
            feedline=this_machine().versions.get("feedline"),
        )
        return msgspec.json.format(msgspec.json.encode(file)).decode() + "\n"

    @classmethod
    def read(cls, file: str | os.PathLike[str]) -> SavedSettings:
        """Read settings from a file, or raise a UsageError."""
        try:
            data = read_small(file, _MAX_BYTES)
        except (OSError, ValueError) as error:
            raise _file_error(file, f"cannot be read: {error}") from None
        if len(data) > _MAX_BYTES:
            raise _file_error(file, "is not a valid settings file: it is larger than 1 MiB")
        try:
            version = msgspec.json.decode(data, type=_Version).feedline_settings
            if version != _VERSION:
                raise _file_error(
                    file, f"has version {version}, but this feedline reads version {_VERSION}"
                )
            saved = msgspec.json.decode(data, type=_File)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _file_error(file, f"is not a valid settings file: {error}") from None
        _warn_of_another_machine(file, saved.found_on)
        return saved.loader


class _Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of the machine that settings depend on."""

    cpu: str
    cores: int
    gpu: str | None = None
    memory_bytes: int | None = None  # older files lack it

    @classmethod
    def current(cls) -> _Machine:
        now = this_machine()
        return cls(cpu=now.cpu, cores=now.usable_cores, gpu=now.gpu, memory_bytes=now.memory_bytes)


class _Version(msgspec.Struct):
    """Version of a file, which is read first."""

    feedline_settings: int


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A complete file."""

    feedline_settings: int
    loader: SavedSettings
    found_on: _Machine
    feedline: str | None = None


def add_saved_settings(arguments: Arguments) -> Arguments:
    """Replace a settings file, if any, by its values; copies of the loader do not read it."""
    file = arguments.settings
    if file is None:
        return arguments
    if not isinstance(file, str | os.PathLike):
        raise UsageError(
            "must be the path of a file written by feedline tune --save, got "
            f"{type(file).__name__}",
            argument="settings",
        )
    saved = msgspec.structs.asdict(SavedSettings.read(file))
    if arguments.num_workers == 0:  # the file has settings of workers
        return replace(arguments, settings=None)
    changes = {
        name: value
        for name, value in saved.items()
        # A default set explicitly counts as not set.
        if value is not None and getattr(arguments, name) in (None, False)
    }
    return replace(arguments, settings=None, **changes)


def warn_if_unused(arguments: Arguments, completed: Arguments, engine: str) -> None:
    """Warn if a file sets options of rows for a loader that makes whole batches."""
    unused = [
        f"{name}={getattr(completed, name)!r}"
        for name in ("prefetch", "task_ms")
        if getattr(arguments, name) is None and getattr(completed, name) is not None
    ]
    if arguments.settings is not None and unused:
        warnings.warn(
            f"the settings in {os.fspath(arguments.settings)!r} set {' and '.join(unused)}, which "
            f"has no effect on this loader: it uses the {engine}. Write a file for it with "
            "feedline tune --save FILE",
            stacklevel=4,
        )


@contextmanager
def name_file_in_errors(file: str | os.PathLike[str] | None) -> Iterator[None]:
    """Context manager: mention the settings file, if any, in errors about invalid arguments."""
    try:
        yield
    except UsageError as error:
        if file is None:
            raise
        raise type(error)(
            f"{error.args[0]} (missing arguments come from settings={os.fspath(file)!r}, which "
            "feedline tune writes for a loader of the same kind)",
            argument=error.argument,
            hint=error.hint,
            fix=error.fix,
        ) from error


def _file_error(file: str | os.PathLike[str], reason: str) -> UsageError:
    return UsageError(
        f"{os.fspath(file)!r} {reason}",
        argument="settings",
        hint="write it again with this version of feedline: `feedline tune --save FILE`",
    )


def _warn_of_another_machine(file: str | os.PathLike[str], saved: _Machine) -> None:
    here = _Machine.current()
    differences = []
    for name, label in (("cpu", "processor"), ("cores", "cores"), ("gpu", "GPU")):
        before, now = getattr(saved, name), getattr(here, name)
        # The GPU of this machine is known only once a program uses it.
        if None not in (before, now) and before != now:
            differences.append(f"{label} {before!r} in the file, {now!r} here")
    # device_count does not initialise a GPU: torch queries the driver's library.
    if saved.gpu is not None and here.gpu is None and not torch.cuda.device_count():
        differences.append(f"GPU {saved.gpu!r} in the file, none available to torch here")
    before, now = saved.memory_bytes or 0, here.memory_bytes or 0
    if before and now and min(before, now) < _MEMORY_TOLERANCE * max(before, now):
        differences.append(f"memory {before / _GB:.3g} GiB in the file, {now / _GB:.3g} GiB here")
    if differences:
        warnings.warn(
            f"the settings in {os.fspath(file)!r} were measured on another machine "
            f"({'; '.join(differences)}); run feedline tune here, or pass the arguments yourself",
            stacklevel=6,
        )
