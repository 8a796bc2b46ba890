"""`feedline tune` of code that raises, and of arguments that are refused at once."""

import json
import sys

import pytest

from feedline import DataLoader
from feedline.tuning.tune import StepBenchmark, tune

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
def code(tmp_path, monkeypatch):
    (tmp_path / "feedline_broken_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("feedline_broken_code", None)
    return "feedline_broken_code"


@pytest.mark.usefixtures("quick_trials")
def test_failing_step_keeps_earlier_trials(feedline, code, tmp_path, monkeypatch):
    trial = StepBenchmark.trial

    def breaking(self, *args, **more):
        found = trial(self, *args, **more)
        sys.modules[code].BROKEN = True
        return found

    monkeypatch.setattr(StepBenchmark, "trial", breaking)
    file, saved = tmp_path / "tuned.json", tmp_path / "settings.json"
    arguments = ["tune", f"{code}:fine", "--model", f"{code}:step", "--batch-size", "8"]
    arguments += ["--json", str(file), "--save", str(saved), "--what-if", "gpu=2"]
    done = feedline(*arguments, "--budget", "60")
    assert done.status == 1, done.output
    said = json.loads(file.read_text())
    (phase,) = said["phases"]
    assert phase["status"] == "error"
    assert "the step raised LookupError: the step broke" in phase["reason"]
    assert len(phase["trials"]) == 1
    assert json.loads(saved.read_text())["loader"]["num_workers"] == phase["num_workers"]
    assert said["not_predicted"][0]["asked"] == "gpu=2"
    lines = done.err.splitlines()
    assert lines[-1].startswith(f"error: {code}:fine: ")
    assert "LookupError: the step broke" in lines[-1]
    assert "1 trial" in lines[-1]
    assert sum("the step broke" in line and line.startswith("LookupError") for line in lines) == 1
    # Frames of the user's code, without its callers.
    assert "in step" in done.err
    assert "typer" not in done.err
    assert "tune.py" not in done.err


@pytest.mark.usefixtures("quick_trials")
@pytest.mark.parametrize("source", ["broken", "theirs"])
def test_failing_dataset_is_reported_once_after_closing_the_progress_line(
    feedline, code, source, tmp_path
):
    file = tmp_path / "tuned.json"
    arguments = ["tune", f"{code}:{source}", "--step-ms", "5", "--json", str(file)]
    done = feedline(*arguments)
    assert done.status == 1, done.output
    (phase,) = json.loads(file.read_text())["phases"]
    assert (phase["status"], phase["num_workers"]) == ("error", None)
    assert done.err.count("Original Traceback") == 1
    assert "in __getitem__" in done.err
    last = done.err.splitlines()[-1]
    assert "ArithmeticError: this sample cannot be made" in last


def test_usage_error_in_worker_prints_one_line(feedline, code):
    arguments = ["tune", f"{code}:fine", "--step-ms", "5", "--schedule", "32x1"]
    done = feedline(*arguments)
    assert done.status == 2, done.output
    assert "Traceback" not in done.err
    assert "Caught" not in done.err
    assert "nothing in Numbers asked for the size" in done.err


@pytest.mark.usefixtures("quick_trials")
def test_running_iteration_continues():
    with DataLoader(list(range(64)), 8, num_workers=1) as loader:
        under_way = iter(loader)
        next(under_way)
        state = loader.state_dict()
        tune(loader, step_ms=5, budget_s=2)
        assert loader.state_dict() == state
        assert next(under_way).tolist() == list(range(8, 16))
        assert sum(1 for _ in under_way) == 6
        assert next(iter(loader)).tolist() == list(range(8, 16))
