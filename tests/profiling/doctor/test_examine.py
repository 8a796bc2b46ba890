"""All checks together: each once, none undocumented, without torch, on strange machines too."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import asdict
from pathlib import Path

import pytest
from machine_files import write_files

import feedline.profile.doctor
from feedline.engine.defaults import DEFAULT_PREFETCH, auto_workers
from feedline.errors import UsageError
from feedline.profile.doctor import examine as examining
from feedline.profile.doctor.check import CheckResult
from feedline.profile.doctor.examine import CHECK_IDS, examine

ROOT = Path(__file__).parents[2]
OF_DATA = {"disk", "read-rate", "page-cache"}


def test_each_check_runs_once_and_is_reported_immediately(jpeg_folder: Path) -> None:
    told: list[CheckResult] = []
    found = examine(str(jpeg_folder), tell=told.append)
    assert [check.id for check in found.checks] == list(CHECK_IDS)
    assert tuple(told) == found.checks


def test_without_folder_no_disk_is_checked() -> None:
    found = examine()
    assert [check.id for check in found.checks] == [x for x in CHECK_IDS if x not in OF_DATA]
    assert {check.id: check.status for check in found.checks}["data-folder"] == "unknown"


def test_results_are_json_serialisable(jpeg_folder: Path) -> None:
    found = examine(str(jpeg_folder))
    plain = [asdict(each) for each in (*found.checks, *found.settings)]
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_settings_are_defaults_of_loader() -> None:
    settings = {setting.name: setting for setting in examine().settings}
    assert settings["num_workers"].value == auto_workers()
    assert settings["prefetch"].value == DEFAULT_PREFETCH
    assert all(setting.reason for setting in settings.values())


def test_every_check_in_code_is_listed() -> None:
    named = set()
    for path in Path(feedline.profile.doctor.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "CheckResult":
                (given,) = (word.value for word in node.keywords if word.arg == "id")
                named |= {given.value} if isinstance(given, ast.Constant) else set()
    assert named == set(CHECK_IDS)


@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="tests run apart from the repository")
def test_every_check_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "doctor.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)
    assert rows == list(CHECK_IDS)


def test_invalid_folder_is_rejected_before_any_output(tmp_path: Path) -> None:
    told: list[CheckResult] = []
    with pytest.raises(UsageError, match="does not exist"):
        examine(str(tmp_path / "nowhere"), tell=told.append)
    assert not told


def test_machine_without_proc_and_sys_is_examined(jpeg_folder: Path, tmp_path: Path) -> None:
    found = {check.id: check for check in examine(str(jpeg_folder), root=tmp_path).checks}
    assert list(found) == list(CHECK_IDS)
    assert (found["disk"].status, found["gpu"].status) == ("unknown", "note")


def test_machine_with_invalid_limits_is_examined(tmp_path: Path) -> None:
    root = write_files(
        tmp_path,
        {
            "/proc/self/cgroup": "0::/job\n\udcff",
            "/proc/self/mountinfo": "nonsense",
            "/sys/fs/cgroup/job/cpu.max": "much 0",
            "/sys/fs/cgroup/job/memory.max": "-7",
            "/sys/fs/cgroup/job/memory.current": "",
            "/proc/driver/nvidia/version": "odd",
        },
    )
    found = {check.id: check for check in examine(root=root, environ={}).checks}
    assert found["usable-cores"].details["quota_cores"] is None
    assert found["memory"].details["cgroup_limit_bytes"] is None
    assert found["gpu"].status == "note"


def test_quota_and_limit_are_detected_and_threads_warned_of(tmp_path: Path) -> None:
    root = write_files(
        tmp_path,
        {
            "/proc/self/cgroup": "0::/job",
            "/sys/fs/cgroup/job/cpu.max": "50000 100000",
            "/sys/fs/cgroup/job/memory.max": str(300 << 20),
            "/sys/fs/cgroup/job/memory.current": str(290 << 20),
        },
    )
    examined = examine(root=root, environ={})
    found = {check.id: check for check in examined.checks}
    assert found["usable-cores"].details["quota_cores"] == 0.5
    assert found["usable-cores"].status == "warn"
    assert found["memory"].status == "fail"
    assert {setting.name: setting.value for setting in examined.settings}["num_workers"] == 1


def test_failing_check_does_not_hide_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise RuntimeError("a strange machine")

    for name in ("check_decoder", "find_gpus", "memory_limits"):
        monkeypatch.setattr(examining, name, breaks)
    monkeypatch.setattr(examining, "_memory", lambda root: None)
    found = {check.id: check for check in examine().checks}
    for name in ("jpeg-decoder", "compiled-parts", "gpu", "pcie-link", "memory"):
        assert found[name].summary == "RuntimeError: a strange machine"
        assert found[name].status == "unknown"
    assert found["torch-build"].status == "ok"


QUIET = """
import os, sys
from feedline.profile.doctor.examine import examine
found = examine(sys.argv[1])
assert "torch" not in sys.modules
assert "cv2" not in sys.modules
print({check.id: check.status for check in found.checks}["torch-build"])
"""


def run(arguments: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120,
        env={**os.environ, **environ},
    )  # fmt: skip


def test_torch_is_not_imported(jpeg_folder: Path) -> None:
    done = run(["-c", QUIET, str(jpeg_folder)])
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_missing_torch_is_the_only_failure(jpeg_folder: Path, tmp_path: Path) -> None:
    site = Path(sysconfig.get_path("purelib"))
    for entry in site.iterdir():
        if not entry.name.startswith(("torch", "functorch", "feedline", "__editable__")):
            (tmp_path / entry.name).symlink_to(entry)
    package = Path(feedline.__file__).parent
    (tmp_path / "feedline").symlink_to(package)
    # -S: without installed packages except those linked here.
    done = run(["-S", "-c", QUIET, str(jpeg_folder)], PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "fail\n"), done.stderr
