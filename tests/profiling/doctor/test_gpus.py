"""GPUs: of machines that are written for each test, since this one may have none."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from machine_files import write_files

from feedline.engine import pinned_memory
from feedline.machine import Gpu, Gpus, find_gpus, read_link
from feedline.profile.doctor.copies import CopyRate, check_copies, measure_copy_rate
from feedline.profile.doctor.copies import measure_copies as measured_on
from feedline.profile.doctor.gpu_checks import TorchBuild, check_gpu

ADDRESS = "0000:65:00.0"
CARD = {
    f"/sys/bus/pci/devices/{ADDRESS}/class": "0x030200\n",
    f"/sys/bus/pci/devices/{ADDRESS}/vendor": "0x10de\n",
    "/sys/bus/pci/devices/0000:00:1f.0/class": "0x060100\n",
    "/sys/bus/pci/devices/0000:00:1f.0/vendor": "0x10de\n",
}
DRIVER = {
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "
    "570.86.15  Release Build  (builder@host)  Thu Jan 23 2025\nGCC version:  gcc 12.3.0\n",
    f"/proc/driver/nvidia/gpus/{ADDRESS}/information": "Model: \t\t NVIDIA A100-SXM4-40GB\n"
    f"IRQ:   \t\t 0\nBus Location: \t {ADDRESS}\n",
}
LINK = {
    f"/sys/bus/pci/devices/{ADDRESS}/{name}": f"{text}\n"
    for name, text in {
        "current_link_width": "16",
        "max_link_width": "16",
    }.items()
}
CUDA_12 = TorchBuild(version="2.5.0+cu124", cuda="12.4", hip=None)


@pytest.fixture
def no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package that asks the driver is not installed."""
    monkeypatch.setitem(sys.modules, "pynvml", None)


