"""Files of /proc and /sys, written for a test."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def write_files(root: Path, files: Mapping[str, str]) -> Path:
    """Write files below a folder, by their paths on a machine; the folder."""
    for path, text in files.items():
        inside = root / path.lstrip("/")
        inside.parent.mkdir(parents=True, exist_ok=True)
        inside.write_bytes(os.fsencode(text))
    return root
