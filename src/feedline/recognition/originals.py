"""Whether code of torchvision's or timm's is the code that they came with, or was replaced.

Guarantees: a function counts as a library's own only if its code is that of a file of it,
under the name that it has there, and nothing is wrapped around it; what it calls by a global name
is looked at as well, down to Pillow's functions. Nothing is called. Nothing is kept from one
`Originals` to the next, so a replacement is seen whenever it is made.

Relies on: Python's own record of where code was compiled (`co_filename`, `__globals__`), which
`functools.wraps` and a false `__module__` leave as it is.
"""

from __future__ import annotations

import sys
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from PIL import Image, ImageFile

__all__ = ["Originals", "named"]

_OWN = ("torchvision", "timm")
_FOLLOWED = (*_OWN, "PIL.Image")  # modules whose attributes are looked at
_PLAIN = frozenset((bool, dict, float, int, list, str, tuple, type(None)))
_PLAIN_OR_MODULE = _PLAIN | {ModuleType}
_TYPING = ("typing", "types", "collections.abc")
_KERNELS = "torchvision.transforms.v2.functional._utils"
_IMAGE_METHODS = (
    *((Image.Image, name) for name in ("convert", "crop", "resize", "transpose")),
    (ImageFile.ImageFile, "load"),
)

# Functions that torchvision itself has under another name than they were defined with.
_ALIASES = frozenset(
    (
        *(("hflip", "horizontal_flip"), ("vflip", "vertical_flip"), ("torch_pad", "pad")),
        *(("to_grayscale", "rgb_to_grayscale"), ("_pad_image_pil", "pad")),
        *(("_crop_image_pil", "crop"), ("wrap", "_fn")),
        ("__compute_resized_output_size", "_compute_resized_output_size"),
    )
)


class Originals:
    """Looks at functions and classes, at each of them once."""

    def __init__(self) -> None:
        self._own: set[object] = set()

    def replaced_in(self, kind: type, called: tuple[str, ...] | None = None) -> str:
        """What a class of torch's or torchvision's no longer has or calls as it came.

        Args:
            kind: the class.
            called: the methods that matter: of torch's classes no others are looked at, and of
                torchvision's no others' own calls; None for all.

        Returns:
            a sentence without its full stop, as "a.b was replaced by c.d"; "" where all is there.
        """
        if kind in self._own:
            return ""
        methods: list[FunctionType] = []
        for base in kind.__mro__:
            top = base.__module__.partition(".")[0]
            if base in self._own or top not in ("torch", *_OWN):
                continue
            theirs = top in _OWN
            for name, member in vars(base).items():
                if not theirs and called is not None and name not in called:
                    continue
                function = getattr(member, "__func__", member)
                if type(function) is property:
                    function = function.fget
                function = _untimed(function)
                where = f"{base.__qualname__}.{name}"
                if type(function) is FunctionType:
                    if not _is_own(function) or (theirs and function.__qualname__ != where):
                        return _replaced(f"{base.__module__}.{where}", function)
                    if theirs and (called is None or name in called):
                        methods.append(function)
                elif callable(function) and not isinstance(function, type):
                    return _replaced(f"{base.__module__}.{where}", function)
        why = self.replaced_below(methods)
        if not why:
            self._own.update(kind.__mro__)
        return why

    def is_own(self, function: object) -> bool:
        """Whether this is a function of torchvision's or timm's, with all that it calls."""
        if not _is_own(function) or type(function) is not FunctionType:
            return False
        theirs = function.__globals__["__name__"].partition(".")[0] in _OWN
        return theirs and not self.replaced_below([function])

    def replaced_below(self, functions: list[FunctionType]) -> str:
        """What functions of torchvision's no longer call as it came; said as above."""
        seen = set(self._own)
        waiting = list(functions)
        while waiting:
            function = waiting.pop()
            if function in seen:
                continue
            seen.add(function)
            module = function.__globals__
            for owner, name, value in _called(function, module):
                if (name, id(value)) in seen:
                    continue
                if not _is_original(name, value):
                    return _replaced(f"{owner}.{name}", value)
                seen.add((name, id(value)))
                if type(value) is FunctionType and value.__globals__["__name__"].startswith(_OWN):
                    waiting.append(value)
            for kernel in _kernels(function):
                if not _is_own(kernel):
                    return _replaced(f"The kernel of {named(function)}", kernel)
                waiting.append(kernel)
        self._own = seen
        return ""

    def replaced_in_loader(self, loader: Any) -> str | None:
        """What torchvision's loader of images no longer calls as it came; said as above.

        Returns:
            None where the loader is not one of torchvision's.
        """
        folder: Any = sys.modules.get("torchvision.datasets.folder")
        for name in ("default_loader", "pil_loader"):
            if getattr(folder, name, None) is loader and not _is_own(loader, name):
                return _replaced(f"{folder.__name__}.{name}", loader)
        if type(loader) is not FunctionType or loader.__globals__ is not vars(folder):
            return None
        if not any(_is_own(loader, name) for name in ("default_loader", "pil_loader")):
            return None
        backend = vars(sys.modules["torchvision"]).get("get_image_backend")
        if not _is_own(backend, "get_image_backend"):
            return _replaced("torchvision.get_image_backend", backend)
        return self.replaced_in_pillow() or self.replaced_below([loader])

    def replaced_in_pillow(self) -> str:
        """What an image of Pillow's is no longer opened or changed by; said as above."""
        if not _is_own(Image.open, "open"):
            return _replaced("PIL.Image.open", Image.open)
        for kind, name in _IMAGE_METHODS:
            method = vars(kind).get(name)
            if not _is_own(method, name):
                return _replaced(f"{kind.__module__}.{kind.__name__}.{name}", method)
        return ""


