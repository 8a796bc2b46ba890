"""Choices of levels from made-up measurements: every number of them can be done by hand."""

from __future__ import annotations

from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.cache.advice import Advice, advise
from feedline.cache.choice import (
    MAX_LEVELS,
    CacheMeasurement,
    LevelChoice,
    LevelCost,
    MachineLimits,
    candidate_sides,
    enumerate_choices,
    estimate_choice,
    level_sets,
    serving,
    useful_choices,
)
from feedline.forecast.text import duration
from feedline.order.schedule import Schedule
from feedline.sources.cache_layout import Level

GB = 10**9
SMALL, LARGE = Level(side=112, quality=95), Level(side=256, quality=95)
SMALL_90, LARGE_90 = Level(side=112, quality=90), Level(side=256, quality=90)
RAW = Level(side=256, quality=None)
PLENTY = MachineLimits(disk_bytes=1000 * GB, memory_bytes=1000 * GB, disk_bytes_per_s=500e6)


def measured(
    schedule: str = "112x10,224x20", *, gain: float = 1.0, raw: float = 20_000.0
) -> CacheMeasurement:
    """A million images of 100 kB: 1000 a second of the originals; copies `gain` times as here."""
    return CacheMeasurement(
        images=1_000_000,
        schedule=Schedule.parse(schedule),
        wanted={112: 112, 224: 224},
        original_bytes=100_000,
        open_s=0.001,
        processes=2,
        levels={
            SMALL: LevelCost(image_bytes=10_000, make_s=0.0005),
            LARGE: LevelCost(image_bytes=40_000, make_s=0.0015),
            SMALL_90: LevelCost(image_bytes=8_000, make_s=0.0005),
            LARGE_90: LevelCost(image_bytes=30_000, make_s=0.0015),
            RAW: LevelCost(image_bytes=250_000, make_s=0.0008),
        },
        rates={
            (112, None): 1000.0,
            (224, None): 1000.0,
            (112, SMALL): gain * 10_000.0,
            (112, LARGE): gain * 5000.0,
            (224, LARGE): gain * 4000.0,
            (112, SMALL_90): gain * 11_000.0,
            (112, LARGE_90): gain * 5500.0,
            (224, LARGE_90): gain * 4400.0,
            (112, RAW): raw,
            (224, RAW): raw,
        },
        differences={
            (112, SMALL): 4.0,
            (112, LARGE): 1.0,
            (224, LARGE): 2.5,
            (112, SMALL_90): 4.4,
            (112, LARGE_90): 1.2,
            (224, LARGE_90): 2.9,
            (112, RAW): 0.5,
            (224, RAW): 1.5,
        },
    )


def advised(given: CacheMeasurement, limits: MachineLimits) -> Advice:
    return advise(
        given, limits, estimate_choice(given, limits, ()), enumerate_choices(given, limits)
    )


def test_a_choice_is_what_was_measured_times_the_images_and_epochs() -> None:
    both = estimate_choice(measured(), PLENTY, [SMALL, LARGE])
    assert str(both) == "112,256 q95"
    assert both.load_s == 10 * 1e6 / 10_000 + 20 * 1e6 / 4000
    assert both.bytes == 1e6 * 50_000
    assert both.build_s == 1e6 * (0.001 + 0.0005 + 0.0015) / 2 + 1e6 * 50_000 / 500e6
    assert both.difference == (10 * 4.0 + 20 * 2.5) / 30
    assert [(phase.size, phase.epochs, phase.level) for phase in both.phases] == [
        (112, 10, SMALL),
        (224, 20, LARGE),
    ]
    assert [phase.level_bytes for phase in both.phases] == [10 * GB, 40 * GB]


def test_the_originals_are_a_choice_without_levels() -> None:
    originals = estimate_choice(measured(), PLENTY, ())
    assert str(originals) == "originals"
    assert originals.load_s == 30 * 1e6 / 1000
    assert (originals.bytes, originals.build_s, originals.difference) == (0, 0, 0)
    assert [phase.level_bytes for phase in originals.phases] == [100 * GB, 100 * GB]


def test_one_level_serves_all_smaller_phases() -> None:
    one = estimate_choice(measured(), PLENTY, [LARGE])
    assert [phase.level for phase in one.phases] == [LARGE, LARGE]
    assert one.load_s == 10 * 1e6 / 5000 + 20 * 1e6 / 4000


