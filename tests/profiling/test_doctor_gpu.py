"""Checks of the GPUs, of torch's build, and of copies, on the host if there is no GPU."""

from types import SimpleNamespace

import pytest
import torch

from feedline.engine import devices
from feedline.machine import Gpu, Gpus
from feedline.profile.doctor_gpu import (
    CopyRate,
    TorchBuild,
    check_copy_rate,
    check_driver,
    check_gpu,
    check_pcie_link,
    check_torch,
    find_torch_build,
    is_gpu_usable,
    measure_copies,
    measure_copy_rate,
    read_torch_build,
)

CUDA_12 = TorchBuild(version="2.5.0+cu124", cuda="12.4", hip=None)
ONE = Gpus(nvidia=(Gpu(name="A"),), driver="570.1", nvidia_cards=1)


def statuses(gpus, build, **environ):
    found = (check_gpu(gpus, environ), check_driver(gpus, build), check_pcie_link(gpus))
    return [result.status for result in found]


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (Gpus(), ["note", "unknown", "unknown"]),
        (Gpus(nvidia_cards=1), ["warn", "unknown", "unknown"]),
        (Gpus(amd_cards=1, amd_driver=True), ["note", "unknown", "unknown"]),
        (ONE, ["ok", "ok", "unknown"]),
        (Gpus(problem="NVML: no answer"), ["fail", "unknown", "unknown"]),
    ],
)
def test_gpus_without_driver_or_answer_are_faults(gpus, expected):
    assert statuses(gpus, CUDA_12) == expected


def test_memory_is_shown_if_nvml_reports_it():
    assert "memory not measured" in check_gpu(ONE, {}).summary
    gpu = Gpu(name="A100", memory_bytes=40 * 10**9, free_bytes=39 * 10**9)
    found = check_gpu(Gpus(nvidia=(gpu, gpu), driver="570.1", cuda=(12, 8)), {})
    assert found.summary == "2 x A100, 39.0 GB of 40.0 GB free"
    assert "--gpus all" in check_gpu(Gpus(nvidia_cards=1), {}).fix


@pytest.mark.parametrize(
    ("visible", "status"), [("0", "ok"), ("1,0", "ok"), ("", "warn"), ("-1", "warn")]
)
def test_hidden_gpus_are_a_warning(visible, status):
    assert statuses(ONE, CUDA_12, CUDA_VISIBLE_DEVICES=visible)[0] == status


@pytest.mark.parametrize(
    ("driver", "cuda", "built", "status"),
    [
        ("570.86.15", None, "12.8", "ok"),
        ("524.1", None, "12.1", "fail"),
        ("450.80.02", None, "11.8", "ok"),
        ("570.86.15", (12, 8), "13.0", "fail"),
        ("570.86.15", (12, 4), "12.8", "ok"),  # minor versions of CUDA are compatible
        ("900.1", None, "19.0", "unknown"),
        ("570.86.15", None, None, "ok"),
        ("570.86.15", None, "odd", "unknown"),
    ],
)
def test_a_driver_that_is_too_old_for_torch_fails(driver, cuda, built, status):
    found = Gpus(nvidia=(Gpu(name="A"),), driver=driver, cuda=cuda, nvidia_cards=1)
    build = TorchBuild(version="2.5.0", cuda=built, hip=None)
    assert statuses(found, build)[1] == status


@pytest.mark.parametrize(
    ("lanes", "most", "status"), [(16, 16, "ok"), (8, 16, "note"), (4, 16, "warn")]
)
def test_narrow_link_is_reported(lanes, most, status):
    gpu = Gpu(name="A", address="0000:65:00.0", lanes=lanes, most_lanes=most)
    wide = Gpu(name="B", address="0000:66:00.0", lanes=16, most_lanes=16)
    found = check_pcie_link(Gpus(nvidia=(wide, gpu)))
    assert found.status == status
    assert found.details["links"]["0000:65:00.0"] == {"lanes": lanes, "most_lanes": most}
    assert f"{lanes} of {most} lanes" in found.summary


# torch


@pytest.mark.parametrize(
    ("text", "build"),
    [
        (
            "__version__ = '2.4.1+cu121'\ndebug = False\ncuda = '12.1'\nhip = None\n",
            TorchBuild(version="2.4.1+cu121", cuda="12.1", hip=None),
        ),
        (
            "from typing import Optional\n__version__: str = '2.5.0+rocm6.2'\n"
            "cuda: Optional[str] = None\nhip: Optional[str] = '6.2.4'\n",
            TorchBuild(version="2.5.0+rocm6.2", cuda=None, hip="6.2.4"),
        ),
        ("__version__ = '2.5.0+cpu'\n", TorchBuild(version="2.5.0+cpu", cuda=None, hip=None)),
    ],
)
def test_a_build_is_read_from_its_file(text, build, tmp_path):
    (tmp_path / "version.py").write_text(text)
    assert read_torch_build(tmp_path) == build


