"""A recipe's settings, checked one by one."""

from __future__ import annotations

import math
from typing import Any

from feedline.errors import UsageError
from feedline.plan.schedule import MAX_SIZE_PX

__all__ = ["check_settings"]

CURVES = ("onecycle", "cosine", "linear", "constant")
POLICIES = ("none", "rand", "trivial")

_CHOICES: dict[str, tuple[str, ...]] = {
    "curve": CURVES,
    "policy": POLICIES,
    "amp": ("auto", "off", "bf16", "fp16"),
    "class_weights": ("none", "balanced"),
    "on_error": ("raise", "skip"),
}
_WHOLE = {
    "batch_size": (1, 1 << 24),
    "val_size": (1, MAX_SIZE_PX),
    "accumulate": (1, 1 << 16),
    "patience": (0, 1 << 24),
    "seed": (0, 2**63 - 1),
}
_BELOW_1 = ("warmup", "label_smoothing", "dropout", "drop_path", "ema")
_UP_TO_1 = ("augment", "erasing", "ramp_from")
_FROM_0 = ("weight_decay", "mixup", "cutmix", "clip")
_OPTIONAL = ("lr", "weight_decay", "val_size")


def check_settings(recipe: Any) -> None:
    """Check every setting of a recipe but its phases.

    Raises:
        UsageError: one is out of range; says which, and what it may be.
    """
    for name, choices in _CHOICES.items():
        expected = f"{', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"
        _need(recipe, name, getattr(recipe, name) in choices, expected)
    for name, (low, high) in _WHOLE.items():
        value = getattr(recipe, name)
        whole = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        _need(recipe, name, whole, f"a whole number from {low} to {high}")
    for name in _BELOW_1:
        _need(recipe, name, 0 <= _number(recipe, name) < 1, "from 0 to below 1")
    for name in _UP_TO_1:
        _need(recipe, name, 0 <= _number(recipe, name) <= 1, "from 0 to 1")
    for name in _FROM_0:
        _need(recipe, name, 0 <= _number(recipe, name) < math.inf, "0 or above")
    _need(recipe, "lr", 0 < _number(recipe, "lr") < math.inf, "above 0")
    for name in ("ramp", "compile"):
        _need(recipe, name, isinstance(getattr(recipe, name), bool), "true or false")
    for name in ("model", "optimizer", "pretrained"):
        _need(recipe, name, isinstance(getattr(recipe, name), str), "text")
    names = all(isinstance(name, str) and name for name in recipe.freeze)
    _need(recipe, "freeze", names, "the beginnings of parameters' names")


def _need(recipe: Any, name: str, valid: bool, expected: str) -> None:
    value = getattr(recipe, name)
    if not valid and not (value is None and name in _OPTIONAL):
        raise UsageError(f"{name} must be {expected}, got {value!r}")


def _number(recipe: Any, name: str) -> float:
    """A setting as it is, NaN for anything that is no number."""
    value = getattr(recipe, name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
