"""Loaders in joblib's processes, whose start method multiprocessing does not have."""

import multiprocessing

import pytest

from feedline import DataLoader


def read(length):
    method = multiprocessing.get_start_method()
    with DataLoader(range(length), 2, num_workers=1) as loader:
        return method, [batch.tolist() for batch in loader]


def test_workers_start_in_processes_of_joblib():
    joblib = pytest.importorskip("joblib")
    loky = pytest.importorskip("joblib.externals.loky")
    try:
        found = joblib.Parallel(n_jobs=2)(joblib.delayed(read)(length) for length in (4, 4))
    finally:
        loky.get_reusable_executor().shutdown(wait=True)
    assert found == [("loky", [[0, 1], [2, 3]])] * 2
