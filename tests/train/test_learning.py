"""Optimizer, rate, step and evaluation."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from feedline.errors import ResourceError, UsageError
from feedline.train.evaluate import evaluate
from feedline.train.learner import Learner
from feedline.train.optimizer import create_optimizer, parameter_groups
from feedline.train.rate import create_rate
from feedline.train.recipe import Recipe
from feedline.train.runtime import choose_device, choose_precision
from feedline.train.step import train_step

CPU = torch.device("cpu")


def small_model(classes: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, classes)
    )


def small_learner(*, classes: int = 3, total_steps: int = 10, **recipe_of: object) -> Learner:
    recipe = Recipe(**recipe_of)  # type: ignore[arg-type]
    return Learner(
        small_model(classes), recipe, total_steps=total_steps, device=CPU, precision=torch.float32
    )


def batch(rows: int, classes: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(rows, 3, 8, 8, generator=generator)
    return images, torch.randint(0, classes, (rows,), generator=generator)


def test_only_weights_decay() -> None:
    model = small_model()
    decaying, free = parameter_groups(model, 0.3)
    assert decaying["weight_decay"] == 0.3
    assert free["weight_decay"] == 0
    assert all(parameter.ndim > 1 for parameter in decaying["params"])
    assert all(parameter.ndim <= 1 for parameter in free["params"])
    count = len(decaying["params"]) + len(free["params"])
    assert count == len(list(model.parameters()))


def test_what_a_model_excludes_does_not_decay() -> None:
    model = small_model()
    model.no_weight_decay = lambda: {"0.weight"}  # type: ignore[assignment]
    _, free = parameter_groups(model, 0.3)
    assert any(parameter is model.get_parameter("0.weight") for parameter in free["params"])


@settings(deadline=None)
@example(total=4, warmup=0.25)  # a single step to rise in
@given(total=st.integers(1, 300), warmup=st.floats(0, 0.99))
def test_the_rate_is_one_cycle_that_rises_once_and_falls_once(total: int, warmup: float) -> None:
    recipe = Recipe(warmup=warmup, lr=0.5)
    optimizer = create_optimizer(nn.Linear(2, 2), recipe)
    rate = create_rate(optimizer, recipe, total_steps=total)
    rates = []
    for step in range(total):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step + 1 < total:
            rate.step()
    assert all(0 < each <= 0.5 + 1e-12 for each in rates)
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert abs(top - warmup * total) <= 2
    if total > 1:
        assert rates[-1] < 0.5 / 1000


@pytest.mark.parametrize(("total", "warmup"), [(2, 0.0), (5, 0.25), (40, 0.5), (300, 0.25)])
def test_the_first_and_the_last_step_are_the_ends_of_the_curve(total: int, warmup: float) -> None:
    learner = small_learner(total_steps=total, warmup=warmup, lr=0.5)
    rates = []
    for _ in range(total):
        rates.append(learner.lr)
        train_step(learner, *batch(2))
    if warmup:
        assert rates[0] == pytest.approx(0.5 / 25)
    assert rates[-1] == pytest.approx(0.5 / 25 / 10_000)


def test_steps_lower_the_loss_and_move_the_rate() -> None:
    learner = small_learner(lr=0.01, total_steps=20)
    images, labels = batch(16)
    first = learner.lr
    losses = [float(train_step(learner, images, labels)) for _ in range(20)]
    assert losses[-1] < losses[0] / 2
    assert learner.step == 20
    assert learner.lr < first


def test_a_step_never_asks_for_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = small_learner(optimizer="sgd")  # AdamW counts its steps in tensors on the CPU

    def ask(_: torch.Tensor) -> float:
        raise AssertionError("asked the device for a value")

    monkeypatch.setattr(torch.Tensor, "item", ask)
    monkeypatch.setattr(torch.Tensor, "tolist", ask)
    loss = train_step(learner, *batch(4))
    assert loss.shape == ()
    assert not loss.requires_grad


def test_a_restored_learner_steps_on_as_the_saved_one() -> None:
    one, two = small_learner(), small_learner(seed=1)
    for seed in range(3):
        train_step(one, *batch(8, seed=seed))
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for learner in (one, two):
        train_step(learner, *batch(8, seed=9))
    assert one.lr == two.lr
    for mine, other in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.equal(mine, other)


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 40), size=st.integers(1, 17), classes=st.integers(2, 8), seed=st.integers()
)
def test_evaluation_is_exact_on_every_sample_however_it_is_batched(
    rows: int, size: int, classes: int, seed: int
) -> None:
    learner = small_learner(classes=classes)
    images, labels = batch(rows, classes, seed=seed % 2**32)
    batches = list(zip(images.split(size), labels.split(size), strict=True))
    result = evaluate(learner, batches)
    assert result is not None

    learner.model.eval()
    with torch.no_grad():
        logits = learner.model(images)
    right = logits.argmax(1) == labels
    assert result.samples == rows
    assert result.top1 == pytest.approx(right.float().mean().item())
    assert result.loss == pytest.approx(functional.cross_entropy(logits, labels).item(), rel=1e-4)
    if classes <= 5:
        assert result.top5 is None
    else:
        five = (logits.topk(5).indices == labels[:, None]).any(1)
        assert result.top5 == pytest.approx(five.float().mean().item())


def test_evaluation_leaves_the_model_as_it_was() -> None:
    learner = small_learner()
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    evaluate(learner, [batch(8)])
    assert learner.model.training
    for name, value in learner.model.state_dict().items():
        assert torch.equal(value, before[name])


def test_evaluation_reads_labels_in_the_training_sets_classes() -> None:
    learner = small_learner()
    images, _ = batch(12)
    learner.model.eval()
    answers = learner.model(images).argmax(1)
    swapped = torch.tensor([1, 2, 0])[answers]  # label k of the validation set is class k - 1
    result = evaluate(learner, [(images, swapped)], labels_as=[2, 0, 1])
    assert result is not None
    assert result.top1 == 1.0


def test_evaluation_that_is_stopped_gives_no_result_and_restores_the_mode() -> None:
    learner = small_learner()
    assert evaluate(learner, [batch(4), batch(4)], stopped=lambda: True) is None
    assert learner.model.training
    assert evaluate(learner, []) is None


def test_a_cpu_computes_in_float32_unless_asked() -> None:
    assert choose_precision("auto", CPU) is choose_precision("off", CPU) is torch.float32
    assert choose_precision("bf16", CPU) is torch.bfloat16
    with pytest.raises(UsageError, match="'fp16' needs a CUDA device"):
        choose_precision("fp16", CPU)


def test_a_gpu_that_is_not_there_is_refused_with_a_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto").type == "cpu"
    with pytest.raises(ResourceError, match="--device cpu"):
        choose_device("cuda")
    with pytest.raises(UsageError, match="got 'tpu'"):
        choose_device("tpu")


def test_bf16_on_a_cpu_trains_to_a_finite_loss() -> None:
    learner = small_learner()
    learner.precision = torch.bfloat16
    loss = train_step(learner, *batch(8))
    assert loss.dtype is torch.float32
    assert math.isfinite(float(loss))
