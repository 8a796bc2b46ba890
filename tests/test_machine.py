"""This machine: other programs, disks, GPUs and the page cache, real and written for a test."""

import mmap
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from feedline.machine import (
    Disk,
    FilePart,
    Gpu,
    Gpus,
    OtherPrograms,
    OwnCpuTime,
    find_disk,
    find_gpus,
    stays_in_memory,
)
from feedline.system import usable_cores
from machine_files import ADDRESS, CARD, DRIVER, write_files
from processes import eventually

# Other programs


def test_cores_used_by_other_programs_are_measured():
    others = OtherPrograms()
    loop = [sys.executable, "-c", "while True: pass"]
    # Not in the family yet, so they count as others.
    loops = [subprocess.Popen(loop) for _ in range(usable_cores())]
    try:
        assert eventually(lambda: others.cores() > 0.5 * usable_cores(), 60)
        time_of_loops = OwnCpuTime()
        assert eventually(lambda: time_of_loops.seconds() > 1, 60)
    finally:
        for process in loops:
            process.kill()
            process.wait()
    assert others.cores() <= usable_cores()


# Disks


ROOT = "22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw\n"


def lies_on(tmp_path, mountinfo, folder, files):
    """The disk of a folder that need not exist, of a machine with these files."""
    root = write_files(tmp_path, {"/proc/self/mountinfo": mountinfo, **files})
    return find_disk(folder, root)


def disk_files(name, *, turns, model="", part=""):
    """A disk in /sys, and its partition."""
    files = {f"/sys/block/{name}/queue/rotational": f"{turns}\n"}
    if model:
        files[f"/sys/block/{name}/device/model"] = f"{model}\n"
    if part:
        files[f"/sys/block/{name}/{part}/partition"] = "2\n"
    return files


def link_device(root, number, to):
    """The link by which the kernel finds a block device by its number."""
    folder = root / "sys/dev/block"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / number).symlink_to(root / to.lstrip("/"))


@pytest.mark.parametrize(
    ("name", "turns", "model", "kind"),
    [
        ("sda", "0", "Samsung SSD 870", "ssd"),
        ("sda", "1", "ST4000", "hdd"),
        ("nvme0n1", "0", "Samsung SSD 990", "nvme"),
        ("nvme1n1", "0", "Amazon Elastic Block Store", "virtual"),
        ("nvme1n1", "0", "Amazon EC2 NVMe Instance Storage", "nvme"),
        ("vda", "1", "", "virtual"),
        ("sda", "1", "QEMU HARDDISK", "virtual"),
        ("sda", "?", "odd", "unknown"),
        ("strange0", "0", "", "unknown"),
    ],
)
def test_partition_has_kind_of_its_disk(name, turns, model, kind, tmp_path):
    files = disk_files(name, turns=turns, model=model, part=f"{name}2")
    link_device(tmp_path, "8:2", f"/sys/block/{name}/{name}2")
    found = lies_on(tmp_path, ROOT, "/data", files)
    assert (found.kind, found.device, found.file_system) == (kind, name, "ext4")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("0:50 / /data rw - nfs4 server:/export rw", "network"),
        ("0:50 / /data rw - fuse.sshfs me@server:/ rw", "network"),
        ("0:50 / /data rw - fuse.gcsfuse bucket rw", "network"),
        ("0:50 / /data rw - 9p share rw", "host"),
        ("0:50 / /data rw - tmpfs tmpfs rw,size=1g", "memory"),
        ("0:50 / /data rw - overlay overlay rw,lowerdir=/a", "layers"),
        ("0:50 / /data rw - zfs tank/data rw", "unknown"),
        ("9:9 / /data rw - fuseblk /dev/sdz9 rw", "unknown"),
    ],
)
def test_kind_follows_from_file_system(line, kind, tmp_path):
    found = lies_on(tmp_path, f"{ROOT}30 22 {line}\n", "/data/train", {})
    assert (found.kind, found.mount_point) == (kind, "/data")


