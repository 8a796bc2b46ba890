"""How busy the device was, by NVIDIA's own count.

Guarantees: a sample takes some 50 us, and nothing is asked for before the program has set up CUDA;
where the management library (the extra "gpu": nvidia-ml-py) or a driver is missing, nothing is
known. NVIDIA's count is the share of time in which a kernel ran, over its last sampling period, a
sixth of a second to a second.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

__all__ = ["DeviceUse"]


class DeviceUse:
    """Samples of one device: the one in use."""

    def __init__(self) -> None:
        self._library: Any = None
        self._handle: Any = None
        self._refused = False
        self._samples = 0
        self._busy = 0.0
        self.latest: float | None = None

    @property
    def busy(self) -> float | None:
        """The mean of all samples, 0 to 1; None where there is none."""
        return self._busy / self._samples if self._samples else None

    def look(self) -> None:
        """Take a sample."""
        if self._refused:
            return
        try:
            if self._handle is None and not self._open():
                return
            self.latest = self._library.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
            self._busy += self.latest
            self._samples += 1
        except Exception:  # the library's own class, which is not loaded where it is missing
            self._refused = True

    def _open(self) -> bool:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return False
        self._library = importlib.import_module("pynvml")
        self._library.nvmlInit()
        # Its numbers know nothing of CUDA_VISIBLE_DEVICES; the bus id does not change.
        uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
        by_uuid = self._library.nvmlDeviceGetHandleByUUID
        self._handle = by_uuid(f"GPU-{uuid}") if uuid is not None else self._by_number(torch)
        return True

    def _by_number(self, torch: Any) -> Any:
        return self._library.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
