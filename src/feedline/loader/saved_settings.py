"""File of loader settings, written by `feedline tune` and read by `DataLoader(settings=)`.

Guarantees: settings that were read are complete and in range; a file that is damaged, too large or
of a newer version raises a UsageError that names it. A file from another machine is used, with a
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

from feedline.engine.messages import MAX_WORKERS
from feedline.errors import UsageError
from feedline.loader.argument_checks import Arguments
from feedline.stores.read_file import read_small
from feedline.trace.machine import this_machine

__all__ = ["SavedSettings", "add_saved_settings", "name_file_in_errors", "warn_if_unused"]

_VERSION = 1
_MOST_BYTES = 1 << 20
_GB = 1 << 30
_MEMORY_TOLERANCE = (
    0.9  # memory: what a machine keeps for itself differs a little from boot to boot
)

_Workers = Annotated[int, msgspec.Meta(ge=1, le=MAX_WORKERS)]
_Batches = Annotated[int, msgspec.Meta(ge=1, le=64)]
_Factor = Annotated[int, msgspec.Meta(ge=1, le=1024)]
_Milliseconds = Annotated[float, msgspec.Meta(gt=0, le=60_000)]


class SavedSettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Arguments of a DataLoader that change its speed, but not its batches.

    Args:
        num_workers: number of processes, at least 1.
        prefetch, task_ms: for loaders that make rows; None keeps the default.
        prefetch_factor, pin_memory: for loaders that make whole batches, and for torch's; None
            keeps the default.
    """

    num_workers: _Workers
    prefetch: _Batches | None = None
    task_ms: _Milliseconds | None = None
    prefetch_factor: _Factor | None = None
    pin_memory: bool | None = None

    def as_text(self) -> str:
        """File contents with the settings and a description of this machine."""
        here = this_machine()
        file = _File(
            feedline_settings=_VERSION,
            loader=self,
            found_on=_this_machine(),
            feedline=here.versions.get("feedline"),
        )
        return msgspec.json.format(msgspec.json.encode(file)).decode() + "\n"

    @classmethod
    def read(cls, file: str | os.PathLike[str]) -> SavedSettings:
        """Read settings from a file.

        Raises:
            UsageError: it cannot be read, or is invalid.
        """
        data = _read_file(file)
        try:
            version = msgspec.json.decode(data, type=_Version).feedline_settings
            if version != _VERSION:
                raise UsageError(
                    f"{os.fspath(file)!r} has version {version}, but this feedline reads version "
                    f"{_VERSION}",
                    argument="settings",
                    hint="update feedline, or run `feedline tune --save FILE` again",
                )
            read = msgspec.json.decode(data, type=_File)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _invalid_file(file, str(error)) from None
        _warn_of_another_machine(file, read.found_on)
        return read.loader


class _Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of the machine that settings depend on."""

    cpu: str
    cores: int
    gpu: str | None = None
    memory_bytes: int | None = None  # files of before do not say it


class _Version(msgspec.Struct):
    """Part of a file that is read first."""

    feedline_settings: int


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A complete file."""

    feedline_settings: int
    loader: SavedSettings
    found_on: _Machine
    feedline: str | None = None


def add_saved_settings(given: Arguments) -> Arguments:
    """Complete a loader's arguments with those of a settings file.

    The result does not contain the file itself: a copy of the loader does not read it again.

    Args:
        given: arguments; `settings` is the file, or None.

    Raises:
        UsageError: the file cannot be used.
    """
    file = given.settings
    if file is None:
        return given
    if not isinstance(file, str | os.PathLike):
        raise UsageError(
            "settings must be the path of a file written by feedline tune --save, got "
            f"{type(file).__name__}"
        )
    saved = msgspec.structs.asdict(SavedSettings.read(file))
    if given.num_workers == 0:  # the file is about workers
        return replace(given, settings=None)
    changes = {
        name: value
        for name, value in saved.items()
        # A loader's own default counts as not given.
        if value is not None and getattr(given, name) in (None, False)
    }
    return replace(given, settings=None, **changes)


def warn_if_unused(given: Arguments, completed: Arguments, batches: str) -> None:
    """Warn if a file sets options of rows for a loader that makes whole batches.

    Args:
        given: the loader's arguments, with the file.
        completed: the same with the settings of the file.
        batches: engine of the loader, as text.
    """
    unused = [
        f"{name}={getattr(completed, name)!r}"
        for name in ("prefetch", "task_ms")
        if getattr(given, name) is None and getattr(completed, name) is not None
    ]
    if given.settings is not None and unused:
        warnings.warn(
            f"the settings in {os.fspath(given.settings)!r} set {' and '.join(unused)}, which has "
            f"no effect on this loader: it uses the {batches}. Write a file for it with feedline "
            "tune --save FILE",
            stacklevel=3,
        )


@contextmanager
def name_file_in_errors(file: str | os.PathLike[str] | None) -> Iterator[None]:
    """Context manager: mention the settings file in errors about invalid arguments.

    Args:
        file: settings file; None for none.
    """
    try:
        yield
    except UsageError as error:
        if file is None:
            raise
        raise type(error)(
            f"{error} (missing arguments come from settings={os.fspath(file)!r}, which feedline "
            "tune writes for a loader of the same kind)"
        ) from error


def _read_file(file: str | os.PathLike[str]) -> bytes:
    try:
        data = read_small(file, _MOST_BYTES)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{os.fspath(file)!r} cannot be read: {error}",
            argument="settings",
            hint="`feedline tune --save FILE` writes such a file",
        ) from None
    if len(data) > _MOST_BYTES:
        raise _invalid_file(file, "it is larger than 1 MiB")
    return data


def _invalid_file(file: str | os.PathLike[str], why: str) -> UsageError:
    return UsageError(
        f"{os.fspath(file)!r} is not a valid settings file: {why}",
        argument="settings",
        hint="run `feedline tune --save FILE` again",
    )


def _this_machine() -> _Machine:
    here = this_machine()
    return _Machine(
        cpu=here.cpu, cores=here.usable_cores, gpu=here.gpu, memory_bytes=here.memory_bytes
    )


def _warn_of_another_machine(file: str | os.PathLike[str], there: _Machine) -> None:
    here = _this_machine()
    different = [
        f"{said} {getattr(there, name)!r} in the file, {getattr(here, name)!r} here"
        for name, said in (("cpu", "processor"), ("cores", "cores"), ("gpu", "GPU"))
        # Which GPU there is, is known only once a program uses it.
        if None not in (getattr(there, name), getattr(here, name))
        and getattr(there, name) != getattr(here, name)
    ]
    if there.gpu is not None and here.gpu is None and not _has_gpu():
        different.append(f"GPU {there.gpu!r} in the file, none available to torch here")
    memory = there.memory_bytes, here.memory_bytes
    if (
        None not in memory
        and not _MEMORY_TOLERANCE <= (memory[1] or 0) / (memory[0] or 1) <= 1 / _MEMORY_TOLERANCE
    ):
        said, found = ((each or 0) / _GB for each in memory)
        different.append(f"memory {said:.3g} GiB in the file, {found:.3g} GiB here")
    if different:
        warnings.warn(
            f"the settings in {os.fspath(file)!r} were measured on another machine "
            f"({'; '.join(different)}); run feedline tune here, or pass the arguments yourself",
            stacklevel=5,
        )


def _has_gpu() -> bool:
    """Return True if torch detects a GPU. Initialises none: torch asks the driver's library."""
    return torch.cuda.device_count() > 0
