"""A small data set, made once for the whole run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_training import write_tiny_set


@pytest.fixture(scope="session")
def tiny_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes: 40 training and 12 validation images of 48 px."""
    return write_tiny_set(tmp_path_factory.mktemp("tiny") / "set")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Threads of small steps mostly wait for each other, at worst behind other processes."""
    import torch

    torch.set_num_threads(1)
