"""Steps: sums that any number of readers can difference, and entries of passes by size."""

from __future__ import annotations

import time
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from feedline.timing.batch_probe import BatchInfo
from feedline.timing.recorder import PassRecord, Recorder
from feedline.timing.run import Loader, Pass
from feedline.timing.run_file import limit_passes
from feedline.timing.steps import StepTimer, StepTimes

LOADERS = [Loader(kind="other", name="x", batch_size=k) for k in range(4)]


def begun(recorder: Recorder, loader: int = 0) -> PassRecord:
    number = recorder.register_loader(LOADERS[loader])
    return recorder.begin(number, None, time.monotonic_ns())


def deliver(record: PassRecord, sizes: Iterable[int]) -> None:
    for size in sizes:
        now_ns = time.monotonic_ns()
        record.add_batch(BatchInfo(size, 8), now_ns, now_ns)


@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 40), max_size=60))))
def test_no_step_is_lost_when_sizes_and_loaders_change(
    epochs: list[tuple[int, list[int]]],
) -> None:
    recorder = Recorder()
    for loader, sizes in epochs:
        record = begun(recorder, loader)
        deliver(record, sizes)
        recorder.end(record, "exhausted")
    passes = recorder.run().passes
    assert len(passes) <= 200
    assert sum(entry.batches for entry in passes) == sum(len(s) for _, s in epochs)
    assert sum(entry.wait.count for entry in passes) == sum(max(0, len(s) - 1) for _, s in epochs)
    assert sum(entry.passes for entry in passes) == len(epochs)


def test_ten_thousand_passes_are_summed_up_by_loader_and_size() -> None:
    passes: list[Pass] = []
    for epoch in range(10_000):
        passes.append(Pass(loader=epoch % 2, epoch=epoch, image_size=64 + epoch % 2, batches=1))
        passes = limit_passes(passes)
        assert len(passes) <= 200
    assert sum(entry.batches for entry in passes) == 10_000
    assert [(entry.loader, entry.image_size) for entry in passes[:2]] == [(0, 64), (1, 65)]
    assert passes[-1].epoch == 9999


def test_a_long_pass_stays_itself_while_many_short_ones_come_and_go() -> None:
    recorder = Recorder()
    training = begun(recorder)
    for _ in range(1000):
        validation = begun(recorder, 1)
        deliver(validation, [256])
        recorder.end(validation, "exhausted")
        deliver(training, [224])
    recorder.end(training, "exhausted")
    (found,) = [entry for entry in recorder.run().passes if entry.loader == 0]
    assert (found.batches, found.passes, found.ended) == (1000, 1, "exhausted")


def test_a_size_that_comes_again_has_its_entry_again() -> None:
    recorder = Recorder()
    record = begun(recorder)
    deliver(record, [64, 96])
    assert [entry.ended for entry in recorder.run().passes] == ["size changed", ""]
    deliver(record, [64])
    recorder.end(record, "left")
    assert [(entry.image_size, entry.ended, entry.passes) for entry in recorder.run().passes] == [
        (64, "left", 1),
        (96, "size changed", 0),
    ]


def test_sizes_beyond_32_share_an_entry() -> None:
    recorder = Recorder()
    deliver(begun(recorder), range(500))
    passes = recorder.run().passes
    assert len(passes) == 33
    assert passes[-1].image_size is None


def test_epoch_without_batches_has_an_entry() -> None:
    recorder = Recorder()
    recorder.end(begun(recorder), "exhausted")
    (entry,) = recorder.run().passes
    assert (entry.batches, entry.ended, entry.image_size) == (0, "exhausted", None)


ms = st.integers(0, 10_000).map(float)
steps = st.lists(st.tuples(ms, ms, ms), max_size=30)


@given(steps, st.lists(st.integers(0, 30), max_size=5))
def test_readers_that_read_at_any_time_each_see_the_steps_since_their_own_last_reading(
    steps: list[tuple[float, float, float]], readings: list[int]
) -> None:
    timing = StepTimer()
    read = {at: timing.totals() for at in readings if at == 0}
    for k, (wait, copy, compute) in enumerate(steps, 1):
        timing.add(wait, copy, compute)
        read |= {at: timing.totals() for at in readings if at == k}
    for at, earlier in read.items():
        since = timing.totals() - earlier
        rest = steps[at:]
        assert since == StepTimes(
            steps=len(rest),
            wait_ms=sum(step[0] for step in rest),
            copy_ms=sum(step[1] for step in rest),
            compute_ms=sum(step[2] for step in rest),
        )
        mean = since.mean()
        assert mean.steps == len(rest)


def test_a_mean_of_steps_is_their_sum_over_their_number() -> None:
    mean = StepTimes(steps=4, wait_ms=2.0, copy_ms=4.0, compute_ms=10.0).mean()
    assert (mean.wait_ms, mean.copy_ms, mean.compute_ms, mean.step_ms) == (0.5, 1.0, 2.5, 4.0)
    assert StepTimes().mean().step_ms == 0.0
