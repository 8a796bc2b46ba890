"""What `feedline train` shows of a run, in a bar and without one."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from feedline.cli.train_progress import (
    TrainProgress,
    epoch_line,
    standing_lines,
    stopping_line,
)
from feedline.trace.split import Totals
from feedline.train.journal import EpochRecord
from feedline.train.pace import Pace
from feedline.train.recipe import Recipe
from feedline.train.standing import Standing

NOW = Standing(
    epoch=3,
    epochs=6,
    phase=2,
    phases=3,
    size_px=160,
    done=30,
    total=60,
    images=100,
    lr=0.00123,
    loss=0.6931,
    split=Totals(),
)
RECORD = EpochRecord(
    epoch=3,
    size_px=160,
    steps=10,
    samples=1000,
    seconds=10.0,
    images_per_s=100.0,
    first_wait_s=0.0,
    train_loss=0.7,
    lr=0.001,
    val_samples=100,
    val_top1=0.5,
    val_seconds=1.0,
)


def paced() -> Pace:
    pace = Pace()
    pace.add(0.0, 0, Totals())
    pace.add(2.0, 200, Totals(2, 100.0, 0.0, 1900.0))
    return pace


def test_a_standing_says_what_goes_on() -> None:
    where, how = standing_lines(NOW, paced(), 0.614).split("\n")
    assert where == "phase 2/3, 160 px, epoch 3/6"
    assert how == "lr 0.0012  loss 0.693  top-1 61.4%  100 images/s  wait 5%"
    assert standing_lines(replace(NOW, loss=None), Pace(), None).endswith("\nlr 0.0012")


def test_a_line_of_an_epoch_ends_with_what_is_left() -> None:
    assert epoch_line(RECORD, epochs=6, left_s=125.0).endswith("100 images/s  2 min left")
    assert "left" not in epoch_line(RECORD, epochs=6)
    assert "left" not in epoch_line(RECORD, epochs=6, left_s=0.0)


def test_the_bar_reckons_with_what_phases_to_come_cost() -> None:
    seen = io.StringIO()
    console = Console(file=seen, force_terminal=True, width=80)
    times = iter([0.0, 1.0, 2.0])
    with Progress(TextColumn("{task.description}"), console=console) as bar:
        shown = TrainProgress(bar, clock=lambda: next(times))
        recipe = Recipe(schedule="100x1,200x1")
        shown.planned(recipe, images=100, val_images=0, records=[])
        now = replace(NOW, epoch=1, epochs=2, phase=1, phases=2, size_px=100, done=0, images=0)
        shown.begin(now)
        (task,) = bar.tasks
        assert task.fields["left"] == ""  # nothing was measured
        for k in (1, 2, 3):
            shown.stepped(replace(now, done=k, images=10 * k))
        assert (task.completed, task.total) == (3, 60)
        assert "phase 1/2, 100 px, epoch 1/2" in task.description
        assert "10 images/s" in task.description
        assert task.fields["left"] == "47 s left"  # 70 images of 0.1 s, 100 of 0.4 s
        shown.validating(rows=40)
        assert task.description.endswith("validated 40")
        shown.stopping(signal.SIGTERM)
    assert stopping_line(signal.SIGTERM) in seen.getvalue()


def test_a_stop_is_named_for_its_signal() -> None:
    assert stopping_line(signal.SIGINT).startswith("Ctrl-C: finishing this step")
    assert "a second Ctrl-C leaves at once" in stopping_line(signal.SIGINT)
    said = stopping_line(signal.SIGTERM)
    assert said.startswith("SIGTERM: ")
    assert "a second SIGTERM leaves at once" in said
    assert "Ctrl-C" not in said


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no such signals there")
def test_a_run_without_a_terminal_says_that_a_stop_was_heard(
    tiny_set: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "feedline.cli.app", "train", str(tiny_set), "--device", "cpu"]
    command += ["--model", "test_resnet.r160_in1k", "--schedule", "32x100000", "--batch-size", "8"]
    command += ["--workers", "0", "--out", str(tmp_path / "run")]
    run = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert run.stdout is not None
    lines = iter(run.stdout.readline, "")
    first = next(line for line in lines if line.startswith("epoch 2/100000"))
    assert first.rstrip().endswith("left")
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=120)
    assert run.returncode == 128 + signal.SIGINT
    heard, stopped = said.splitlines()
    assert heard == stopping_line(signal.SIGINT)
    assert stopped.startswith("stopped; everything is in")
