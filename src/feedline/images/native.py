"""Native modules of this package, and the slower code that replaces each if it was not compiled.

An installation without a C compiler succeeds without them; the pixels are the same.
"""

from __future__ import annotations

import importlib
import warnings
from functools import cache

NATIVE_MODULES = {
    "_jpeg": "simplejpeg or Pillow decodes whole images instead of crops",
    "_png": "Pillow decodes PNGs, in about five times the time",
    "_resample": "torch crops and resizes, in about twice the time, and each worker imports it",
    "_lut": "numpy converts pixels to floats",
    "_photometric": "torchvision changes colours, blurs and maps",
}
"""Names of the modules, and their replacements."""

COMPILE_HINT = "install a C compiler, then reinstall feedline"


def describe_missing() -> str:
    """Missing modules, their replacements and the fix, as text; "" if all can be imported."""
    missing = {name: text for name, text in NATIVE_MODULES.items() if not _is_importable(name)}
    if not missing:
        return ""
    replaced = "; ".join(f"{name}: {text}" for name, text in missing.items())
    return (
        f"{len(missing)} of {len(NATIVE_MODULES)} native modules of feedline cannot be imported, "
        f"so the same pixels take longer, often twice as long ({replaced}). To fix it, "
        f"{COMPILE_HINT}; `feedline doctor` checks them"
    )


@cache
def warn_if_missing() -> None:
    """Warn, once in a process, of native modules that cannot be imported."""
    if text := describe_missing():
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def _is_importable(name: str) -> bool:
    try:
        importlib.import_module(f"feedline.images.{name}")
    except ImportError:
        return False
    return True
