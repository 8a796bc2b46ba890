"""Whole runs: they learn, record their history, and resume exactly."""

import csv
import errno
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from tiny_training import Recorder, assert_same_training

from feedline.errors import StateError, UsageError
from feedline.order.sample_order import Order
from feedline.order.schedule import Schedule
from feedline.profile.report import load_report
from feedline.randomness import fingerprint
from feedline.train.config import make_recipe, read_config
from feedline.train.recipe import Recipe, RunSettings
from feedline.train.run import train_model
from feedline.train.run_folder import CheckpointWriter, load_checkpoint, lock_run_folder
from feedline.train.train_state import TrainState

MODEL = "test_resnet.r160_in1k"
RECIPE = Recipe().as_dict()
STEPS_PER_EPOCH = 5  # 40 images in batches of 8


def tiny_recipe(**settings):
    return Recipe(**{"model": MODEL, "schedule": "32x2,48x1", "batch_size": 8, **settings})


def run(root, out, report, **settings):
    decisive = {name: settings.pop(name) for name in list(settings) if name in RECIPE}
    place = {"data": root, "out": out, "device": "cpu", "workers": 0, **settings}
    return train_model(tiny_recipe(**decisive), RunSettings(**place), report=report)


def stop_with(signum):
    return lambda: os.kill(os.getpid(), signum)