def test_innermost_and_latest_mount_is_used(tmp_path):
    table = (
        f"{ROOT}30 22 0:50 / /data rw - tmpfs a rw\n31 30 0:51 / /data/far rw - nfs b:/ rw\n"
        "32 22 0:52 / /data rw - overlay c rw\n33 22 0:53 / /datafar rw - 9p d rw\n"
        "34 22 0:54 / /my\\040data\\134x rw - nfs server:/a\\040b rw\n"
    )
    root = write_files(tmp_path, {"/proc/self/mountinfo": table})
    sources = {path: find_disk(path, root).source for path in ("/data/x", "/data/far/x", "/data")}
    assert sources == {"/data/x": "c", "/data/far/x": "b:/", "/data": "c"}
    assert find_disk("/elsewhere", root).source == "/dev/sda2"
    with_blanks = find_disk("/my data\\x/train", root)
    assert (with_blanks.mount_point, with_blanks.source) == ("/my data\\x", "server:/a b")


def test_several_disks_count_as_the_slowest(tmp_path):
    files = {
        **disk_files("nvme0n1", turns="0"),
        **disk_files("sda", turns="1", part="sda1"),
        **disk_files("dm-0", turns="0"),
    }
    root = write_files(tmp_path, {"/proc/self/mountinfo": ROOT, **files})
    slaves = root / "sys/block/dm-0/slaves"
    slaves.mkdir()
    (slaves / "nvme0n1").symlink_to(root / "sys/block/nvme0n1")
    link_device(root, "8:2", "/sys/block/dm-0")
    assert find_disk("/data", root).kind == "nvme"
    (slaves / "sda1").symlink_to(root / "sys/block/sda/sda1")
    assert find_disk("/data", root).kind == "hdd"


@pytest.mark.parametrize(
    "table", ["", "\n", "1 2 3\n", "a b c d e f\n", " - \n", "22 1 8:2 / / rw - \n", "\udcff\n"]
)
def test_broken_mount_table_has_unknown_disk(table, tmp_path):
    assert lies_on(tmp_path, table, "/data", {}) == Disk(kind="unknown")


@pytest.mark.skipif(sys.platform != "linux", reason="mounts of Linux")
def test_mounts_of_this_machine_are_read(tmp_path):
    assert find_disk("/proc").file_system == "proc"
    found = find_disk(tmp_path)
    assert os.path.realpath(tmp_path).startswith(found.mount_point)
    if os.path.ismount("/dev/shm"):
        assert find_disk("/dev/shm").kind == "memory"


# GPUs


@pytest.fixture
def no_nvml(monkeypatch):
    """The package that asks the driver is not installed."""
    monkeypatch.setitem(sys.modules, "pynvml", None)


class NVMLError(Exception):
    def __init__(self, text, value=18):
        super().__init__(text)
        self.value = value


@pytest.fixture
def nvml(monkeypatch):
    """A stand-in for the NVML package that returns these values, or fails at this call."""

    def install(fails_at="", code=18, *, supported=True):
        def call(name, answer):
            def answers(*_):
                if name == fails_at:
                    raise NVMLError("Driver/library version mismatch", code)
                if name in figures and not supported:
                    raise NVMLError("Not Supported", 3)
                return answer

            return answers

        figures = {
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=40 * 10**9, free=39 * 10**9),
            "nvmlDeviceGetCurrPcieLinkWidth": 8,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
        }
        answers = {
            **figures,
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlSystemGetDriverVersion": "570.86.15",
            "nvmlSystemGetCudaDriverVersion": 12080,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": object(),
            "nvmlDeviceGetName": "NVIDIA A100-SXM4-40GB",
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId="00000000:65:00.0"),
        }
        calls = {name: call(name, answer) for name, answer in answers.items()}
        module = SimpleNamespace(NVMLError=NVMLError, __spec__=SimpleNamespace(), **calls)
        monkeypatch.setitem(sys.modules, "pynvml", module)

    return install


