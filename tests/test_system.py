"""Cores and memory available to a process, from simulated file trees and environments."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from feedline import ImageFolder, system
from feedline.errors import DatasetError, ImageError, StorageError, UsageError
from feedline.sources.files import read_file
from feedline.system import (
    CoreLimits,
    MemoryLimits,
    available_memory_bytes,
    core_limits,
    launched_rank,
    memory_limits,
    oom_kills,
    rank_and_world,
    refuse_unusable_path,
    search_path,
    storage_stall_s,
    throttled_s,
    usable_cores,
)

GIB = 1 << 30
Machine = Callable[..., None]
V2 = "/sys/fs/cgroup"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Simulate a machine with these cores, free memory and files only."""
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_NTASKS_PER_NODE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)

    def read(path):
        inside = tmp_path / path.relative_to("/")
        return os.fsdecode(inside.read_bytes()).strip() if inside.is_file() else ""

    monkeypatch.setattr(system, "read_text", read)

    def make(files=None, cores=16, free_bytes=64 * GIB):
        for path, text in (files or {}).items():
            inside = tmp_path / path.lstrip("/")
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.write_bytes(os.fsencode(text + "\n"))
        found = SimpleNamespace(available=free_bytes, total=128 * GIB)
        memory = SimpleNamespace(virtual_memory=lambda: found)
        monkeypatch.setattr(system, "psutil", memory)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)

    return make


def v1(controllers, where="/"):
    return f"12:pids:/\n4:{controllers}:{where}\n1:name=systemd:/user.slice\n0::/user.slice"


# Cores

GROUPS = "/proc/self/cgroup"
ROOT = {GROUPS: "0::/"}


def quota_v1(controllers, quota, where="/"):
    folder = f"{V2}/{controllers}{where}".rstrip("/")
    return {
        GROUPS: v1(controllers, where),
        f"{folder}/cpu.cfs_quota_us": str(quota),
        f"{folder}/cpu.cfs_period_us": "100000",
    }


