"""Steps of a pipeline: which are unmodified steps of torchvision and timm, and their texts.

A pipeline is compiled only if the classes of its steps and the functions of torchvision, timm and
Pillow listed in `_CHECKED_CODE` are defined in the library's own files, without a decorator from
elsewhere. Code that these functions call in turn, for example in torch, is not checked. Versions of
these libraries that were not tested are checked by `self_check`.

Guarantees: no library is ever imported: its steps exist only if it was. A subclass is not a
library's own step, because it may do anything; nor is a step with hooks, a replaced method or a
shadowing attribute. No check of code calls or caches anything, so a later replacement is detected
at the next check, which takes about a millisecond.

Relies on: the names and modules of the transforms of torchvision, both versions of them, and of
timm; Python's record of the file that code was compiled from (`co_filename`), which
`functools.wraps` and a false `__module__` do not change.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, TypeAlias

from torch import nn
from torch.nn.modules import module as modules

from feedline.images.compile.wrappers import wrapped_transform
from feedline.images.crops import without_addresses
from feedline.order.requested_size import PerSize, SampleRequest
from feedline.private_names import TESTED_VERSIONS
from feedline.randomness import seeded, unbroken
from feedline.system import find_attribute

Step: TypeAlias = Callable[[Any], Any]

_V2 = "torchvision.transforms.v2"
_MODULES = {
    "torchvision": ("torchvision.transforms", _V2),
    "timm": ("timm.data.transforms", "timm.data.random_erasing", "timm.data.auto_augment"),
}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_ALL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")
_MAX_TEXT = 120

CONTAINERS = frozenset(("Compose", "RandomApply", "RandomChoice", "RandomOrder"))
_CALLERS = frozenset(("Lambda", "SanitizeBoundingBoxes"))
"""Steps that call a user-defined function."""
_POLICIES = {"timm.RandAugment": "ops", "timm.AutoAugment": "policy", "timm.AugMixAugment": "ops"}
"""Attributes with the operations of timm policies."""
_SEQUENCES = (list, tuple, nn.ModuleList, nn.Sequential)
SIZE_ATTRIBUTES = ("max_size", "min_size", "padding", "size", "target_size")


class CompileError(Exception):
    """Reason why a dataset or a step cannot be compiled, and the fix: sentences."""

    def __init__(self, why: str, fix: str = "") -> None:
        super().__init__(why)
        self.fix = fix


def attempt(compiler: Callable[[Any], Any], transform: object) -> tuple[Any, tuple[str, ...]]:
    """Compile as much as possible of a pipeline in its current state. Never raises."""
    try:
        check_libraries()
        compiled = compiler(transform)
        return compiled, compiled.notes
    except CompileError as why:
        return None, tuple(filter(None, (str(why), why.fix)))
    except Exception as error:
        return None, (f"It cannot be inspected: {error_text(error)}.",)


def add_while_possible(add: Callable[[Step], None], steps: Iterable[Step]) -> tuple[int, str]:
    """Call `add` for steps until it raises CompileError. Return their number, and the reason."""
    count = 0
    for step in steps:
        try:
            add(step)
        except CompileError as why:
            return count, str(why)
        count += 1
    return count, ""


def run_quietly(step: Callable[..., Any], *inputs: Any, failure: str) -> Any:
    """Call a step without warnings; its exception becomes a CompileError: the failure, and why."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return step(*inputs)
    except Exception as error:
        raise CompileError(f"{failure}: {error_text(error)}.") from None


class PerSizeResolver:
    """Replaces each `feedline.per_size` by its transform at one image size.

    The user's function is called once per size, because `PerSize` caches the result, and with the
    global random states seeded: it makes the same transform in every process. The size is in
    pixels; None for the default of the first `per_size`, which is `size` from then on.
    """

    def __init__(self, size: int | None) -> None:
        self.size = size
        self._per_sizes: list[PerSize] = []

    @property
    def is_used(self) -> bool:
        """True if there was a `per_size`."""
        return bool(self._per_sizes)

    def forget(self) -> None:
        """Let each process make its own transforms, which run unchanged."""
        for per_size in self._per_sizes:
            per_size.forget(self.size)

    def resolve(self, transform: Any) -> Any:
        """Return the transform of a `per_size` at this size; anything else unchanged."""
        while type(transform) is PerSize:
            self._per_sizes.append(transform)
            self.size = size = self.size or transform.default
            if size is None:
                raise CompileError(
                    f"{step_text(transform)} has no image size: build the loader with schedule= or "
                    "image_size=."
                )
            try:
                with unbroken(), seeded(size), SampleRequest(size) as request:
                    at_size = transform.at(size)
            except Exception as error:
                raise CompileError(
                    f"{step_text(transform)} raised {error_text(error)} at {size} px."
                ) from error
            if request.strength_was_read:
                raise CompileError(
                    f"The function of {step_text(transform)} calls augmentation_strength(), so "
                    "there are several transforms per size: call it in a step, when an image is "
                    "transformed."
                )
            transform = at_size
        return transform


