"""The machine and the software that a figure depends on."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from feedline import __version__
from feedline.system import usable_cores

__all__ = ["cpu_model", "machine", "versions"]

_MODULES = {"torch": "torch", "numpy": "numpy", "simplejpeg": "simplejpeg", "Pillow": "PIL"}


def cpu_model() -> str:
    """What the processor is called, as far as the machine says."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """What a benchmark runs on. `cores_usable`: what affinity, quota and batch system leave."""
    return {
        "cpu": cpu_model(),
        "cores_usable": usable_cores(),
        "cores_logical": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "platform": platform.platform(),
    }


def versions(more: Sequence[str] = ()) -> dict[str, str | None]:
    """The versions of what makes batches; None for what is not installed.

    Args:
        more: names of further packages; they are not imported.
    """
    found: dict[str, str | None] = {"feedline": __version__, "python": platform.python_version()}
    for name, module in _MODULES.items():
        try:
            found[name] = str(importlib.import_module(module).__version__)
        except ImportError:
            found[name] = None
    for name in more:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found
