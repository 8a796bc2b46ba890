"""`feedline tune` of code that raises, and of arguments that are refused at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from feedline import DataLoader
from feedline.cli.app import app
from feedline.tuning.rehearsal import Rehearsal
from feedline.tuning.trial import Trial
from feedline.tuning.tune import tune

CODE = """
import time
from torch.utils.data import DataLoader, Dataset

BROKEN = False


class Numbers(Dataset):
    def __init__(self, broken):
        self.broken = broken

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        if self.broken:
            raise ArithmeticError("this sample cannot be made")
        time.sleep(0.005)
        return float(index)


broken = lambda: Numbers(True)
theirs = lambda: DataLoader(Numbers(True), 8, num_workers=1)
fine = lambda: Numbers(False)


def step(batch):
    if BROKEN:
        raise LookupError("the step broke")
    time.sleep(0.01)
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "feedline_broken_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("feedline_broken_code", None)
    return "feedline_broken_code"


@pytest.mark.usefixtures("quick_trials")
def test_a_step_that_raises_leaves_the_trials_before(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Rehearsal.trial

    def breaking(self: Rehearsal, *args: Any, **more: Any) -> Trial:
        found = trial(self, *args, **more)
        sys.modules[code].BROKEN = True  # type: ignore[attr-defined]
        return found

    monkeypatch.setattr(Rehearsal, "trial", breaking)
    file, saved = tmp_path / "tuned.json", tmp_path / "settings.json"
    arguments = ["tune", f"{code}:fine", "--model", f"{code}:step", "--batch-size", "8"]
    arguments += ["--json", str(file), "--save", str(saved), "--what-if", "gpu=2"]
    done = CliRunner().invoke(app, [*arguments, "--budget", "60"])
    assert done.exit_code == 1, done.output
    said = json.loads(file.read_text())
    (phase,) = said["phases"]
    assert phase["ended"] == "error"
    assert "the step raised LookupError: the step broke" in phase["reason"]
    assert len(phase["trials"]) == 1
    assert json.loads(saved.read_text())["loader"]["num_workers"] == phase["num_workers"]
    assert said["not_predicted"][0]["asked"] == "gpu=2"
    lines = done.stderr.splitlines()
    assert "the step raised LookupError: the step broke, after 1 trial, and what" in lines[-1]
    assert lines[-1].startswith(f"feedline: error: {code}:fine: ")
    assert sum("the step broke" in line and line.startswith("LookupError") for line in lines) == 1
    # Its own frames, and none of what called it.
    assert "in step" in done.stderr
    assert "typer" not in done.stderr
    assert "rehearsal.py" not in done.stderr


@pytest.mark.usefixtures("quick_trials")
@pytest.mark.parametrize("source", ["broken", "theirs"])
def test_a_dataset_that_raises_is_shown_once_and_a_line_closes(
    code: str, source: str, tmp_path: Path
) -> None:
    file = tmp_path / "tuned.json"
    arguments = ["tune", f"{code}:{source}", "--step-ms", "5", "--json", str(file)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1, done.output
    (phase,) = json.loads(file.read_text())["phases"]
    assert (phase["ended"], phase["num_workers"]) == ("error", None)
    assert done.stderr.count("Original Traceback") == 1
    assert "in __getitem__" in done.stderr
    last = done.stderr.splitlines()[-1]
    assert "loading a batch raised ArithmeticError: this sample cannot be made" in last
    assert "before the first trial" in last


def test_what_a_worker_says_of_wrong_use_is_one_clear_line(code: str) -> None:
    arguments = ["tune", f"{code}:fine", "--step-ms", "5", "--schedule", "32x1"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.stderr
    assert "Caught" not in done.stderr
    assert "nothing in Numbers asked for the size" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--step-ms", "nan"], "--step-ms must be"),
        (["--step-ms", "3", "--budget", "1"], "--budget must be at least 2 seconds"),
        (["--step-ms", "3", "--batch-size", "few"], "--batch-size must be"),
        (["--step-ms", "3", "--schedule", "16"], "schedule"),
        (["--step-ms", "3", "--what-if", "disk=1"], "disk=1"),
    ],
)
def test_arguments_are_refused_before_anything_large_is_imported(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    script = (
        "import sys, typer\nfrom feedline.cli.app import main\ntry:\n    main(sys.argv[1:])\n"
        "finally:\n    print('torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "tune", str(tmp_path), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert done.stdout.strip() == "False"


@pytest.mark.usefixtures("quick_trials")
def test_an_iteration_that_is_under_way_goes_on() -> None:
    with DataLoader(list(range(64)), 8, num_workers=1) as loader:
        under_way = iter(loader)
        next(under_way)
        state = loader.state_dict()
        tune(loader, step_ms=5, budget_s=2)
        assert loader.state_dict() == state
        assert next(under_way).tolist() == list(range(8, 16))
        assert sum(1 for _ in under_way) == 6
        assert next(iter(loader)).tolist() == list(range(8, 16))


@pytest.mark.usefixtures("quick_trials")
def test_a_budget_that_was_too_short_is_named(code: str) -> None:
    arguments = ["tune", f"{code}:fine", "--step-ms", "300", "--budget", "2"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 3, done.output
    assert "by --budget" in done.stdout
    last = done.stderr.splitlines()[-1]
    assert "the time was over before the search was; run it again with --budget " in last