def library_name(step: object) -> str:
    """Name of an unmodified step's class, timm's with the prefix "timm."; "" for any other step."""
    name = _class_name(type(step))
    return name if name and not why_modified(step) else ""


def _class_name(kind: type) -> str:
    """Name of a torchvision or timm class used here; "" for any other."""
    library = library_of(kind)
    modules = map(sys.modules.get, _MODULES.get(library, ()))
    if any(getattr(module, kind.__name__, None) is kind for module in modules):
        return kind.__name__ if library == "torchvision" else f"timm.{kind.__name__}"
    return "Identity" if kind is nn.Identity else ""


def is_v2(step: object) -> bool:
    """Return True if a library's step is a torchvision v2 transform."""
    return type(step).__module__.startswith(_V2)


def check_libraries() -> None:
    """Raise CompileError if a function of the libraries was replaced."""
    if why := replaced_function():
        raise CompileError(f"{why}.")


def why_modified(thing: object) -> str:
    """Reason not to trust an object of a library's class; "" if it is unmodified."""
    kind = type(thing)
    for name in vars(thing):
        if hasattr(kind, name) or name == "__getitems__":  # which torch looks up on the object
            return f"this {kind.__name__} has its own {name}"
    if any(vars(thing).get(hooks) for hooks in _HOOKS):
        return f"this {kind.__name__} has hooks"
    if isinstance(thing, nn.Module) and any(vars(modules).get(hooks) for hooks in _ALL_HOOKS):
        return "all torch modules have hooks, from register_module_forward_hook or the like"
    return replaced_method(kind)


def has_library_base(step: object) -> bool:
    """Return True for a torchvision or timm step, or a subclass; also if it was modified."""
    return type(step) is nn.Sequential or _library_base(step) is not None


def _library_base(step: object) -> type | None:
    return next((base for base in type(step).__mro__ if _class_name(base)), None)


def why_not_fused(step: object) -> str:
    """Reason why a step cannot be fused: a sentence."""
    kind, base = type(step), _library_base(step)
    why = ""
    if base is kind or kind is nn.Sequential:
        why = why_modified(step)
    elif base is not None:
        why = f"{kind.__name__} is a subclass of {base.__name__}, and only exact classes are"
    return f"{step_text(step)} cannot be fused{': ' * bool(why)}{why}."


def _children(step: object) -> Any:
    """Steps within a container or an nn.Sequential; None if it has none."""
    children = find_attribute(step, "transforms")
    return children if type(children) in _SEQUENCES else None


def leaves(step: object) -> Iterator[Any]:
    """Yield the steps in a Compose, an nn.Sequential or another container; otherwise the step."""
    for each in flatten(step):
        children = _children(each)
        if children is None:
            yield each
        for child in children or ():
            yield from leaves(child)


def is_well_behaved(step: Step) -> bool:
    """Return True if a step certainly draws only from torch's global generator, and keeps no input.

    torchvision's own transforms do so, except RandomOrder and RandomChoice, which draw from
    Python's.
    """
    name = library_name(step)
    if name in ("Compose", "RandomApply"):
        return _children(step) is not None and all(map(is_well_behaved, _children(step)))
    return bool(name) and name not in CONTAINERS | _CALLERS and not name.startswith("timm.")


def is_library_step(step: object) -> bool:
    """Return True if a step runs only code of torchvision and timm."""
    name = library_name(step)
    if name in CONTAINERS:
        return _children(step) is not None and all(map(is_library_step, _children(step)))
    if name in _POLICIES:
        return _are_timm_operations(getattr(step, _POLICIES[name], None))
    return bool(name) and name not in _CALLERS and name != "timm.AugmentOp"


def _are_timm_operations(operations: Any) -> bool:
    """Return True if a policy's operations, in lists of any depth, call only timm functions."""
    if type(operations) is list:
        return all(map(_are_timm_operations, operations))
    return library_name(operations) == "timm.AugmentOp" and all(
        is_original(function) and library_of(function) == "timm"
        for function in (operations.aug_fn, operations.level_fn or operations.aug_fn)
    )


