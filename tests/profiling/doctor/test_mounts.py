"""File systems of a folder: of simulated machines, and of this one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from machine_files import write_files

from feedline.machine import Disk, find_disk

ROOT = "22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw\n"


def lies_on(tmp_path: Path, mountinfo: str, folder: str, files: dict[str, str]) -> Disk:
    """The disk of a folder that need not exist, of a machine with these files."""
    root = write_files(tmp_path, {"/proc/self/mountinfo": mountinfo, **files})
    return find_disk(folder, root)


def disk_files(name: str, number: str, *, turns: str, model: str = "", part: str = "") -> dict:
    """A disk in /sys, with the number of itself or of its partition."""
    files = {f"/sys/block/{name}/queue/rotational": f"{turns}\n"}
    if model:
        files[f"/sys/block/{name}/device/model"] = f"{model}\n"
    if part:
        files[f"/sys/block/{name}/{part}/partition"] = "2\n"
    return files


def link(root: Path, number: str, to: str) -> None:
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
def test_partition_has_kind_of_its_disk(
    name: str, turns: str, model: str, kind: str, tmp_path: Path
) -> None:
    files = disk_files(name, "8:2", turns=turns, model=model, part=f"{name}2")
    link(tmp_path, "8:2", f"/sys/block/{name}/{name}2")
    found = lies_on(tmp_path, ROOT, "/data", files)
    assert (found.kind, found.device, found.file_system) == (kind, name, "ext4")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("0:50 / /data rw - nfs4 server:/export rw", "network"),
        ("0:50 / /data rw - lustre 10.0.0.1@tcp:/scratch rw", "network"),
        ("0:50 / /data rw - cifs //server/share rw", "network"),
        ("0:50 / /data rw - fuse.sshfs me@server:/ rw", "network"),
        ("0:50 / /data rw - fuse.gcsfuse bucket rw", "network"),
        ("0:50 / /data rw - 9p share rw", "host"),
        ("0:50 / /data rw - virtiofs share rw", "host"),
        ("0:50 / /data rw - tmpfs tmpfs rw,size=1g", "memory"),
        ("0:50 / /data rw - overlay overlay rw,lowerdir=/a", "layers"),
        ("0:50 / /data rw - zfs tank/data rw", "unknown"),
        ("9:9 / /data rw - fuseblk /dev/sdz9 rw", "unknown"),
    ],
)
def test_kind_follows_from_file_system(line: str, kind: str, tmp_path: Path) -> None:
    found = lies_on(tmp_path, f"{ROOT}30 22 {line}\n", "/data/train", {})
    assert (found.kind, found.mount_point) == (kind, "/data")


def test_innermost_and_latest_mount_is_used(tmp_path: Path) -> None:
    table = (
        f"{ROOT}30 22 0:50 / /data rw - tmpfs a rw\n31 30 0:51 / /data/far rw - nfs b:/ rw\n"
        "32 22 0:52 / /data rw - overlay c rw\n33 22 0:53 / /datafar rw - 9p d rw\n"
    )
    root = write_files(tmp_path, {"/proc/self/mountinfo": table})
    sources = {path: find_disk(path, root).source for path in ("/data/x", "/data/far/x", "/data")}
    assert sources == {"/data/x": "c", "/data/far/x": "b:/", "/data": "c"}
    assert find_disk("/elsewhere", root).source == "/dev/sda2"


def test_a_mount_point_with_blanks_is_found(tmp_path: Path) -> None:
    table = f"{ROOT}30 22 0:50 / /my\\040data\\134x rw - nfs server:/a\\040b rw\n"
    found = lies_on(tmp_path, table, "/my data\\x/train", {})
    assert (found.mount_point, found.source) == ("/my data\\x", "server:/a b")


def test_several_disks_count_as_the_slowest(tmp_path: Path) -> None:
    files = {
        **disk_files("nvme0n1", "", turns="0"),
        **disk_files("sda", "", turns="1", part="sda1"),
        **disk_files("dm-0", "", turns="0"),
    }
    root = write_files(tmp_path, {"/proc/self/mountinfo": ROOT, **files})
    slaves = root / "sys/block/dm-0/slaves"
    slaves.mkdir()
    (slaves / "nvme0n1").symlink_to(root / "sys/block/nvme0n1")
    link(root, "8:2", "/sys/block/dm-0")
    assert find_disk("/data", root).kind == "nvme"
    (slaves / "sda1").symlink_to(root / "sys/block/sda/sda1")
    assert find_disk("/data", root).kind == "hdd"


@pytest.mark.parametrize(
    "table", ["", "\n", "1 2 3\n", "a b c d e f\n", " - \n", "22 1 8:2 / / rw - \n", "\udcff\n"]
)
def test_broken_mount_table_has_unknown_disk(table: str, tmp_path: Path) -> None:
    assert lies_on(tmp_path, table, "/data", {}) == Disk(kind="unknown")


def test_without_proc_no_disk_is_known(tmp_path: Path) -> None:
    assert find_disk("/data", tmp_path) == Disk(kind="unknown")


@pytest.mark.skipif(sys.platform != "linux", reason="mounts of Linux")
def test_mounts_of_this_machine_are_read(tmp_path: Path) -> None:
    assert find_disk("/proc").file_system == "proc"
    found = find_disk(tmp_path)
    assert os.path.realpath(tmp_path).startswith(found.mount_point)
    if os.path.ismount("/dev/shm"):
        assert find_disk("/dev/shm").kind == "memory"
    if shutil.which("findmnt") is None:
        return
    told = subprocess.run(
        ["findmnt", "--noheadings", "--output", "FSTYPE,TARGET", "--target", str(tmp_path)],
        capture_output=True, text=True,
    )  # fmt: skip
    if told.returncode == 0:
        assert told.stdout.split() == [found.file_system, found.mount_point]
