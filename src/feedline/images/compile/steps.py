"""Identification of a pipeline's steps: unmodified steps of torchvision or timm, or anything else.

Guarantees: neither library is ever imported: its steps exist only if it was. A subclass is not a
library's own step, because it may do anything; nor is a step with hooks, a replaced method or a
shadowing attribute, or one of a library version that was not checked.

Relies on `library_code` for replaced code, and on the names and modules of the transforms of
torchvision, both versions of them, and of timm.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import nn
from torch.nn.modules import module as modules

from feedline.images.compile.library_code import (
    is_original,
    library_of,
    replaced_function,
    replaced_method,
    unchecked_version,
)
from feedline.images.rows import without_addresses
from feedline.order.requested_size import PerSize, SampleRequest
from feedline.randomness import seeded, unbroken

__all__ = [
    "AtSize",
    "NotRecognised",
    "check_libraries",
    "error_text",
    "flattened",
    "full_step_text",
    "is_known",
    "is_library_step",
    "library_name",
    "sets_own_size",
    "step_text",
    "well_behaved",
    "why_modified",
    "why_not_fused",
]

_MODULES = ("torchvision.transforms", "torchvision.transforms.v2")
_TIMMS = ("timm.data.transforms", "timm.data.random_erasing", "timm.data.auto_augment")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_ALL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")
_LONGEST = 120

_HOLDERS = frozenset(("Compose", "RandomApply", "RandomChoice", "RandomOrder"))
# They call a function that they are given.
_CALLERS = frozenset(("Lambda", "SanitizeBoundingBoxes"))
# Where they hold their operations.
_POLICIES = {"timm.RandAugment": "ops", "timm.AutoAugment": "policy", "timm.AugMixAugment": "ops"}
_HOLDING = (list, tuple, nn.ModuleList, nn.Sequential)
_SIZES = ("max_size", "min_size", "padding", "size", "target_size")


class NotRecognised(Exception):
    """Reason why a dataset or a step cannot be compiled: a sentence."""


class AtSize:
    """Replaces each `feedline.per_size` by its transform at one image size.

    The user's function is called once per size, because `PerSize` caches the result. It is called
    with the global random states seeded, so it makes the same transform in every process and the
    user's states do not change.

    Args:
        size: in pixels; None for the default of the first `per_size`, which is `size` from then on.
    """

    def __init__(self, size: int | None) -> None:
        self.size = size
        self._replaced: list[PerSize] = []

    @property
    def used(self) -> bool:
        """True if there was a `per_size`."""
        return bool(self._replaced)

    def forget(self) -> None:
        """Let each process make its own transforms, which run unchanged."""
        for per_size in self._replaced:
            per_size.forget(self.size)

    def transform_of(self, transform: Any) -> Any:
        """Transform of a `per_size` at this size; anything else is returned unchanged.

        Raises:
            NotRecognised: no size is known, the user's function fails, or its result depends on
                more than the size.
        """
        while type(transform) is PerSize:
            self._replaced.append(transform)
            self.size = size = self.size or transform.default
            if size is None:
                raise NotRecognised(
                    f"{step_text(transform)} has no image size: build the loader with schedule= or "
                    "image_size=."
                )
            try:
                with unbroken(), seeded(size), SampleRequest(size) as request:
                    made = transform.at(size)
            except Exception as error:
                raise NotRecognised(
                    f"{step_text(transform)} raised {error_text(error)} at {size} px."
                ) from error
            if request.strength_was_read:
                raise NotRecognised(
                    f"The function of {step_text(transform)} calls augmentation_strength(), so "
                    "there are several transforms per size: call it in a step, when an image is "
                    "transformed."
                )
            transform = made
        return transform


def library_name(step: object) -> str | None:
    """Library name of an unmodified step's class; None for any other.

    Names of timm's have the prefix "timm.".
    """
    name = _library_name_of(type(step))
    return name if name and not why_modified(step) else None


def _library_name_of(kind: type) -> str:
    """Name of a torchvision or timm class used here; "" for any other."""
    name, library = kind.__name__, library_of(kind)
    if kind is nn.Identity or (library == "torchvision" and _is_in(_MODULES, kind)):
        return name
    return f"timm.{name}" if library == "timm" and _is_in(_TIMMS, kind) else ""


def _is_in(modules: tuple[str, ...], kind: type) -> bool:
    found = (sys.modules.get(module) for module in modules)
    return any(getattr(module, kind.__name__, None) is kind for module in found)


def check_libraries() -> None:
    """Raise NotRecognised if Pillow's version or a function of the libraries is not trusted."""
    if why := unchecked_version("PIL") or replaced_function():
        raise NotRecognised(f"{why}.")


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
    return unchecked_version(library_of(kind)) or replaced_method(kind)