@pytest.mark.usefixtures("no_nvml")
def test_kernel_gives_name_and_driver(tmp_path):
    assert find_gpus(tmp_path) == Gpus()
    assert find_gpus(write_files(tmp_path / "a", CARD)) == Gpus(nvidia_cards=1)
    found = find_gpus(write_files(tmp_path / "b", {**CARD, **DRIVER}))
    card = Gpu(name="NVIDIA A100-SXM4-40GB", address=ADDRESS)
    assert found == Gpus(nvidia=(card,), driver="570.86.15", nvidia_cards=1)


def test_amd_gpu_is_found(tmp_path, no_nvml):
    card = {path: text.replace("0x10de", "0x1002") for path, text in CARD.items()}
    found = find_gpus(write_files(tmp_path, {**card, "/sys/module/amdgpu/version": "6.2\n"}))
    assert found == Gpus(amd_cards=1, amd_driver=True)
    assert found.any


def test_nvml_reports_memory_and_cuda_version_if_supported(tmp_path, nvml):
    root = write_files(tmp_path, {**CARD, **DRIVER})
    nvml()
    found = find_gpus(root)
    (gpu,) = found.nvidia
    assert (gpu.name, gpu.address) == ("NVIDIA A100-SXM4-40GB", f"0000{ADDRESS}")
    assert (gpu.memory_bytes, gpu.free_bytes) == (40 * 10**9, 39 * 10**9)
    assert (gpu.lanes, gpu.most_lanes) == (8, 16)
    assert (found.driver, found.cuda) == ("570.86.15", (12, 8))
    nvml(supported=False)
    (gpu,) = find_gpus(root).nvidia
    assert gpu.memory_bytes is gpu.free_bytes is gpu.lanes is gpu.most_lanes is None


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetName"])
def test_a_driver_that_does_not_answer_is_a_problem(tmp_path, nvml, call):
    nvml(call)
    found = find_gpus(write_files(tmp_path, {**CARD, **DRIVER}))
    assert found.problem == "NVML: Driver/library version mismatch"


@pytest.mark.parametrize(
    ("code", "problem"), [(9, "NVML: Driver/library version mismatch"), (12, "")]
)
def test_nvml_without_driver_is_no_error_unless_there_are_gpus(tmp_path, nvml, code, problem):
    nvml("nvmlInit", code)
    assert find_gpus(tmp_path) == Gpus()
    found = find_gpus(write_files(tmp_path, {**CARD, **DRIVER}))
    assert [gpu.name for gpu in found.nvidia] == ["NVIDIA A100-SXM4-40GB"]
    assert (found.cuda, found.problem) == (None, problem)  # a container lacks NVML's library


# Page cache

needs_calls = pytest.mark.skipif(
    not (hasattr(os, "posix_fadvise") and hasattr(os, "RWF_NOWAIT")), reason="no such calls here"
)


@pytest.fixture
def on_disk(tmp_path):
    path = tmp_path / "file"
    with open(path, "wb") as file:
        file.write(os.urandom(100_000))
        file.flush()
        os.fsync(file.fileno())
    return str(path)


@needs_calls
def test_fast_disk_is_still_a_disk(on_disk):
    if stays_in_memory(FilePart(on_disk)) is not False:
        pytest.skip("temporary files lie in memory here")
    answers = [stays_in_memory(FilePart(on_disk, 0, 100_000)) for _ in range(2000)]
    assert set(answers) <= {False, True}
    assert sum(map(bool, answers)) < 100  # 12 next to busy loops on all cores


@needs_calls
def test_what_is_mapped_stays(on_disk):
    with (
        open(on_disk, "rb", buffering=0) as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        assert len(mapped[:]) == 100_000  # now its pages are in memory, and in use
        assert stays_in_memory(FilePart(on_disk)) is not False
