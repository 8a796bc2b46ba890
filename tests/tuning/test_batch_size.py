"""Batch sizes: the pure search, trials in a memory of a few megabytes, and results on a GPU."""

import gc
import itertools

import pytest
import torch
from bounded_memory import BoundedMemory
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import feedline
from feedline.errors import UsageError
from feedline.tuning import batch_size
from feedline.tuning.batch_size import largest_fitting, next_size, next_smaller
from feedline.tuning.training_step import (
    SHARE,
    BatchTrial,
    BatchTrials,
    class_loss,
    is_out_of_memory,
    noise_batches,
)
from slow import slow

MB = 1 << 20
SIZES = [*range(1, 8), *range(8, 20_000, 8)]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def small_model(width=8):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10),
    ).to(memory_format=torch.channels_last)  # fmt: skip


def tried(model, schedule, memory, **options):
    """Run `find_batch_size` in another memory than a GPU's."""
    with (
        pytest.MonkeyPatch.context() as patch,
        memory.here([*model.parameters(), *model.buffers()]),
    ):
        patch.setattr(batch_size, "CudaMemory", lambda model: memory)
        return feedline.find_batch_size(model, schedule, **options)


def trials_of(model, memory, step):
    return BatchTrials(model, memory, step, noise_batches(memory.device), [model])


def searched(taken, room, most=4096, breaks=1.1):
    """Trials of a finished search; they fail above `breaks` of the memory."""
    trials = {}
    while (rows := next_size(trials, room, most)) is not None:
        assert rows not in trials
        assert rows in SIZES
        assert rows <= most
        peak = int(taken(rows))
        trials[rows] = BatchTrial(
            batch_size=rows, peak_bytes=peak if peak <= breaks * room else None, fits=peak <= room
        )
    return trials


def largest(taken, room, most=4096):
    return max((n for n in SIZES if n <= most and int(taken(n)) <= room), default=0)


@pytest.mark.parametrize("per_image", [3, 40, 2500])
def test_the_largest_is_found_in_few_trials(per_image):
    def taken(rows):
        return 300 + rows * per_image

    trials = searched(taken, 20_000)
    assert largest_fitting(trials) == largest(taken, 20_000)
    assert len(trials) <= 6


@given(
    fixed=st.integers(0, 3000),
    per_image=st.floats(0.5, 3000),
    steps=st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 5000)), max_size=5),
    room=st.integers(1, 100_000),
    most=st.integers(1, 5000),
    breaks=st.floats(1, 3),
)
def test_largest_size_is_found_for_any_kernel_choice(fixed, per_image, steps, room, most, breaks):
    """From some sizes on kernels use more workspace, in jumps."""

    def taken(rows):
        return fixed + rows * per_image + sum(more for since, more in steps if rows >= since)

    trials = searched(taken, room, most, breaks)
    assert largest_fitting(trials) == largest(taken, room, most)
    assert len(trials) <= 16


def test_failed_size_bounds_larger_ones_even_if_they_ran():
    trials = {64: BatchTrial(batch_size=64, peak_bytes=90, fits=True)}
    assert next_size(trials, 100, 64) is None
    trials[32] = BatchTrial(batch_size=32, peak_bytes=None, fits=False)
    assert largest_fitting(trials) == 0
    assert (next_size(trials, 100, 64) or 64) < 32


def test_failing_size_shrinks_to_zero():
    sizes = [1000]
    while sizes[-1]:
        sizes.append(next_smaller(sizes[-1]))
    assert sizes[1] == 944
    assert all(rows in (0, *SIZES) for rows in sizes[1:])
    assert sizes == sorted(set(sizes), reverse=True)
    assert next_smaller(8) == 7


def peak_of_a_training(rows, size):
    """Peak bytes of the same training in a loop of its own."""
    model = small_model()
    memory = BoundedMemory(1 << 40)
    # In a trial, copies of parameters and buffers lie in the host's memory, which here is the same.
    copies = [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())]
    with memory.here([*model.parameters(), *model.buffers(), *copies]):
        optimizer = torch.optim.AdamW(model.parameters())
        ahead = None
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


