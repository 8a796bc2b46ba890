"""The contract of remote datasets, caches and originals alike: the batches of the same files on
this machine, fetched once and many at a time, with recovery."""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from feedline import DataLoader, ImageFolder, ImageList
from feedline.errors import FeedlineError, UsageError
from processes import all_workers
from range_server import (
    OPTIONS,
    altered,
    batches,
    copies,
    cut_short,
    no_http,
    reset,
    same,
    shorter,
    unavailable,
)
from row_of import row
from slow import slow

pytest.importorskip("aiohttp")

COUNT = 80


def listed(root, **options):
    names = [f"{name}/{number}.jpg" for name in ("cats", "dogs") for number in range(COUNT // 2)]
    return ImageList(names, [0] * (COUNT // 2) + [1] * (COUNT // 2), root=root, **options)


class Kind(NamedTuple):
    """A served dataset."""

    folder: str  # below the server's
    create: Callable[..., Any]  # of a path or URL
    ending: str  # of the files that hold images
    local_bytes: int  # disk space of about half of its images


KINDS = {
    "cache": Kind("cache", ImageFolder, ".tar", 80_000),
    "raw": Kind("raw", ImageFolder, ".tar", 200_000),
    "list": Kind("photos", listed, ".jpg", 20 * 4096),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def here(kind, served):
    return kind.create(served / kind.folder)


@pytest.fixture
def wanted(here):
    return batches(here)


@pytest.fixture
def remote(kind, server, tmp_path):
    return kind.create(f"{server.url}/{kind.folder}", local_dir=tmp_path / "local")


@pytest.mark.parametrize(
    "how",
    [
        {"num_workers": 0},
        {"num_workers": 2, "start_method": "fork"},
        *slow(
            {"num_workers": 2, "start_method": "forkserver"},
            {"num_workers": 2, "start_method": "spawn"},
        ),
    ],
    ids=str,
)
def test_batches_equal_local_ones_and_are_fetched_once(remote, server, wanted, kind, how):
    row(remote, 0, 24, 0)  # opened in this process, too
    assert same(batches(remote, **how), wanted)
    asked = server.asked(kind.ending)
    assert asked
    server.stop()
    try:
        assert same(batches(remote, **how), wanted)
    finally:
        server.start()
    assert server.asked(kind.ending) == asked


def nothing(worker):
    """A worker_init_fn."""


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("init", [None, nothing])
def test_missing_parts_of_task_are_requested_concurrently(remote, server, wanted, kind, init):
    together = threading.Barrier(16)

    def wait(answer):
        if answer.path.endswith(kind.ending):
            together.wait(timeout=30)  # if they came one by one, none would ever be answered
        return False

    server.fault = wait
    assert same(batches(remote, worker_init_fn=init), wanted)
    assert server.most_in_flight == 16
    assert server.asked(kind.ending) == COUNT


@pytest.mark.usefixtures("apart")
def test_concurrent_requests_are_limited(kind, server, tmp_path):
    second = threading.Event()

    def wait_for_a_second(answer):
        if answer.path.endswith(kind.ending):
            if server.in_flight > 1:
                second.set()
            second.wait(20)
        return False

    server.fault = wait_for_a_second
    few = {"local_dir": tmp_path, "storage_options": {"batch_size": 3}}
    batches(kind.create(f"{server.url}/{kind.folder}", **few))
    assert 1 < server.most_in_flight <= 3


def test_state_resumes_within_epoch_for_any_location(remote, here, wanted):
    assert remote.fingerprint() == here.fingerprint()
    with DataLoader(remote, 16, **OPTIONS) as loader:
        next(iter(loader))
        state = json.loads(json.dumps(loader.state_dict()))
    for data in (remote, here):
        with DataLoader(data, 16, **{**OPTIONS, "num_workers": 2}) as loader:
            loader.load_state_dict(state)
            rest = [(images.clone(), labels.clone()) for images, labels in loader]
        assert same(rest, wanted[1:])


def test_a_worker_that_is_killed_is_replaced_and_the_batches_are_the_same(remote, here, tmp_path):
    with DataLoader(here, 16, **OPTIONS) as loader:
        loader.set_epoch(1000)
        wanted = [(images.clone(), labels.clone()) for images, labels in loader]
    with DataLoader(remote, 16, **{**OPTIONS, "num_workers": 2, "prefetch": 1}) as loader:
        workers = all_workers(loader, 2)
        for path in copies(tmp_path):
            path.unlink()
        loader.set_epoch(1000)
        found = []
        for images, labels in loader:
            if not found:
                os.kill(workers[0], signal.SIGKILL)
            found.append((images.clone(), labels.clone()))
        assert len(all_workers(loader, 2)) == 2
        assert len(loader.worker_deaths) == 1
    assert same(found, wanted)


def test_a_pickle_holds_no_image_and_no_connection(remote, here):
    row(remote, 3, 24, 3)
    assert len(pickle.dumps(remote)) < 5000
    copy = pickle.loads(pickle.dumps(remote))
    assert (row(copy, 40, 24, 3)[0] == row(here, 40, 24, 3)[0]).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_leaves_the_connections_of_its_parent_alone(remote, server, kind):
    for sample in range(4):
        row(remote, sample, 24, 0)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            row(remote, 20, 24, 0)
            remote.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    before = server.asked(kind.ending)
    for sample in range(4, 8):
        row(remote, sample, 24, 0)
    assert server.asked(kind.ending) == before + 4  # none was requested twice


def test_local_disk_smaller_than_epoch_is_used_as_far_as_possible(
    kind, server, wanted, tmp_path, apart
):
    limit = kind.local_bytes
    url = f"{server.url}/{kind.folder}"
    data = kind.create(url, local_dir=tmp_path, local_bytes=limit)
    for _ in range(3):
        before = server.asked(kind.ending)
        assert same(batches(data), wanted)
        used = sum(512 * path.stat().st_blocks for path in tmp_path.rglob("*.*") if path.is_file())
        assert limit / 2 < used <= limit + 8192
    assert 0 < server.asked(kind.ending) - before < COUNT


FAULTS = (unavailable, reset, cut_short, no_http)


@pytest.mark.parametrize(
    ("name", "fault", "workers"),
    [
        *((name, fault, 0) for name in ("cache", "list") for fault in FAULTS),
        *(("cache", fault, 0) for fault in (altered, shorter)),  # of which the checksum tells
        *slow(*((name, fault, 2) for name in ("cache", "list") for fault in FAULTS)),
    ],
)
def test_request_is_retried_after_two_failures_and_batches_are_equal(
    served, server, tmp_path, apart, name, fault, workers, request
):
    if not workers:
        request.getfixturevalue("clock")
    kind = KINDS[name]
    remote = kind.create(f"{server.url}/{kind.folder}", local_dir=tmp_path)
    asked = Counter()

    def twice(answer):
        part = answer.path, answer.first, answer.stop
        asked[part] += 1
        # Of some only, as to wait for all of them takes long.
        return list(asked).index(part) % 7 == 0 and asked[part] <= 2 and fault(answer)

    server.fault = twice
    wanted = batches(kind.create(served / kind.folder))
    assert same(batches(remote, num_workers=workers), wanted)
    # A worker that is ahead may begin the next epoch while another fetches the same images.
    assert max(asked.values()) >= 3 if workers else max(asked.values()) == 3


def test_a_password_in_a_url_is_not_shown(kind, server, tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "feedline")
    url = f"{server.url}/{kind.folder}".replace("//", "//me:secret@")
    data = kind.create(url, local_dir=tmp_path)
    with DataLoader(data, 16, **OPTIONS) as loader:
        shown = [loader.explain(), repr(data), data.root, data.name(0), str(loader.state_dict())]
    with pytest.raises(FeedlineError) as refused:
        row(kind.create(f"{url}/nowhere", local_dir=tmp_path), 0, 24, 0)
    assert f"{server.url}/{kind.folder}/nowhere" in str(refused.value)
    with pytest.raises(UsageError) as unknown:
        ImageFolder("nonsense://me:secret@host/x")
    shown += [str(refused.value), str(unknown.value), caplog.text, *map(str, tmp_path.rglob("*"))]
    assert all("secret" not in text for text in shown)
