import hashlib

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from orders import ORDER_NAMES

from feedline.errors import UsageError
from feedline.order.sample_order import BLOCK_SIZE, Order, epoch_order
from feedline.order.schedule import Schedule

seeds = st.integers(0, 2**64 - 1)
epochs = st.integers(0, 1_000_000)


def test_the_order_differs_between_all_epochs_and_seeds():
    orders = {
        tuple(epoch_order(50, seed, epoch, "shuffled").tolist())
        for seed in range(20)
        for epoch in range(20)
    }
    assert len(orders) == 400


def test_a_shared_order_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        epoch_order(10, 0, 0, "shuffled")[0] = 1


def test_all_orders_match_saved_states():
    digests = [
        hashlib.blake2b(epoch_order(length, seed, epoch, "shuffled").tobytes(), digest_size=8)
        for length in (1, 2, 10, 257, 5000)
        for seed in (0, 1, -3, 2**40, 2**63, 2**64 - 1)
        for epoch in (0, 1, 7, 10**6)
    ]
    text = "".join(digest.hexdigest() for digest in digests)
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    assert digest == "cc29744d9dca2a5a7b6712d9e4527411"
    windowed = hashlib.blake2b(digest_size=16)
    for length in (1, 255, 256, 257, 5000):
        for window in (1, 100, 256, 1000, 10**6):
            windowed.update(epoch_order(length, 2**40, 7, f"window:{window}").tobytes())
    assert windowed.hexdigest() == "9d8f36f3299ea3875721366959e6337e"


windows = st.integers(1, 3 * BLOCK_SIZE) | st.sampled_from(
    [BLOCK_SIZE, 4 * BLOCK_SIZE, 10**9, 10**12 - 1]
)


@given(
    st.integers(0, 5 * BLOCK_SIZE),
    seeds,
    epochs,
    st.sampled_from(ORDER_NAMES) | windows.map("window:{}".format),
)
@example(0, 0, 0, "window:1")
@example(1, 0, 0, "window:1")
@example(BLOCK_SIZE, 0, 0, f"window:{BLOCK_SIZE}")
@example(BLOCK_SIZE + 1, 0, 0, f"window:{BLOCK_SIZE - 1}")
@example(4 * BLOCK_SIZE - 1, 0, 0, f"window:{2 * BLOCK_SIZE}")
def test_an_epoch_holds_every_sample_exactly_once(length, seed, epoch, order):
    samples = epoch_order(length, seed, epoch, order)
    assert samples.dtype == np.int64
    assert sorted(samples.tolist()) == list(range(length))


def blocks_of_windows(length, window):
    """The blocks that each window of an epoch has samples of."""
    samples = epoch_order(length, 3, 1, f"window:{window}")
    parts = [samples[start : start + window] for start in range(0, length, window)]
    return [np.unique(part // BLOCK_SIZE).tolist() for part in parts]


@given(st.integers(1, 6), st.integers(1, 6))
def test_a_window_of_whole_blocks_holds_all_samples_of_each(count, blocks):
    found = blocks_of_windows(count * blocks * BLOCK_SIZE, blocks * BLOCK_SIZE)
    assert [len(each) for each in found] == [blocks] * count
    assert sorted(block for each in found for block in each) == list(range(count * blocks))


@given(st.integers(1, 20 * BLOCK_SIZE), st.integers(BLOCK_SIZE, 8 * BLOCK_SIZE))
def test_a_block_is_read_within_one_window_or_two_that_follow_one_another(length, window):
    places = {}
    for place, blocks in enumerate(blocks_of_windows(length, window)):
        assert len(blocks) <= window // BLOCK_SIZE + 3  # parts at both ends, and the short one
        for block in blocks:
            places.setdefault(block, []).append(place)
    assert all(found[-1] - found[0] == len(found) - 1 <= 1 for found in places.values())


MISSPELT = ("window", "window:", "window:0", "window:-1", "window:1.5", "window:016", "window:16\n")
MISSPELT += ("Window:16", "window:1_000", "window:\u0661", "window:" + "9" * 13, "random", "")


@pytest.mark.parametrize("name", MISSPELT)
def test_misspelt_order_is_rejected(name):
    schedule = Schedule.parse("8x1")
    with pytest.raises(UsageError, match="order must be one of shuffled, sequential, window:N"):
        Order(length=10, schedule=schedule, batch_size=1, sample_order=name)


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_sequential_order_needs_no_memory_for_its_length(world_size):
    length = 10**15
    order = Order(
        length=length,
        schedule=Schedule.parse("8x1"),
        batch_size=4,
        sample_order="sequential",
        world_size=world_size,
    )
    assert order.batch(0, 2).samples.tolist() == [8 * world_size + world_size * k for k in range(4)]
    last = order.batch(3, order.steps(3) - 1)
    assert last.samples[0] == length - (length % (4 * world_size) or 4)
