"""The versions of what feedline works with. Nothing is imported."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform

from feedline import __version__
from feedline.doctor.check import Check

__all__ = ["look_at_libraries", "version_of"]

# By their packages' names, with the module where that has another.
_NEEDED = {
    "numpy": "numpy",
    "pillow": "PIL",
    "simplejpeg": "simplejpeg",
    "psutil": "psutil",
    "rich": "rich",
    "typer": "typer",
    "xxhash": "xxhash",
}
_OPTIONAL = ("torchvision", "timm", "lmdb", "pyarrow", "fsspec", "s3fs", "ray", "nvidia-ml-py")


def version_of(package: str) -> str | None:
    """The version of an installed package; None where there is none, or it does not say."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def look_at_libraries() -> Check:
    """The check "libraries"."""
    found: dict[str, str | None] = {"feedline": __version__, "python": platform.python_version()}
    found |= {name: version_of(name) for name in (*_NEEDED, *_OPTIONAL)}
    line = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    missing = [name for name, module in _NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        return Check(
            id="libraries",
            status="fail",
            summary=f"not installed, and needed: {', '.join(missing)}; {line}",
            details=found,
            fix=f"pip install {' '.join(missing)}",
        )
    return Check(id="libraries", status="ok", summary=line, details=found)
