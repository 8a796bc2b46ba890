"""Packages that some tests need."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(*packages: str) -> pytest.MarkDecorator:
    """Mark that skips tests unless the packages are installed.

    `pytest.importorskip` at the top of a module would import them into every test process, and a
    large process forks slowly.
    """
    missing = [name for name in packages if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