def sets_own_size(step: object) -> bool:
    """Return True if a library's step, or one within it, sets a fixed image size."""
    if not library_name(step):
        return False
    if _children(step) is not None:
        return any(map(sets_own_size, _children(step)))
    return any(vars(step).get(name) is not None for name in SIZE_ATTRIBUTES)


def flatten(
    transform: Any, sizes: PerSizeResolver | None = None, *, only_v2: bool = False
) -> Iterator[Step]:
    """Yield the steps of a transform in order, out of nested Composes and nn.Sequentials, and out
    of objects of the user that only call one.

    With `only_v2`, only out of Composes of version 2: others accept one argument.
    """
    if sizes is not None:
        transform = sizes.resolve(transform)
    children: Any = None
    if (wrapped := wrapped_transform(transform, 2 if only_v2 else 1)) is not None:
        children = (wrapped,)
    elif type(transform) is nn.Sequential and not only_v2 and not why_modified(transform):
        children = transform
    elif library_name(transform) == "Compose" and (is_v2(transform) or not only_v2):
        children = transform.transforms
    if type(children) in _SEQUENCES:
        for child in children:
            yield from flatten(child, sizes, only_v2=only_v2)
    else:
        yield transform


def full_step_text(step: object, *, with_module: bool = True) -> str:
    """A step as a user would write it, on one line, without memory addresses."""
    try:
        name = getattr(step, "__qualname__", None)
        if isinstance(name, str):
            return f"{getattr(step, '__module__', '')}.{name}" if with_module else name
        return without_addresses(" ".join(repr(step).split()))
    except Exception:
        return type(step).__name__


def step_text(step: object) -> str:
    """A step as a user would write it, shortened."""
    text = full_step_text(step, with_module=False)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."


def steps_text(steps: Iterable[object]) -> str:
    """Steps as a user would write them, shortened, with commas."""
    return ", ".join(map(step_text, steps))


def error_text(error: Exception) -> str:
    """An exception on one line."""
    try:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    except Exception:
        return type(error).__name__


_LIBRARIES = ("PIL", "timm", "torch", "torchvision")
_CHECKED_CODE: Mapping[str, tuple[str, ...] | None] = {
    "PIL.Image": ("blend", "composite", "fromarray", "frombuffer", "merge", "new", "open"),
    "PIL.Image.Image": (
        *("convert", "copy", "crop", "filter", "histogram", "load", "point"),
        *("resize", "split", "tobytes", "transform", "transpose"),
    ),
    "PIL.ImageEnhance": None,
    "PIL.ImageEnhance._Enhance": ("enhance",),
    "PIL.ImageFile.ImageFile": ("load",),
    "PIL.ImageFilter.GaussianBlur": ("filter",),
    "PIL.ImageOps": None,
    "timm.data.auto_augment": None,
    "timm.data.transforms": None,
    "torchvision": ("get_image_backend",),
    "torchvision.datasets.folder": ("accimage_loader", "default_loader", "pil_loader"),
    "torchvision.transforms._functional_pil": None,
    "torchvision.transforms._functional_tensor": None,
    "torchvision.transforms.autoaugment": None,
    "torchvision.transforms.functional": None,
    "torchvision.tv_tensors": None,
    f"{_V2}._transform": None,
    f"{_V2}._utils": None,
    f"{_V2}.functional": None,
    f"{_V2}.functional._color": None,
    f"{_V2}.functional._geometry": None,
    f"{_V2}.functional._misc": None,
    f"{_V2}.functional._type_conversion": None,
    f"{_V2}.functional._utils": None,
}
"""Functions by module or class, checked if it was imported; None for all of them."""
_CALLED = (
    *("__call__", "__getattr__", "_call_impl", "_wrapped_call_impl", "forward"),
    *("__getitem__", "__getitems__", "__iter__", "__len__"),
)
"""Relevant methods of torch modules and datasets: other packages add methods to them."""


def untested_versions() -> str:
    """Imported libraries of versions that feedline was not tested with, as text; "" for none."""
    untested = []
    for library, versions in TESTED_VERSIONS.items():
        oldest, _, newest = versions.partition(" to ")
        module = sys.modules.get(library)
        version = str(getattr(module, "__version__", ""))
        numbers, last = _version_numbers(version), _version_numbers(newest or oldest)
        if module is not None and not _version_numbers(oldest) <= numbers[: len(last)] <= last:
            name = "Pillow" if library == "PIL" else library
            untested.append(f"{name} {version} (tested: {versions})")
    return ", ".join(untested)


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])))