def is_known(step: object) -> bool:
    """Return True for a torchvision or timm step, or a subclass; also if it was modified."""
    return type(step) is nn.Sequential or _known_base(step) is not None


def _known_base(step: object) -> type | None:
    return next((base for base in type(step).__mro__ if _library_name_of(base)), None)


def why_not_fused(step: object) -> str:
    """Reason why a step cannot be fused: a sentence."""
    kind, known = type(step), _known_base(step)
    why = ""
    if known is kind or kind is nn.Sequential:
        why = why_modified(step)
    elif known is not None:
        why = f"{kind.__name__} is a subclass of {known.__name__}, and only exact classes are"
    return f"{step_text(step)} cannot be fused{': ' * bool(why)}{why}."


def well_behaved(steps: Iterable[Callable[[Any], Any]]) -> bool:
    """Return True if steps certainly draw only from torch's global generator, and keep no input.

    torchvision's own transforms do, except RandomOrder and RandomChoice, which draw from Python's.
    """
    return all(_behaves(step) for step in steps)


def _behaves(step: Callable[[Any], Any]) -> bool:
    name = library_name(step)
    if name in ("Compose", "RandomApply"):
        held: Any = getattr(step, "transforms", None)
        return type(held) in _HOLDING and well_behaved(held)
    return name is not None and name not in _HOLDERS | _CALLERS and not name.startswith("timm.")


def is_library_step(step: object) -> bool:
    """Return True if a step runs only code of torchvision and timm."""
    name = library_name(step)
    if name in _HOLDERS:
        held: Any = getattr(step, "transforms", None)
        return type(held) in _HOLDING and all(is_library_step(each) for each in held)
    if name in _POLICIES:
        return _are_timm_operations(getattr(step, _POLICIES[name], None))
    return name is not None and name not in _CALLERS and name != "timm.AugmentOp"


def sets_own_size(step: object) -> bool:
    """Return True if a library's step, or one within it, sets a fixed image size."""
    if library_name(step) is None:
        return False
    held: Any = getattr(step, "transforms", None)
    if type(held) in _HOLDING:
        return any(sets_own_size(each) for each in held)
    return any(vars(step).get(name) is not None for name in _SIZES)


def _are_timm_operations(operations: Any) -> bool:
    """Return True if a policy's operations, in lists of any depth, call only timm functions."""
    if type(operations) is list:
        return all(_are_timm_operations(each) for each in operations)
    return (
        library_name(operations) == "timm.AugmentOp"
        and _is_timm_function(operations.aug_fn)
        and (operations.level_fn is None or _is_timm_function(operations.level_fn))
    )


def _is_timm_function(function: Any) -> bool:
    return is_original(function) and library_of(function) == "timm"


def flattened(transform: Any, at: AtSize | None = None) -> Iterator[Callable[[Any], Any]]:
    """Steps of a transform in order, out of nested Composes and nn.Sequentials.

    Args:
        transform: any transform.
        at: replaces each `per_size` by its transform at one size; None: it is a step.

    Raises:
        NotRecognised: the transform at that size cannot be made.
    """
    if at is not None:
        transform = at.transform_of(transform)
    children: Any = None
    if type(transform) is nn.Sequential and not why_modified(transform):
        children = transform
    elif library_name(transform) == "Compose":
        children = transform.transforms
    if type(children) in _HOLDING:
        for child in children:
            yield from flattened(child, at)
    else:
        yield transform


def full_step_text(step: object) -> str:
    """A step as a user would write it, on one line, without memory addresses."""
    try:
        name = getattr(step, "__qualname__", None)
        if isinstance(name, str):
            return f"{getattr(step, '__module__', '')}.{name}"
        return without_addresses(" ".join(repr(step).split()))
    except Exception:
        return type(step).__name__


def step_text(step: object) -> str:
    """A step as a user would write it, shortened."""
    try:
        name = getattr(step, "__qualname__", None)
        text = name if isinstance(name, str) else full_step_text(step)
    except Exception:
        text = type(step).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def error_text(error: Exception) -> str:
    """An exception on one line."""
    try:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    except Exception:
        return type(error).__name__
