"""The search for a batch size, over memories that are functions of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.tuning.batch_search import BatchSearch, BatchTrial, next_smaller

SIZES = [*range(1, 8), *range(8, 20_000, 8)]


def searched(
    taken: Callable[[int], float], room: int, start: int, most: int = 4096, breaks: float = 1.1
) -> BatchSearch:
    """A finished search; trials fail above `breaks` of the memory."""
    search = BatchSearch(usable_bytes=room, start=start, max_rows=most)
    while (rows := search.next()) is not None:
        assert rows not in search.trials
        assert rows in SIZES
        assert rows <= most
        peak = int(taken(rows))
        search.add(
            BatchTrial(
                rows=rows, peak_bytes=peak if peak <= breaks * room else None, fits=peak <= room
            )
        )
    return search


def largest(taken: Callable[[int], float], room: int, most: int = 4096) -> int:
    return max((n for n in SIZES if n <= most and int(taken(n)) <= room), default=0)


@pytest.mark.parametrize("start", [1, 8, 100, 480, 520, 4096])
@pytest.mark.parametrize("per_image", [3, 17, 40, 150, 2500])
def test_the_largest_is_found_in_few_trials(start: int, per_image: int) -> None:
    def taken(rows: int) -> float:
        return 300 + rows * per_image

    search = searched(taken, 20_000, start)
    assert search.best == largest(taken, 20_000)
    assert len(search.trials) <= 12
    near = largest(taken, 20_000)
    assert len(searched(taken, 20_000, near + 8).trials) <= 3


@given(
    fixed=st.integers(0, 3000),
    per_image=st.floats(0.5, 3000),
    steps=st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 5000)), max_size=5),
    room=st.integers(1, 100_000),
    start=st.integers(0, 10_000),
    most=st.integers(1, 5000),
    breaks=st.floats(1, 3),
)
def test_largest_size_is_found_for_any_kernel_choice(
    fixed: int,
    per_image: float,
    steps: list[tuple[int, int]],
    room: int,
    start: int,
    most: int,
    breaks: float,
) -> None:
    """From some sizes on kernels use more workspace, in jumps."""

    def taken(rows: int) -> float:
        return fixed + rows * per_image + sum(more for since, more in steps if rows >= since)

    search = searched(taken, room, start, most, breaks)
    assert search.best == largest(taken, room, most)
    assert len(search.trials) <= 16


def test_failed_size_bounds_larger_ones_even_if_they_ran() -> None:
    search = BatchSearch(usable_bytes=100, start=64, max_rows=64)
    search.add(BatchTrial(rows=64, peak_bytes=90, fits=True))
    assert search.next() is None
    search.add(BatchTrial(rows=32, peak_bytes=None, fits=False))
    assert search.best == 0
    assert (search.next() or 64) < 32


def test_failing_size_shrinks_to_zero() -> None:
    sizes = [1000]
    while sizes[-1]:
        sizes.append(next_smaller(sizes[-1]))
    assert sizes[1] == 944
    assert all(rows in (0, *SIZES) for rows in sizes[1:])
    assert sizes == sorted(set(sizes), reverse=True)
    assert next_smaller(8) == 7
