"""Pickling for worker processes with multiprocessing's and torch's own reductions.

Guarantees: shared tensors, locks, values, queues, connections and manager proxies refer to the same
memory and descriptors in every process that unpickles them, including replacement workers. Nothing
runs in the background, and nothing stays open after `close`.
Relies on: the private hooks by which multiprocessing's start methods pass descriptors
(`set_spawning_popen` and a process object with `duplicate_for_child` and `DupFd`).
"""

from __future__ import annotations

import importlib
import io
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import context as mp_context
from multiprocessing import process as mp_process
from multiprocessing.reduction import ForkingPickler
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

from feedline.engine.messages import error_message

__all__ = ["SharedResources", "SharingPickler", "UnpicklablePart", "find_unpicklable", "inherited"]


Dump: TypeAlias = Callable[[object], object]
"""Pickles a value, or raises."""

_DEPTH = 8
_MAX_PARTS = 1000


@dataclass(frozen=True)
class UnpicklablePart:
    """The innermost part of a value that cannot be pickled.

    Args:
        path: path to it in the user's terms, e.g. dataset.transform.function.
        value: the part.
        error: exception raised by pickling it.
    """

    path: str
    value: object
    error: Exception

    @property
    def reason(self) -> str:
        """Reason why it cannot be pickled."""
        method = self._raising_method()
        kind = type(self.error).__name__
        if method is not None:
            return f"its {method} raised {kind}: {error_message(self.error)}"
        return error_message(self.error)

    @property
    def remedy(self) -> str:
        """Recommended fix, as the beginning of a sentence."""
        kind = self.value if isinstance(self.value, type) else type(self.value)
        if isinstance(self.value, (FunctionType, type)) or "<locals>" in kind.__qualname__:
            return (
                "Lambdas, and functions or classes defined inside a function, cannot be pickled: "
                "define them at the top level of a module"
            )
        if kind.__module__.startswith("multiprocessing."):
            return "Create it with multiprocessing.get_context() of the workers' start method"
        if self._raising_method() is not None:
            return f"Fix the pickling of {kind.__name__}"
        return (
            f"A {kind.__name__} belongs to one process and cannot be pickled: open or create it in "
            "the worker, when it is first used, and leave it out in __getstate__"
        )

    def _raising_method(self) -> str | None:
        """Special method of the value that raised the error."""
        for frame, _ in traceback.walk_tb(self.error.__traceback__):
            name, arguments = frame.f_code.co_name, frame.f_code.co_varnames[:1]
            if name.startswith("__") and any(
                frame.f_locals.get(a) is self.value for a in arguments
            ):
                return name
        return None


def _plain_dump(value: object) -> None:
    pickle.Pickler(io.BytesIO(), 5, buffer_callback=lambda _: None).dump(value)


def find_unpicklable(
    value: object,
    path: str,
    parts: Mapping[str, object] | None = None,
    dump: Dump = _plain_dump,
) -> UnpicklablePart:
    """Find the part that cannot be pickled.

    Args:
        value: value that cannot be pickled.
        path: its name in the user's terms.
        parts: its parts by the user's names, if these differ from its attributes.
        dump: function that pickles it.
    """
    for name, part in (parts or {}).items():
        if _pickling_error(part, dump) is not None:
            return find_unpicklable(part, name, dump=dump)
    return _innermost(value, path, _pickling_error(value, dump), _DEPTH, dump)


def _innermost(
    value: object, path: str, error: Exception | None, depth: int, dump: Dump
) -> UnpicklablePart:
    for key, part in _parts(value).items() if depth else ():
        if (part_error := _pickling_error(part, dump)) is not None:
            return _innermost(part, path + key, part_error, depth - 1, dump)
    # A part may be picklable alone but not within its container.
    return UnpicklablePart(path, value, error or pickle.PicklingError("it cannot be pickled"))


def _pickling_error(value: object, dump: Dump) -> Exception | None:
    """Exception raised by pickling a value; None if it succeeds."""
    try:
        dump(value)
    except Exception as error:
        return error
    return None


def _parts(value: object) -> dict[str, object]:
    """Parts that are pickled with a value, by their suffix in Python code."""
    if isinstance(value, partial):
        return {".func": value.func, ".args": value.args, ".keywords": value.keywords}
    if isinstance(value, MethodType):
        return {".__self__": value.__self__}
    if isinstance(value, (FunctionType, ModuleType, type)):
        return {}
    if isinstance(value, dict):
        return {f"[{key!r}]": part for key, part in list(value.items())[:_MAX_PARTS]}
    if isinstance(value, (list, tuple)):
        return {f"[{k}]": part for k, part in enumerate(value[:_MAX_PARTS])}
    own = getattr(type(value), "__getstate__", None)
    if own in (None, getattr(object, "__getstate__", None)):
        state = getattr(value, "__dict__", {})
    else:
        try:
            state = own(value)
        except Exception:
            return {}
    return {f".{key}": part for key, part in state.items()} if isinstance(state, dict) else {}


