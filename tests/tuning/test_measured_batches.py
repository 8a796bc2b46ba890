"""Batch sizes by trial: real training steps in a memory that is a few megabytes large."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import pytest
import torch
from bounded_memory import BoundedMemory
from torch import nn
from torch.nn import functional

from feedline.errors import UsageError
from feedline.order.schedule import Schedule
from feedline.tuning.batch_search import BatchTrial
from feedline.tuning.batch_sizes import BatchSizes
from feedline.tuning.batch_trials import BatchTrials
from feedline.tuning.device_memory import is_out_of_memory
from feedline.tuning.measured_batches import SHARE, TrainingSetup, measure_batch_sizes
from feedline.tuning.training_step import class_loss, noise_batches
from slow import slow

MB = 1 << 20


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    ).to(memory_format=torch.channels_last)  # fmt: skip


def training(model: nn.Module, **options: Any) -> TrainingSetup:
    plain: dict[str, Any] = {
        "step": None,
        "batch": None,
        "optimizer": None,
        "loss": class_loss,
        "stateful": (),
        "precision": torch.float32,
    }
    return TrainingSetup(model=model, device=torch.device("cpu"), **{**plain, **options})


def tried(
    what: TrainingSetup,
    schedule: str,
    memory: BoundedMemory,
    max_rows: int = 4096,
    on_trial: Any = None,
) -> BatchSizes:
    with memory.here([*what.model.parameters(), *what.model.buffers()]):
        return measure_batch_sizes(
            what,
            Schedule.parse(schedule),
            memory=memory,
            where="a CPU",
            max_rows=max_rows,
            on_trial=on_trial,
        )


def peak_of_a_training(rows: int, size: int) -> int:
    """Peak bytes of the same training in a loop of its own."""
    model = small_model()
    memory = BoundedMemory(1 << 40)
    # In a trial, copies of parameters and buffers lie in the host's memory, which here is the same.
    copies = [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())]
    with memory.here([*model.parameters(), *model.buffers(), *copies]):
        optimizer = torch.optim.AdamW(model.parameters())
        ahead: Any = None
        for _ in range(4):
            images = ahead
            pixels = torch.zeros(rows, size, size, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
            ahead = pixels.to(torch.float32) * 2
            del pixels
            if images is not None:
                optimizer.zero_grad()
                labels = torch.zeros(rows, dtype=torch.int64)
                functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
    return memory.peak_bytes()


@pytest.mark.parametrize(("bound", "size"), [(3 * MB, 48), *slow((10 * MB, 32))])
def test_the_largest_batch_that_leaves_the_headroom_is_found(bound: int, size: int) -> None:
    told: list[int] = []
    memory = BoundedMemory(bound)
    found = tried(
        training(small_model()),
        f"{size}x1",
        memory,
        on_trial=lambda size, trial: told.append(trial.rows),
    )
    (phase,) = found.phases
    assert phase.bound == "memory"
    assert told == [trial.rows for trial in phase.trials]
    assert len(told) <= 9
    assert phase.rows % 8 == 0
    # As a loop that is not the search's finds it, too: this one fits, and the next one does not.
    slack = 4096  # of tensors of a few values each
    assert peak_of_a_training(phase.rows, size) <= SHARE * bound + slack
    assert peak_of_a_training(phase.rows + 8, size) > SHARE * bound - slack
    assert phase.peak_bytes <= SHARE * bound
    assert str(found.schedule) == f"{size}x1@{phase.rows}"


def test_model_and_random_state_are_unchanged() -> None:
    model = small_model().eval()
    optimizer = torch.optim.AdamW(model.parameters())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    memory = BoundedMemory(3 * MB)
    tried(training(model, optimizer=optimizer), "32x1,48x1", memory)
    assert memory.live.errors or memory.live.peak <= memory.live.bound
    assert torch.equal(torch.get_rng_state(), state)
    assert not model.training
    assert not optimizer.state
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_nothing_of_a_failed_trial_stays_in_memory() -> None:
    model = small_model()
    memory = BoundedMemory(3 * MB)
    with memory.here([*model.parameters(), *model.buffers()]):
        before = memory.live.now
        with pytest.raises(UsageError, match="does not fit"):
            measure_batch_sizes(
                training(model),
                Schedule.parse("32x1@2000"),
                memory=memory,
                where="a CPU",
                max_rows=4096,
            )
        gc.collect()
        assert memory.live.errors
        assert memory.live.now == before


def test_failed_step_releases_its_frame_and_memory() -> None:
    model = small_model()
    memory = BoundedMemory(3 * MB)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: Any) -> None:
        images, labels = batch
        try:
            outputs = model(images)
            class_loss(outputs, labels).backward()
        except RuntimeError as error:
            seen = error
            raise seen  # noqa: B904

    gc.collect()
    gc.disable()
    try:
        with memory.here([*model.parameters(), *model.buffers()]):
            before = memory.live.now
            trials = BatchTrials(
                model, step, noise_batches(torch.device("cpu")), [optimizer],
                memory=memory, device=torch.device("cpu"), share=SHARE,
            )  # fmt: skip
            assert trials.trial(32, 64).peak_bytes is None
            assert memory.live.now <= before + 1024
            assert trials.trial(32, 8).fits
    finally:
        gc.enable()


def test_steps_train_and_go_over_the_sizes_as_a_schedule_does() -> None:
    model = small_model().eval()
    frozen = model[1]  # type: ignore[index]
    modes: set[tuple[bool, bool]] = set()
    sizes: list[int] = []

    def step(batch: Any) -> None:
        modes.add((model.training, frozen.training))
        sizes.append(batch[0].shape[-1])

    trials = BatchTrials(
        model, step, noise_batches(torch.device("cpu")), [],
        memory=BoundedMemory(MB), device=torch.device("cpu"), share=SHARE,
    )  # fmt: skip
    assert trials.find_failing_phase([(8, 2), (16, 2), (24, 2)]) is None
    assert [size for size, _ in itertools.groupby(sizes)] == [8, 16, 24, 8, 24]
    assert modes == {(True, True)}
    modes.clear()
    model.train()
    frozen.eval()
    trials.trial(8, 2)
    assert modes == {(True, False)}


def test_phases_are_measured_independently() -> None:
    found = tried(training(small_model()), "32x2,48x1,64x3,32x1", BoundedMemory(6 * MB))
    rows = [phase.rows for phase in found.phases]
    assert rows[0] > rows[1] > rows[2]
    assert rows[3] == rows[0]
    assert str(found.schedule) == "32x2@{},48x1@{},64x3@{},32x1@{}".format(*rows)
    assert found.as_dict()["phases"][2]["batch_size"] == rows[2]
    assert "64 px" in str(found)


class Fragmented(BoundedMemory):
    """Memory that a change of the batch's shape makes smaller, until it is cleared."""

    def __init__(self, bound: int, lost: int) -> None:
        super().__init__(bound)
        self.whole, self.lost = bound, lost
        self.shapes: list[torch.Size] = []

    def seen(self, shape: torch.Size) -> None:
        if shape not in self.shapes:
            self.shapes.append(shape)
            self.live.bound = self.whole - self.lost * (len(self.shapes) - 1)

    def clear(self) -> None:
        super().clear()
        self.shapes.clear()
        self.live.bound = self.whole

    def available_bytes(self) -> int:
        return self.whole