def named(thing: object) -> str:
    """A function or class by its module and name, anything else by its type."""
    name = getattr(thing, "__qualname__", None)
    if type(thing) is FunctionType:
        # Its code says where it is from; __module__ and __qualname__ may have been copied.
        code = thing.__code__
        return f"{thing.__globals__.get('__name__')}.{getattr(code, 'co_qualname', code.co_name)}"
    if isinstance(name, str):
        return f"{getattr(thing, '__module__', None) or 'builtins'}.{name}"
    return f"an object of {named(type(thing))}"


def _untimed(function: Any) -> Any:
    """What feedline itself has put a clock around, as it does in workers; else the function."""
    timed: Any = sys.modules.get("feedline.dataset.timed_steps")
    if timed is not None and getattr(function, "__globals__", None) is vars(timed):
        return vars(function).get("__wrapped__", function)
    return function


def _replaced(what: str, by: object) -> str:
    return f"{what} was replaced by {named(by)}"


def _is_own(function: Any, name: str | None = None) -> bool:
    """Whether a function is the code of the file of the module that it belongs to, unwrapped.

    Args:
        function: anything.
        name: what it must have been defined as.
    """
    if type(function) is not FunctionType:
        return False
    own = function.__globals__
    module = sys.modules.get(own.get("__name__", ""))
    if module is None or vars(module) is not own:
        return False
    code = function.__code__
    if name is not None and code.co_name != name and (name, code.co_name) not in _ALIASES:
        return False
    if code.co_filename != own.get("__file__"):
        return False
    if "__wrapped__" in vars(function):
        # torchvision.tv_tensors.wrap is one that torch.compile is told to leave alone.
        inner = vars(function)["__wrapped__"]
        return name == "wrap" and type(inner) is FunctionType and _is_own(inner, name)
    top = own["__name__"].partition(".")[0]
    return top in (*_OWN, "torch", "PIL", "numpy") or top in sys.stdlib_module_names


def _called(function: FunctionType, module: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """What a function reaches by global names: owner, name and value of each that matters."""
    names = function.__code__.co_names
    for constant in function.__code__.co_consts:
        if type(constant) is CodeType:
            names += constant.co_names
    found = []
    for name in names:
        if name not in module:
            continue
        value = module[name]
        if type(value) is not ModuleType:
            if type(value) not in _PLAIN:
                found.append((module["__name__"], name, value))
        elif value.__name__.startswith(_FOLLOWED):
            within = vars(value)
            for inner in names:
                if inner in within and type(within[inner]) not in _PLAIN_OR_MODULE:
                    found.append((value.__name__, inner, within[inner]))
        elif sys.modules.get(value.__name__) is not value:
            found.append((module["__name__"], name, value))
    return found


def _is_original(name: str, value: Any) -> bool:
    """Whether what a name stands for may be what torchvision calls by it."""
    kind = type(value)
    if kind is FunctionType:
        return _is_own(value, name)
    if isinstance(value, type):
        module = sys.modules.get(value.__module__)
        return getattr(module, value.__name__, None) is value or value is FunctionType
    if kind is BuiltinFunctionType:
        return bool(value.__name__ == name)
    return kind is not ModuleType and (not callable(value) or kind.__module__ in _TYPING)


def _kernels(function: FunctionType) -> list[Any]:
    """The functions that version 2 calls for an image in place of this one."""
    utilities: Any = sys.modules.get(_KERNELS)
    kernels = getattr(utilities, "_KERNEL_REGISTRY", {}).get(function, {})
    found: list[Any] = []
    for kind, kernel in kernels.items():
        if kind.__module__.startswith(("torchvision.", "torch", "PIL.")):
            if getattr(kernel, "__globals__", None) is vars(utilities) and kernel.__closure__:
                # torchvision's own wrapper for its tensors.
                cells = (cell.cell_contents for cell in kernel.__closure__)
                found.extend(content for content in cells if callable(content))
            else:
                found.append(kernel)
    return found