@pytest.mark.parametrize(("bound", "size"), [(2 * MB, 48), *slow((10 * MB, 32))])
def test_the_largest_batch_that_leaves_the_headroom_is_found(bound, size):
    told = []
    memory = BoundedMemory(bound)
    found = tried(
        small_model(),
        f"{size}x1",
        memory,
        on_trial=lambda size, trial: told.append(trial.batch_size),
    )
    (phase,) = found.phases
    assert phase.bound == "memory"
    assert told == [trial.batch_size for trial in phase.trials]
    assert len(told) <= 9
    assert phase.rows % 8 == 0
    # As a loop that is not the search's finds it, too: this one fits, and the next one does not.
    slack = 4096  # of tensors of a few values each
    assert peak_of_a_training(phase.rows, size) <= SHARE * bound + slack
    assert peak_of_a_training(phase.rows + 8, size) > SHARE * bound - slack
    assert phase.peak_bytes <= SHARE * bound
    assert str(found.schedule) == f"{size}x1@{phase.rows}"


def test_failed_step_releases_its_frame_and_memory():
    model = small_model()
    memory = BoundedMemory(3 * MB)

    def step(batch):
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
            before = memory.now
            trials = trials_of(model, memory, step)
            assert trials.trial(32, 64).peak_bytes is None
            assert memory.now <= before + 1024
            assert trials.trial(32, 8).fits
    finally:
        gc.enable()


def test_steps_train_and_go_over_the_sizes_as_a_schedule_does():
    model = small_model().eval()
    frozen = model[1]
    modes = set()
    sizes = []

    def step(batch):
        modes.add((model.training, frozen.training))
        sizes.append(batch[0].shape[-1])

    trials = trials_of(model, BoundedMemory(MB), step)
    assert trials.find_failing_phase([(8, 2), (16, 2), (24, 2)]) is None
    assert [size for size, _ in itertools.groupby(sizes)] == [8, 16, 24, 8, 24]
    assert modes == {(True, True)}
    modes.clear()
    model.train()
    frozen.eval()
    trials.trial(8, 2)
    assert modes == {(True, False)}


def test_phases_are_measured_independently():
    found = tried(small_model(), "32x2,48x1,64x3,32x1", BoundedMemory(6 * MB))
    rows = [phase.rows for phase in found.phases]
    assert rows[0] > rows[1] > rows[2]
    assert rows[3] == rows[0]
    assert str(found.schedule) == "32x2@{},48x1@{},64x3@{},32x1@{}".format(*rows)
    assert found.as_dict()["phases"][2]["batch_size"] == rows[2]
    assert "64 px" in str(found)


class Fragmented(BoundedMemory):
    """Memory that a change of the batch's shape makes smaller, until it is cleared."""

    def __init__(self, bound, lost):
        super().__init__(bound)
        self.whole, self.lost = bound, lost
        self.shapes = []

    def seen(self, shape):
        if shape not in self.shapes:
            self.shapes.append(shape)
            self.bound = self.whole - self.lost * (len(self.shapes) - 1)

    def clear(self):
        super().clear()
        self.shapes.clear()
        self.bound = self.whole

    def available_bytes(self):
        return self.whole


@pytest.mark.slow
def test_sizes_that_fragment_the_memory_get_smaller_batches():
    alone = tried(small_model(), "32x1,48x1", BoundedMemory(6 * MB))
    memory = Fragmented(6 * MB, MB)
    model = small_model()
    model.register_forward_pre_hook(lambda _, inputs: memory.seen(inputs[0].shape))
    found = tried(model, "32x1,48x1", memory)
    assert found.phases[1].rows < alone.phases[1].rows
    assert found.phases[0].rows <= alone.phases[0].rows


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
def test_out_of_memory_errors_of_libraries_are_recognised(said):
    memory = BoundedMemory(3 * MB, said + "\nand more lines")
    with pytest.raises(UsageError) as raised:
        tried(small_model(), "32x1@2000", memory)
    assert memory.errors
    assert f"({said})" in str(raised.value)
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access"))
    assert not is_out_of_memory(ValueError(said))


def test_user_step_is_tried_and_its_changes_are_undone():
    model = small_model().eval()
    average = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rate = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    before = {name: value.clone() for name, value in average.state_dict().items()}
    state, seen = torch.get_rng_state(), []

    def step(batch):
        images, labels = batch
        seen.append(len(images))
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        rate.step()
        scaler.scale(torch.ones(1))
        scaler.update(2.0)
        with torch.no_grad():
            for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(theirs, 0.5)

    found = tried(
        model, "32x1", BoundedMemory(3 * MB),
        step=step, optimizer=optimizer, stateful=(rate, scaler, average),
    )  # fmt: skip
    assert found.phases[0].rows in seen
    assert found.phases[0].trials[0].batch_size == 8
    assert optimizer.param_groups[0]["lr"] == rate.get_last_lr()[0] == 0.1
    assert scaler.get_scale() == 8.0
    assert torch.equal(torch.get_rng_state(), state)
    assert not model.training
    assert not optimizer.state
    assert all(parameter.grad is None for parameter in model.parameters())
    for module in (model, average):
        for name, value in module.state_dict().items():
            assert torch.equal(value, before[name])


