"""`feedline cache plan`: output, rejected input, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from command_line import Command, Ended

import preloaded
from processes import eventually
from slow import slow

QUICK = ("--seconds", 0.01, "--workers", 0)


@pytest.fixture
def photos(tiny_set: Path) -> Path:
    """16 images of 48 px of two classes."""
    return tiny_set / "train"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, and turns that are as short as can be."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr("feedline.cache.rates._MIN_TURN_S", 0.0)
    return folder


def assert_refused(ended: Ended, *words: str) -> None:
    assert ended.status == 2, ended
    assert "Traceback" not in ended.err
    for word in words:
        assert word in " ".join(ended.err.split()), ended.err


def test_a_plan_is_a_table_with_a_reason_and_a_command(
    feedline: Command, photos: Path, temporary: Path, tmp_path: Path
) -> None:
    target = tmp_path / "plan.json"
    ended = feedline(
        "cache", "plan", photos, "--schedule", "16x2,32x1@8", *QUICK, "--disk", 1,
        "--disk-speed", 2000, "--json", target,
    )  # fmt: skip
    assert (ended.status, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert "16x2,32x1@8" in lines[0]
    heads, originals, *choices = lines[1:6]
    assert heads.split()[:5] == ["16", "px", "32", "px", "loading"]
    assert originals.split()[0] == "originals"
    assert [line.split()[:2] for line in choices] == [
        ["48", "q95"],
        ["19,48", "q95"],
        ["19,48", "raw"],
    ]
    text = " ".join(ended.out.split())
    assert "copy/size" in heads
    assert "1.0 GB of disk" in text
    assert "2.0 GB/s" in text
    assert list(temporary.iterdir()) == []

    plan = json.loads(target.read_text())
    assert plan["source"] == str(photos)
    assert plan["limits"]["disk_bytes"] == 1e9
    assert plan["limits"]["disk_bytes_per_s"] == 2e9
    assert plan["transform"].startswith("TrainCrop(")
    assert plan["reason"] in text
    assert (plan["command"] or "") in text


def test_plan_options_are_passed_on(
    feedline: Command, photos: Path, temporary: Path, tmp_path: Path
) -> None:
    target = tmp_path / "plan.json"
    ended = feedline(
        "cache", "plan", photos, "--schedule", "28x1", *QUICK, "--sizes", "32,40", "--images", 9,
        "--transform", "eval", "--disk", "1e-9", "--json", target,
    )  # fmt: skip
    assert ended.status == 0, ended.err
    plan = json.loads(target.read_text())
    assert plan["images_measured"] == 9
    assert plan["transform"] == "EvalCrop(fraction=0.875, filter='bilinear')"
    assert [level["size_px"] for level in plan["choices"][1]["levels"]] == [32, 40]
    assert plan["recommended"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ("--schedule",)),
        (("--schedule", "16"), ("cannot read '16'", "SIZExEPOCHS")),
        (("--schedule", "ownx3@4"), ("has no image sizes",)),
        (("--schedule", "16x1", "--disk", "lots"), ("--disk", "'lots'")),
        (("--schedule", "16x1", "--disk", "0GB"), ("--disk", "'0GB'")),
        (("--schedule", "16x1", "--disk-speed", "-1"), ("--disk-speed must be", "-1")),
        (("--schedule", "16x1", "--sizes", "a"), ("--sizes", "'a'")),
        (("--schedule", "64x1", "--sizes", "32"), ("image size 64 px",)),
        (("--schedule", "16x1", "--images", 0), ("images", "0")),
        (("--schedule", "16x1", "--seconds", "nan"), ("seconds", "nan")),
        (("--schedule", "16x1", "--transform", "both"), ("both", "train")),
        (("--schedule", "16x1", "--workers", "many"), ("--workers", "many")),
        (("--schedule", "16x1", "--disk", -5), ("--disk", "got -5")),
        (("--schedule", "16x1", "--json", "/nowhere/at/all.json"), ("--json", "/nowhere/at")),
    ],
)
def test_unusable_setting_is_rejected(
    feedline: Command,
    photos: Path,
    temporary: Path,
    arguments: tuple[object, ...],
    words: tuple[str, ...],
) -> None:
    ended = feedline("cache", "plan", photos, *arguments)
    assert_refused(ended, *words)
    assert ended.out == ""
    assert list(temporary.iterdir()) == []


def test_invalid_source_is_rejected(feedline: Command, photos: Path, tmp_path: Path) -> None:
    schedule = "--schedule", "16x1"
    assert_refused(feedline("cache", "plan", tmp_path / "nowhere", *schedule), "no such folder")
    assert feedline("cache", "build", photos, tmp_path / "cache", "--sizes", 16).status == 0
    assert_refused(feedline("cache", "plan", tmp_path / "cache", *schedule), "cache")


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), *slow((signal.SIGTERM, 143))])
def test_signal_leaves_no_process_and_no_copies(
    photos: Path, tmp_path: Path, signum: int, status: int
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    script = "from feedline.cli.app import main; main()"
    command = ["cache", "plan", str(photos), "--schedule", "16x1,32x1", "--workers", "1"]
    run = preloaded.Popen(
        [sys.executable, "-c", script, *command, "--seconds", "600"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"},
    )
    # The last cache is whole: rates are measured now, for minutes.
    assert eventually(lambda: any(folder.glob("*/*-raw/feedline-cache.json")), 60)
    family = psutil.Process(run.pid).children(recursive=True)
    if signum == signal.SIGINT:
        os.killpg(run.pid, signum)  # as a terminal does it: all processes get it
    else:
        run.send_signal(signum)
    out, err = run.communicate(timeout=60)
    assert run.returncode == status, err
    assert out == ""
    assert err == ("interrupted\n" if signum == signal.SIGINT else "")
    _, alive = psutil.wait_procs(family, timeout=30)
    assert alive == []
    assert list(folder.iterdir()) == []
