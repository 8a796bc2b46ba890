"""Optimizer, rate, steps and evaluation."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR

from feedline.errors import UsageError
from feedline.train.evaluate import evaluate
from feedline.train.recipe import Recipe
from feedline.train.runtime import choose_precision
from feedline.train.train_state import (
    StepCounter,
    TrainState,
    create_optimizer,
    finish_step,
    lr_factor,
    train_step,
)

CPU = torch.device("cpu")


def small_model(classes=3):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, classes)
    )


def small_state(*, classes=3, **settings):
    recipe = Recipe(**settings)
    return TrainState(small_model(classes), recipe, device=CPU, precision=torch.float32)


def batch(rows, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(rows, 3, 8, 8, generator=generator)
    return images, torch.randint(0, classes, (rows,), generator=generator)


def test_optimizer_that_cannot_be_made_is_rejected():
    with pytest.raises(UsageError, match="adma"):
        create_optimizer(small_model(), Recipe(opt="adma", lr=0.1))


@settings(deadline=None)
@given(
    warmup=st.floats(0, 0.99),
    sched=st.sampled_from(["onecycle", "cosine", "linear"]),
    total=st.integers(2, 300),
)
def test_the_rate_rises_once_and_falls_once(warmup, sched, total):
    rates = [lr_factor(k / (total - 1), sched=sched, warmup=warmup) for k in range(total)]
    assert all(0 < each <= 1 + 1e-12 for each in rates)
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert abs(top - warmup * total) <= 2
    assert rates[-1] == pytest.approx(1 / 25 / 10_000)
    if warmup > 0:
        assert rates[0] == pytest.approx(1 / 25)


def test_rate_equals_torch_one_cycle_and_a_phase_multiplies_it():
    optimizer = torch.optim.SGD(small_model().parameters(), lr=1.0)
    theirs = OneCycleLR(optimizer, 0.5, total_steps=41, pct_start=0.25, cycle_momentum=False)
    for step in range(41):
        # torch counts the rise from the first step to the last one before the top.
        at = step / 9.25 * 0.25 if step <= 9.25 else 0.25 + (step - 9.25) / (40 - 9.25) * 0.75
        own = 0.5 * lr_factor(at, sched="onecycle", warmup=0.25)
        assert own == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6)
        optimizer.step()
        if step < 40:
            theirs.step()
    learner = small_state(
        lr=0.5, sched="constant", warmup_epochs=0.0, schedule=[{"size": 8, "epochs": 1, "lr": 0.1}]
    )
    for progress in (0.0, 0.5, 1.0):
        learner.set_progress(progress)
        assert learner.lr == pytest.approx(0.05)


def linear_states(**settings):
    """Two equal states of a model without statistics of a batch."""
    model, recipe = nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), Recipe(**settings)
    return [
        TrainState(copy.deepcopy(model), recipe, device=CPU, precision=torch.float32)
        for _ in range(2)
    ]


def test_parts_of_a_batch_make_the_step_of_the_whole():
    images, labels = batch(12)
    learners = linear_states()
    for part in range(3):
        rows = slice(4 * part, 4 * part + 4)
        train_step(learners[0], images[rows], labels[rows], part=part, parts=3)
        assert learners[0].step == (part == 2)
    train_step(learners[1], images, labels)
    for mine, other in zip(*(each.model.parameters() for each in learners), strict=True):
        assert torch.allclose(mine, other, atol=1e-6)


def test_step_without_its_last_part_keeps_no_gradient_for_the_next():
    images, labels = batch(12)
    learners = linear_states(opt="sgd", lr=0.1)
    for rows in (slice(4), slice(4, 8)):
        for each, part, parts in ((learners[0], 0, 2), (learners[1], 1, 2)):
            train_step(each, images[rows], labels[rows], part=part, parts=parts)
            finish_step(each)
            assert not each.has_gradients
    assert [each.step for each in learners] == [2, 2]
    for mine, other in zip(*(each.model.parameters() for each in learners), strict=True):
        assert torch.equal(mine, other)


def test_gradients_are_cut_to_a_norm():
    learner = small_state(
        opt="sgd", lr=1.0, weight_decay=0.0, clip_grad=0.01, sched="constant", warmup_epochs=0.0
    )
    before = [parameter.detach().clone() for parameter in learner.model.parameters()]
    train_step(learner, *batch(8))
    moved = [
        after.detach() - old for after, old in zip(learner.model.parameters(), before, strict=True)
    ]
    # The first step of Nesterov's momentum is 1.9 times the gradient.
    norm = math.sqrt(sum(float((each**2).sum()) for each in moved))
    assert norm == pytest.approx(0.019, rel=1e-3)


def test_weight_average_is_updated_and_evaluated():
    learner = small_state(model_ema_decay=0.5)
    assert learner.eval_model is not learner.model
    for seed in range(3):
        train_step(learner, *batch(8, seed=seed))
    begun = small_model().parameters()
    averages, latest = learner.eval_model.parameters(), learner.model.parameters()
    for first, mean, last in zip(begun, averages, latest, strict=True):
        assert not torch.equal(mean, last)
        assert not torch.equal(mean, first)
    plain = small_state()
    assert plain.eval_model is plain.model


def test_a_phase_sets_dropout_and_stochastic_depth():
    class Path(nn.Module):
        def __init__(self, drop_prob):
            super().__init__()
            self.drop_prob = drop_prob

        def forward(self, x):
            return x

    drop, paths = nn.Dropout(0.4), (Path(0.1), Path(0.2))
    model = nn.Sequential(nn.Flatten(), drop, *paths, nn.Linear(192, 3))
    recipe = Recipe(schedule="8x1,8x1,8x1", drop=0.4, drop_path=0.2)
    learner = TrainState(model, recipe, device=CPU, precision=torch.float32)
    found = []
    for phase in recipe.phases:
        learner.set_phase(phase)
        found.append((drop.p, *(path.drop_prob for path in paths)))
    assert found[0] == (0.0, 0.0, 0.0)
    assert found[1] == pytest.approx((0.2, 0.05, 0.1))
    assert found[2] == pytest.approx((0.4, 0.1, 0.2))


def test_step_never_synchronises_for_a_value(monkeypatch):
    learner = small_state(opt="sgd")  # AdamW counts its steps in tensors on the CPU

    def ask(_):
        raise AssertionError("asked the device for a value")

    monkeypatch.setattr(torch.Tensor, "item", ask)
    monkeypatch.setattr(torch.Tensor, "tolist", ask)
    loss = train_step(learner, *batch(4))
    assert loss.shape == ()
    assert not loss.requires_grad


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 40), size=st.integers(1, 17), classes=st.integers(2, 8), seed=st.integers()
)
def test_evaluation_is_exact_on_every_sample_however_it_is_batched(rows, size, classes, seed):
    learner = small_state(classes=classes)
    images, labels = batch(rows, classes, seed=seed % 2**32)
    batches = list(zip(images.split(size), labels.split(size), strict=True))
    before = copy.deepcopy(learner.model.state_dict())
    result = evaluate(learner.model, batches, device=CPU, confusion=True)
    assert learner.model.training
    for name, value in learner.model.state_dict().items():
        assert torch.equal(value, before[name])

    learner.model.eval()
    with torch.no_grad():
        logits = learner.model(images)
    answers = logits.argmax(1)
    right = answers == labels
    assert result.samples == rows
    counts = torch.bincount(labels * classes + answers, minlength=classes**2)
    assert result.confusion == counts.view(classes, classes).tolist()
    assert result.top1 == pytest.approx(right.float().mean().item())
    assert result.loss == pytest.approx(functional.cross_entropy(logits, labels).item(), rel=1e-4)
    if classes <= 5:
        assert result.top5 is None
    else:
        five = (logits.topk(5).indices == labels[:, None]).any(1)
        assert result.top5 == pytest.approx(five.float().mean().item())


def test_stopped_evaluation_returns_nothing_and_restores_mode():
    learner = small_state()
    assert evaluate(learner.model, [batch(4), batch(4)], device=CPU, stopped=lambda: True) is None
    assert learner.model.training
    assert evaluate(learner.model, [], device=CPU) is None


def test_cpu_uses_float32_by_default():
    assert choose_precision(CPU) is choose_precision(CPU, False) is torch.float32
    assert choose_precision(CPU, True) is choose_precision(CPU, None, "bfloat16") is torch.bfloat16
    for amp, dtype in ((None, "float16"), (True, "float16"), (False, "bfloat16")):
        with pytest.raises(UsageError) as refused:
            choose_precision(CPU, amp, dtype)
        assert refused.value.argument == "amp_dtype"


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_batches_that_make_a_step_are_counted_and_progress_goes_from_nothing_to_all(accumulate):
    """Two epochs of 5 batches, then one of 3."""
    recipe = Recipe(schedule="32x2,64x1", grad_accum_steps=accumulate)
    steps = StepCounter(recipe=recipe, batches_in=lambda epoch: 5 if epoch < 2 else 3)
    if accumulate == 2:  # to the epoch's end
        parts = [steps.parts(0, batch) for batch in range(5)]
        assert parts == [(0, 2), (1, 2), (0, 2), (1, 2), (0, 1)]
        assert [steps.steps_in(epoch) for epoch in range(3)] == [3, 3, 2]
        assert steps.total == 8
    seen = [
        steps.progress(epoch, batch)
        for epoch in range(3)
        for batch in range(steps.batches_in(epoch))
        if steps.parts(epoch, batch)[0] == 0
    ]
    assert seen[0] == 0
    assert seen[-1] == pytest.approx(1)
    assert seen == sorted(seen)
    assert len(seen) == steps.total
    if accumulate == 1:  # each epoch is a third, whatever its batches are
        thirds = [*(k / 5 for k in range(10)), *(2 + k / 3 for k in range(3))]
        assert seen == pytest.approx([each / (3 - 1 / 3) for each in thirds])