@pytest.fixture(scope="module")
def uninterrupted(tiny_set, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "whole"
    run(tiny_set, out, Recorder())
    return out


def test_run_learns_and_records_history(tiny_set, tmp_path):
    report, before = Recorder(), fingerprint()[1:]  # torch's is the training's
    result = run(tiny_set, tmp_path / "out", report, lr=0.01)
    assert fingerprint()[1:] == before
    assert result.stopped_by is None
    assert result.classes == ["class0", "class1"]
    assert report.steps == list(range(1, 16))
    assert report.begun == [(1, 32, 0), (2, 32, 5), (3, 48, 10)]
    assert report.records == result.records
    assert [(r.epoch, r.size_px, r.steps, r.samples) for r in result.records] == [
        (1, 32, 5, 40),
        (2, 32, 5, 40),
        (3, 48, 5, 40),
    ]
    assert all(r.val_samples == 12 and r.val_top5 is None for r in result.records)
    assert all(r.compute_ms and r.compute_ms > 0 for r in result.records)
    assert report.validated == [8, 12] * 3
    assert result.best_top1 == max(r.val_top1 or 0 for r in result.records)
    assert result.best_top1 > 0.9
    json.dumps(result.as_dict(), allow_nan=False)


def test_step_whose_last_batch_is_left_out_is_taken(tiny_set, tmp_path):
    root = tmp_path / "set"
    shutil.copytree(tiny_set, root)
    paths = sorted((root / "train").rglob("*.jpg"))
    order = Order(length=len(paths), batch_size=8, seed=0, schedule=Schedule.of("32x1"))
    for sample in order.batch(0, 1).samples:
        paths[sample].write_bytes(b"torn")
    report = Recorder()
    options = {"schedule": "32x1", "grad_accum_steps": 2, "on_error": "skip"}
    result = run(root, tmp_path / "out", report, **options)
    assert report.steps == [2, 3]
    assert [(record.steps, record.samples) for record in result.records] == [(4, 32)]
    assert {Path(path) for path, _ in result.skipped} == {
        paths[sample] for sample in order.batch(0, 1).samples
    }


@pytest.mark.parametrize("step", [3, 10])
def test_run_stopped_by_ctrl_c_resumes_to_same_weights(tiny_set, uninterrupted, tmp_path, step):
    first = run(tiny_set, tmp_path / "out", Recorder(after=step, do=stop_with(signal.SIGINT)))
    assert first.stopped_by == signal.SIGINT
    second = Recorder()
    result = run(tiny_set, tmp_path / "out", second, resume="auto")
    assert second.steps == list(range(step + 1, 16))
    assert [r.samples for r in result.records] == [40, 40, 40]
    assert_same_training(tmp_path / "out", uninterrupted)
    whole = load_checkpoint(uninterrupted)["history"]["records"]
    for mine, other in zip(result.records, whole, strict=True):
        assert (mine.train_loss, mine.val_top1) == (other["train_loss"], other["val_top1"])


@pytest.fixture(scope="module", autouse=True)
def _dropout_model():
    """Register a model with timm, which is only imported for these tests; see `needs`."""
    import timm

    timm.models.register_model(feedline_test_dropout)


def feedline_test_dropout(pretrained=False, **settings):
    """A model whose steps draw random numbers."""
    import timm

    return timm.create_model(MODEL, pretrained=pretrained, drop_rate=0.5, **settings)


def test_dropout_of_model_is_kept_by_default():
    for asked, expected in ((0.0, (0.5, 0.2)), (0.4, (0.25, 0.1))):
        model = torch.nn.Sequential(
            torch.nn.Dropout(0.5), torch.nn.Linear(2, 2), torch.nn.Dropout(0.2)
        )
        recipe = Recipe(
            schedule=[{"size": 8, "epochs": 1, "drop": asked / 2}, {"size": 8, "epochs": 1}],
            drop=asked,
        )
        TrainState(model, recipe, device=torch.device("cpu"), precision=torch.float32)
        assert (model[0].p, model[2].p) == expected


def test_stopped_run_resumes_with_random_states(tiny_set, tmp_path):
    model = "feedline_test_dropout"
    run(tiny_set, tmp_path / "whole", Recorder(), model=model, schedule="32x1")
    stop = Recorder(after=2, do=stop_with(signal.SIGINT))
    run(tiny_set, tmp_path / "out", stop, model=model, schedule="32x1")
    begun = torch.Generator().manual_seed(0).get_state()
    assert not torch.equal(load_checkpoint(tmp_path / "out")["random"][0]["cpu"], begun)
    torch.rand(3)
    run(tiny_set, tmp_path / "out", Recorder(), model=model, schedule="32x1", resume="auto")
    assert_same_training(tmp_path / "out", tmp_path / "whole")


def test_the_times_of_a_stopped_run_are_in_its_checkpoint_and_in_the_epochs_record(
    tiny_set, tmp_path
):
    stop = Recorder(after=3, do=stop_with(signal.SIGINT))
    run(tiny_set, tmp_path / "out", stop, schedule="32x1")
    running = load_checkpoint(tmp_path / "out")["history"]["current"]
    steps, wait_ms, copy_ms, compute_ms = running["split"]
    assert (running["steps"], running["samples"]) == (3, 24)
    assert steps == 2  # the wait for the first batch of a pass belongs to no step
    assert min(wait_ms, copy_ms, compute_ms) > 0
    assert running["seconds"] > 0
    assert running["first_wait_s"] > 0
    result = run(tiny_set, tmp_path / "out", Recorder(), schedule="32x1", resume="auto")
    record = result.records[0]
    assert record.seconds > running["seconds"]
    assert record.first_wait_s > running["first_wait_s"]
    assert (record.steps, record.samples) == (5, 40)


def test_run_stopped_during_validation_validates_first(tiny_set, uninterrupted, tmp_path):
    class StopInValidation(Recorder):
        def validating(self, *, done):
            super().validating(done=done)
            if len(self.steps) == STEPS_PER_EPOCH:
                os.kill(os.getpid(), signal.SIGTERM)

    first = run(tiny_set, tmp_path / "out", StopInValidation())
    assert first.stopped_by == signal.SIGTERM
    assert first.records == []
    second = Recorder()
    run(tiny_set, tmp_path / "out", second, resume=str(tmp_path / "out"))
    assert [r.epoch for r in second.records] == [1, 2, 3]
    assert second.steps[0] == STEPS_PER_EPOCH + 1
    assert_same_training(tmp_path / "out", uninterrupted)


def test_folder_describes_run(uninterrupted):
    with (uninterrupted / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    said = (uninterrupted / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in said.splitlines()]
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert [line["size_px"] for line in lines] == [32, 32, 48]
    assert float(rows[1]["train_loss"]) == lines[1]["train_loss"]
    assert make_recipe({}, read_config(uninterrupted / "recipe.toml")[0]) == tiny_recipe()
    best = torch.load(uninterrupted / "best.pt", weights_only=True)
    assert best["classes"] == ["class0", "class1"]
    assert best["state_dict"].keys() == load_checkpoint(uninterrupted)["state"]["model"].keys()
    environment = json.loads((uninterrupted / "environment.json").read_text())
    assert environment["versions"]["torch"] == torch.__version__
    assert load_report(uninterrupted).steps > 0


def test_warming_and_tensorboard_change_nothing(tiny_set, uninterrupted, tmp_path):
    report = Recorder()
    run(tiny_set, tmp_path / "out", report, warmup_shapes=True)
    assert [note for note in report.notes if "warmed up" in note]
    assert_same_training(tmp_path / "out", uninterrupted)


@pytest.mark.slow
def test_torch_compile_trains(tiny_set, tmp_path):
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("there is no C++ compiler")
    report = Recorder()
    result = run(tiny_set, tmp_path / "out", report, compile=True, schedule="32x1,48x1")
    assert len(result.records) == 2
    saved = load_checkpoint(tmp_path / "out")["state"]["model"]
    assert not any("_orig_mod" in name for name in saved)


def test_missing_checkpoints_are_named(tiny_set, uninterrupted, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(uninterrupted, out)
    (out / "last.pt").unlink()
    for resume in (out / "last.pt", out):
        second = Recorder()
        run(tiny_set, out, second, resume=str(resume))
        assert any("last.pt is missing; resuming from" in note for note in second.notes)
        (out / "last.pt").unlink(missing_ok=True)
    (out / "previous.pt").unlink()
    with pytest.raises(StateError, match=r"(?s)last.pt is missing.*--initial-checkpoint .*best.pt"):
        run(tiny_set, out, Recorder(), resume=str(out))
    anew = Recorder()  # as after a kill before the first checkpoint, when weights were written
    run(tiny_set, out, anew, resume="auto")
    assert anew.steps[0] == 1


def test_failed_saves_are_reported(tmp_path):
    told = []
    keeper = CheckpointWriter(out=tmp_path / "gone", keep=0, note=told.append)
    keeper.save({"step": 1}, epochs=None)
    keeper.save_best({"epoch": 1})
    assert all("Training continues" in each for each in told)
    said = [each.partition(". ")[0] for each in told]
    assert keeper.errors == {"last.pt": said[0], "best.pt": said[1]}
    assert keeper.best is None
    keeper.out.mkdir()
    keeper.save({"step": 2}, epochs=None)
    keeper.save_best({"epoch": 2})
    assert keeper.errors == {}
    assert keeper.best == keeper.out / "best.pt"


def test_a_full_disk_for_the_checkpoint_of_an_epoch_ends_no_training(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(shutil, "copy2", full)
    told = []
    CheckpointWriter(out=tmp_path, keep=2, note=told.append).save({"step": 1}, epochs=1)
    assert len(told) == 1
    assert told[0].startswith(f"{tmp_path / 'epoch-0001.pt'} cannot be written")
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]


def test_finished_run_is_unchanged(tiny_set, uninterrupted):
    before = (uninterrupted / "last.pt").read_bytes()
    report = Recorder()
    result = run(tiny_set, uninterrupted, report, resume="auto")
    assert report.steps == []
    assert len(result.records) == 3
    assert any("is finished" in note for note in report.notes)
    assert (uninterrupted / "last.pt").read_bytes() == before


def test_checkpoint_of_another_recipe_or_dataset_is_rejected_by_name(
    tiny_set, uninterrupted, tmp_path
):
    with pytest.raises(StateError, match=r"batch_size was 8, is 4.*seed was 0, is 5"):
        run(tiny_set, uninterrupted, Recorder(), resume="auto", batch_size=4, seed=5)
    other = tmp_path / "other"
    (other / "train").mkdir(parents=True)
    for label, name in enumerate(["ant", "bee"]):
        (other / "train" / name).symlink_to(tiny_set / "train" / f"class{label}")
    with pytest.raises(StateError, match=r"another dataset.*'class0'.*'ant'"):
        run(other, uninterrupted, Recorder(), resume="auto")
    renamed = tmp_path / "renamed"
    shutil.copytree(tiny_set, renamed)
    first = min((renamed / "train" / "class0").iterdir())
    first.rename(first.with_name("another-name.jpg"))
    with pytest.raises(StateError, match=r"another dataset \(files was"):
        run(renamed, uninterrupted, Recorder(), resume="auto")


def test_a_run_that_fails_before_its_first_checkpoint_leaves_no_folder(
    tiny_set, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="num_workers"):
        run(tiny_set, None, Recorder(), workers=5000)
    assert not list(tmp_path.glob("runs/*"))


def test_two_runs_cannot_write_to_one_folder(tiny_set, tmp_path):
    with (
        lock_run_folder(tmp_path),
        pytest.raises(UsageError, match=r"(?s)another run is writing to .*--out"),
    ):
        run(tiny_set, tmp_path, Recorder())
    run(tiny_set, tmp_path, Recorder())


def test_share_of_several_processes_is_rejected(tiny_set, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="rank 1 of 2"):
        run(tiny_set, tmp_path / "out", Recorder())


def test_runs_without_a_name_are_numbered(tiny_set, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        result = run(tiny_set, None, Recorder(), schedule="32x1")
        assert result.out == Path(f"runs/{MODEL}-{number}")
    stopper = Recorder(after=2, do=stop_with(signal.SIGINT))
    run(tiny_set, None, stopper, schedule="32x1")
    result = run(tiny_set, None, Recorder(), schedule="32x1", resume="auto")
    assert result.out == Path(f"runs/{MODEL}-3")


def test_run_without_validation_images_reports_it_and_keeps_last_weights(tiny_set, tmp_path):
    report = Recorder()
    result = run(tiny_set / "train", tmp_path / "out", report, schedule="32x2")
    assert any("no validation" in note for note in report.notes)
    assert result.best_top1 is None
    assert result.as_dict()["final"]["val_top1"] is None
    assert torch.load(tmp_path / "out" / "best.pt", weights_only=True)["epoch"] == 2
