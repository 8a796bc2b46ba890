"""feedline's loader in place of torch's DataLoader, in a program that is not changed.

torch's class itself stays: its `__new__` returns an instance of a subclass, `ReplacedLoader`. So
every name of the class has the effect, whenever it was bound, `isinstance` and `issubclass` hold as
before, and a subclass of torch's class, whenever it was defined, gets a class with feedline's
methods below its own.

Guarantees: a loader that feedline cannot build is torch's own, with torch's behaviour and errors,
and the summary says why. Loaders in workers, copies and unpickled loaders of torch are not
replaced. After `stop` torch's class builds torch's loaders again; replaced ones stay as they are.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from feedline.engine.process import in_worker
from feedline.errors import FeedlineError, UsageError
from feedline.images.lazy_images import lazy_images
from feedline.loader import DataLoader
from feedline.loader.engine_choice import choose_engine
from feedline.loader.options import Arguments, Options
from feedline.loader.state import fingerprint_of
from feedline.running.launch import VARIABLE, PatchSettings
from feedline.running.records import LoaderRecords
from feedline.system import find_attribute, rank_and_world
from feedline.text import printable

_torch_init = TorchDataLoader.__init__
_torch_iter = TorchDataLoader.__iter__
_PRIVATE = frozenset(
    name
    for name in vars(TorchDataLoader)
    if name.startswith("_") and not name.startswith(("__", f"_{TorchDataLoader.__name__}__"))
)
_SIGNATURE = inspect.signature(DataLoader.__init__)
_FREE_NAMES = frozenset(
    _SIGNATURE.parameters.keys()
    - inspect.signature(_torch_init).parameters.keys()
    - {"on_error", "start_method"}  # read for each pass
)
"""Attributes that mean something to feedline only: a program may store its own values in them."""


class _Default:
    """Property of feedline's loader, in whose place a program may store a value of its own."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self._read = read

    def __get__(self, loader: Any, owner: type | None = None) -> Any:
        return self if loader is None else self._read(loader)


_active: Patch | None = None
_building: set[int] = set()
"""Ids of the loaders whose `ReplacedLoader.__init__` runs."""


class Patch:
    """Replacement of torch's DataLoader, from `start` to `stop`; also a context manager."""

    def __init__(self, settings: PatchSettings) -> None:
        self.settings = settings
        self.records = LoaderRecords(None if settings.folder is None else Path(settings.folder))
        self._before: Patch | None = None
        self._lazy = contextlib.ExitStack()
        self._is_started = False

    def start(self) -> None:
        """Replace torch's DataLoader."""
        global _active
        _install()
        if not self._is_started:
            self._is_started, self._before, _active = True, _active, self
            self._enter_lazy()

    def stop(self) -> None:
        """Have torch's DataLoader build torch's loaders again, or those of an outer patch."""
        global _active
        if self._is_started:
            self._is_started = False
            if _active is self:
                _active = self._before
            self._lazy.close()
            self.records.save()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Context in which this process and those that it starts are as without the patch."""
        global _active
        active, _active = _active, None
        variable = os.environ.pop(VARIABLE, None)
        self._lazy.close()
        try:
            yield
        finally:
            self._enter_lazy()
            _active = active
            if variable is not None:
                os.environ[VARIABLE] = variable

    def compare(self, loader: ReplacedLoader) -> None:
        """Print a comparison of a loader with torch's, on rank 0; the other ranks run it too."""
        from feedline.running.compare import compare_with_torch

        text = compare_with_torch(
            loader, self.settings.compare, loader._torch_workers, _build_torch, self.suspended
        )
        gc.collect()  # the comparison's loaders and exceptions, whose cycles hold the dataset
        if rank_and_world()[0] == 0:
            for line in text.splitlines():
                print(f"feedline run: {printable(line)}", file=sys.stderr, flush=True)

    def _enter_lazy(self) -> None:
        if not self.settings.watch:
            with contextlib.suppress(UsageError):  # Pillow is too old
                self._lazy.enter_context(lazy_images())

    def summary(self) -> str:
        """Describe the loaders that this process built: their engines, rates and step times."""
        from feedline.running.summary import describe_run

        return describe_run(self.records.runs(), self.settings)

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def patch(
    *,
    run: str | Path | None = None,
    watch: bool = False,
    off: Iterable[str] = (),
    workers: str | None = None,
    cache: str | Path | None = None,
    compare: int = 0,
) -> Patch:
    """Replace torch.utils.data.DataLoader in this process, as `feedline run` does.

    Names of the class and subclasses have the effect too, however early they were bound. Samples,
    their order, labels and pixels stay the same, but random augmentations draw other values.
    Also turns on `feedline.lazy_images`, if Pillow is new enough.

    Args:
        run: folder for the records of the loaders, one folder each. Default: not written.
        watch: replace nothing, and record torch's loaders.
        off: class names of datasets or loaders that stay torch's.
        workers: "auto" sets `num_workers="auto"` for all loaders of map-style datasets.
        cache: folder for caches of resized copies, one for each dataset that supports `cache=`.
        compare: before the first iteration over each loader, read this number of batches by torch's
            loader and by feedline's in turn, and print both rates and which parts were equal.
            Random states and the sampler are restored; values that the dataset stores in itself, in
            this process without workers or in memory shared with them, are not.

    Returns:
        Object with `stop()`, which ends the replacement, and `summary()`; also a context manager.

    Raises:
        UsageError: a value is invalid.

    Example:
        >>> with feedline.patch() as patched:                                     # doctest: +SKIP
        ...     main()
        >>> print(patched.summary())                                              # doctest: +SKIP
    """
    settings = PatchSettings(
        folder=None if run is None else str(Path(run).resolve()),
        watch=watch,
        off=(off,) if isinstance(off, str) else tuple(off),
        workers=workers,
        cache=None if cache is None else str(Path(cache).resolve()),
        compare=compare,
    )
    patched = Patch(settings)
    patched.start()
    return patched


