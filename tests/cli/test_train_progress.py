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
from rich.progress import Progress as Bar
from rich.progress import TextColumn

from feedline.cli.train_progress import TrainProgress, epoch_line, seconds_left, stopping_line
from feedline.trace.split import Totals
from feedline.train.history import EpochRecord, TrainPosition
from feedline.train.recipe import Recipe

NOW = TrainPosition(
    epoch=3,
    epochs=6,
    phase=2,
    phases=3,
    size_px=160,
    step=30,
    steps=60,
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


def test_the_bar_shows_position_rates_and_waiting() -> None:
    with Bar(TextColumn("{task.description}"), disable=True) as bar:
        times = iter([0.0, 2.0])
        shown = TrainProgress(bar, clock=lambda: next(times))
        shown.planned(Recipe(schedule="160x6"), images=1000, val_images=0, records=[])
        shown.stepped(replace(NOW, images=0, loss=None))
        shown.stepped(replace(NOW, images=200, split=Totals(2, 100.0, 0.0, 1900.0)))
        (task,) = bar.tasks
        where, how = task.description.split("\n")
    assert where == "phase 2/3, 160 px, epoch 3/6"
    assert how == "lr 0.0012  loss 0.693  100 images/s  wait 5%"


def test_time_left_scales_unknown_sizes_by_their_pixels() -> None:
    recipe = Recipe(schedule="100x2,200x3", val_image_size=200)

    def left(costs: dict[int, float], val: dict[int, float], **at: int) -> float | None:
        return seconds_left(recipe, costs, val, images=1000, **{"val_images": 0, "epoch": 0, **at})

    assert left({}, {}) is None
    assert left({100: 0.01}, {}, done=100) == pytest.approx(0.9 * 10 + 10 + 3 * 40)
    assert left({100: 0.01, 200: 0.02}, {}, epoch=3) == pytest.approx(2 * 20)
    third = 5 * 500 * 0.04 / 3
    assert left({100: 0.01}, {}, val_images=500) == pytest.approx(2 * 10 + 3 * 40 + third)
    assert left({100: 0.01}, {200: 0.004}, val_images=500) == pytest.approx(20 + 120 + 5 * 2)
    assert left({100: 0.01}, {}, epoch=5) == 0


def test_a_line_of_an_epoch_ends_with_the_time_left() -> None:
    assert epoch_line(RECORD, epochs=6, left_s=125.0).endswith("100 images/s  2 min left")
    assert "left" not in epoch_line(RECORD, epochs=6)
    assert "left" not in epoch_line(RECORD, epochs=6, left_s=0.0)


def test_the_bar_shows_the_time_left_over_all_phases() -> None:
    seen = io.StringIO()
    console = Console(file=seen, force_terminal=True, width=80)
    times = iter([0.0, 1.0, 2.0])
    with Bar(TextColumn("{task.description}"), console=console) as bar:
        shown = TrainProgress(bar, clock=lambda: next(times))
        recipe = Recipe(schedule="100x1,200x1")
        shown.planned(recipe, images=100, val_images=0, records=[])
        now = replace(NOW, epoch=1, epochs=2, phase=1, phases=2, size_px=100, step=0, images=0)
        shown.begin(now)
        (task,) = bar.tasks
        assert task.fields["left"] == ""  # nothing was measured
        for k in (1, 2, 3):
            shown.stepped(replace(now, step=k, images=10 * k))
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
    assert stopped.startswith("stopped; resume with")
