"""Fixtures of remote datasets."""

from __future__ import annotations

import pytest

from feedline.sources import remote_filesystem, remote_reader
from remote_reading import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """By which it is decided when to try again."""
    made = Clock()
    monkeypatch.setattr(remote_filesystem, "time", made)
    return made


@pytest.fixture
def pauses(clock: Clock) -> list[float]:
    """Pauses between attempts, without waiting."""
    return clock.pauses


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each image is a request."""
    monkeypatch.setattr(remote_reader, "GAP_BYTES", 0)
