"""Pickled payload: a source pickled once for all workers, which map its large arrays.

Guarantees: numpy arrays in the source are stored once (pickle protocol 5, out-of-band) and mapped
copy-on-write: writable and private. The pickle is made by the trainer for its own workers and never
read from a file. Modules imported by a worker see the trainer's arguments, search path, working
directory and environment.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing.spawn as mp_spawn
import os
import pickle
import struct
import sys
import warnings
from collections.abc import Callable, Sequence
from multiprocessing import process as mp_process
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline.engine.buffers import LINE_BYTES, align
from feedline.engine.pickling import SharedResources, SharingPickler, find_unpicklable, inherited
from feedline.engine.process import WORKER_ENVIRONMENT
from feedline.engine.shared_memory import NamedMemory, SharedFile
from feedline.engine.source import AnySource, Given
from feedline.errors import UsageError

__all__ = ["Payload", "main_module", "search_path", "unpickle_source"]

Memory = TypeVar("Memory", SharedFile, NamedMemory)


_COUNT = struct.Struct("<q")
_LIBRARIES = {"feedline", "torch", "torchvision", "timm", "numpy", "PIL"}


class Payload(Generic[Memory]):
    """A pickled source in memory that all workers map.

    Args:
        source: source to send.
        create: creates memory of a number of bytes.
        runs_user_code: workers import the user's script first, for settings at its top level. If
            False, they do so only if the source needs a module other than feedline and the
            libraries of its pipelines.

    Raises:
        UsageError: something in the source cannot be pickled; the message names it. Or it needs the
            user's script, which has no file.
        ResourceError: not enough memory.
    """

    memory: Memory
    resources: SharedResources
    """Descriptors that workers need to unpickle it; open until `close`."""
    library_modules: list[str]
    """Modules of feedline and of the libraries of its pipelines that the source needs."""

    def __init__(
        self, source: AnySource, create: Callable[[int], Memory], *, runs_user_code: bool
    ) -> None:
        with contextlib.ExitStack() as cleanup:
            self.resources = SharedResources()
            cleanup.callback(self.resources.close)
            modules, parts = _pickle_source(source, self.resources, runs_user_code)
            self.library_modules = sorted(m for m in modules if _package(m) in _LIBRARIES)
            sizes = [_COUNT.pack(len(part)) for part in parts]
            parts.insert(0, _COUNT.pack(len(parts)) + b"".join(sizes))
            self.memory = create(sum(align(len(part), LINE_BYTES) for part in parts))
            offset = 0
            for part in parts:
                block = self.memory.array[offset : offset + len(part)]
                block[:] = np.frombuffer(part, np.uint8)
                offset += align(len(part), LINE_BYTES)
            cleanup.pop_all()

    def close(self) -> None:
        """Free the memory and the resources. May be called again."""
        self.memory.close()
        self.resources.close()


def _pickle_source(
    source: AnySource, resources: SharedResources, runs_user_code: bool
) -> tuple[set[str], list[memoryview | bytes]]:
    """Pickle a source.

    Returns:
        the modules it needs; and the parts of the payload: a worker's settings, the source, and its
        out-of-band buffers.
    """
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    pickler = SharingPickler(file, buffers.append, resources)
    with resources.pickling():
        try:
            pickler.dump(source)
        except Exception as error:
            objects = source.given() if isinstance(source, Given) else {}
            part = find_unpicklable(source, type(source).__name__, objects, _try_pickle)
            raise UsageError(
                f"{part.path} cannot be sent to worker processes: {part.reason}. "
                f'{part.remedy}, or use start_method="fork" (Linux) or num_workers=0'
            ) from error
        settings = _worker_settings(resources)
        packages = {_package(module) for module in pickler.modules}
        if runs_user_code or packages - _LIBRARIES - sys.stdlib_module_names:
            settings |= main_module(needed="__main__" in packages)
        head = io.BytesIO()
        SharingPickler(head, buffers.append, resources).dump(settings)
    if pickler.copied:
        warnings.warn(
            f"{len(pickler.copied)} tensors of the dataset cannot be shared with worker processes: "
            f"{pickler.copied[0]}. Each worker has its own copy and does not see later changes. "
            "Use fewer, larger tensors, or call share_memory_() on those that must be shared",
            stacklevel=2,
        )
    return pickler.modules, [
        head.getvalue(),
        file.getvalue(),
        *[buffer.raw() for buffer in buffers],
    ]


def _package(module: str) -> str:
    return module.partition(".")[0]


def _try_pickle(value: object) -> None:
    """Pickle a value like a source, and discard the result."""
    resources = SharedResources()
    try:
        with resources.pickling():
            SharingPickler(io.BytesIO(), lambda _: None, resources).dump(value)
    finally:
        resources.close()


def unpickle_source(block: NDArray[np.uint8], descriptors: Sequence[int]) -> AnySource:
    """Unpickle a payload in a worker. The source's arrays are views of `block`.

    Args:
        block: memory of a `Payload`.
        descriptors: descriptors of the payload's resources, in this process; closed here.
    """
    with inherited(descriptors):
        return _unpickle(block)


def _unpickle(block: NDArray[np.uint8]) -> AnySource:
    data = block.data
    (count,) = _COUNT.unpack_from(data)
    sizes = [_COUNT.unpack_from(data, _COUNT.size * (1 + k))[0] for k in range(count)]
    offset = align(_COUNT.size * (1 + count), LINE_BYTES)
    parts = []
    for size in sizes:
        parts.append(data[offset : offset + size])
        offset += align(size, LINE_BYTES)
    settings = pickle.loads(parts[0])
    _set_environment(settings.pop("environment"))
    if (tracker := settings.pop("tracker", None)) is not None:
        _use_tracker(tracker.detach())
    with contextlib.suppress(OSError):  # the folder was removed
        os.chdir(settings.pop("dir", "."))
    # Import the user's script, as multiprocessing's own children do, so that its classes exist.
    mp_spawn.prepare(settings)
    try:
        source: AnySource = pickle.loads(parts[1], buffers=parts[2:])
    except AttributeError as error:
        if "_main__'" not in str(error):
            raise
        raise AttributeError(
            f"{error}: it is defined in your script, which workers import without the code under "
            '`if __name__ == "__main__"`, and cannot import from python -c or a notebook. Move it '
            'to a module or to the top level of the script, or use start_method="fork" (Linux)'
        ) from error
    return source


def _set_environment(environment: dict[str, str]) -> None:
    """Set the trainer's environment, except for a worker's own variables."""
    for name in os.environ.keys() - environment.keys() - WORKER_ENVIRONMENT.keys():
        del os.environ[name]
    for name in environment.keys() - WORKER_ENVIRONMENT.keys():
        os.environ[name] = environment[name]


def _use_tracker(fd: int) -> None:
    """Use the trainer's resource tracker, like multiprocessing's own children.

    A second tracker would remove shared memory that this process has only opened.
    """
    tracker: Any = resource_tracker._resource_tracker
    if tracker._fd is None:
        tracker._fd = fd
    else:
        os.close(fd)


def search_path() -> list[str]:
    """Module search path of this process, in a form for another process."""
    # Like Python, skip entries of other types, e.g. Path.
    return [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]


def main_module(*, needed: bool = True) -> dict[str, Any]:
    """Location of the user's script for a worker, in multiprocessing's form; may be empty.

    Args:
        needed: workers cannot start without it.

    Raises:
        UsageError: it is needed, but has no file, so other processes cannot import it.
    """
    process: Any = mp_process.current_process()
    # get_preparation_data fails while a process unpickles its arguments (e.g. a loader).
    inheriting = process.__dict__.pop("_inheriting", None)
    try:
        data = mp_spawn.get_preparation_data("feedline worker")
    finally:
        if inheriting is not None:
            process._inheriting = inheriting
    found = {name: data[name] for name in data if name.startswith("init_main")}
    path = found.get("init_main_from_path")
    # multiprocessing does not import the __main__.py of an archive.
    if path is not None and Path(path).stem != "__main__" and not Path(path).exists():
        if not needed:
            return {}
        raise UsageError(
            f"worker processes must import your script, but there is no file {path} (was it read "
            'from stdin?). Put the code into a file, or use start_method="fork" (Linux) or '
            "num_workers=0"
        )
    return found


def _worker_settings(resources: SharedResources) -> dict[str, Any]:
    """Settings a worker needs before it imports user code.

    Not inherited from the fork server, which is shared by pools and does not see later changes.
    """
    settings: dict[str, Any] = {
        "authkey": mp_process.current_process().authkey,
        "sys_argv": sys.argv,
        "sys_path": search_path(),
        "orig_dir": mp_process.ORIGINAL_DIR,  # type: ignore[attr-defined]
        "environment": dict(os.environ),
    }
    with contextlib.suppress(OSError):  # the folder was removed
        settings["dir"] = os.getcwd()
    tracker: Any = resource_tracker._resource_tracker
    if tracker._fd is not None and sys.platform != "win32":
        settings["tracker"] = resources.DupFd(resources.duplicate_for_child(tracker._fd))
    return settings
