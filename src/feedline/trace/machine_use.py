"""What a run uses of the machine, beside its processes: quota, device, threads, memory.

Guarantees: nothing is loaded or set up for this but NVIDIA's management library, which is asked for
the device's own count only where the program has set up CUDA; what is not known is None.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from feedline.system import cacheable_memory_bytes, throttled_s
from feedline.trace.device_use import DeviceUse
from feedline.trace.processes import ProcessWatch
from feedline.trace.run import Use

__all__ = ["MachineUse"]

_SHARED_MEMORY = Path("/dev/shm")


class MachineUse:
    """Follows the cgroup's quota and the device."""

    def __init__(self) -> None:
        self._begun_throttled_s = self._throttled_s = throttled_s()
        self._device = DeviceUse()
        self.dataset_bytes: int | None = None
        """Of all samples; told by who knows the dataset."""

    @property
    def gpu_busy(self) -> float | None:
        """How busy the device was at the last look, 0 to 1."""
        return self._device.latest

    def look(self) -> None:
        """Look once more, which takes some 100 us."""
        if self._throttled_s is not None:
            self._throttled_s = throttled_s()
        self._device.look()

    def found(self, processes: ProcessWatch, deaths: int) -> Use:
        """All that is known by now."""
        first, last = self._begun_throttled_s, self._throttled_s
        return Use(
            processes=processes.found(),
            worker_starts=processes.worker_starts,
            worker_deaths=deaths,
            throttled_s=None if first is None or last is None else max(0.0, last - first),
            gpu_busy=self._device.busy,
            threads=_threads(),
            worker_threads=processes.worker_threads,
            shared_memory_bytes=_shared_memory_bytes(),
            cacheable_bytes=_cacheable_bytes(),
            dataset_bytes=self.dataset_bytes,
        )


def _threads() -> int | None:
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def _shared_memory_bytes() -> int | None:
    try:
        held = os.statvfs(_SHARED_MEMORY)
    except (OSError, AttributeError):
        return None
    return held.f_frsize * held.f_blocks


def _cacheable_bytes() -> int | None:
    try:
        return cacheable_memory_bytes()
    except OSError:
        return None