class ReplacedLoader(DataLoader[Any]):
    """feedline's loader in place of a torch DataLoader that a program builds."""

    torch_class: type[TorchDataLoader[Any]] = TorchDataLoader
    """Class that the program called."""
    _torch_workers = 0
    """Number of workers that the program asked for."""
    _warns_of_stock_loader = False  # Accelerate builds a replaced loader

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        before, kind = dict(vars(self)), self.torch_class  # attributes set by a subclass
        _building.add(id(self))
        try:
            why = self._build(args, kwargs)
        finally:
            _building.discard(id(self))
        patched = _active
        if why:
            vars(self).clear()
            vars(self).update(before)
            object.__setattr__(self, "__class__", kind)
            _torch_init(self, *args, **kwargs)
        else:
            vars(self).update({name: before[name] for name in before.keys() & _FREE_NAMES})
        if patched is not None:
            patched.records.add(self, kind, why)

    __init__.__wrapped__ = DataLoader.__init__  # type: ignore[attr-defined]  # its signature

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, as on torch's loader, for which `device` and others mean nothing."""
        if self._is_built and name in _FREE_NAMES:
            object.__setattr__(self, name, value)  # a property of the program's class, if any
            vars(self)["_not_added"] = self._not_added - {name}
        else:
            super().__setattr__(name, value)

    def _build(self, args: Any, kwargs: Any) -> str:
        """Build the loader. Return the reason why it cannot be feedline's; "" if it is."""
        settings = PatchSettings() if _active is None else _active.settings
        try:
            bound = _SIGNATURE.bind(self, *args, **kwargs)
            dataset = bound.arguments["dataset"]
            names = {type(dataset).__name__, self.torch_class.__name__}
            if off := sorted(names & set(settings.off)):
                return f"turned off by --off {off[0]}"
            vars(self)["_torch_workers"] = bound.arguments.get("num_workers", 0)
            if settings.workers is not None and not isinstance(dataset, IterableDataset):
                bound.arguments["num_workers"] = settings.workers
            if settings.cache is not None and bound.arguments.get("cache") is None:
                self._add_cache(bound, Path(settings.cache))
            super().__init__(*bound.args[1:], **bound.kwargs)
        except (FeedlineError, TypeError) as error:
            return f"feedline cannot build it: {error}"
        return ""

    @staticmethod
    def _add_cache(bound: inspect.BoundArguments, folder: Path) -> None:
        """Add the cache of a dataset, if it supports one, to the arguments."""
        values = _SIGNATURE.bind(*bound.args, **bound.kwargs)
        values.apply_defaults()
        arguments = {name: each for name, each in values.arguments.items() if name != "self"}
        options = Options.resolve(Arguments(**arguments))
        if not options.is_row_source and "cache" in choose_engine(options).accepts:
            name = Path(str(find_attribute(options.dataset, "root", "cache"))).name
            bound.arguments["cache"] = str(folder / f"{name}-{fingerprint_of(options.dataset)[:8]}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles name the class that the program called."""
        rebuild, (_, arguments), *rest = super().__reduce__()
        return _rebuild, (rebuild, self.torch_class, arguments), *rest

    def _get_iterator(self) -> Any:
        patched = _active
        if patched is not None:
            record = patched.records.begin(self)
            if patched.settings.compare and record is not None and not record.is_compared:
                record.is_compared = True
                patched.compare(self)
        return super()._get_iterator()


# In logs, and for code that compares names, as in `repr(loader)`.
ReplacedLoader.__module__ = TorchDataLoader.__module__
ReplacedLoader.__name__ = ReplacedLoader.__qualname__ = TorchDataLoader.__name__

for _name, _member in vars(DataLoader).items():
    if isinstance(_member, property) and _member.fget is not None and _member.fset is None:
        setattr(ReplacedLoader, _name, _Default(_member.fget))


@functools.lru_cache(maxsize=256)
def _replacement(kind: type[TorchDataLoader[Any]]) -> type[TorchDataLoader[Any]]:
    """Class of the loaders that are built in place of those of a class: itself if it must stay."""
    if kind is TorchDataLoader:
        return ReplacedLoader
    if why_not_replaced(kind):
        return kind
    namespace = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "torch_class": kind,
        "_names_of_subclass": frozenset(name for name in _FREE_NAMES if hasattr(kind, name)),
        "__reduce__": ReplacedLoader.__reduce__,
    }
    try:
        made: Any = types.new_class(
            kind.__name__, (kind, ReplacedLoader), {}, lambda ns: ns.update(namespace)
        )
    except TypeError:  # of its metaclass, or of its __init_subclass__
        return kind
    replaced: type[TorchDataLoader[Any]] = made
    return replaced


