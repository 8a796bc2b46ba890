"""How many files this process may have open."""

from __future__ import annotations

import os
from pathlib import Path

from feedline.doctor.check import Check, Status

try:
    import resource
except ImportError:  # Windows has none
    resource = None  # type: ignore[assignment]

__all__ = ["look_at_open_files"]

_USUAL = 1024
"""The limit that Linux begins with (INR_OPEN_CUR in linux/fs.h)."""
_LEAST = 32
"""A loader has up to 18 open in the training process, with any number of workers (measured), and a
script has some of its own."""


def look_at_open_files(folder: Path = Path("/proc/self/fd")) -> Check:
    """The check "open-files".

    Args:
        folder: where this process's open files are listed.
    """
    if resource is None:
        return Check(id="open-files", status="unknown", summary="no limit is told here")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = len(os.listdir(folder)) - 1  # the listing itself has it open
    except OSError:
        used = None
    endless = resource.RLIM_INFINITY
    details = {
        "soft_limit": None if soft == endless else soft,
        "hard_limit": None if hard == endless else hard,
        "open": used,
        "least": _LEAST,
    }
    most, beyond = (f"{limit:,}" if limit != endless else "any number" for limit in (soft, hard))
    line = f"{most} may be open" + (f", {beyond} if you ask" if hard != soft else "")
    raise_it = f"ulimit -n {65536 if hard == endless else min(65536, hard)}"
    if hard != endless and hard < _USUAL:
        raise_it = "raise the limit in /etc/security/limits.conf, or docker run --ulimit nofile="
    status: Status = "ok"
    if soft != endless and soft < _LEAST:
        status, line = "fail", f"{line}: too few to start workers"
    elif soft != endless and soft < _USUAL:
        status = "warn"
        line += ": a cache of many shards, or tensors from torch's own workers, take one each"
    fix = raise_it if status != "ok" else ""
    return Check(id="open-files", status=status, summary=line, details=details, fix=fix)
