"""The plan of a run: its figures are measured, and nothing of it is left."""

import json
import multiprocessing
from dataclasses import replace

import pytest
import torch

from feedline.errors import FeedlineError, StateError, UsageError
from feedline.train.dry_run import dry_run
from feedline.train.prepare import Assignment
from feedline.train.recipe import Recipe, RunSettings
from feedline.train.run import train_model
from feedline.train.train_state import TrainState

MODEL = "test_resnet.r160_in1k"


def make_recipe(**settings):
    return Recipe(**{"model": MODEL, "schedule": "32x2,48x1@4", "batch_size": 8, **settings})


def plan_of(root, recipe=None, **settings):
    run = RunSettings(**{"data": root, "device": "cpu", "workers": 0, **settings})
    return dry_run(Assignment.collect(recipe or make_recipe(), run), budget_s=1.0)


@pytest.fixture(scope="module")
def plan(tiny_set):
    return plan_of(tiny_set, make_recipe(mixup=0.2, sched="linear", warmup_epochs=1.5, lr=1.0))


def test_a_plan_has_each_phase_filled_in(plan):
    first, second = plan.phases
    assert (first.phase.size, first.phase.batch_size, first.steps, first.images) == (32, 8, 5, 40)
    assert (second.phase.size, second.phase.batch_size, second.steps) == (48, 4, 10)
    assert (first.phase.mixup, second.phase.mixup) == (0.0, 0.2)
    assert first.phase.val_image_size == 48
    assert (plan.val_images, plan.classes, plan.images) == (12, 2, 40)


def test_learning_rates_equal_those_of_run(tiny_set, plan, tmp_path, monkeypatch):
    used = []
    set_progress = TrainState.set_progress

    def record(self, seen):
        set_progress(self, seen)
        used.append(self.lr)

    monkeypatch.setattr(TrainState, "set_progress", record)
    run = RunSettings(data=tiny_set, device="cpu", workers=0, out=tmp_path / "run")
    train_model(plan.recipe, run)
    used = used[1:]  # the first is set when the state is made
    for phase, rates in zip(plan.phases, (used[:10], used[10:]), strict=True):
        assert phase.lr[0] == pytest.approx(rates[0])
        assert phase.lr[2] == pytest.approx(rates[-1])
        assert phase.lr[1] >= max(rates) * (1 - 1e-9)


def test_times_follow_from_measured_rates(plan):
    for phase in plan.phases:
        measured = phase.measured
        assert measured.steps >= 2
        assert min(measured.images_per_s, measured.compute_images_per_s) > 0
        assert 0 <= measured.wait_share < 1
        assert phase.epoch_s == pytest.approx(40 / measured.images_per_s + phase.val_s)
    assert plan.seconds == pytest.approx(sum(phase.left_s for phase in plan.phases))


def test_plan_names_the_bottleneck_and_a_fix_with_its_gain(plan):
    for phase in plan.phases:
        assert (phase.bottleneck == "compute") == (phase.measured.wait_share < 0.05)
        # The gain is bounded by the waits and by the compute rate.
        for wait_share, rate, gain in ((0.5, 200, "2.00"), (0.9, 200, "4.00"), (0.5, 51, None)):
            measured = replace(
                phase.measured,
                images_per_s=50,
                compute_images_per_s=rate,
                wait_share=wait_share,
                bottleneck="workers",
            )
            phases = (replace(phase, measured=measured, bottleneck="workers"),)
            text = " ".join(str(replace(plan, phases=phases)).split())
            assert ("hint: steps wait" in text) == (gain is not None)
            assert gain is None or f"{gain} times as fast" in text


def test_dry_run_is_printed_and_json_serialisable(plan):
    text = " ".join(str(plan).split())
    off_grid = "hint: 48 px: not a multiple of 32 px"
    for part in (f"{MODEL} in float32 on cpu", "3 epochs, 20 steps", "mixup", "images/s", off_grid):
        assert part in text
    first = plan.phases[0]
    on_grid = replace(first, phase=replace(first.phase, val_image_size=32))
    assert "multiple" not in str(replace(plan, phases=(on_grid,)))
    data = json.loads(json.dumps(plan.as_dict(), allow_nan=False))
    assert data["phases"][1]["phase"]["batch_size"] == 4
    assert data["seconds"] == plan.seconds
    assert Recipe(**data["recipe"]) == plan.recipe


def test_workers_end_and_nothing_else_is_left(tiny_set, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before, children = sorted(tiny_set.rglob("*")), set(multiprocessing.active_children())
    torch.manual_seed(7)
    state = torch.get_rng_state()
    recipe = make_recipe(drop=0.5, schedule="32x1")
    (phase,) = plan_of(tiny_set, recipe, out=tmp_path / "run", workers=1).phases
    assert phase.measured.num_workers == 1
    assert torch.equal(torch.get_rng_state(), state)
    assert sorted(tiny_set.rglob("*")) == before
    assert list(tmp_path.iterdir()) == []
    assert set(multiprocessing.active_children()) <= children


def test_a_resumed_run_is_planned_from_its_position(tiny_set, tmp_path):
    out = tmp_path / "run"
    run = RunSettings(data=tiny_set, device="cpu", workers=0, out=out)
    train_model(make_recipe(schedule="32x2"), run)
    kept = {path: path.read_bytes() for path in out.iterdir()}
    longer = make_recipe(schedule="32x3,48x1")
    found = plan_of(tiny_set, longer, resume=str(out))
    assert found.epochs_done == 2
    assert [phase.epochs_left for phase in found.phases] == [1, 1]
    assert {path: path.read_bytes() for path in out.iterdir()} == kept
    with pytest.raises(StateError, match="seed"):
        plan_of(tiny_set, make_recipe(schedule="32x2", seed=3), resume=str(out))
    with pytest.raises(UsageError, match="checkpoint of an earlier run"):
        plan_of(tiny_set, out=out)


@pytest.mark.parametrize(
    ("folder", "batches", "steps"),
    [(".", {"grad_accum_steps": 2}, 3), ("train", {"batch_size": 64}, 1)],
)
def test_steps_are_of_accumulated_batches_and_at_least_one(tiny_set, folder, batches, steps):
    (phase,) = plan_of(tiny_set / folder, make_recipe(schedule="32x1", **batches)).phases
    assert (phase.steps, phase.images) == (steps, 40)
    assert (phase.val_s > 0) == (folder == ".")


def test_a_set_without_a_readable_image_is_an_error(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "set" / name).mkdir(parents=True)
        (tmp_path / "set" / name / "0.jpg").write_bytes(b"no image")
    warned = pytest.warns(RuntimeWarning, match="epoch 1 has no batch")
    with pytest.raises(FeedlineError, match=r"no image .*0\.jpg"), warned:
        plan_of(tmp_path / "set", make_recipe(on_error="skip"))


def test_budget_out_of_range_and_several_ranks_are_rejected(tiny_set, monkeypatch):
    run = RunSettings(data=tiny_set, device="cpu", workers=0)
    assignment = Assignment.collect(make_recipe(), run)
    with pytest.raises(UsageError, match="from 1 to 3600"):
        dry_run(assignment, budget_s=0.5)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="single process"):
        dry_run(assignment)
