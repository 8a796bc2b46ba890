"""The cores that may be used, and whose share of them this process has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from math import inf

import pytest

from feedline.profile.doctor.cores import check_cores, describe_cores
from feedline.system import CoreLimits

EIGHT = {"machine": 8, "affinity": 8, "quota": inf, "allotted": None, "processes": 1}


def limits(**changes: object) -> CoreLimits:
    return CoreLimits(**{**EIGHT, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "8 cores in the machine: 8 usable"),
        (
            {"affinity": 4, "quota": 3.5},
            "8 cores in the machine, 4 by affinity, quota 3.5: 3 usable",
        ),
        ({"allotted": 2}, "8 cores in the machine, 2 by SLURM: 2 usable"),
        ({"processes": 4}, "8 cores in the machine, shared by 4 training processes: 2 usable"),
    ],
)
def test_line_names_limit_of_cores(changes: dict[str, object], line: str) -> None:
    assert describe_cores(limits(**changes)) == line


@pytest.mark.parametrize(
    ("changes", "usable", "share"),
    [
        ({}, "ok", "ok"),
        ({"affinity": 4}, "note", "ok"),
        ({"quota": 0.5}, "warn", "ok"),
        ({"processes": 4}, "note", "note"),
        ({"processes": 16}, "warn", "warn"),
        ({"allotted": 4}, "note", "ok"),
        ({"allotted": 4, "affinity": 2}, "note", "warn"),
        ({"allotted": 4, "quota": 3.5}, "note", "warn"),
    ],
)
def test_few_cores_and_inconsistent_shares_are_failures(
    changes: dict[str, object], usable: str, share: str
) -> None:
    checks = list(check_cores(limits(**changes)))
    assert [(check.id, check.status) for check in checks] == [
        ("usable-cores", usable),
        ("core-share", share),
    ]


def test_json_has_numbers_and_null_for_no_limit() -> None:
    details = next(iter(check_cores(limits(affinity=4)))).details
    assert json.loads(json.dumps(details)) == details
    assert (details["affinity_cores"], details["quota_cores"]) == (4, None)


LOOK = """
import json, os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from feedline.profile.doctor.cores import check_cores
from feedline.system import core_limits
checks = check_cores(core_limits())
print(json.dumps([dict(check.details, status=check.status) for check in checks]))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_real_affinity_of_one_core_is_detected() -> None:
    environ = {"SLURM_CPUS_PER_TASK": "2", "PATH": os.environ["PATH"]}
    environ |= {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=60, env=environ
    )
    assert done.returncode == 0, done.stderr
    cores, share = json.loads(done.stdout)
    assert (cores["affinity_cores"], cores["usable_cores"], cores["status"]) == (1, 1, "warn")
    assert (share["slurm_cores"], share["status"]) == (2, "warn")
