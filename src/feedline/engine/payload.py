"""Pickled payload: a source pickled once for all workers, which map its large arrays.

Guarantees: numpy arrays in the source are stored once (pickle protocol 5, out-of-band) and mapped
copy-on-write: writable and private. Shared tensors, locks, values, queues, connections and manager
proxies refer to the same memory and descriptors in every process that unpickles them, including
replacement workers. Nothing runs in the background, and nothing stays open after `close`. The
pickle is made by the trainer for its own workers and never read from a file. Modules imported by a
worker see the trainer's arguments, search path, working directory and environment.
Relies on: the private hooks by which multiprocessing's start methods pass descriptors
(`set_spawning_popen` and a process object with `duplicate_for_child` and `DupFd`).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import multiprocessing.spawn as mp_spawn
import os
import pickle
import struct
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import context as mp_context
from multiprocessing import process as mp_process
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline.engine.buffers import CACHE_LINE_BYTES, align
from feedline.engine.messages import error_message
from feedline.engine.process import WORKER_ENVIRONMENT
from feedline.engine.shared_memory import NamedMemory, SharedFile
from feedline.errors import UsageError
from feedline.private_names import find_private
from feedline.system import search_path

if TYPE_CHECKING:
    from feedline.engine.load_samples import AnySource

Memory = TypeVar("Memory", SharedFile, NamedMemory)
Dump: TypeAlias = Callable[[object], object]
"""Pickles a value, or raises."""

_COUNT = struct.Struct("<q")
_LIBRARIES = {"feedline", "torch", "torchvision", "timm", "numpy", "PIL"}


class Payload(Generic[Memory]):
    """A pickled source in memory that all workers map; raises UsageError or ResourceError.

    With `runs_user_code`, workers import the user's script first, for settings at its top level.
    Otherwise they do so only if the source needs a module other than feedline and the libraries of
    its pipelines.
    """

    memory: Memory
    resources: SharedResources  # descriptors that workers need to unpickle it, until `close`
    library_modules: list[str]  # of feedline and its pipelines' libraries, needed by the source

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
            self.memory = create(sum(align(len(part), CACHE_LINE_BYTES) for part in parts))
            offset = 0
            for part in parts:
                block = self.memory.array[offset : offset + len(part)]
                block[:] = np.frombuffer(part, np.uint8)
                offset += align(len(part), CACHE_LINE_BYTES)
            cleanup.pop_all()

    def close(self) -> None:
        """Free the memory and the resources. May be called again."""
        self.memory.close()
        self.resources.close()


def _pickle_source(
    source: AnySource, resources: SharedResources, runs_user_code: bool
) -> tuple[set[str], list[memoryview | bytes]]:
    """Pickle a source. Return the modules it needs, and the parts of the payload: a worker's
    settings, the source, and its out-of-band buffers.
    """
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    pickler = _SharingPickler(file, buffers.append, resources)
    with resources.pickling():
        try:
            pickler.dump(source)
        except Exception as error:
            # First the user's objects, by the names of the loader's arguments.
            objects = {**getattr(source, "user_objects", dict)(), type(source).__name__: source}
            parts = (find_unpicklable(each, name, _try_pickle) for name, each in objects.items())
            part = next(filter(None, parts), None)
            part = part or UnpicklablePart(type(source).__name__, source, error)
            raise UsageError(
                f"{part.path} cannot be sent to worker processes: {type(part.error).__name__}: "
                f"{error_message(part.error)}. {part.remedy}, or use "
                'start_method="fork" (Linux) or num_workers=0'
            ) from error
        settings = _worker_settings(resources)
        packages = {_package(module) for module in pickler.modules}
        if runs_user_code or packages - _LIBRARIES - sys.stdlib_module_names:
            settings |= main_module(needed="__main__" in packages)
        head = io.BytesIO()
        _SharingPickler(head, buffers.append, resources).dump(settings)
    if errors := pickler.sharing_errors:
        warnings.warn(
            f"{len(errors)} tensors of the dataset cannot be shared with worker processes: "
            f"{errors[0]}. Each worker has its own copy and does not see later changes. "
            "Use fewer, larger tensors, or call share_memory_() on those that must be shared",
            stacklevel=2,
        )
    raw_buffers = [buffer.raw() for buffer in buffers]
    return pickler.modules, [head.getvalue(), file.getvalue(), *raw_buffers]


def _package(module: str) -> str:
    return module.partition(".")[0]


def unpickle_source(block: NDArray[np.uint8], descriptors: Sequence[int]) -> AnySource:
    """Unpickle a payload in a worker. The source's arrays are views of `block`.

    The descriptors of the payload's resources are closed here.
    """
    data = block.data
    (count,) = _COUNT.unpack_from(data)
    sizes = [_COUNT.unpack_from(data, _COUNT.size * (1 + k))[0] for k in range(count)]
    offset = align(_COUNT.size * (1 + count), CACHE_LINE_BYTES)
    parts = []
    for size in sizes:
        parts.append(data[offset : offset + size])
        offset += align(size, CACHE_LINE_BYTES)
    with _inherited(descriptors):
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
                f"{error}: it is defined in your script, which workers import without the code "
                'under `if __name__ == "__main__"`, and cannot import from python -c or a '
                "notebook. Move it to a module or to the top level of the script, or use "
                'start_method="fork" (Linux)'
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
    tracker = _resource_tracker()
    if tracker._fd is None:
        tracker._fd = fd
    else:
        os.close(fd)


def _resource_tracker() -> Any:
    find_private("multiprocessing.resource_tracker._resource_tracker._fd")
    return find_private("multiprocessing.resource_tracker._resource_tracker")


def main_module(*, needed: bool = True) -> dict[str, Any]:
    """Location of the main script for a worker, in multiprocessing's form; may be empty.

    Raises UsageError if it is `needed`, but has no file, so other processes cannot import it.
    """
    process: Any = mp_process.current_process()
    # get_preparation_data fails while a process unpickles its arguments (e.g. a loader).
    inheriting = process.__dict__.pop("_inheriting", None)
    try:
        data = mp_spawn.get_preparation_data("feedline worker")
    finally:
        if inheriting is not None:
            process._inheriting = inheriting
    location = {name: data[name] for name in data if name.startswith("init_main")}
    path = location.get("init_main_from_path")
    # multiprocessing does not import the __main__.py of an archive.
    if path is not None and Path(path).stem != "__main__" and not Path(path).exists():
        if not needed:
            return {}
        raise UsageError(
            f"worker processes must import your script, but there is no file {path} (was it read "
            'from stdin?). Put the code into a file, or use start_method="fork" (Linux) or '
            "num_workers=0"
        )
    return location


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
    tracker = _resource_tracker()
    if tracker._fd is not None and sys.platform != "win32":
        settings["tracker"] = resources.DupFd(resources.duplicate_for_child(tracker._fd))
    return settings


_MAX_SHARED_TENSORS = 128
"""Maximum number of tensors of one pickle moved to shared memory. Each needs a descriptor in every
process, and many systems allow 1024. Tensors that are already shared do not count."""

_set_spawning: Any = mp_context.set_spawning_popen
_get_spawning: Any = mp_context.get_spawning_popen

_descriptors: Sequence[int] = ()  # of this worker, while it unpickles


class _InheritedFd:
    """A descriptor within a pickle, by its index among those sent with the pickle."""

    def __init__(self, index: int) -> None:
        self._index = index

    def detach(self) -> int:
        """A duplicate, owned by the caller."""
        return os.dup(_descriptors[self._index])


class SharedResources:
    """Descriptors and references to shared memory that pickles need.

    It replaces the process object in multiprocessing's hooks.
    """

    DupFd = _InheritedFd

    def __init__(self) -> None:
        self.fds: list[int] = []
        self.storages: list[Any] = []  # torch's storages in named memory, held until `close`

    def duplicate_for_child(self, fd: int) -> int:
        """Store a duplicate of a descriptor. Return its index."""
        if sys.platform == "win32":
            raise RuntimeError("a handle can only be sent as an argument of a new process")
        self.fds.append(os.dup(fd))
        return len(self.fds) - 1

    def close(self) -> None:
        """Close the descriptors and release the references. May be called again."""
        while self.fds:
            os.close(self.fds.pop())
        while self.storages:
            self.storages.pop()._shared_decref()

    @contextmanager
    def pickling(self) -> Iterator[None]:
        """Context manager: collect resources of everything pickled in this thread."""
        before = _get_spawning()
        _set_spawning(self)
        try:
            yield
        finally:
            _set_spawning(before)


@contextmanager
def _inherited(descriptors: Sequence[int]) -> Iterator[None]:
    """Context manager: use the descriptors sent with a pickle for unpickling, then close them."""
    global _descriptors
    process: Any = mp_process.current_process()
    _descriptors = descriptors
    process._inheriting = True  # as in multiprocessing's own children
    try:
        yield
    finally:
        del process._inheriting
        _descriptors = ()
        for fd in descriptors:
            os.close(fd)


class _SharingPickler(ForkingPickler):
    """Pickler for objects sent to workers: multiprocessing's and torch's own reductions.

    Call `dump` within `resources.pickling()`.
    """

    def __init__(
        self, file: io.BytesIO, buffer_callback: Callable[[Any], object], resources: SharedResources
    ) -> None:
        super().__init__(file, 5, True, buffer_callback)
        self.modules: set[str] = set()  # modules of the pickled classes and functions
        self.sharing_errors: list[str] = []  # reason for each tensor that could not be shared
        self._resources = resources
        self._torch: Any = sys.modules.get("torch")
        self._num_shared = 0

    def reducer_override(self, obj: object) -> Any:
        """Reduce torch storages; record the modules of classes and functions."""
        if isinstance(obj, (type, FunctionType)):
            self.modules.add(str(obj.__module__))
        elif self._torch is not None and type(obj) is self._torch.UntypedStorage:
            return self._reduce_storage(obj)
        return NotImplemented

    def _reduce_storage(self, storage: Any) -> Any:
        """Reduce a storage like torch, or to a copy of its bytes if it cannot be shared."""
        if storage.device.type != "cpu":
            return NotImplemented
        if not storage.nbytes():
            return type(storage), ()
        named = self._torch.multiprocessing.get_sharing_strategy() == "file_system"
        if not named and not storage.is_shared():
            self._num_shared += 1
            if self._num_shared > _MAX_SHARED_TENSORS:
                return self._reduce_to_copy(
                    storage, f"only {_MAX_SHARED_TENSORS} can be moved to shared memory"
                )
        try:
            reduced: Any = self.dispatch_table[type(storage)](storage)
        except (OSError, RuntimeError) as error:
            # Shared memory is full, or the tensor is mapped from a file.
            return self._reduce_to_copy(storage, str(error))
        if not named:
            return reduced
        self._resources.storages.append(storage)
        return _rebuild_counted, reduced

    def _reduce_to_copy(self, storage: Any, reason: str) -> Any:
        self.sharing_errors.append(reason)
        bytes_of = self._torch.empty(0, dtype=self._torch.uint8, device="cpu").set_(storage).numpy()
        return _storage_from, (pickle.PickleBuffer(bytes_of),)


def _storage_from(buffer: Any) -> Any:
    torch: Any = importlib.import_module("torch")
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def _rebuild_counted(rebuild: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Rebuild a storage in named memory, and add a reference.

    torch's function consumes the reference of the pickle, which other processes still need.
    """
    storage = rebuild(*arguments)
    storage._shared_incref()
    return storage