_MAX_MOVED = 128
"""Maximum number of tensors of one pickle moved to shared memory. Each needs a descriptor in every
process, and many systems allow 1024. Tensors that are already shared do not count."""

_set_spawning: Any = mp_context.set_spawning_popen
_get_spawning: Any = mp_context.get_spawning_popen

_descriptors: Sequence[int] = ()  # of this worker, while it unpickles


class InheritedFd:
    """A descriptor within a pickle, like multiprocessing's `DupFd`.

    Args:
        index: index among the descriptors sent with the pickle.
    """

    def __init__(self, index: int) -> None:
        self._index = index

    def detach(self) -> int:
        """A duplicate, owned by the caller."""
        return os.dup(_descriptors[self._index])


class SharedResources:
    """Descriptors and references to shared memory that pickles need.

    It replaces the process object in multiprocessing's hooks.
    """

    DupFd = InheritedFd

    def __init__(self) -> None:
        self.fds: list[int] = []
        self._storages: list[Any] = []  # torch's storages in named memory

    def duplicate_for_child(self, fd: int) -> int:
        """Store a duplicate of a descriptor. Return its index."""
        if sys.platform == "win32":
            raise RuntimeError("a handle can only be sent as an argument of a new process")
        self.fds.append(os.dup(fd))
        return len(self.fds) - 1

    def hold(self, storage: Any) -> None:
        """Hold torch's reference to a storage until `close`."""
        self._storages.append(storage)

    def close(self) -> None:
        """Close the descriptors and release the references. May be called again."""
        while self.fds:
            os.close(self.fds.pop())
        while self._storages:
            self._storages.pop()._shared_decref()

    @contextmanager
    def pickling(self) -> Iterator[None]:
        """Context manager: collect resources of everything pickled in this thread."""
        before = _get_spawning()
        _set_spawning(self)
        try:
            yield
        finally:
            _set_spawning(before)


class SharingPickler(ForkingPickler):
    """Pickler for objects sent to workers.

    Args:
        file: receives the pickle, protocol 5.
        buffer_callback: receives the out-of-band buffers.
        resources: receives descriptors; call `dump` within `SharedResources.pickling`.
    """

    def __init__(
        self,
        file: io.BytesIO,
        buffer_callback: Callable[[Any], object],
        resources: SharedResources,
    ) -> None:
        super().__init__(file, 5, True, buffer_callback)
        self.modules: set[str] = set()
        """Modules of the pickled classes and functions."""
        self.copied: list[str] = []
        """Reason for each tensor that could not be shared."""
        self._resources = resources
        self._torch: Any = sys.modules.get("torch")
        self._moved = 0

    def reducer_override(self, obj: object) -> Any:
        """Reduce torch storages; record the modules of classes and functions."""
        if isinstance(obj, (type, FunctionType)):
            self.modules.add(str(obj.__module__))
        elif self._torch is not None and type(obj) is self._torch.UntypedStorage:
            return self._reduced_storage(obj)
        return NotImplemented

    def _reduced_storage(self, storage: Any) -> Any:
        """Reduce a storage like torch, or to a copy of its bytes if it cannot be shared."""
        if storage.device.type != "cpu":
            return NotImplemented
        if not storage.nbytes():
            return type(storage), ()
        named = self._torch.multiprocessing.get_sharing_strategy() == "file_system"
        if not named and not storage.is_shared():
            self._moved += 1
            if self._moved > _MAX_MOVED:
                return self._reduced_copy(
                    storage, f"only {_MAX_MOVED} can be moved to shared memory"
                )
        try:
            reduced: Any = self.dispatch_table[type(storage)](storage)
        except (OSError, RuntimeError) as error:
            # Shared memory is full, or the tensor is mapped from a file.
            return self._reduced_copy(storage, str(error))
        if not named:
            return reduced
        self._resources.hold(storage)
        return _rebuild_counted, reduced

    def _reduced_copy(self, storage: Any, why: str) -> Any:
        self.copied.append(why)
        bytes_of = self._torch.empty(0, dtype=self._torch.uint8).set_(storage).numpy()
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


@contextmanager
def inherited(descriptors: Sequence[int]) -> Iterator[None]:
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
