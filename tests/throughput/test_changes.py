"""Valid and invalid what-if changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import UsageError
from feedline.throughput.changes import Changes


def test_all_names_in_any_order_and_with_spaces() -> None:
    found = Changes.parse(" gpu = 2.5 ,cores=16 , workers=8")
    assert found == Changes(workers=8, cores=16, gpu=2.5)
    assert str(found) == "workers=8, cores=16, gpu=2.5"
    assert Changes.of(found) is found


@given(
    workers=st.none() | st.integers(1, 512),
    cores=st.none() | st.integers(1, 4096),
    gpu=st.none() | st.integers(1, 100_000).map(lambda cents: cents / 100),
)
def test_text_form_round_trips(**given: Any) -> None:
    changes = Changes(**given)
    if any(value is not None for value in given.values()):
        assert Changes.parse(str(changes)) == changes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        ",",
        "workers",
        "workers=",
        "workers=0",
        "workers=-1",
        "workers=513",
        "workers=2.5",
        "workers=two",
        "workers=1_0",
        "workers=٣",
        "workers=" + "9" * 5000,
        "workers=2,workers=3",
        "workers=2,",
        "workers=2 cores=3",
        "cores=0",
        "cores=4097",
        "cache=256",
        "gpu=0",
        "gpu=0.001",
        "gpu=-2",
        "gpu=nan",
        "gpu=inf",
        "gpu=1e3",
        "gpu=1001",
        "gpu=" + "9" * 400,
        "disk=4",
        "Workers=2",
        "=2",
        "workers==2",
    ],
)
def test_unparsable_change_is_usage_error_with_expected_form(text: str) -> None:
    with pytest.raises(UsageError, match=r"(?s)what-if.*workers=8,cores=16,gpu=2"):
        Changes.parse(text)


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    try:
        found = Changes.parse(text)
    except UsageError:
        return
    assert str(found)


@pytest.mark.parametrize(
    "given",
    [
        {"workers": 0},
        {"workers": 2.5},
        {"workers": True},
        {"cores": -1},
        {"gpu": 0},
        {"gpu": float("nan")},
        {"gpu": "2"},
    ],
)
def test_value_out_of_range_is_rejected(given: Any) -> None:
    with pytest.raises(UsageError, match=next(iter(given))):
        Changes(**given)


def test_non_text_is_rejected() -> None:
    wrong: Any = 8
    with pytest.raises(UsageError, match="must be text"):
        Changes.parse(wrong)
