"""Machine and software versions on which a figure was measured."""

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
    """Describe this machine. `cores_usable` respects affinity, quota and batch system."""
    return {
        "cpu": cpu_model(),
        "cores_usable": usable_cores(),
        "cores_logical": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "platform": platform.platform(),
    }


def versions(*packages: str) -> dict[str, str | None]:
    """Versions of feedline, Python, torch and other packages, which are not imported.

    The version is None if the package is not installed.
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
