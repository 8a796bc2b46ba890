"""Limits on the number of open files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from feedline.profile.doctor.memory import check_open_files

resource = pytest.importorskip("resource")

LOOK = """
import json, resource, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
soft = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft if sys.argv[2:] else hard))
from feedline.profile.doctor.memory import check_open_files
check = check_open_files()
print(json.dumps({"status": check.status, "fix": check.fix, **check.details}))
"""


def looked(*arguments: object) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", LOOK, *map(str, arguments)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("soft", "status"), [(1024, "ok"), (1023, "warn"), (31, "fail")])
def test_low_limit_is_a_failure(soft: int, status: str) -> None:
    found = looked(soft)
    assert (found["status"], found["soft_limit"]) == (status, soft)
    assert (status == "ok") or str(found["fix"]).startswith("ulimit -n ")


def test_fixed_limit_has_another_remedy() -> None:
    found = looked(512, "hard")
    assert found["hard_limit"] == 512
    assert "limits.conf" in str(found["fix"])


def test_the_files_of_this_process_are_counted() -> None:
    before = check_open_files().details["open"]
    if before is None:
        pytest.skip("no list of open files here")
    with open(__file__):
        assert check_open_files().details["open"] == before + 1


def test_open_files_are_unknown_without_listing(tmp_path: Path) -> None:
    assert check_open_files(tmp_path / "fd").details["open"] is None