class NVMLError(Exception):
    """Like the error of the NVML package."""

    def __init__(self, text: str, value: int = 18) -> None:
        super().__init__(text)
        self.value = value


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A stand-in for the NVML package that returns these values, or fails at this call."""

    def install(
        fails_at: str = "", code: int = 18, *, memory: bool = True, texts: type = str
    ) -> None:
        def call(name: str, answer: object) -> Callable[..., object]:
            def answers(*_: object) -> object:
                if name == fails_at:
                    raise NVMLError("Driver/library version mismatch", code)
                return answer

            return answers

        def text(said: str) -> object:
            return said.encode() if texts is bytes else said

        def memory_of(_: object) -> object:
            if not memory:
                raise NVMLError("Not Supported", 3)
            return SimpleNamespace(total=40 * 10**9, free=39 * 10**9)

        answers = {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlSystemGetDriverVersion": text("570.86.15"),
            "nvmlSystemGetCudaDriverVersion": 12080,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": object(),
            "nvmlDeviceGetName": text("NVIDIA A100-SXM4-40GB"),
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId=text("00000000:65:00.0")),
        }
        module = SimpleNamespace(
            NVMLError=NVMLError,
            nvmlDeviceGetMemoryInfo=memory_of,
            __spec__=SimpleNamespace(),
            **{name: call(name, answer) for name, answer in answers.items()},
        )
        monkeypatch.setitem(sys.modules, "pynvml", module)

    return install


def statuses(found: Gpus, build: TorchBuild | None, root: Path, **environ: str) -> list[str]:
    return [check.status for check in check_gpu(found, build, environ, root)]


@pytest.mark.usefixtures("no_nvml")
def test_without_gpu_nothing_is_reported(tmp_path: Path) -> None:
    found = find_gpus(tmp_path)
    assert found == Gpus()
    assert statuses(found, CUDA_12, tmp_path) == ["note", "unknown", "unknown"]


@pytest.mark.usefixtures("no_nvml")
def test_card_without_driver_is_a_warning(tmp_path: Path) -> None:
    found = find_gpus(write_files(tmp_path, CARD))
    assert found == Gpus(nvidia_cards=1)
    checks = list(check_gpu(found, CUDA_12, {}, tmp_path))
    assert (checks[0].status, checks[1].status) == ("warn", "unknown")
    assert "--gpus all" in checks[0].fix


@pytest.mark.usefixtures("no_nvml")
def test_sysfs_gives_name_driver_and_link(tmp_path: Path) -> None:
    found = find_gpus(write_files(tmp_path, {**CARD, **DRIVER, **LINK}))
    card = Gpu(name="NVIDIA A100-SXM4-40GB", address=ADDRESS)
    assert found == Gpus(nvidia=(card,), driver="570.86.15", nvidia_cards=1)
    gpu, driver, link = check_gpu(found, CUDA_12, {}, tmp_path)
    assert (gpu.status, driver.status, link.status) == ("ok", "ok", "ok")
    assert "memory not measured" in gpu.summary
    assert link.summary == "16 of 16 lanes"


def test_amd_gpu_is_reported(tmp_path: Path, no_nvml: None) -> None:
    card = {path: text.replace("0x10de", "0x1002") for path, text in CARD.items()}
    found = find_gpus(write_files(tmp_path, {**card, "/sys/module/amdgpu/version": "6.2\n"}))
    assert found == Gpus(amd_cards=1, amd_driver=True)
    assert statuses(found, None, tmp_path)[0] == "note"


@pytest.mark.parametrize("texts", [str, bytes])
def test_nvml_reports_memory_and_cuda_version(
    tmp_path: Path, nvml: Callable[..., None], texts: type
) -> None:
    nvml(texts=texts)
    found = find_gpus(write_files(tmp_path, {**CARD, **DRIVER, **LINK}))
    (gpu,) = found.nvidia
    assert gpu == Gpu(
        name="NVIDIA A100-SXM4-40GB",
        address=ADDRESS,
        memory_bytes=40 * 10**9,
        free_bytes=39 * 10**9,
    )
    assert (found.driver, found.cuda, found.nvml) == ("570.86.15", (12, 8), True)
    checks = list(check_gpu(found, CUDA_12, {}, tmp_path))
    assert [check.status for check in checks] == ["ok", "ok", "ok"]
    assert checks[0].summary == "NVIDIA A100-SXM4-40GB, 39.0 GB of 40.0 GB free"


def test_gpu_with_shared_memory_has_no_memory_of_its_own(
    tmp_path: Path, nvml: Callable[..., None]
) -> None:
    nvml(memory=False)
    (gpu,) = find_gpus(write_files(tmp_path, {**CARD, **DRIVER})).nvidia
    assert (gpu.memory_bytes, gpu.free_bytes) == (None, None)


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetName"])
def test_a_driver_that_does_not_answer_fails(
    tmp_path: Path, nvml: Callable[..., None], call: str
) -> None:
    nvml(call)
    found = find_gpus(write_files(tmp_path, {**CARD, **DRIVER}))
    gpu = next(check_gpu(found, CUDA_12, {}, tmp_path))
    assert gpu.status == "fail"
    assert "Driver/library version mismatch" in gpu.summary


@pytest.mark.parametrize("code", [9, 12])
def test_nvml_without_driver_is_not_an_error(
    tmp_path: Path, nvml: Callable[..., None], code: int
) -> None:
    nvml("nvmlInit", code)
    assert find_gpus(tmp_path) == Gpus()


def test_container_without_nvml_library_has_its_gpus(
    tmp_path: Path, nvml: Callable[..., None]
) -> None:
    nvml("nvmlInit", 12)
    found = find_gpus(write_files(tmp_path, {**CARD, **DRIVER}))
    assert [gpu.name for gpu in found.nvidia] == ["NVIDIA A100-SXM4-40GB"]
    assert (found.nvml, found.problem) == (False, "")


def test_a_driver_that_answers_wrongly_fails_without_the_kernels_files(
    tmp_path: Path, nvml: Callable[..., None]
) -> None:
    nvml("nvmlInit")
    assert find_gpus(tmp_path).problem == "NVML: Driver/library version mismatch"


@pytest.mark.parametrize(
    ("visible", "status"), [("0", "ok"), ("1,0", "ok"), ("", "warn"), ("-1", "warn")]
)
def test_hidden_gpus_are_a_warning(visible: str, status: str, tmp_path: Path) -> None:
    found = Gpus(nvidia=(Gpu(name="A"),), driver="570.1", nvidia_cards=1)
    assert statuses(found, CUDA_12, tmp_path, CUDA_VISIBLE_DEVICES=visible)[0] == status


@pytest.mark.parametrize(
    ("driver", "cuda", "built", "status"),
    [
        ("570.86.15", None, "12.8", "ok"),
        ("524.1", None, "12.1", "fail"),
        ("570.86.15", None, "13.0", "fail"),
        ("450.80.02", None, "11.8", "ok"),
        ("570.86.15", (12, 8), "13.0", "fail"),
        ("570.86.15", (12, 4), "12.8", "ok"),  # minor versions of CUDA are compatible
        ("580.65.06", (13, 0), "12.4", "ok"),
        ("900.1", None, "19.0", "unknown"),
        ("570.86.15", None, None, "ok"),
        ("570.86.15", None, "odd", "unknown"),
    ],
)
def test_a_driver_that_is_too_old_for_torch_fails(
    driver: str, cuda: tuple[int, int] | None, built: str | None, status: str, tmp_path: Path
) -> None:
    found = Gpus(nvidia=(Gpu(name="A"),), driver=driver, cuda=cuda, nvidia_cards=1)
    build = TorchBuild(version="2.5.0", cuda=built, hip=None)
    assert statuses(found, build, tmp_path)[1] == status


@pytest.mark.parametrize(
    ("lanes", "most", "status"),
    [("16", "16", "ok"), ("8", "16", "note"), ("4", "16", "warn"), ("1", "16", "warn")],
)
def test_narrow_link_is_reported(lanes: str, most: str, status: str, tmp_path: Path) -> None:
    folder = f"/sys/bus/pci/devices/{ADDRESS}"
    files = {**LINK, f"{folder}/current_link_width": lanes, f"{folder}/max_link_width": most}
    found = Gpus(nvidia=(Gpu(name="A", address=ADDRESS),), driver="570.1", nvidia_cards=1)
    assert statuses(found, CUDA_12, write_files(tmp_path, files))[2] == status


@pytest.mark.parametrize("text", ["", "Unknown", "0", "255", "-1"])
def test_link_without_data_is_not_measured(text: str, tmp_path: Path) -> None:
    path = f"/sys/bus/pci/devices/{ADDRESS}/current_link_width"
    assert read_link(ADDRESS, write_files(tmp_path, {**LINK, path: text})) is None
    assert read_link("", tmp_path) is None


# Copies


def measured(**changes: object) -> CopyRate:
    given = {
        "device": "NVIDIA A",
        "pinned_bytes_per_s": 25e9,
        "pageable_bytes_per_s": 8e9,
        "problem": "",
    }
    return CopyRate(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["ok", "ok"]),
        ({"pinned_bytes_per_s": None, "problem": "CUDA would not pin"}, ["warn", "ok"]),
    ],
)
def test_copy_rates_are_reported(changes: dict[str, object], expected: list[str]) -> None:
    pinned, rate = check_copies(measured(**changes))
    assert [pinned.status, rate.status] == expected
    assert rate.details["pinned_bytes_per_s"] == measured(**changes).pinned_bytes_per_s


def test_a_gpu_that_torch_cannot_use_fails() -> None:
    pinned, rate = check_copies("CUDA driver initialization failed")
    assert (pinned.status, rate.status) == ("unknown", "fail")
    assert "CUDA driver initialization failed" in rate.summary


class Event:
    """A mark on the timeline of a device that does everything at once."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at_s = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: Event) -> float:
        return 1000 * (other.at_s - self.at_s)


