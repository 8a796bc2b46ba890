"""Tunings and their steps on one thread."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Use one thread: threads of small steps mostly wait for each other or for other processes."""
    import torch

    torch.set_num_threads(1)