def test_build_of_the_imported_torch_is_found():
    version, cuda, hip = str(torch.__version__), torch.version.cuda, torch.version.hip
    assert find_torch_build() == TorchBuild(version=version, cuda=cuda, hip=hip)


@pytest.mark.parametrize("text", ["", "__version__ = 2\n", "\0", "\x80"])
def test_build_without_description_raises(text, tmp_path):
    (tmp_path / "version.py").write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match="version"):
        read_torch_build(tmp_path)


def test_inspecting_a_build_runs_no_code(tmp_path):
    left = tmp_path / "left"
    (tmp_path / "version.py").write_text(
        f"open({str(left)!r}, 'w')\n__version__ = '2.5.0'\ncuda = open({str(left)!r}, 'w')\n"
    )
    assert read_torch_build(tmp_path) == TorchBuild(version="2.5.0", cuda=None, hip=None)
    assert not left.exists()


NVIDIA = Gpus(nvidia=(Gpu(name="NVIDIA A"),), driver="580.65.06", nvidia_cards=1)
AMD = Gpus(amd_cards=1, amd_driver=True)


@pytest.mark.parametrize(
    ("version", "cuda", "hip", "gpus", "status"),
    [
        ("2.5.0+cu124", "12.4", None, Gpus(), "ok"),
        ("2.5.0+cu124", "12.4", None, NVIDIA, "ok"),
        ("2.5.0+cpu", None, None, NVIDIA, "fail"),
        ("2.5.0+rocm6", None, "6.2", AMD, "ok"),
        ("2.5.0+cu124", "12.4", None, AMD, "fail"),
        ("2.5.0+cpu", None, None, Gpus(amd_cards=1), "ok"),
        ("2.1.2", "12.1", None, Gpus(), "fail"),
        ("strange", None, None, Gpus(), "fail"),
    ],
)
def test_incompatible_build_fails(version, cuda, hip, gpus, status):
    build = TorchBuild(version=version, cuda=cuda, hip=hip)
    assert check_torch(build, gpus).status == status
    assert check_torch(None, gpus).status == "fail"


@pytest.mark.parametrize(
    ("build", "gpus", "hidden", "usable"),
    [
        (CUDA_12, ONE, {}, True),
        (CUDA_12, ONE, {"CUDA_VISIBLE_DEVICES": ""}, False),
        (CUDA_12, Gpus(), {}, False),
        (None, ONE, {}, False),
        (TorchBuild(version="2.5.0", cuda="13.0", hip=None), ONE, {}, False),
    ],
)
def test_gpu_is_usable_without_faults(build, gpus, hidden, usable):
    assert is_gpu_usable(gpus, build, hidden) == usable


# Copies


def copy_rate(pinned, problem=""):
    return CopyRate(
        device="NVIDIA A", pinned_bytes_per_s=pinned, pageable_bytes_per_s=8e9, problem=problem
    )


@pytest.mark.parametrize(
    ("measured", "status"),
    [
        (copy_rate(25e9), "ok"),
        (copy_rate(None, "CUDA would not pin"), "warn"),
        ("CUDA driver initialization failed", "fail"),
    ],
)
def test_copy_rates_or_the_problem_are_reported(measured, status):
    result = check_copy_rate(measured)
    assert result.status == status
    assert (measured if isinstance(measured, str) else measured.problem) in result.summary


@pytest.fixture
def host_as_gpu(monkeypatch):
    """The host in the place of a GPU: its copies are real, its name is not."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "host")
    return torch.device("cpu")


def test_copies_are_timed_and_verified(host_as_gpu):
    found = measure_copies(host_as_gpu)
    assert (found.device, found.problem) == ("host", "")
    assert found.pinned_bytes_per_s is not None
    assert min(found.pinned_bytes_per_s, found.pageable_bytes_per_s) > 0


def test_unpinnable_memory_is_reported(host_as_gpu, monkeypatch):
    cudart = SimpleNamespace(
        cudaHostRegister=lambda *_: 2, cudaGetErrorString=lambda code: "out of memory"
    )
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    monkeypatch.setattr(
        devices,
        "register_memory",
        lambda memory, device: devices.RegisteredMemory(memory),
    )
    found = measure_copies(host_as_gpu)
    assert found.pinned_bytes_per_s is None
    assert "pin 64 MiB" in found.problem


def test_corrupted_copy_raises(host_as_gpu, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "copy_", lambda self, *_, **__: self.fill_(1))
    with pytest.raises(RuntimeError, match="did not receive"):
        measure_copies(host_as_gpu)


def test_copies_are_timed_with_gpu():
    found = measure_copy_rate(ONE, True, True)
    if not torch.cuda.is_available():
        assert isinstance(found, str)
        assert found
        return
    assert isinstance(found, CopyRate)
    assert found.device == torch.cuda.get_device_name()
    assert found.pageable_bytes_per_s > 0
    assert (found.pinned_bytes_per_s is None) == bool(found.problem)