def test_search_does_not_exceed_requested_maximum():
    trials = []
    found = tried(
        small_model(), "32x1", BoundedMemory(50 * MB), max_batch_size=100,
        on_trial=lambda _, trial: trials.append(trial),
    )  # fmt: skip
    assert found.phases[0].rows == 96
    assert found.phases[0].bound == "most"
    assert max(trial.batch_size for trial in trials) == 96


def test_a_batch_that_the_schedule_names_is_tried_and_stays():
    found = tried(small_model(), "32x1@33,48x1", BoundedMemory(3 * MB))
    assert [phase.bound for phase in found.phases] == ["asked", "memory"]
    assert str(found.schedule).startswith("32x1@33,48x1@")
    with pytest.raises(UsageError, match=r"(?s)5000.*32 px.*@5000"):
        tried(small_model(), "32x1@5000", BoundedMemory(3 * MB))


def test_model_without_any_room_is_reported():
    with pytest.raises(UsageError, match=r"not even one image of 256 px fits.*out of memory"):
        tried(small_model(), "256x1", BoundedMemory(MB // 2))


def test_outputs_other_than_logits_require_a_loss():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = small_model()

        def forward(self, images):
            return {"out": self.inner(images)}

    with pytest.raises(UsageError, match=r"logits.*dict"):
        tried(Both(), "32x1", BoundedMemory(3 * MB))
    found = tried(
        Both(), "32x1", BoundedMemory(3 * MB),
        loss=lambda outputs, labels: class_loss(outputs["out"], labels),
    )  # fmt: skip
    assert found.phases[0].rows > 8


@pytest.mark.slow
def test_with_other_ranks_the_copy_of_gradients_counts(monkeypatch):
    def wide():
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 600), nn.Linear(600, 2))

    alone = tried(wide(), "16x1", BoundedMemory(24 * MB))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    together = tried(wide(), "16x1", BoundedMemory(24 * MB))
    lost = 4 * (3 * 16 * 16 * 600 + 600 + 600 * 2 + 2)
    per_image = 2 * 3 * 16 * 16 * 4
    assert together.phases[0].rows < alone.phases[0].rows
    assert alone.phases[0].rows - together.phases[0].rows <= lost / per_image
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(small_model())
    with pytest.raises(UsageError, match="SyncBatchNorm"):
        tried(synced, "32x1", BoundedMemory(3 * MB))


LAZY = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
FROZEN = nn.Linear(3, 3).requires_grad_(False)


@pytest.mark.parametrize(
    ("model", "schedule", "options", "said"),
    [
        (print, 64, {}, r"torch\.nn\.Module"),
        (None, "ownx3", {}, "needs an image size"),
        (None, 0, {}, "size"),
        (None, 64, {"precision": torch.int8}, "precision"),
        (None, 64, {"max_batch_size": 0}, "max_batch_size"),
        (None, 64, {"step": print}, "optimizer="),
        (LAZY, 64, {}, "uninitialized"),
        (FROZEN, 64, {}, "no parameter"),
    ],
)
def test_unsupported_model_is_rejected(model, schedule, options, said):
    with pytest.raises(UsageError, match=said):
        feedline.find_batch_size(model or small_model(), schedule, **options)


def test_a_model_on_the_cpu_raises_with_a_hint():
    said = r"model\.cuda\(\)" if torch.cuda.is_available() else "torch sees none"
    with pytest.raises(UsageError, match=said):
        feedline.find_batch_size(small_model(), 64)


@needs_cuda
def test_on_a_gpu_the_largest_is_found_and_runs_within_the_memory():
    model = small_model(64).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.cuda.get_rng_state()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(2 * 2**30 / total)
    try:
        found = feedline.find_batch_size(
            model, "64x1,160x1", optimizer=optimizer, precision=torch.float16
        )
        assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
        assert not optimizer.state
        assert torch.equal(torch.cuda.get_rng_state(), random)
        torch.cuda.reset_peak_memory_stats()
        for phase in [*found.phases, *found.phases]:
            size = phase.phase.image_size
            assert size is not None
            images = torch.randn(phase.rows, 3, size, size, device="cuda")
            labels = torch.zeros(phase.rows, dtype=torch.int64, device="cuda")
            with torch.autocast("cuda", torch.float16):
                loss = functional.cross_entropy(model(images).float(), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert torch.cuda.max_memory_reserved() <= 2 * 2**30
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
