"""A small data set, made once for the whole run."""

import pytest
from tiny_training import write_tiny_set


@pytest.fixture(scope="session")
def tiny_set(tmp_path_factory):
    """Two classes: 40 training and 12 validation images of 48 px."""
    return write_tiny_set(tmp_path_factory.mktemp("tiny") / "set")


@pytest.fixture(scope="session")
def forked():
    """A process that has torch and timm loaded, and forks for each training."""
    from interruption import forks

    with forks() as script:
        yield script
