"""`feedline tune` of functions that are named on the command line: what they return, and errors."""

import json
import sys

import pytest
from torch.utils.data import DataLoader as TorchDataLoader

from feedline import DataLoader
from feedline.cli.tune_search import build_loader, import_function, is_function_name
from feedline.errors import UsageError
from feedline.tuning.tune import StepBenchmark, tune
from processes import newcomers, own_family

CODE = """
import time
import feedline
from torch.utils.data import DataLoader, Dataset, IterableDataset

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
    assert len(batch) in (4, 8)
    time.sleep(0.01)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(9))


class Within:
    def step(batch):
        return batch


def missing():
    return feedline.ImageFolder("no such folder")


def raising():
    raise OSError("no such disk")


numbers = list(range(300))
loader = lambda: DataLoader(numbers, 4, num_workers=1)
dataset = lambda: numbers
nothing = lambda: None
few = lambda: [1, 2, 3]
empty = lambda: []
"""


@pytest.fixture(autouse=True)
def code(tmp_path, monkeypatch):
    (tmp_path / "feedline_named_code.py").write_text(CODE)
    (tmp_path / "feedline_named_broken.py").write_text("import feedline_no_such_module\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("feedline_named_code", None)
    return "feedline_named_code"


@pytest.mark.slow
@pytest.mark.usefixtures("quick_trials")
@pytest.mark.parametrize("source", ["loader", "dataset"])
def test_functions_are_tuned(feedline, code, tmp_path, source):
    file = tmp_path / "tuned.json"
    done = feedline(
        *("tune", f"{code}:{source}", "--model", f"{code}:step", "--budget", 120, "--json", file),
        *("--what-if", "workers=2,cores=4", "--what-if", "gpu=0.5"),
        *(("--batch-size", 4) if source == "dataset" else ()),
    )
    assert done.status in (0, 3), done.output  # 3: the machine was too busy for a whole search
    kind = "torch.utils.data" if source == "loader" else "feedline"
    assert f"{kind}.DataLoader(..., num_workers=" in done.output
    assert "what if gpu=0.5 (images/s)" in done.output
    said = json.loads(file.read_text())
    assert [each["changes"]["gpu"] for each in said["what_if"]] == [None, 0.5]
    assert said["not_predicted"] == []


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
    file, before = tmp_path / "tuned.json", own_family()
    done = feedline("tune", f"{code}:{source}", "--step-ms", "5", "--json", str(file))
    assert not newcomers(before)
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


def test_result_of_a_named_function_becomes_loader():
    assert is_function_name("a.b:c.d")
    for other in ("a", "a/b", "C:\\data", "a:", ":b", "a:b:c", "gs://a/b"):
        assert not is_function_name(other), other
    assert import_function("feedline_named_code:Within.step")(7) == 7
    given = build_loader("feedline_named_code:loader")
    assert type(given) is TorchDataLoader
    assert given.batch_size == 4
    assert type(build_loader("feedline_named_code:Stream")) is TorchDataLoader
    with build_loader("feedline_named_code:dataset", batch_size=32) as own:
        assert isinstance(own, DataLoader)
        assert (own.batch_size, own.num_workers > 0) == (32, True)
    with pytest.raises(UsageError, match="--batch-size"):
        build_loader("feedline_named_code:loader", batch_size=8)


INVALID = {
    "feedline_no_module:loader": "not found",
    "feedline_named_code:lader": "no function 'lader'",
    "feedline_named_code:numbers": "not a function",
    "feedline_named_code:nothing": "NoneType",
    "feedline_named_code:few": "3 samples, fewer than one batch of 64",
    "feedline_named_code:empty": "0 samples",
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_function_is_reported(name):
    with pytest.raises(UsageError, match=INVALID[name]):
        build_loader(name)


def test_exception_in_user_code_is_named_with_location():
    said = (
        r"importing 'feedline_named_broken' raised ModuleNotFoundError: .*feedline_no_such_module"
    )
    with pytest.raises(UsageError, match=said):
        import_function("feedline_named_broken:loader")
    said = r"code:raising', .* raised OSError: no such disk\n  [^\n]*, line \d+: raise OSError"
    with pytest.raises(UsageError, match=said) as caught:
        build_loader("feedline_named_code:raising")
    assert "tune_search.py" not in str(caught.value)
    with pytest.raises(UsageError, match=r"raised feedline.errors.DatasetError: ") as caught:
        build_loader("feedline_named_code:missing")
    assert str(caught.value).count(", line ") == 1