def replaced_function() -> str:
    """First replaced function of the libraries, e.g. "a.b was replaced by c.d"; "" for none."""
    jpeg = sys.modules.get("PIL.JpegImagePlugin")
    if jpeg is not None:
        opener = sys.modules["PIL.Image"].OPEN.get("JPEG", (jpeg.jpeg_factory, None))[0]
        if not is_original(opener, "jpeg_factory"):
            return _replaced("PIL.JpegImagePlugin.jpeg_factory", opener)
    for path, names in _CHECKED_CODE.items():
        module, _, kind = path.rpartition(".")
        owner = sys.modules.get(path) or getattr(sys.modules.get(module), kind, None)
        for name, member in _members(owner, names):
            if not _may_be_original(member):
                return _replaced(f"{path}.{name}", member)
    return ""


def replaced_method(kind: type) -> str:
    """First replaced method of a library's class, as in `replaced_function`.

    Checks all methods defined in torchvision, timm and Pillow, also those of base classes; of
    torch's classes only those by which a module or a dataset is used.
    """
    for base in kind.__mro__:
        library = library_of(base)
        for name, member in _members(base, _CALLED if library == "torch" else None):
            where = f"{base.__qualname__}.{name}"
            for method in _functions_of(member) if library in _LIBRARIES else ():
                if not is_original(method, None if library == "torch" else where):
                    return _replaced(f"{base.__module__}.{where}", method)
    return ""


def _members(owner: Any, names: tuple[str, ...] | None) -> Iterator[tuple[str, Any]]:
    attributes = {} if owner is None else vars(owner)
    return ((name, attributes[name]) for name in names or tuple(attributes) if name in attributes)


def library_of(thing: Any) -> str:
    """Top module of a class or function, e.g. "torchvision"."""
    return str(thing.__module__).partition(".")[0]


def is_original(function: Any, qualified_name: str | None = None) -> bool:
    """Return True if an object is a library's own function, from the file of its module, and has
    this qualified name; None for any.

    The file of Python's own modules is not compared: in a zip (Python's embeddable package for
    Windows) their code names the file that it was compiled from.
    """
    function = _without_timer(function)
    if type(function) is not FunctionType:
        return False
    code, home = function.__code__, function.__globals__
    module = sys.modules.get(home.get("__name__", ""))
    if module is None or vars(module) is not home:
        return False
    top = module.__name__.partition(".")[0]
    if not _is_trusted(top) or (top in _LIBRARIES and code.co_filename != home.get("__file__")):
        return False
    if "__wrapped__" in vars(function):
        return is_original(vars(function)["__wrapped__"], qualified_name)
    return qualified_name is None or function.__qualname__ == qualified_name


def _without_timer(function: Any) -> Any:
    """Function inside a timer that feedline added in workers; otherwise the function itself."""
    timing: Any = sys.modules.get("feedline.timing.torch_workers")
    if timing is not None and getattr(function, "__globals__", None) is vars(timing):
        return vars(function).get("__wrapped__", function)
    return function


def _is_trusted(top: str) -> bool:
    return top in _LIBRARIES or top in sys.stdlib_module_names


def _may_be_original(value: Any) -> bool:
    """Return True unless an attribute of a module is a function or class from elsewhere."""
    if isinstance(value, type):
        return _is_trusted(library_of(value))
    if type(value) in (BuiltinFunctionType, ModuleType) or not callable(value):
        return True
    return is_original(value) or library_of(type(value)) in ("typing", *_LIBRARIES)


def _functions_of(member: Any) -> list[Any]:
    """Functions that run when a class member is called, read or set; none for plain values."""
    if isinstance(member, (staticmethod, classmethod)):
        return [member.__func__]
    if isinstance(member, property):
        return [each for each in (member.fget, member.fset) if each is not None]
    return [member] if callable(member) and not isinstance(member, type) else []


def _replaced(original: str, by: Any) -> str:
    if type(by) is FunctionType:  # its code says where it is from: __module__ may have been copied
        name = f"{by.__globals__.get('__name__')}.{by.__code__.co_name}"
    elif isinstance(by, type):
        name = f"{by.__module__}.{by.__qualname__}"
    else:
        name = f"an object of {type(by).__module__}.{type(by).__qualname__}"
    return f"{original} was replaced by {name}"
