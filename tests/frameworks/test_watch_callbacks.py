"""Runs recorded in Lightning and Accelerate, in a process of their own."""

import subprocess
import sys

import pytest

from feedline.timing.run_file import read_run

LIGHTNING = """
import sys, warnings
warnings.simplefilter("ignore")
import lightning, torch
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset
import feedline
from feedline.integrations.lightning import WatchCallback

class Learner(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
    def training_step(self, batch, index):
        if sys.argv[2] == "raise" and index == 3:
            raise ArithmeticError("the step broke")
        return self.net(batch[0]).mean()
    def validation_step(self, batch, _):
        return self.net(batch[0]).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.0)

def main():
    data = TensorDataset(torch.arange(22.0)[:, None])
    kind = feedline.DataLoader if sys.argv[1] == "feedline" else DataLoader
    loader = kind(data, 4, num_workers=1)
    told = []
    watch = WatchCallback(run="run", every_s=1e-9, metrics=told.append)
    logging = WatchCallback(every_s=1e-9)
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=2, logger=CSVLogger("logs", flush_logs_every_n_steps=1),
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        callbacks=[watch, logging], log_every_n_steps=1,
    )
    try:
        trainer.fit(Learner(), loader, DataLoader(data, 8))
    except ArithmeticError:
        print("raised")
    assert told and all(type(value) is float for figures in told for value in figures.values())
    assert any("feedline/wait_ms_p95" in figures for figures in told), told
    print(watch.run.passes[-1].ended)

if __name__ == "__main__":
    main()
"""

ACCELERATE = """
import warnings
warnings.simplefilter("ignore")
import json, torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker
from torch.utils.data import DataLoader, TensorDataset
import feedline
from feedline.integrations.accelerate import prepare, tracker

class Kept(GeneralTracker):
    name, requires_logging_directory, tracker, main_process_only = "kept", False, None, True
    def __init__(self):
        super().__init__()
        self.told = []
    def store_init_configuration(self, values):
        pass
    def log(self, values, step=None, **_):
        self.told.append((step, values))

def main():
    kept = Kept()
    accelerator = Accelerator(cpu=True, log_with=kept)
    accelerator.init_trackers("project")
    data = TensorDataset(torch.arange(22.0)[:, None])
    for kind in ("torch", "feedline"):
        if kind == "torch":
            loader = accelerator.prepare(DataLoader(data, 4, num_workers=1, shuffle=True))
        else:
            loader = prepare(accelerator, feedline.DataLoader(data, 4, num_workers=1, shuffle=True))
        kept.told.clear()
        watched = feedline.watch(loader, panel=False, metrics=tracker(accelerator), every_s=1e-9,
                                 name=kind)
        seen = sorted(int(x) for batch in watched for x in batch[0])
        assert seen == list(range(22)), seen
        run = watched.run
        assert [entry.batches for entry in run.passes] == [6], run.passes
        assert run.tasks >= 6, (kind, run.tasks)
        assert run.loaders[0].kind == kind, run.loaders
        steps = [step for step, _ in kept.told]
        assert steps == sorted(steps) and steps[-1] == 6, steps
    print("well")

if __name__ == "__main__":
    main()
"""


def run_script(text, folder, *arguments):
    script = folder / "script.py"
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["feedline", "torch"])
def test_training_of_lightning_is_recorded(kind, tmp_path):
    pytest.importorskip("lightning")
    assert run_script(LIGHTNING, tmp_path, kind, "").split() == ["exhausted"]
    run = read_run(tmp_path / "run")
    assert [entry.batches for entry in run.passes if entry.loader == 0] == [6, 6]
    assert [entry.epoch for entry in run.passes] == [0, 1]
    assert all(entry.wait.count == 5 for entry in run.passes)
    assert run.loaders[0].kind == kind
    (logged,) = tmp_path.glob("logs/**/metrics.csv")
    assert "feedline/wait_pct" in logged.read_text()


@pytest.mark.slow
def test_step_of_lightning_that_raises_is_recorded(tmp_path):
    pytest.importorskip("lightning")
    assert run_script(LIGHTNING, tmp_path, "torch", "raise").split() == ["raised", "raised"]
    (entry,) = read_run(tmp_path / "run").passes
    assert (entry.batches, entry.ended) == (4, "raised")


@pytest.mark.slow
def test_accelerate_loaders_are_watched_and_trackers_are_called(tmp_path):
    pytest.importorskip("accelerate")
    assert run_script(ACCELERATE, tmp_path) == "well\n"
