from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feedline.plan.seeds import Stream, mix

seeds = st.integers(0, 2**64 - 1)
parts = st.lists(seeds, min_size=1, max_size=4)


def test_a_stream_is_splitmix64() -> None:
    # The reference implementation's first outputs for seed 1234567 (prng.di.unimi.it).
    stream = Stream(1234567)
    assert [stream.bits() for _ in range(5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_mix_gives_the_numbers_that_saved_states_rely_on() -> None:
    assert mix() == 0
    assert mix(0) == 16294208416658607535
    assert mix(1, 2, 3) == 7702586659592502839
    assert mix(3, 2, 1) == 15432287184251514724
    assert mix(-1) == mix(2**64 - 1) == 16490336266968443936


def test_uniform_and_below_give_the_numbers_that_augmentation_relies_on() -> None:
    stream = Stream(12345)
    assert [stream.uniform() for _ in range(3)] == [
        0.1330796686614273,
        0.20481663336165912,
        0.11954258300911547,
    ]
    assert [stream.below(10) for _ in range(8)] == [1, 5, 3, 1, 4, 4, 8, 1]


@given(parts)
def test_mix_fits_64_bits(parts: list[int]) -> None:
    assert 0 <= mix(*parts) < 2**64


@given(parts, st.integers(0, 3), st.integers(0, 63))
def test_every_bit_of_every_part_counts(parts: list[int], at: int, bit: int) -> None:
    at %= len(parts)
    other = [*parts[:at], parts[at] ^ (1 << bit), *parts[at + 1 :]]
    assert mix(*other) != mix(*parts)


def test_neighbouring_seeds_differ_in_about_half_their_bits() -> None:
    flips = [(mix(7, k) ^ mix(7, k + 1)).bit_count() for k in range(1000)]
    assert 31 < sum(flips) / len(flips) < 33


@given(seeds, st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_uniform_stays_within_its_bounds(seed: int, low: float, span: float) -> None:
    stream = Stream(seed)
    assert all(low <= stream.uniform(low, low + span) <= low + span for _ in range(5))


@given(seeds)
def test_uniform_is_from_0_and_below_1(seed: int) -> None:
    stream = Stream(seed)
    assert all(0.0 <= stream.uniform() < 1.0 for _ in range(20))


@given(seeds, st.integers(1, 2**32))
def test_below_stays_below_its_bound(seed: int, bound: int) -> None:
    stream = Stream(seed)
    assert all(0 <= stream.below(bound) < bound for _ in range(5))


def test_below_reaches_every_number_about_equally_often() -> None:
    stream = Stream(99)
    counts = [0] * 6
    for _ in range(6000):
        counts[stream.below(6)] += 1
    assert all(850 < count < 1150 for count in counts)


@given(seeds)
def test_streams_of_one_seed_are_equal_and_independent(seed: int) -> None:
    one, other = Stream(seed), Stream(seed)
    assert [one.bits() for _ in range(4)] == [other.bits() for _ in range(4)]
