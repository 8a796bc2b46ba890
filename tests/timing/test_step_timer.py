"""Steps: sums that any number of readers can difference, and entries of passes by size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feedline.timing.run import Pass
from feedline.timing.steps import PassEntries, Passes, StepTimer, StepTimes


def begun(passes: Passes, loader: int = 0, epoch: int = 0) -> PassEntries:
    return PassEntries(passes, Pass(loader=loader, epoch=epoch))


def step(entry: Pass) -> None:
    entry.batches += 1
    entry.wait.add(1.0)


@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 40), max_size=60))))
def test_no_step_is_lost_when_sizes_and_loaders_change(
    epochs: list[tuple[int, list[int]]],
) -> None:
    passes = Passes()
    for epoch, (loader, sizes) in enumerate(epochs):
        entries = begun(passes, loader, epoch)
        for size in sizes:
            step(entries.change(size))
        entries.end("exhausted")
    assert len(passes.entries) <= 200
    assert sum(entry.batches for entry in passes.entries) == sum(len(s) for _, s in epochs)
    assert sum(entry.wait.count for entry in passes.entries) == sum(len(s) for _, s in epochs)
    assert sum(entry.passes for entry in passes.entries) == len(epochs)


def test_ten_thousand_passes_are_summed_up_by_loader_and_size() -> None:
    passes = Passes()
    for epoch in range(10_000):
        entries = begun(passes, epoch % 2, epoch)
        step(entries.change(64 + 32 * (epoch % 2)))
        entries.end("exhausted")
        assert len(passes.entries) <= 200
    assert sum(entry.batches for entry in passes.entries) == 10_000
    assert [(entry.loader, entry.image_size) for entry in passes.entries[:2]] == [(0, 64), (1, 96)]
    assert passes.entries[-1].epoch == 9999


def test_a_long_pass_stays_itself_while_many_short_ones_come_and_go() -> None:
    passes = Passes()
    training = begun(passes)
    own = training.change(224)
    for epoch in range(1000):
        validation = begun(passes, 1, epoch)
        step(validation.change(256))
        validation.end("exhausted")
        step(own)
    training.end("exhausted")
    (found,) = [entry for entry in passes.entries if entry.loader == 0]
    assert found is own
    assert (found.batches, found.ended) == (1000, "exhausted")


def test_a_size_that_comes_again_has_its_entry_again() -> None:
    passes = Passes()
    entries = begun(passes)
    first = entries.change(64)
    second = entries.change(96)
    assert (first.ended, second.ended) == ("size changed", "")
    assert entries.change(64) is first
    assert first.ended == ""
    entries.end("left")
    assert (first.ended, second.ended) == ("left", "size changed")
    assert [entry.passes for entry in passes.entries] == [1, 0]


def test_sizes_beyond_32_share_an_entry() -> None:
    passes = Passes()
    entries = begun(passes)
    found = {id(entries.change(size)) for size in range(500)}
    assert len(found) == len(passes.entries) == 33
    assert passes.entries[-1].image_size is None


def test_epoch_without_batches_has_an_entry() -> None:
    passes = Passes()
    begun(passes).end("exhausted")
    (entry,) = passes.entries
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