@pytest.mark.parametrize(
    ("epochs", "build_s", "paid_after"),
    [
        # Of the small level an epoch takes 100 s and not 1000, of the large one 250 s.
        ("112x10,224x20", 100.0, 1),
        ("112x10,224x20", 900.0, 1),
        ("112x10,224x20", 901.0, 2),
        ("112x10,224x20", 9000.0, 10),
        ("112x10,224x20", 9001.0, 11),
        ("112x10,224x20", 9000.0 + 20 * 750.0, 30),
        ("112x10,224x20", 9000.0 + 20 * 750.0 + 1, None),
        ("224x1,112x10", 751.0, 2),
    ],
)
def test_a_build_is_paid_after_the_epochs_that_save_its_time(
    epochs: str, build_s: float, paid_after: int | None
) -> None:
    given = measured(epochs)
    costs = {level: LevelCost(image_bytes=0.0, make_s=0.0) for level in given.levels}
    given = CacheMeasurement(**{**vars(given), "open_s": build_s * 2 / 1e6, "levels": costs})
    assert estimate_choice(given, PLENTY, [SMALL, LARGE]).paid_after == paid_after


def test_what_is_slower_than_the_originals_is_never_paid() -> None:
    assert estimate_choice(measured(gain=0.01), PLENTY, [SMALL, LARGE]).paid_after is None


def test_memory_counts_the_level_that_a_phase_reads_and_not_all_of_them() -> None:
    limits = MachineLimits(disk_bytes=1000 * GB, memory_bytes=40 * GB, disk_bytes_per_s=1e6)
    both = estimate_choice(measured(), limits, [SMALL, LARGE])
    assert both.bytes > limits.memory_bytes
    assert [phase.in_memory for phase in both.phases] == [True, True]
    assert [phase.disk_bytes_per_s for phase in both.phases] == [0, 0]
    assert both.load_s == estimate_choice(measured(), PLENTY, [SMALL, LARGE]).load_s


def test_what_memory_does_not_hold_comes_as_fast_as_the_disk_gives_it() -> None:
    limits = MachineLimits(disk_bytes=1000 * GB, memory_bytes=30 * GB, disk_bytes_per_s=100e6)
    small, large = estimate_choice(measured(), limits, [SMALL, LARGE]).phases
    assert (small.in_memory, small.images_per_s) == (True, 10_000)
    assert not large.in_memory
    assert large.disk_bytes_per_s == 4000 * 40_000  # for what the cores make
    assert large.cores_images_per_s == 4000
    assert large.images_per_s == 100e6 / 40_000
    assert large.seconds == 20 * 1e6 / large.images_per_s
    quick = MachineLimits(disk_bytes=1000 * GB, memory_bytes=30 * GB, disk_bytes_per_s=200e6)
    assert estimate_choice(measured(), quick, [SMALL, LARGE]).phases[1].images_per_s == 4000
    originals = estimate_choice(measured(), limits, ())
    assert originals.phases[0].disk_bytes_per_s == 100e6
    assert originals.phases[0].images_per_s == 1000


def test_choices_are_of_one_quality_and_serve_all_phases() -> None:
    found = enumerate_choices(measured(), PLENTY)
    assert sorted(map(str, found)) == sorted(
        ["256 q95", "112,256 q95", "256 q90", "112,256 q90", "256 raw"]
    )


def test_the_front_leaves_out_what_takes_more_bytes_and_is_not_quicker() -> None:
    def choice(size: float, load_s: float, quality: int = 95) -> LevelChoice:
        made = estimate_choice(measured(), PLENTY, [Level(side=256, quality=quality)])
        (first, *_) = made.phases
        one = type(first)(**{**vars(first), "seconds": load_s})
        return LevelChoice(**{**vars(made), "bytes": size, "phases": (one,)})

    best, same, quicker = choice(1, 100), choice(2, 99), choice(3, 90)
    worse, other = choice(4, 95), choice(5, 200, quality=90)
    found = [worse, quicker, same, other, best]
    assert useful_choices(found) == [best, quicker, other]
    assert useful_choices(found, worse) == [best, quicker, worse, other]


def test_the_quickest_choice_that_the_disk_holds_is_advised() -> None:
    advice = advised(measured(), PLENTY)
    assert str(advice.choice) == "256 raw"
    limits = MachineLimits(disk_bytes=60 * GB, memory_bytes=50 * GB, disk_bytes_per_s=500e6)
    tight = advised(measured(), limits)
    assert str(tight.choice) == "112,256 q95"
    for fact in ("30 epochs in 1.7 h", "5.0 times", "50.0 GB", "27 min", "after 2 epochs"):
        assert fact in tight.why


def test_raw_copies_that_the_disk_would_hold_up_are_not_advised() -> None:
    limits = MachineLimits(disk_bytes=1000 * GB, memory_bytes=50 * GB, disk_bytes_per_s=500e6)
    assert str(advised(measured(), limits).choice) == "112,256 q95"  # raw: 2000 images/s
    fast = MachineLimits(disk_bytes=1000 * GB, memory_bytes=50 * GB, disk_bytes_per_s=2e9)
    advice = advised(measured(), fast)
    assert str(advice.choice) == "256 raw"
    assert "256 px raw, 250.0 GB, does not fit into 50.0 GB of memory" in advice.why
    assert "5.0 GB/s from the disk" in advice.why
    assert "2.0 GB/s is the bottleneck" in advice.why


