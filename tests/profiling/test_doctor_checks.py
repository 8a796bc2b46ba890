"""All checks: each once, none undocumented, without torch, on machines that fail or hang, too."""

import os
import re
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

import psutil
import pytest

import feedline
from feedline import machine
from feedline.engine.defaults import DEFAULT_PREFETCH, auto_workers
from feedline.profile import doctor_machine
from feedline.profile.doctor import CHECK_IDS, CheckRun, answer_within, examine
from feedline.profile.doctor_machine import CheckResult, NotMeasuredError
from machine_files import write_files

ROOT = Path(__file__).parents[2]
OF_DATA = {"disk", "read-rate", "page-cache"}

# One check


@pytest.mark.parametrize("status", ["warn", "fail"])
def test_failure_has_a_remedy_and_foreign_text_stays_on_one_line(status):
    with pytest.raises(ValueError, match="fix"):
        CheckResult(status, "few")
    assert CheckResult(status, "few", fix="get more").is_fault
    check = CheckResult(
        status,
        "two\nlines\r\nand \x1b[31mred\x07, \udcff, \u202eback",
        fix="a\tb\u2028c",
    )
    assert check.summary == "two lines and \\x1b[31mred\\x07, \\udcff, \\u202eback"
    assert check.fix == "a\\tb c"
    assert len(CheckResult("ok", "m" * 5000).summary) == 1003


def run_of(deadline_s, **facts):
    """A run of the checks "one" and "two", which need the fact "value"; "two" can do without."""

    def one(value):
        return CheckResult("ok", value)

    def two(value="without"):
        return CheckResult("ok", value)

    unlimited = ["one", "two", *facts] if deadline_s is None else []
    checks = {"one": one, "two": two}
    return CheckRun(checks, facts, {}, deadline_s=deadline_s or 30.0, unlimited=unlimited)


@pytest.mark.parametrize("deadline_s", [None, 30.0])
def test_facts_are_found_once(deadline_s):
    found = []

    def value(part):
        found.append(part)
        return part * 2

    run = run_of(deadline_s, value=value, part=lambda: "x")
    assert [run.check(name).summary for name in ("one", "two", "one")] == ["xx"] * 3
    assert (found, run.fact("value"), run.fact("gone", 3)) == (["x"], "xx", 3)


@pytest.mark.parametrize("deadline_s", [None, 30.0])
def test_a_fact_that_is_not_found_is_the_reason(deadline_s):
    def breaks():
        raise OSError(5, "Input/output error")

    run = run_of(deadline_s, value=breaks)
    assert run.check("one") == CheckResult("unknown", "OSError: [Errno 5] Input/output error")
    assert run.check("two") == CheckResult("ok", "without")

    def skips():
        raise NotMeasuredError("no folder", "name it")

    assert run_of(deadline_s, value=skips).check("one") == CheckResult(
        "unknown", "no folder", fix="name it"
    )


def test_endless_check_fails_without_blocking():
    go_on, starts = threading.Event(), list[None]()

    def endless():
        starts.append(None)
        go_on.wait()

    run = run_of(0.05, value=endless)
    try:
        results = [run.check(name) for name in ("one", "two", "one")]
    finally:
        go_on.set()
    assert [result.status for result in results] == ["fail", "ok", "fail"]
    assert results[0].summary == "no answer within 0.05 s"
    assert len(starts) == 1


def test_exit_exceptions_are_not_caught_as_failed_checks():
    def stops():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_of(30.0, value=stops).check("one")
    with pytest.raises(SystemExit):
        answer_within(30.0, lambda: exit(3))


# All checks


def test_without_folder_no_disk_is_checked_and_settings_are_defaults_of_loader():
    found = examine()
    assert list(found.checks) == [name for name in CHECK_IDS if name not in OF_DATA]
    assert found.checks["data-folder"].status == "unknown"
    settings = {setting.name: setting for setting in found.settings}
    assert settings["num_workers"].value == auto_workers()
    assert settings["prefetch"].value == DEFAULT_PREFETCH
    assert all(setting.reason for setting in settings.values())


@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="tests run apart from the repository")
def test_every_check_is_documented():
    page = (ROOT / "docs" / "reference" / "doctor.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)
    assert rows == list(CHECK_IDS)


def test_machine_without_proc_and_sys_is_examined_and_quota_and_limit_detected(
    jpeg_folder, tmp_path
):
    found = examine(str(jpeg_folder), root=tmp_path).checks
    assert list(found) == list(CHECK_IDS)
    assert (found["disk"].status, found["gpu"].status) == ("unknown", "note")
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
    found = examined.checks
    assert found["usable-cores"].details["quota_cores"] == 0.5
    assert found["usable-cores"].status == "warn"
    assert found["memory"].status == "fail"
    assert {setting.name: setting.value for setting in examined.settings}["num_workers"] == 1


def test_failing_check_does_not_hide_others(monkeypatch):
    def breaks(*_):
        raise RuntimeError("a strange machine")

    monkeypatch.setattr(doctor_machine, "_why_missing", breaks)
    monkeypatch.setattr(psutil, "virtual_memory", breaks)
    monkeypatch.setattr(machine, "_open_nvml", breaks)
    monkeypatch.setattr(machine, "_folders", breaks)
    found = examine().checks
    for name in ("decoders", "compiled-parts", "gpu", "pcie-link", "memory"):
        assert found[name].summary == "RuntimeError: a strange machine"
        assert found[name].status == "unknown"
    assert found["torch-build"].status == "ok"
    assert found["shared-memory"].status != "unknown"


QUIET = """
import os, sys
from feedline.profile.doctor import examine
found = examine(sys.argv[1])
assert "torch" not in sys.modules
assert "cv2" not in sys.modules
print(found.checks["torch-build"].status)
"""


def run(arguments, **environ):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120,
        env={**os.environ, **environ},
    )  # fmt: skip


def test_torch_is_not_imported(jpeg_folder):
    done = run(["-c", QUIET, str(jpeg_folder)])
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_missing_torch_is_the_only_failure(jpeg_folder, tmp_path):
    site = Path(sysconfig.get_path("purelib"))
    for entry in site.iterdir():
        if not entry.name.startswith(("torch", "functorch", "feedline", "__editable__")):
            (tmp_path / entry.name).symlink_to(entry)
    package = Path(feedline.__file__).parent
    (tmp_path / "feedline").symlink_to(package)
    # -S: without installed packages except those linked here.
    done = run(["-S", "-c", QUIET, str(jpeg_folder)], PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "fail\n"), done.stderr