@pytest.mark.slow
def test_sizes_that_fragment_the_memory_get_smaller_batches() -> None:
    alone = tried(training(small_model()), "32x1,48x1", BoundedMemory(6 * MB))
    memory = Fragmented(6 * MB, MB)
    model = small_model()
    model.register_forward_pre_hook(lambda _, inputs: memory.seen(inputs[0].shape))
    found = tried(training(model), "32x1,48x1", memory)
    assert found.phases[1].rows < alone.phases[1].rows
    assert found.phases[0].rows <= alone.phases[0].rows
    # What was found runs, over and over.
    with memory.here([]):
        memory.clear()
        for phase in [*found.phases, *found.phases]:
            assert phase.phase.image_size is not None
            images = torch.randn(phase.rows, 3, phase.phase.image_size, phase.phase.image_size)
            functional.cross_entropy(
                model(images), torch.zeros(phase.rows, dtype=torch.int64)
            ).backward()


@pytest.mark.parametrize(
    "said",
    [
        "CUDA error: out of memory",
        *slow(
            "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear ...",
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "GET was unable to find an engine to execute this computation",
        ),
    ],
)
def test_out_of_memory_errors_of_libraries_are_recognised(said: str) -> None:
    memory = BoundedMemory(3 * MB, said + "\nand more lines")
    with pytest.raises(UsageError) as raised:
        tried(training(small_model()), "32x1@2000", memory)
    assert memory.live.errors
    assert f"({said})" in str(raised.value)
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access"))
    assert not is_out_of_memory(ValueError(said))


