"""Parameters of slow test variants that add little: `make test` skips them.

`make test-all`, or pytest called directly, runs them too.
"""

from __future__ import annotations

from typing import Any

import pytest


def slow(*variants: Any) -> list[Any]:
    """Values for `pytest.mark.parametrize`, a tuple for several names, marked as slow."""
    return [
        pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=pytest.mark.slow)
        for each in variants
    ]
