"""Tar files of given members."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path


def write_tar(path: Path, members: Mapping[str, bytes] | Iterable[tuple[str, bytes]]) -> Path:
    """Write members in their order; as pairs, a name may occur twice."""
    pairs = members.items() if isinstance(members, Mapping) else members
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in pairs:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path