def why_not_replaced(kind: type[TorchDataLoader[Any]]) -> str:
    """Reason why the loaders of a subclass stay torch's; "" if they are replaced."""
    for base in kind.__mro__[: kind.__mro__.index(TorchDataLoader)]:
        if private := sorted(_PRIVATE & vars(base).keys()):
            return f"{base.__name__} overrides torch's private {private[0]}"
    return ""


_LIGHTNING = ("lightning.", "lightning_fabric.", "pytorch_lightning.")
_methods: dict[str, types.FunctionType] = {}
"""Methods of torch's class since `_install`."""


def _why_stays_torch() -> str:
    """Reason why all loaders stay torch's: the program has replaced a method; "" if none.

    feedline's loader would not call that method. Lightning's wrappers only record arguments.
    """
    for name, installed in _methods.items():
        method: Any = vars(TorchDataLoader).get(name)
        while method is not installed and _module_of(method).startswith(_LIGHTNING):
            method = getattr(method, "__wrapped__", None)
        module = _module_of(method)
        if method is installed and module == __name__:
            module = _module_of(installed.__wrapped__)
        if method is not installed or module != TorchDataLoader.__module__:
            return f"DataLoader.{name} was replaced by {module or 'the program'}"
    return ""


def _module_of(function: Any) -> str:
    """Module of a function's code; "" for any other object."""
    return str(getattr(function, "__globals__", {}).get("__name__", ""))


def _rebuild(rebuild: Callable[..., Any], kind: Any, arguments: dict[str, Any]) -> Any:
    return rebuild(_replacement(kind), arguments)


def _build_torch(*args: Any, **kwargs: Any) -> TorchDataLoader[Any]:
    """Build a loader of torch's own class."""
    loader: TorchDataLoader[Any] = object.__new__(TorchDataLoader)
    _torch_init(loader, *args, **kwargs)
    return loader


# Methods of torch's class


@functools.wraps(_torch_init)
def _new(cls: Any, *args: Any, **kwargs: Any) -> Any:
    kind = cls
    is_call = bool(args or kwargs)  # copies and unpickled loaders come without arguments
    is_active = _active is not None and not (_active.settings.watch or in_worker())
    if is_call and is_active and not issubclass(cls, DataLoader) and not _why_stays_torch():
        kind = _replacement(cls)
    return super(TorchDataLoader, cls).__new__(kind)


@functools.wraps(_torch_init)
def _init(self: Any, *args: Any, **kwargs: Any) -> None:
    if isinstance(self, ReplacedLoader) and id(self) not in _building:
        ReplacedLoader.__init__(self, *args, **kwargs)  # a subclass named torch's __init__
        return
    _torch_init(self, *args, **kwargs)
    if _active is not None and not isinstance(self, DataLoader) and not in_worker():
        why = "" if _active.settings.watch else _why_stays_torch() or why_not_replaced(type(self))
        _active.records.add(self, type(self), why)


@functools.wraps(_torch_iter)
def _iter(self: Any) -> Any:
    if isinstance(self, DataLoader):
        return DataLoader.__iter__(self)
    if _active is None:
        return _torch_iter(self)
    return _active.records.iterate_torch(self, _torch_iter)


@functools.cache
def _install() -> None:
    """Install the methods. They stay, since CPython cannot remove a `__new__` from a class."""
    _new.__name__, _new.__qualname__ = "__new__", "DataLoader.__new__"
    torch_class: Any = TorchDataLoader
    torch_class.__new__, torch_class.__init__, torch_class.__iter__ = _new, _init, _iter
    functions = {
        name: method
        for name, method in vars(TorchDataLoader).items()
        if isinstance(method, types.FunctionType)
    }
    _methods.update(functions)