def test_failing_sizes_are_searched_around() -> None:
    model = small_model()
    what = training(model, loss=lambda outputs, labels: class_loss(outputs, labels))
    plain = tried(what, "32x1", BoundedMemory(3 * MB))
    trials: list[BatchTrial] = []

    def far_off(rows: int, size: int) -> Any:  # begins at 8, with no estimate
        return noise_batches(torch.device("cpu"))(rows, size)

    memory = Leaping(3 * MB)
    found = tried(
        training(model, batch=far_off), "32x1", memory, on_trial=lambda _, one: trials.append(one)
    )
    assert memory.live.errors
    assert any(trial.peak_bytes is None for trial in trials)
    assert found.phases[0].rows == plain.phases[0].rows


class Leaping(BoundedMemory):
    """Memory that under-reports small batches, so that extrapolation is too optimistic."""

    def peak_bytes(self) -> int:
        return (
            super().peak_bytes()
            if super().peak_bytes() > 0.8 * self.available_bytes()
            else super().peak_bytes() // 4
        )


def test_user_step_is_tried_and_its_changes_are_undone() -> None:
    model = small_model()
    average = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rate = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    before = {name: value.clone() for name, value in average.state_dict().items()}
    seen: list[int] = []

    def step(batch: Any) -> None:
        images, labels = batch
        seen.append(len(images))
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        rate.step()
        with torch.no_grad():
            for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(theirs, 0.5)

    what = training(model, step=step, optimizer=optimizer, stateful=(rate, average))
    found = tried(what, "32x1", BoundedMemory(3 * MB))
    assert found.phases[0].rows in seen
    assert found.phases[0].trials[0].rows == 8
    assert optimizer.param_groups[0]["lr"] == rate.get_last_lr()[0] == 0.1
    for name, value in average.state_dict().items():
        assert torch.equal(value, before[name])


def test_search_does_not_exceed_requested_maximum() -> None:
    trials: list[BatchTrial] = []
    found = tried(
        training(small_model()), "32x1", BoundedMemory(50 * MB), max_rows=100,
        on_trial=lambda _, trial: trials.append(trial),
    )  # fmt: skip
    assert found.phases[0].rows == 96
    assert found.phases[0].bound == "most"
    assert max(trial.rows for trial in trials) == 96


def test_a_batch_that_the_schedule_names_is_tried_and_stays() -> None:
    found = tried(training(small_model()), "32x1@33,48x1", BoundedMemory(3 * MB))
    assert [phase.bound for phase in found.phases] == ["asked", "memory"]
    assert str(found.schedule).startswith("32x1@33,48x1@")
    with pytest.raises(UsageError, match=r"(?s)5000.*32 px.*@5000"):
        tried(training(small_model()), "32x1@5000", BoundedMemory(3 * MB))


def test_model_without_any_room_is_reported() -> None:
    with pytest.raises(UsageError, match=r"not even one image of 256 px fits.*out of memory"):
        tried(training(small_model()), "256x1", BoundedMemory(MB // 2))


def test_error_of_step_is_raised_and_model_is_unchanged() -> None:
    model = small_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    calls = 0

    def step(batch: Any) -> None:
        nonlocal calls
        calls += 1
        with torch.no_grad():
            next(model.parameters()).add_(1)
        if calls > 4:
            raise RuntimeError("the shapes do not match")

    with pytest.raises(RuntimeError, match="the shapes do not match"):
        tried(training(model, step=step), "32x1", BoundedMemory(3 * MB))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_outputs_other_than_logits_require_a_loss() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small_model()

        def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"out": self.inner(images)}

    with pytest.raises(UsageError, match=r"logits.*dict"):
        tried(training(Both()), "32x1", BoundedMemory(3 * MB))
    what = training(Both(), loss=lambda outputs, labels: class_loss(outputs["out"], labels))
    assert tried(what, "32x1", BoundedMemory(3 * MB)).phases[0].rows > 8


@pytest.mark.slow
def test_with_other_ranks_the_copy_of_gradients_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def wide() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 600), nn.Linear(600, 2))

    alone = tried(training(wide()), "16x1", BoundedMemory(24 * MB))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    together = tried(training(wide()), "16x1", BoundedMemory(24 * MB))
    lost = 4 * (3 * 16 * 16 * 600 + 600 + 600 * 2 + 2)
    per_image = 2 * 3 * 16 * 16 * 4
    assert together.phases[0].rows < alone.phases[0].rows
    assert alone.phases[0].rows - together.phases[0].rows <= lost / per_image
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(small_model())
    with pytest.raises(UsageError, match="SyncBatchNorm"):
        tried(training(synced), "32x1", BoundedMemory(3 * MB))
