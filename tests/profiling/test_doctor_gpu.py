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


def with_driver(driver="570.86.15", cuda=None):
    return Gpus(nvidia=(Gpu(name="A"),), driver=driver, cuda=cuda, nvidia_cards=1)


def built(cuda=None, hip=None, version="2.5.0"):
    return TorchBuild(version=version, cuda=cuda, hip=hip)


def linked(lanes):
    """Two cards, one of which uses some of its 16 lanes."""
    cards = {"0000:65:00.0": lanes, "0000:66:00.0": 16}
    return Gpus(
        nvidia=tuple(
            Gpu(name="A", address=address, lanes=lanes, most_lanes=16)
            for address, lanes in cards.items()
        )
    )


def copy_rate(pinned, problem=""):
    return CopyRate(
        device="NVIDIA A", pinned_bytes_per_s=pinned, pageable_bytes_per_s=8e9, problem=problem
    )


CUDA_12, ONE, NONE = built("12.4"), with_driver(), Gpus()
AMD = Gpus(amd_cards=1, amd_driver=True)
SILENT = Gpus(problem="NVML: no answer")


@pytest.mark.parametrize(
    ("check", "arguments", "status"),
    [
        (check_gpu, [NONE, {}], "note"),
        (check_gpu, [Gpus(nvidia_cards=1), {}], "warn"),
        (check_gpu, [AMD, {}], "note"),
        (check_gpu, [SILENT, {}], "fail"),
        (check_gpu, [ONE, {"CUDA_VISIBLE_DEVICES": "1,0"}], "ok"),
        (check_gpu, [ONE, {"CUDA_VISIBLE_DEVICES": ""}], "warn"),
        (check_gpu, [ONE, {"CUDA_VISIBLE_DEVICES": "-1"}], "warn"),
        (check_driver, [NONE, CUDA_12], "unknown"),
        (check_driver, [SILENT, CUDA_12], "unknown"),
        (check_driver, [ONE, built("12.8")], "ok"),
        (check_driver, [with_driver("524.1"), built("12.1")], "fail"),
        (check_driver, [with_driver("450.80.02"), built("11.8")], "ok"),
        (check_driver, [with_driver(cuda=(12, 8)), built("13.0")], "fail"),
        (check_driver, [with_driver(cuda=(12, 4)), built("12.8")], "ok"),  # minor versions agree
        (check_driver, [with_driver("900.1"), built("19.0")], "unknown"),
        (check_driver, [ONE, built(None)], "ok"),
        (check_driver, [ONE, built("odd")], "unknown"),
        (check_pcie_link, [NONE], "unknown"),
        (check_pcie_link, [ONE], "unknown"),
        (check_pcie_link, [linked(16)], "ok"),
        (check_pcie_link, [linked(8)], "note"),
        (check_pcie_link, [linked(4)], "warn"),
        (check_torch, [None, NONE], "fail"),
        (check_torch, [CUDA_12, NONE], "ok"),
        (check_torch, [CUDA_12, ONE], "ok"),
        (check_torch, [built(), ONE], "fail"),
        (check_torch, [built(hip="6.2"), AMD], "ok"),
        (check_torch, [CUDA_12, AMD], "fail"),
        (check_torch, [built(), Gpus(amd_cards=1)], "ok"),
        (check_torch, [built("12.1", version="2.1.2"), NONE], "fail"),
        (check_torch, [built(version="strange"), NONE], "fail"),
        (check_copy_rate, [copy_rate(25e9)], "ok"),
        (check_copy_rate, [copy_rate(None, "CUDA would not pin")], "warn"),
        (check_copy_rate, ["CUDA driver initialization failed"], "fail"),
    ],
)
def test_gpus_drivers_builds_and_copies_are_judged(check, arguments, status):
    assert check(*arguments).status == status


def test_the_narrowest_link_and_the_problem_of_copies_are_named():
    link = check_pcie_link(linked(8))
    assert link.details["links"]["0000:65:00.0"] == {"lanes": 8, "most_lanes": 16}
    assert "8 of 16 lanes" in link.summary
    for measured in (copy_rate(None, "would not pin"), "would not pin"):
        assert "would not pin" in check_copy_rate(measured).summary


def test_memory_is_shown_if_nvml_reports_it():
    assert "memory not measured" in check_gpu(ONE, {}).summary
    gpu = Gpu(name="A100", memory_bytes=40 * 10**9, free_bytes=39 * 10**9)
    found = check_gpu(Gpus(nvidia=(gpu, gpu), driver="570.1", cuda=(12, 8)), {})
    assert found.summary == "2 x A100, 39.0 GB of 40.0 GB free"
    assert "--gpus all" in check_gpu(Gpus(nvidia_cards=1), {}).fix


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
        (
            "1 / 0\n__version__ = '2.5.0+cpu'\ncuda = 1 / 0\n",
            TorchBuild(version="2.5.0+cpu", cuda=None, hip=None),
        ),
    ],
)
def test_a_build_is_read_from_its_file_whose_code_does_not_run(text, build, tmp_path):
    (tmp_path / "version.py").write_text(text)
    assert read_torch_build(tmp_path) == build
    version, cuda, hip = str(torch.__version__), torch.version.cuda, torch.version.hip
    assert find_torch_build() == TorchBuild(version=version, cuda=cuda, hip=hip)


@pytest.mark.parametrize("text", ["", "__version__ = 2\n", "\0", "\x80"])
def test_build_without_description_raises(text, tmp_path):
    (tmp_path / "version.py").write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match="version"):
        read_torch_build(tmp_path)


@pytest.mark.parametrize(
    ("build", "gpus", "hidden", "usable"),
    [
        (CUDA_12, ONE, {}, True),
        (CUDA_12, ONE, {"CUDA_VISIBLE_DEVICES": ""}, False),
        (CUDA_12, Gpus(), {}, False),
        (None, ONE, {}, False),
        (built("13.0"), ONE, {}, False),
    ],
)
def test_gpu_is_usable_without_faults(build, gpus, hidden, usable):
    assert is_gpu_usable(gpus, build, hidden) == usable


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