QUOTAS = {  # of cgroup v2, in whole cores
    "max 100000": 16,
    "200000 100000": 2,
    "350000 100000": 3,
    "50000 100000": 1,
    "9900000 100000": 16,
    "": 16,
    "200000 0": 16,
    "200000 many": 16,
    "200000 100000 7": 16,
    "\udcff 100000": 16,
}
# The root of the mount counts if the group is unknown: a path of the host, missing in a container.
UNKNOWN = ["nothing", "::", "\udcff", "0::/\n4", "0::/kubepods/pod1", "0::/../../other"]
ENCLOSING = {
    GROUPS: "0::/system.slice/job.scope",
    f"{V2}/system.slice/job.scope/cpu.max": "800000 100000",
    f"{V2}/system.slice/cpu.max": "300000 100000",
    f"{V2}/other.slice/cpu.max": "100000 100000",
}
LAUNCHERS = [
    ({"LOCAL_WORLD_SIZE": "3"}, 5),
    ({"LOCAL_WORLD_SIZE": "64"}, 1),
    ({"SLURM_NTASKS_PER_NODE": "3"}, 5),
    ({"OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, 5),
    ({"MPI_LOCALNRANKS": "3"}, 5),
    ({"LOCAL_WORLD_SIZE": "2", "SLURM_NTASKS_PER_NODE": "4"}, 8),
    ({"LOCAL_WORLD_SIZE": "0", "SLURM_NTASKS_PER_NODE": "4"}, 4),
    ({"SLURM_NTASKS_PER_NODE": "4(x2)"}, 16),
    ({"LOCAL_WORLD_SIZE": "-2"}, 16),
    ({"LOCAL_WORLD_SIZE": "9" * 5000}, 16),
    ({"SLURM_CPUS_PER_TASK": "99"}, 16),
    ({"SLURM_CPUS_PER_TASK": "0"}, 16),
    ({"SLURM_CPUS_PER_TASK": "many"}, 16),
    # The cores of a SLURM task are divided only among the processes that torchrun starts.
    ({"SLURM_CPUS_PER_TASK": "4", "SLURM_NTASKS_PER_NODE": "4"}, 4),
    ({"SLURM_CPUS_PER_TASK": "16", "TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "4"}, 4),
]


@pytest.mark.parametrize(
    ("files", "environ", "affinity", "cores"),
    [
        ({}, {}, 6, 6),
        *(({**ROOT, f"{V2}/cpu.max": quota}, {}, 16, cores) for quota, cores in QUOTAS.items()),
        ({**ROOT, f"{V2}/cpu.max": "800000 100000"}, {}, 3, 3),
        (ENCLOSING, {}, 16, 3),
        *(({GROUPS: group, f"{V2}/cpu.max": "500000 100000"}, {}, 16, 5) for group in UNKNOWN),
        *(
            (quota_v1(controllers, 250_000, where), {}, 16, 2)
            for controllers in ("cpu", "cpu,cpuacct", "cpuacct,cpu")
            for where in ("/", "/docker/abc")
        ),
        (quota_v1("cpu", -1), {}, 16, 16),
        *(({}, environ, 16, cores) for environ, cores in LAUNCHERS),
        ({**ROOT, f"{V2}/cpu.max": "200000 100000"}, {"SLURM_CPUS_PER_TASK": "8"}, 16, 2),
    ],
)
def test_the_strictest_limit_of_cores_wins(machine, monkeypatch, files, environ, affinity, cores):
    machine(files, cores=affinity)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert usable_cores() == cores


def test_limits_of_cores_are_distinguished(machine, monkeypatch):
    machine({"/proc/self/cgroup": "0::/", f"{V2}/cpu.max": "350000 100000"}, cores=4)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    none = CoreLimits(machine=8, affinity=4, quota=3.5, allotted=None, processes=1)
    assert core_limits() == none
    assert none.usable == 3
    shared = {"SLURM_CPUS_PER_TASK": "2", "TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2"}
    assert core_limits(environ=shared) == replace(none, allotted=2, processes=2)
    assert core_limits(environ=shared).usable == 1


# Memory


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, None),
        ({"/proc/vmstat": "oom_kill 7\nnr_free 1"}, 7),
        ({f"{V2}/memory.events": "oom 5\noom_kill 3", "/proc/vmstat": "oom_kill 7"}, 3),
        (
            {
                "/proc/self/cgroup": "0::/job",
                f"{V2}/job/memory.events": "oom_kill 1",
                f"{V2}/memory.events": "oom_kill 3",
            },
            1,
        ),
        (
            {
                "/proc/self/cgroup": "4:memory:/job",
                f"{V2}/memory/job/memory.oom_control": "under_oom 0\noom_kill 2",
            },
            2,
        ),
        # An older kernel does not count in version 1.
        ({f"{V2}/memory/memory.oom_control": "under_oom 0", "/proc/vmstat": "oom_kill 7"}, 7),
    ],
)
def test_out_of_memory_kills_are_those_of_the_cgroup(machine, files, count):
    machine(files)
    assert oom_kills() == count


V1_GROUP = f"{V2}/memory/docker/abc"


def memory_v1(limit):
    """The group's own share of the cache comes first in its file; the total is with children."""
    return {
        GROUPS: v1("memory", "/docker/abc"),
        f"{V1_GROUP}/memory.limit_in_bytes": str(limit),
        f"{V1_GROUP}/memory.usage_in_bytes": str(2 * GIB),
        f"{V1_GROUP}/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}",
    }


def memory_v2(limit, used, stat="", group="/job"):
    files = {"memory.max": str(limit), "memory.stat": stat}
    if used is not None:
        files["memory.current"] = str(used)
    return {GROUPS: "0::/job/step", **{f"{V2}{group}/{name}": files[name] for name in files}}


@pytest.mark.parametrize(
    ("files", "limit", "available"),
    [
        ({}, None, 64 * GIB),
        (memory_v2("max", 7), None, 64 * GIB),
        (memory_v2(8 * GIB, 3 * GIB), 8 * GIB, 5 * GIB),
        (memory_v2(8 * GIB, 9 * GIB), 8 * GIB, 0),
        (
            memory_v2(8 * GIB, 7 * GIB, f"anon 5\ninactive_file {4 * GIB}\nactive_file 9"),
            8 * GIB,
            5 * GIB,
        ),
        (memory_v2(8 * GIB, 7 * GIB, "inactive_file\n\nnothing"), 8 * GIB, GIB),
        (memory_v2(8 * GIB, None), ..., 64 * GIB),
        (memory_v2("much", GIB), None, 64 * GIB),
        (memory_v2(1 << 60, GIB), None, 64 * GIB),  # above the machine's
        (memory_v2(100 * GIB, GIB), 100 * GIB, 64 * GIB),  # less of it is free
        (memory_v1(6 * GIB), 6 * GIB, 5 * GIB),
        (memory_v1(0x7FFFFFFFFFFFF000), None, 64 * GIB),
        (
            memory_v2(8 * GIB, GIB, group="/job/step") | memory_v2(9 * GIB, 6 * GIB),
            8 * GIB,
            3 * GIB,
        ),
    ],
)
def test_the_strictest_limit_of_memory_wins(machine, files, limit, available):
    machine(files)
    assert available_memory_bytes() == available
    if limit is not ...:
        found = MemoryLimits(machine=128 * GIB, limit=limit, available=available)
        assert memory_limits() == found


# Other processes


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({}, None),
        ({"RANK": "3", "WORLD_SIZE": "8"}, 3),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}, 3),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),  # a batch script, once for all tasks
        # torchrun as a task of srun.
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "RANK": "9", "WORLD_SIZE": "16"}, 9),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, 1),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, 1),
        ({"PMI_RANK": "-1", "PMI_SIZE": "2"}, None),
    ],
)
def test_rank_is_read_from_each_launcher(environ, rank):
    assert launched_rank(environ) == rank


