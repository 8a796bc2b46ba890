"""Use of the machine by a run, without its processes: quota, device, threads, memory.

Guarantees: nothing is imported or initialised for this except NVIDIA's management library, which is
used only if the program has initialised CUDA; unknown values are None.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from feedline.machine import DeviceWatch
from feedline.system import cacheable_memory_bytes, throttled_s
from feedline.timing.processes import ProcessWatch
from feedline.timing.run import ResourceUse

__all__ = ["ResourceWatch"]


_SHARED_MEMORY = Path("/dev/shm")


class ResourceWatch:
    """Tracks the cgroup's quota and the device."""

    def __init__(self) -> None:
        self._begun_throttled_s = self._throttled_s = throttled_s()
        self._device = DeviceWatch()
        self.dataset_bytes: int | None = None
        """Bytes of all samples; set by code that knows the dataset."""

    @property
    def gpu_busy(self) -> float | None:
        """Utilisation of the device at the latest update, 0 to 1."""
        return self._device.latest

    def update(self) -> None:
        """Update the counters, which takes about 100 us."""
        if self._throttled_s is not None:
            self._throttled_s = throttled_s()
        self._device.update()

    def summarise(self, processes: ProcessWatch, deaths: int) -> ResourceUse:
        """Return all that is known so far."""
        first, last = self._begun_throttled_s, self._throttled_s
        return ResourceUse(
            processes=processes.summarise(),
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