@pytest.fixture
def host_as_gpu(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The host in the place of a GPU: its copies are real, its name and its clock are not."""
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "host")
    return torch.device("cpu")


def test_copies_are_timed_and_verified(host_as_gpu: torch.device) -> None:
    found = measured_on(host_as_gpu)
    assert (found.device, found.problem) == ("host", "")
    assert found.pinned_bytes_per_s is not None
    assert min(found.pinned_bytes_per_s, found.pageable_bytes_per_s) > 0


def test_unpinnable_memory_is_reported(
    host_as_gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    cudart = SimpleNamespace(
        cudaHostRegister=lambda *_: 2, cudaGetErrorString=lambda code: "out of memory"
    )
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    monkeypatch.setattr(
        pinned_memory,
        "register_memory",
        lambda memory, device: pinned_memory.RegisteredMemory(memory),
    )
    found = measured_on(host_as_gpu)
    assert found.pinned_bytes_per_s is None
    assert "pin 64 MiB" in found.problem


def test_corrupted_copy_raises(host_as_gpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "copy_", lambda self, *_, **__: self.fill_(1))
    with pytest.raises(RuntimeError, match="did not receive"):
        measured_on(host_as_gpu)


def test_copies_are_timed_with_gpu() -> None:
    found = measure_copy_rate()
    if not torch.cuda.is_available():
        assert isinstance(found, str)
        assert found
        return
    assert isinstance(found, CopyRate)
    assert found.device == torch.cuda.get_device_name()
    assert found.pageable_bytes_per_s > 0
    assert (found.pinned_bytes_per_s is None) == bool(found.problem)