def test_rank_and_world_size_are_those_of_torch_distributed_or_torchrun(monkeypatch):
    # SLURM's own names do not say that these processes train together.
    slurm = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8"}
    for environ in ({}, {"RANK": "3"}, {"RANK": "-1", "WORLD_SIZE": "8"}, slurm):
        assert rank_and_world(environ) == (0, 1)
    assert rank_and_world({"RANK": "3", "WORLD_SIZE": "8"}) == (3, 8)
    ready = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 5,
        get_world_size=lambda: 6,
    )
    monkeypatch.setitem(system.sys.modules, "torch.distributed", ready)
    assert rank_and_world({"RANK": "3", "WORLD_SIZE": "8"}) == (5, 6)
    ready.is_initialized = lambda: False
    assert rank_and_world({"RANK": "3", "WORLD_SIZE": "8"}) == (3, 8)


NESTED = {
    GROUPS: "0::/system.slice/job.scope",
    f"{V2}/system.slice/job.scope/cpu.stat": "nr_periods 10\nthrottled_usec 1500000",
    f"{V2}/system.slice/cpu.stat": "nr_periods 10\nthrottled_usec 4000000",
    f"{V2}/cpu.stat": "nr_periods 0\nthrottled_usec 99000000",
}
IN_NANOSECONDS = {
    GROUPS: v1("cpu"),
    f"{V2}/cpu/cpu.stat": "nr_periods 4\nthrottled_time 2500000000",
}


@pytest.mark.parametrize(
    ("files", "seconds"),
    [
        (NESTED, 4.0),
        (IN_NANOSECONDS, 2.5),
        ({}, None),
        ({**ROOT, f"{V2}/cpu.stat": "nr_periods 0\nthrottled_usec 0"}, None),
        ({**ROOT, f"{V2}/cpu.stat": "nr_periods x"}, None),
        ({**ROOT, f"{V2}/cpu.stat": "nr_periods 3"}, None),
    ],
)
def test_throttling_is_that_of_the_group_that_was_held_up_longest(machine, files, seconds):
    machine(files)
    assert throttled_s() == seconds


def test_storage_stalls_are_those_of_any_process(machine):
    total = "some avg10=2.34 total=6500000\nfull avg10=0.00 total=2500000\n"
    for text, seconds in ((None, None), ("some avg10=2.34", None), (total, 6.5)):
        machine({} if text is None else {"/proc/pressure/io": text})
        assert storage_stall_s() == seconds


@pytest.mark.parametrize("name", ["con", "NUL", "aux.tar", "runs/com1/a"])
def test_names_of_windows_devices_are_refused_there(name, tmp_path, monkeypatch):
    refuse_unusable_path(name)
    monkeypatch.setattr(sys, "platform", "win32")
    refuse_unusable_path(tmp_path / "console")
    part = next(part for part in name.split("/") if part != "runs")
    with pytest.raises(UsageError, match=f"Windows reserves the name '{part}'"):
        refuse_unusable_path(name)


def test_a_path_that_is_too_long_for_windows_is_refused_there(monkeypatch):
    folder = "/" + "d" * 258
    refuse_unusable_path(folder + "d", room=40)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(system, "are_long_paths_enabled", lambda: False)
    refuse_unusable_path(folder)
    for path, room in ((folder + "d", 0), (folder[:221], 40)):
        with pytest.raises(UsageError, match=f"this one has {len(path)}") as caught:
            refuse_unusable_path(path, room=room)
        assert "LongPathsEnabled" in caught.value.hint
    refuse_unusable_path(folder[:219], room=40)
    monkeypatch.setattr(system, "are_long_paths_enabled", lambda: True)
    refuse_unusable_path(folder + "d", room=40)


def test_an_image_with_a_path_too_long_for_windows_is_never_skipped(tmp_path, monkeypatch):
    path = str(tmp_path / ("d" * 100) / ("d" * 100) / ("d" * 100) / "a.jpg")
    with pytest.raises(ImageError, match="removed"):
        read_file(os.fsencode(path))
    with pytest.raises(DatasetError, match="no such folder"):
        ImageFolder(os.path.dirname(path))
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(system, "are_long_paths_enabled", lambda: False)
    with pytest.raises(StorageError, match="limits paths to 259 characters"):
        read_file(os.fsencode(path))
    with pytest.raises(DatasetError, match="limits paths to 259 characters"):
        ImageFolder(os.path.dirname(path))


@pytest.mark.skipif(sys.platform == "win32", reason="a working directory cannot be removed there")
def test_search_path_has_entries_without_a_working_directory(tmp_path, monkeypatch):
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    monkeypatch.setattr(sys, "path", ["", "/elsewhere"])
    assert search_path() == ["", "/elsewhere"]
