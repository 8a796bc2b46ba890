"""Resources used by a run: the device from NVML, the quota from the kernel."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from feedline.machine import DeviceWatch
from feedline.timing import resource_watch
from feedline.timing.processes import ProcessWatch
from feedline.timing.resource_watch import ResourceWatch


class Nvml(SimpleNamespace):
    """NVIDIA's library over a device that is busier at each look."""

    def __init__(self) -> None:
        super().__init__(begun=0, asked=[], busy=0)

    def nvmlInit(self) -> None:
        self.begun += 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.asked.append(uuid)
        return uuid

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        self.busy += 20
        if self.busy > 100:
            raise RuntimeError("the device is lost")
        return SimpleNamespace(gpu=self.busy, memory=0)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    """A program with initialised CUDA and the NVML library."""
    made = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", made)  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=f"abc-{device}")
    )
    return made


def test_device_in_use_is_queried_by_its_id(nvml: Nvml) -> None:
    use = DeviceWatch()
    for _ in range(3):
        use.update()
    assert (nvml.begun, nvml.asked) == (1, ["GPU-abc-1"])
    assert (use.busy, use.latest) == (pytest.approx(0.4), 0.6)


def test_lost_device_keeps_its_last_values(nvml: Nvml) -> None:
    use = DeviceWatch()
    for _ in range(20):
        use.update()
    assert use.busy == pytest.approx(0.6)
    assert nvml.busy == 120, "it was asked no more"


def test_cuda_is_not_queried_before_initialisation(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    use = DeviceWatch()
    use.update()
    assert (nvml.begun, use.busy) == (0, None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    use.update()
    assert use.busy == pytest.approx(0.2)


def test_without_the_library_nothing_is_known(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    use = DeviceWatch()
    use.update()
    use.update()
    assert use.busy is None


def test_throttling_counts_from_the_runs_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    held_up = [5.0]
    monkeypatch.setattr(resource_watch, "throttled_s", lambda: held_up[0])
    use = ResourceWatch()
    held_up[0] = 7.5
    use.update()
    assert use.summarise(ProcessWatch(), 2).throttled_s == 2.5
    assert use.summarise(ProcessWatch(), 2).worker_deaths == 2


def test_without_a_quota_throttling_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_watch, "throttled_s", lambda: None)
    use = ResourceWatch()
    use.update()
    assert use.summarise(ProcessWatch(), 0).throttled_s is None


def test_threads_and_memory_are_this_machines() -> None:
    found = ResourceWatch().summarise(ProcessWatch(), 0)
    assert found.threads == torch.get_num_threads()
    assert found.cacheable_bytes is not None
    assert found.cacheable_bytes > 0
    assert found.shared_memory_bytes is None or found.shared_memory_bytes > 0
