"""The machine and the software that a figure depends on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

import psutil
import torch

from feedline import __version__
from feedline.system import cpu_model, usable_cores

__all__ = ["machine", "versions"]


def machine() -> dict[str, Any]:
    """What a benchmark runs on. `cores_usable`: what affinity, quota and batch system leave."""
    return {
        "cpu": cpu_model(),
        "cores_usable": usable_cores(),
        "cores_logical": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "platform": platform.platform(),
    }


def versions(*packages: str) -> dict[str, str | None]:
    """The versions of feedline, Python, torch and more packages, which are not imported.

    It is None for a package that is not installed.
    """
    found: dict[str, str | None] = {
        "feedline": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # the metadata may lack its "+cu130"
    }
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found
