"""`feedline train --dry-run`: a plan on the screen and as data, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import Command

from feedline.system import usable_cores

MODEL = "test_resnet.r160_in1k"
QUICK = ("--model", MODEL, "--schedule", "32x1,48x1", "--batch-size", 8, "--device", "cpu")
QUICK = (*QUICK, "--workers", 0, "--dry-run", "--rehearse", 1)


def test_a_plan_is_printed_and_written(feedline: Command, tiny_set: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    ended = feedline("train", tiny_set, *QUICK, "--out", tmp_path / "run", "--json", file)
    assert ended.status == 0, ended.err
    assert ended.err == ""
    for said in ("phases\n", "regularisation\n", "predicted\n", "32 px", "48 px", "measured in"):
        assert said in ended.out
    plan = json.loads(file.read_text())
    assert [phase["size"] for phase in plan["phases"]] == [32, 48]
    assert all(phase["images_per_s"] > 0 for phase in plan["phases"])
    assert plan["rehearsal"]["cores"] == usable_cores()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "resnet19"), "has no model 'resnet19'"),
        (("--rehearse", 0.1), "--rehearse must be from 1"),
        (("--val", "nowhere"), "no such folder"),
        (("--resume", "nowhere"), "no checkpoint there"),
    ],
)
def test_what_cannot_be_used_is_refused(
    feedline: Command, tiny_set: Path, arguments: tuple[object, ...], said: str
) -> None:
    ended = feedline("train", tiny_set, *QUICK, *arguments)
    assert ended.status == 2
    assert said in " ".join(ended.err.split())


def test_a_time_without_a_rehearsal_is_refused(feedline: Command, tiny_set: Path) -> None:
    ended = feedline("train", tiny_set, "--rehearse", 5)
    assert ended.status == 2
    assert "add --dry-run" in ended.err


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:  # it has ended
        return []
    return [int(each) for each in text.split()]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_ctrl_c_leaves_nothing_behind(tiny_set: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "feedline.cli.app", "train", str(tiny_set), "--device", "cpu"]
    command += ["--model", MODEL, "--schedule", "32x1", "--batch-size", "8", "--workers", "1"]
    command += ["--dry-run", "--rehearse", "600"]
    run = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while run.poll() is None and not any(map(children, children(run.pid))):
        time.sleep(0.01)  # until a worker runs
    run.send_signal(signal.SIGINT)
    out, said = run.communicate(timeout=120)
    assert run.returncode == 130, (out, said)
    assert said == "feedline: interrupted\n"
    assert out == ""
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):  # the session has no process left
        os.killpg(run.pid, 0)