class UnpicklablePart(NamedTuple):
    """The innermost part of a value that cannot be pickled; its path, e.g. dataset.transform.fn."""

    path: str
    value: object
    error: Exception

    @property
    def remedy(self) -> str:
        """Recommended fix, as the beginning of a sentence."""
        kind = self.value if isinstance(self.value, type) else type(self.value)
        if isinstance(self.value, (FunctionType, type)) or "<locals>" in kind.__qualname__:
            return (
                "Lambdas, and functions or classes defined inside a function, cannot be pickled: "
                "define them at the top level of a module"
            )
        return (
            f"Create the {kind.__name__} in the worker, when it is first used, and leave it out in "
            "__getstate__"
        )


def find_unpicklable(
    value: object, path: str, dump: Dump, depth: int = 8
) -> UnpicklablePart | None:
    """Find the innermost part of a value that cannot be pickled; None if the value can be.

    Its path begins with `path` and has at most `depth` steps.
    """
    try:
        dump(value)
        return None
    except Exception as raised:
        error = raised
    for suffix, part in _parts(value).items() if depth else ():
        if (found := find_unpicklable(part, path + suffix, dump, depth - 1)) is not None:
            return found
    return UnpicklablePart(path, value, error)  # a part may only fail within its container


def _parts(value: object) -> dict[str, object]:
    """Parts that are pickled with a value, by their suffix in Python code."""
    if isinstance(value, partial):
        return {".func": value.func, ".args": value.args, ".keywords": value.keywords}
    if isinstance(value, MethodType):
        return {".__self__": value.__self__}
    if isinstance(value, (FunctionType, ModuleType, type)):
        return {}
    if isinstance(value, dict):
        return {f"[{key!r}]": part for key, part in list(value.items())[:1000]}
    if isinstance(value, (list, tuple)):
        return {f"[{k}]": part for k, part in enumerate(value[:1000])}
    state = getattr(value, "__dict__", {})
    own = getattr(type(value), "__getstate__", None)
    if own not in (None, getattr(object, "__getstate__", None)):
        try:
            state = own(value)
        except Exception:
            return {}
    return {f".{key}": part for key, part in state.items()} if isinstance(state, dict) else {}


def plain_dump(value: object) -> None:
    """Pickle a value without multiprocessing's reductions, and discard the result."""
    pickle.Pickler(io.BytesIO(), 5, buffer_callback=lambda _: None).dump(value)


def _try_pickle(value: object) -> None:
    """Pickle a value like a source, and discard the result."""
    resources = SharedResources()
    try:
        with resources.pickling():
            _SharingPickler(io.BytesIO(), lambda _: None, resources).dump(value)
    finally:
        resources.close()
