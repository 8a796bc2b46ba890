"""Entries of passes: by size, summed up when they are many, and never lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feedline.timing.passes import PassEntries, Passes
from feedline.timing.run import Pass


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
