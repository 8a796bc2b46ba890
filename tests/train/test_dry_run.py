"""A run planned: its figures are measured, and nothing of it is left."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import Recorder

from feedline.errors import FeedlineError, StateError, UsageError
from feedline.train.dry_run import dry_run
from feedline.train.learner import Learner
from feedline.train.planned_run import PlannedRun
from feedline.train.recipe import Recipe
from feedline.train.run import run_training
from feedline.train.run_settings import RunSettings

MODEL = "test_resnet.r160_in1k"


def recipe_of(**settings: Any) -> Recipe:
    return Recipe(**{"model": MODEL, "schedule": "32x2,48x1@4", "batch_size": 8, **settings})


def planned(root: Path, recipe: Recipe | None = None, **settings: Any) -> PlannedRun:
    asked = RunSettings(**{"data": root, "device": "cpu", "workers": 0, **settings})
    return dry_run(recipe or recipe_of(), asked, budget_s=1.0)


@pytest.fixture(scope="module")
def plan(tiny_set: Path) -> PlannedRun:
    return planned(tiny_set, recipe_of(mixup=0.2, curve="linear", warmup=0.5, lr=1.0))


def test_a_plan_has_each_phase_as_it_is_resolved(plan: PlannedRun) -> None:
    first, second = plan.phases
    assert (first.phase.size, first.phase.batch_size, first.steps, first.images) == (32, 8, 5, 40)
    assert (second.phase.size, second.phase.batch_size, second.steps) == (48, 4, 10)
    assert (first.phase.mixup, second.phase.mixup) == (0.0, 0.2)
    assert (first.val_size, plan.val_images, plan.classes, plan.images) == (48, 12, 2, 40)


def test_a_size_that_strides_do_not_divide_gets_a_hint(plan: PlannedRun) -> None:
    hint = " ".join(str(plan).partition("hint: ")[2].split())
    assert hint.startswith("48 px: no multiple of 32 px"), "32 px is one"
    assert "taken as given" in hint
    whole = replace(
        plan, phases=tuple(replace(each, val_size=32) for each in plan.phases if each.steps == 5)
    )
    assert "hint: " not in str(whole)


def test_its_rates_are_those_that_a_run_has(
    tiny_set: Path, plan: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[float] = []
    set_progress = Learner.set_progress

    def noted(self: Learner, seen: float) -> None:
        set_progress(self, seen)
        used.append(self.lr)

    monkeypatch.setattr(Learner, "set_progress", noted)
    asked = RunSettings(data=tiny_set, device="cpu", workers=0, out=tmp_path / "run")
    run_training(plan.recipe, Recorder(), asked)
    used = used[1:]  # a learner begins with one
    for phase, rates in zip(plan.phases, (used[:10], used[10:]), strict=True):
        assert phase.lr_first == pytest.approx(rates[0])
        assert phase.lr_last == pytest.approx(rates[-1])
        assert phase.lr_peak >= max(rates) * (1 - 1e-9)
    assert plan.phases[0].lr_peak == pytest.approx(1.0)


def test_its_times_follow_from_what_was_measured(plan: PlannedRun) -> None:
    for phase in plan.phases:
        measured = phase.measured
        assert measured.steps >= 2
        assert measured.step_ms > 0
        rows = phase.phase.batch_size or 0
        assert phase.forecast.then.then == pytest.approx(1000 * rows / measured.step_ms)
        assert phase.epoch_s == pytest.approx(40 / phase.forecast.then.then + phase.val_s)
        assert phase.seconds == pytest.approx(phase.phase.epochs * phase.epoch_s)
        assert phase.memory_bytes is not None
        assert 0 < phase.memory_bytes < plan.memory_free
    (judged,) = plan.validations
    assert judged.size == 48
    assert judged.images in (8, 12)  # of two batches; one alone where the machine is busy
    assert plan.left_s == pytest.approx(sum(phase.seconds for phase in plan.phases))
    assert plan.phases[1].memory_bytes != plan.phases[0].memory_bytes


def test_it_is_said_in_tables_and_as_data(plan: PlannedRun) -> None:
    text = str(plan)
    for said in (
        f"{MODEL} in float32 on cpu",
        "40 images of 2 classes, 12 to validate on; 2 phases, 3 epochs, 20 steps",
        "rate from",
        "mixup",
        "images/s",
        "bound by",
        "measured in",
        "40 of 40 images from the page cache by 0 workers",
        f"validation: {plan.validations[0].images} images at 48 px",
        "not in the times",
    ):
        assert said in " ".join(text.split()), said
    assert max(map(len, text.splitlines())) <= 100
    said = json.loads(json.dumps(plan.as_dict(), allow_nan=False))
    assert said["phases"][1]["batch_size"] == 4
    assert said["phases"][1]["mixup"] == 0.2
    assert said["seconds"] == plan.left_s
    assert Recipe(**said["recipe"]) == plan.recipe


def test_a_machine_that_was_busy_is_said(plan: PlannedRun) -> None:
    busy, idle = (" ".join(str(replace(plan, load=load)).split()) for load in (64.0, 0.1))
    assert "other processes kept the machine busy (load 64.0)" in busy
    assert "busy" not in idle


def test_workers_are_rehearsed_with_and_end(tiny_set: Path) -> None:
    before = multiprocessing.active_children()
    found = planned(tiny_set, recipe_of(schedule="32x1"), workers=1)
    (phase,) = found.phases
    assert phase.measured.workers == 1
    assert phase.bound in ("the step", "the workers", "the cores")
    assert set(multiprocessing.active_children()) <= set(before)


def test_nothing_is_left_of_it(
    tiny_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tiny_set.rglob("*"))
    torch.manual_seed(7)
    state = torch.get_rng_state()
    planned(tiny_set, recipe_of(dropout=0.5, schedule="32x1"), out=tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), state)
    assert sorted(tiny_set.rglob("*")) == before
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_goes_on_is_planned_from_where_it_stands(tiny_set: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    asked = RunSettings(data=tiny_set, device="cpu", workers=0, out=out)
    run_training(recipe_of(schedule="32x2"), Recorder(), asked)
    kept = {path: path.read_bytes() for path in out.iterdir()}
    longer = recipe_of(schedule="32x3,48x1")
    found = planned(tiny_set, longer, resume=str(out))
    assert found.done == 2
    assert [phase.epochs_left for phase in found.phases] == [1, 1]
    assert "2 epochs done; times are of what is left" in str(found)
    assert {path: path.read_bytes() for path in out.iterdir()} == kept
    with pytest.raises(StateError, match="seed"):
        planned(tiny_set, recipe_of(schedule="32x2", seed=3), resume=str(out))
    with pytest.raises(UsageError, match="holds the checkpoint of an earlier run"):
        planned(tiny_set, out=out)


@pytest.mark.parametrize("validates", [True, False])
def test_batches_that_make_a_step_together_count_as_one(
    tiny_set: Path, tmp_path: Path, validates: bool
) -> None:
    root = tiny_set if validates else tiny_set / "train"
    found = planned(root, recipe_of(accumulate=2, schedule="32x1"))
    assert found.phases[0].steps == 3
    assert (found.phases[0].val_s > 0) == validates


def test_a_set_that_is_smaller_than_a_batch_is_one_batch(tiny_set: Path) -> None:
    (phase,) = planned(tiny_set, recipe_of(schedule="32x1", batch_size=64)).phases
    assert (phase.steps, phase.images) == (1, 40)
    assert phase.forecast.then.then == pytest.approx(1000 * 40 / phase.measured.step_ms)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": "resnet19"}, "has no model 'resnet19'"),
        ({"schedule": "4000x1", "batch_size": 512}, "would fit"),
        ({"freeze": ("stem",)}, "no parameter's name begins with 'stem'"),
        ({"pretrained": "none.pt"}, "there is no file"),
    ],
)
def test_what_a_run_refuses_is_refused(tiny_set: Path, settings: Any, said: str) -> None:
    state = torch.get_rng_state()
    with pytest.raises(FeedlineError, match=said):
        planned(tiny_set, recipe_of(**settings))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_time_out_of_range_and_several_processes_are_refused(
    tiny_set: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = RunSettings(data=tiny_set, device="cpu", workers=0)
    with pytest.raises(UsageError, match="--rehearse must be from 1 to 3600 seconds"):
        dry_run(recipe_of(), asked, budget_s=0.5)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="without torchrun"):
        dry_run(recipe_of(), asked)