def test_a_level_too_large_for_memory_that_the_disk_keeps_up_with_is_said() -> None:
    limits = MachineLimits(disk_bytes=60 * GB, memory_bytes=20 * GB, disk_bytes_per_s=500e6)
    advice = advised(measured(), limits)
    assert str(advice.choice) == "112,256 q95"
    assert "256 px JPEG q95, 40.0 GB, does not fit into 20.0 GB of memory" in advice.why
    assert advice.why.endswith("160.0 MB/s from the disk.")


def test_of_choices_within_a_few_percent_the_one_of_fewest_bytes_is_advised() -> None:
    given = measured("112x1,224x200")
    limits = MachineLimits(disk_bytes=60 * GB, memory_bytes=1000 * GB, disk_bytes_per_s=500e6)
    assert str(advised(given, limits).choice) == "256 q95"  # the small level saves 0.2%


def test_a_lower_quality_is_advised_only_where_no_higher_one_fits_or_helps() -> None:
    def limits(disk_bytes: float) -> MachineLimits:
        return MachineLimits(disk_bytes=disk_bytes, memory_bytes=1000 * GB, disk_bytes_per_s=500e6)

    assert str(advised(measured(), limits(45 * GB)).choice) == "256 q95"
    advice = advised(measured(), limits(39 * GB))
    assert str(advice.choice) == "112,256 q90"
    assert "quality is 90" in advice.why
    assert "39.0 GB" in advice.why
    slow = measured(gain=0.25)  # 1250 and 1000 a second of q95
    assert str(advised(slow, limits(45 * GB)).choice) == "112,256 q90"


def test_no_cache_is_advised_where_the_originals_are_as_fast() -> None:
    advice = advised(measured(gain=0.1, raw=900), PLENTY)
    assert advice.choice is None
    for fact in ("not worth it", "30 epochs in 8.3 h", "within 1.0 TB, 256 raw, in 9.3 h"):
        assert fact in advice.why


def test_a_budget_that_holds_nothing_is_told_what_the_smallest_takes() -> None:
    limits = MachineLimits(disk_bytes=1 * GB, memory_bytes=50 * GB, disk_bytes_per_s=500e6)
    advice = advised(measured(), limits)
    assert advice.choice is None
    for fact in ("budget of 1.0 GB", "256 q90", "30.0 GB"):
        assert fact in advice.why


def test_a_build_that_one_run_does_not_pay_is_said() -> None:
    advice = advised(measured("112x1,224x1"), PLENTY)
    assert str(advice.choice) == "256 raw"
    assert "23 min and pays off after 2 epochs" in advice.why
    slow = CacheMeasurement(**{**vars(measured("112x1,224x1")), "open_s": 1.0})
    why = advised(slow, PLENTY).why
    assert "more than it saves in these 2 epochs" in why


def test_each_wanted_side_has_itself_and_the_next_usual_one_as_candidates() -> None:
    assert candidate_sides([112, 160, 224]) == (112, 128, 160, 192, 224, 256)
    assert candidate_sides([224]) == (224, 256)
    assert candidate_sides([4]) == (8, 32)
    assert candidate_sides([3000]) == (3000, 6000)
    assert candidate_sides([8000]) == (8000, 8192)


@given(st.sets(st.integers(1, 8192), min_size=1, max_size=30))
def test_candidates_are_few_and_serve_every_size(wanted: set[int]) -> None:
    sides = candidate_sides(wanted)
    assert 1 <= len(sides) <= MAX_LEVELS
    assert list(sides) == sorted(set(sides))
    assert all(8 <= side <= 8192 for side in sides)
    assert serving(sides, max(wanted)) is not None


@given(
    st.lists(st.integers(8, 300), min_size=1, max_size=MAX_LEVELS, unique=True),
    st.sets(st.integers(8, 300), min_size=1, max_size=4),
)
def test_the_sets_are_all_those_in_which_each_level_is_read(
    sides: list[int], wanted: set[int]
) -> None:
    every = chain.from_iterable(combinations(sorted(sides), n) for n in range(1, len(sides) + 1))
    expected = [
        some
        for some in every
        if all(any(side >= one for side in some) for one in wanted)
        and all(any(serving(some, one) == side for one in wanted) for side in some)
    ]
    assert level_sets(sides, wanted) == expected


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (99.4, "99 s"),
        (100, "2 min"),
        (5900, "98 min"),
        (6000, "1.7 h"),
        (360_000, "100 h"),
    ],
)
def test_a_time_is_said_in_the_unit_that_fits(seconds: float, said: str) -> None:
    assert duration(seconds) == said
