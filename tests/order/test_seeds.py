import random
import runpy
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline.order.seeds
from feedline.order.seeds import RandomStream, mix, row_seed, row_seeds

seeds = st.integers(0, 2**64 - 1)


def test_a_stream_is_splitmix64():
    # The reference implementation's first outputs for seed 1234567 (prng.di.unimi.it).
    stream = RandomStream(1234567)
    assert [stream.bits() for _ in range(5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_mix_matches_saved_states():
    assert mix() == 0
    assert mix(0) == 16294208416658607535
    assert mix(1, 2, 3) == 7702586659592502839
    assert mix(3, 2, 1) == 15432287184251514724
    assert mix(-1) == mix(2**64 - 1) == 16490336266968443936


def test_stream_matches_augmentation():
    stream = RandomStream(12345)
    assert [stream.uniform() for _ in range(3)] == [
        0.1330796686614273,
        0.20481663336165912,
        0.11954258300911547,
    ]
    pair, triple = stream.pair(), stream.triple()
    bits = [int(pair[0] * 2**32), int(pair[1] * 2**32)]
    bits += [int(triple[0] * 2**24), int(triple[1] * 2**24), int(triple[2] * 2**16)]
    other = RandomStream(12345)
    words = [other.bits() for _ in range(5)][3:]
    assert (bits[0] << 32) + bits[1] == words[0]
    assert (bits[2] << 40) + (bits[3] << 16) + bits[4] == words[1]


@given(
    seeds,
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=5),
    st.integers(0, 1 << 20),
    st.integers(0, (1 << 63) - 1),
    st.integers(0, 1 << 20),
)
def test_batched_seeds_equal_single_seeds(epoch_seed, samples, start, first, stride):
    found = row_seeds(epoch_seed, np.array(samples, np.int64), start, first, stride)
    assert found.tolist() == [
        row_seed(epoch_seed, sample, row, first, stride)
        for row, sample in enumerate(samples, start)
    ]


SEEDS = [0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1, *(mix(k) for k in range(26))]


def test_native_seeds_are_those_of_python(monkeypatch):
    native = pytest.importorskip("feedline.order._seeding")
    monkeypatch.setitem(sys.modules, "feedline.order._seeding", None)
    python = runpy.run_path(feedline.order.seeds.__file__)
    assert python["mix"] is not native.mix
    for part in [-1, -(2**70), *SEEDS]:
        assert native.mix(5, part) == python["mix"](5, part) == python["extend"](mix(5), part)
        assert native.extend(part, 7) == python["extend"](part, 7)
    assert native.mix() == python["mix"]()
    for call in (lambda: native.mix("1"), lambda: native.extend(1, None)):
        with pytest.raises(TypeError):
            call()


def test_native_states_are_those_of_python_and_numpy():
    native = pytest.importorskip("feedline.order._seeding")
    lanes = native.LANES
    words = np.zeros((lanes, 626), np.uint32)  # of a row, the first and the last are not written to
    for start in range(0, len(SEEDS), lanes):
        numbers = [SEEDS[k % len(SEEDS)] for k in range(start, start + lanes)]
        native.states(numbers, True, words[:, 1:-1])
        for number, row in zip(numbers, words, strict=True):
            assert row.tolist() == [0, *random.Random(number).getstate()[1][:-1], 0]
        native.states(numbers, False, words[:, 1:-1])
        for number, row in zip(numbers, words, strict=True):
            expected = np.random.RandomState(number & 0xFFFFFFFF).get_state()[1]
            assert row.tolist() == [0, *expected, 0]


@pytest.mark.parametrize(
    "target",
    [
        np.zeros((1000, 624), np.uint32),
        np.zeros((16, 623), np.uint32),
        np.zeros((16, 624), np.uint64),
        np.zeros((16, 1248), np.uint32)[:, ::2],
        np.zeros(16 * 624, np.uint32),
    ],
)
def test_native_states_need_memory_of_the_right_size(target):
    native = pytest.importorskip("feedline.order._seeding")
    with pytest.raises(ValueError, match="624"):
        native.states([1] * native.LANES, True, target)
    with pytest.raises(IndexError):
        native.states([], True, np.zeros((native.LANES, 624), np.uint32))
    assert not target.any()
