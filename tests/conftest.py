"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
import secrets
import signal
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import HealthCheck, settings

import preloaded

# The time of an example is not limited, because the machine may be busy. Examples are reproducible,
# so that failures are due to changes in the code; new ones are generated
# with `--hypothesis-profile=search`.
usual = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", usual)
settings.register_profile("feedline", usual, derandomize=True)
settings.load_profile("feedline")

# Tests send Ctrl-C. A shell's background job ignores it, and so does each program it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Ray reads these when a test first imports it: tests' clusters are on the loopback interface, and
# do not answer other processes.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", secrets.token_hex(32)
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

# Tests that import large packages, in the order in which they run: tunings, which take long, before
# files of a few seconds, so that processes of pytest-xdist end together.
_LARGE_IMPORTS = (
    "tuning",
    "cache",
    "cli",
    "frameworks",
    "remote",
    "test_docs_examples.py",
    "train",
)


def pytest_collection_modifyitems(items):
    """Run tests that import large packages last: a large process forks slowly."""
    items.sort(
        key=lambda item: max(
            name in item.path.parts and k for k, name in enumerate(_LARGE_IMPORTS, 1)
        )
    )


def pytest_collection_finish():
    """Exclude imported modules and collected tests from garbage collection.

    `gc.collect` then takes milliseconds instead of a second, and forked processes copy fewer pages.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Use one thread: threads of small steps mostly wait for each other or for other processes."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def jpeg_folder(tmp_path_factory):
    """root/CLASS/N.jpg: 2 classes of 6 JPEGs each, 40 to 60 px wide, smooth and all different."""
    root = tmp_path_factory.mktemp("jpegs")
    for label, name in enumerate(("cats", "dogs")):
        (root / name).mkdir()
        for number in range(6):
            height, width = 40 + 4 * number, 60 - 4 * number
            y, x = np.mgrid[0:height, 0:width]
            waves = [np.sin((x * (1 + label) + y * (1 + number) + c * 9) / 11) for c in range(3)]
            pixels = (127 + 120 * np.stack(waves, axis=2)).astype(np.uint8)
            jpeg = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels))
            (root / name / f"{number}.jpg").write_bytes(jpeg)
    return root


@pytest.fixture
def quick_trials(monkeypatch):
    """Shorten tuning trials to a fraction of a second; results are less certain."""
    from feedline.throughput.thresholds import THRESHOLDS
    from feedline.tuning import search, tune  # loads torch

    quick = replace(THRESHOLDS, trial_s=0.2, max_trial_s=0.4, ceiling_s=0.2)
    monkeypatch.setattr(tune, "THRESHOLDS", quick)
    monkeypatch.setattr(search, "_MIN_BUDGET_S", 0.4)


class _Keeper:
    """Keeps the fork server from one test to the next."""

    server: Any = None

    def release(self):
        if self.server is not None:
            self.server.release()
            self.server = None


_KEEPER = _Keeper()


@pytest.fixture(autouse=True)
def kept_fork_server(request):
    """Share one fork server between the loaders of many tests.

    Otherwise each loader would start its own, which imports torch again. Tests that inspect the
    server, or what a loader leaves behind, are marked `own_fork_server`.
    """
    from feedline.engine import pool_linux

    if sys.platform != "linux" or request.node.get_closest_marker("own_fork_server"):
        _KEEPER.release()
    else:
        server = pool_linux.shared_server()  # another one if a test has ended it
        _KEEPER.release()
        _KEEPER.server = server


@pytest.fixture(scope="session", autouse=True)
def ended_servers():
    """The processes that tests share end with them."""
    yield
    _KEEPER.release()
    preloaded.end()
