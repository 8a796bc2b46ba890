"""Progress of `feedline train`, in a bar and without one."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from command_line import run_on_terminal

from feedline.cli.progress import ProgressBar, TrainProgress
from feedline.text import as_seconds
from feedline.timing.steps import StepTimes
from feedline.train.history import EpochRecord, TrainPosition
from feedline.train.recipe import Recipe

NOW = TrainPosition(
    epoch=1,
    epochs=2,
    phase=1,
    phases=2,
    size_px=100,
    step=0,
    steps=60,
    images=0,
    lr=0.00123,
    loss=0.6931,
    split=StepTimes(),
)
RECORD = EpochRecord(
    epoch=1,
    size_px=100,
    steps=10,
    samples=1000,
    seconds=10.0,
    images_per_s=100.0,
    first_wait_s=0.0,
    train_loss=0.7,
    lr=0.001,
    val_samples=500,
    val_top1=0.5,
    val_seconds=5.0,
)
COMMAND = [sys.executable, "-m", "feedline", "train"]
QUICK = ["--device", "cpu", "--model", "test_resnet.r160_in1k", "--batch-size", "8"]
QUICK += ["--workers", "0"]


class Shown(ProgressBar):
    def __init__(self):
        super().__init__("")
        self.text = self.end = ""
        self.done = self.total = 0

    def update(self, done=None, total=None, what="", **fields):
        self.done, self.total = done or self.done, total or self.total
        self.text, self.end = what or self.text, fields.get("end", self.end)


def test_time_left_scales_unknown_sizes_by_their_pixels(capfd):
    """An epoch of 1000 images takes 10 s at 100 px and 40 s at 200 px, a validation 5 s."""
    recipe = Recipe(schedule="100x2,200x3", val_image_size=200)
    shown = TrainProgress(Shown())
    shown.planned(recipe, images=1000, val_images=500, records=[])
    for epoch, left_s in ((1, 10 + 3 * 40 + 4 * 5), (2, 3 * 40 + 3 * 5), (4, 40 + 5)):
        shown.ended(replace(RECORD, epoch=epoch), epochs=5)
        assert capfd.readouterr().out.rstrip().endswith(f"  {as_seconds(left_s)} left")
    shown.ended(replace(RECORD, epoch=5), epochs=5)
    assert "left" not in capfd.readouterr().out


def test_the_bar_shows_the_time_left_over_all_phases():
    bar, times = Shown(), iter([0.0, 1.0, 2.0])
    shown = TrainProgress(bar, clock=lambda: next(times))
    shown.planned(Recipe(schedule="100x1,200x1"), images=100, val_images=0, records=[])
    shown.begin(NOW)
    assert bar.end == ""  # nothing was measured
    for k in (1, 2, 3):
        shown.stepped(replace(NOW, step=k, images=10 * k))
    assert (bar.done, bar.total) == (3, 60)
    assert bar.end == "47 s left"  # 70 images of 0.1 s, 100 of 0.4 s
    shown.validating(done=40)
    assert bar.text.endswith("validated 40")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_terminal_gets_a_bar_on_stderr_and_the_lines(tiny_set, tmp_path):
    command = [*COMMAND, str(tiny_set), *QUICK, "--schedule", "32x1", "--out", str(tmp_path / "r")]
    environ = {**os.environ, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
    run, out, drawn = run_on_terminal(command, environ, stdout=subprocess.PIPE)
    assert run.returncode == 0, drawn
    assert b"epoch 1/1" in out
    assert b"\x1b" not in out
    assert re.search(rb"phase 1/1.*\x1b\[\?25h", drawn, re.DOTALL)  # the cursor is shown again


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no such signals there")
def test_without_a_terminal_a_stop_is_confirmed(tiny_set, tmp_path):
    command = [*COMMAND, str(tiny_set), *QUICK, "--schedule", "32x100000"]
    run = subprocess.Popen(
        [*command, "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    lines = iter(run.stdout.readline, "")
    first = next(line for line in lines if line.startswith("epoch 2/100000"))
    assert first.rstrip().endswith("left")
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=120)
    assert run.returncode == 128 + signal.SIGINT
    confirmed, _, hint = err.splitlines()
    assert confirmed.startswith("Ctrl-C")
    assert hint.startswith("hint: resume with: feedline train --resume ")
