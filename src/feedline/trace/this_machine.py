"""The machine that a run is on, as a run tells of it.

Guarantees: torch is not imported, and no device is set up, for this; what is not known is said.
"""

from __future__ import annotations

import functools
import importlib.metadata
import math
import platform
import socket
import sys

from feedline.system import core_limits, cpu_model, memory_limits
from feedline.trace.run import Machine

__all__ = ["UNKNOWN", "this_machine"]

UNKNOWN = Machine(
    host="",
    cpu="",
    cores=0,
    usable_cores=0,
    quota_cores=None,
    memory_bytes=0,
    gpu=None,
    platform="",
    versions={},
)
"""Stands where nobody has looked yet."""


def this_machine() -> Machine:
    """The machine as it is now."""
    limits, memory = core_limits(), memory_limits()
    return Machine(
        host=socket.gethostname(),
        cpu=cpu_model(),
        cores=limits.machine,
        usable_cores=limits.usable,
        quota_cores=None if math.isinf(limits.quota) else limits.quota,
        memory_bytes=memory.machine if memory.limit is None else memory.limit,
        gpu=_gpu(),
        platform=platform.platform(),
        versions=_versions(),
        shared_by=limits.processes,
    )


def _gpu() -> str | None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return str(torch.cuda.get_device_name())


@functools.cache
def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("feedline", "torch", "torchvision", "numpy", "pillow"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found
