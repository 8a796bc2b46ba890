from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.plan.order import ORDERS, epoch_order, share

lengths = st.integers(1, 300)
seeds = st.integers(0, 2**64 - 1)
epochs = st.integers(0, 1_000_000)


@given(lengths, seeds, epochs, st.sampled_from(sorted(ORDERS)))
def test_an_epoch_holds_every_sample_exactly_once(
    length: int, seed: int, epoch: int, order: str
) -> None:
    samples = epoch_order(length, seed, epoch, order)
    assert samples.dtype == np.int64
    assert sorted(samples.tolist()) == list(range(length))


@given(lengths, seeds, epochs)
def test_without_shuffling_the_order_is_the_samples_own(length: int, seed: int, epoch: int) -> None:
    assert epoch_order(length, seed, epoch, "sequential").tolist() == list(range(length))


@given(lengths, seeds, epochs)
def test_the_order_is_the_same_when_it_is_made_anew(length: int, seed: int, epoch: int) -> None:
    first = epoch_order(length, seed, epoch, "shuffled").tolist()
    epoch_order.cache_clear()
    assert epoch_order(length, seed, epoch, "shuffled").tolist() == first


def test_the_order_differs_between_all_epochs_and_seeds() -> None:
    orders = {
        tuple(epoch_order(50, seed, epoch, "shuffled").tolist())
        for seed in range(20)
        for epoch in range(20)
    }
    assert len(orders) == 400


def test_seed_and_epoch_are_not_interchangeable() -> None:
    assert epoch_order(50, 1, 2, "shuffled").tolist() != epoch_order(50, 2, 1, "shuffled").tolist()


def test_the_high_half_of_the_seed_counts() -> None:
    assert (
        epoch_order(50, 1, 0, "shuffled").tolist()
        != epoch_order(50, 1 + (1 << 40), 0, "shuffled").tolist()
    )


def test_a_shared_order_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        epoch_order(10, 0, 0, "shuffled")[0] = 1


@pytest.mark.parametrize(
    ("length", "seed", "epoch", "order"),
    [
        (10, 0, 0, [1, 4, 9, 0, 7, 6, 8, 5, 3, 2]),
        (10, 0, 1, [2, 5, 3, 4, 0, 6, 7, 9, 8, 1]),
        (10, 1, 0, [4, 7, 6, 0, 2, 3, 8, 5, 9, 1]),
        (10, 2**63, 5, [6, 8, 2, 3, 7, 1, 5, 0, 4, 9]),
        (11, 0, 0, [5, 3, 2, 1, 7, 10, 9, 6, 8, 0, 4]),
    ],
)
def test_the_order_is_the_one_that_saved_states_rely_on(
    length: int, seed: int, epoch: int, order: list[int]
) -> None:
    assert epoch_order(length, seed, epoch, "shuffled").tolist() == order


def test_all_orders_are_those_that_saved_states_rely_on() -> None:
    digests = [
        hashlib.blake2b(epoch_order(length, seed, epoch, "shuffled").tobytes(), digest_size=8)
        for length in (1, 2, 10, 257, 5000)
        for seed in (0, 1, -3, 2**40, 2**63, 2**64 - 1)
        for epoch in (0, 1, 7, 10**6)
    ]
    text = "".join(digest.hexdigest() for digest in digests)
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    assert digest == "cc29744d9dca2a5a7b6712d9e4527411"


@given(st.integers(1, 60), st.integers(0, 59), st.integers(1, 60), st.integers(1, 8))
def test_the_shares_of_all_ranks_are_the_rows_and_then_padding_from_the_start(
    length: int, start: int, rows: int, world_size: int
) -> None:
    order = epoch_order(length, 3, 1, "shuffled")
    start = min(start, length - 1)
    stop = min(start + rows, length)
    shares = [share(order, start, stop, rank, world_size) for rank in range(world_size)]
    assert len({len(each) for each in shares}) == 1
    together = np.stack(shares, axis=1).ravel().tolist()
    real = order[start:stop].tolist()
    missing = -len(real) % world_size
    assert together == real + [int(order[k % length]) for k in range(missing)]
