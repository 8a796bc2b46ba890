"""Original images at URLs: batches equal those of a local folder, fetched once, with recovery."""

from __future__ import annotations

import json
import os
import pickle
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

import feedline
from caches import contents, flip
from caches import made as build
from caches import photos as make_photos
from feedline import DataLoader, ImageFolder, ImageList
from feedline.errors import DatasetError, ImageError, UsageError
from feedline.sources import local_copies, remote_filesystem, remote_reader
from processes import all_workers
from range_server import Answer, RangeServer
from row_of import made
from slow import slow

pytest.importorskip("aiohttp")

COUNT = 48
OPTIONS: dict[str, Any] = {"seed": 1, "shuffle": True, "image_size": 24, "num_workers": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 photographs in 2 classes, as "photos" in a folder."""
    return make_photos(tmp_path_factory.mktemp("originals") / "photos", COUNT // 2)


@pytest.fixture(scope="module")
def here(folder: Path) -> ImageFolder:
    return ImageFolder(folder)


@pytest.fixture(scope="module")
def wanted(here: ImageFolder) -> list[Any]:
    return batches(here)


@pytest.fixture
def server(folder: Path) -> Iterator[RangeServer]:
    served = RangeServer(folder.parent)
    yield served
    served.fault = None
    served.stop()


class Listed(list[str]):
    """The paths of a folder's images below it, and their labels."""

    def __init__(self, data: ImageFolder) -> None:
        super().__init__(os.path.relpath(data.path(k), data.root) for k in range(len(data)))
        self.labels = data.targets.tolist()


@pytest.fixture(scope="module")
def listed(here: ImageFolder) -> Listed:
    return Listed(here)


@pytest.fixture
def remote(server: RangeServer, listed: Listed, tmp_path: Path) -> ImageList:
    return at(server, listed, local_dir=tmp_path / "local")


def at(server: RangeServer, listed: Listed, **options: Any) -> ImageList:
    return ImageList(listed, listed.labels, root=f"{server.url}/photos", **options)


def batches(data: Any, **options: Any) -> list[Any]:
    with DataLoader(data, 16, **{**OPTIONS, **options}) as loader:
        return [(images.clone(), labels.clone()) for images, labels in loader]


def same(ours: list[Any], theirs: list[Any]) -> bool:
    return len(ours) == len(theirs) and all(
        torch.equal(one, other)
        for pair in zip(ours, theirs, strict=True)
        for one, other in zip(*pair, strict=True)
    )


def kept(local: Path) -> list[Path]:
    return sorted(local.rglob("*.part"))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses between attempts, without waiting."""
    made: list[float] = []

    class Clock:
        monotonic = staticmethod(lambda: sum(made))
        sleep = staticmethod(made.append)

    monkeypatch.setattr(remote_filesystem, "time", Clock)
    return made


# The same batches, fetched once


@pytest.mark.parametrize(
    "how",
    [
        {"num_workers": 0},
        {"num_workers": 2},
        *slow({"num_workers": 2, "start_method": "spawn"}),
    ],
    ids=str,
)
def test_batches_equal_those_of_folder_and_are_fetched_once(
    remote: ImageList, server: RangeServer, wanted: list[Any], how: dict[str, Any]
) -> None:
    made(remote, 24, 0, 0)  # opened in this process, too
    assert same(batches(remote, **how), wanted)
    asked = server.asked(".jpg")
    # A worker that is ahead may begin the next epoch while another fetches the same images.
    assert asked == COUNT or how["num_workers"] == 2
    server.stop()
    try:
        assert same(batches(remote, **how), wanted)
    finally:
        server.start()
    assert server.asked(".jpg") == asked


def test_missing_parts_of_task_are_requested_concurrently(
    remote: ImageList, server: RangeServer, wanted: list[Any]
) -> None:
    together = threading.Barrier(16)

    def wait(answer: Answer) -> bool:
        together.wait(timeout=30)  # if they came one by one, none would ever be answered
        return False

    server.fault = wait
    assert same(batches(remote), wanted)
    assert server.most_in_flight == 16


def test_concurrent_requests_are_limited(
    server: RangeServer, listed: Listed, tmp_path: Path
) -> None:
    second = threading.Event()

    def wait_for_a_second(answer: Answer) -> bool:
        if server.in_flight > 1:
            second.set()
        second.wait(20)
        return False

    server.fault = wait_for_a_second
    batches(at(server, listed, local_dir=tmp_path, storage_options={"batch_size": 3}))
    assert 1 < server.most_in_flight <= 3
    with pytest.raises(UsageError, match="batch_size"):
        at(server, listed, storage_options={"batch_size": 0})


def test_state_resumes_within_epoch_for_any_location(
    remote: ImageList, listed: Listed, folder: Path
) -> None:
    local = ImageList(listed, listed.labels, root=folder)
    wanted = batches(local)
    assert remote.fingerprint() == local.fingerprint()
    with DataLoader(remote, 16, **OPTIONS) as loader:
        next(iter(loader))
        state = json.loads(json.dumps(loader.state_dict()))
    for data in (remote, local):
        with DataLoader(data, 16, **{**OPTIONS, "num_workers": 2}) as loader:
            loader.load_state_dict(state)
            rest = [(images.clone(), labels.clone()) for images, labels in loader]
        assert same(rest, wanted[1:])


def test_a_schedule_is_followed(remote: ImageList, here: ImageFolder, server: RangeServer) -> None:
    def phases(data: Any) -> list[Any]:
        with DataLoader(data, 16, schedule="16x1,24x1@8", seed=2, num_workers=1) as loader:
            return [(each.clone(), of.clone()) for _ in range(2) for each, of in loader]

    assert same(phases(remote), phases(here))
    assert server.asked(".jpg") == COUNT


def test_a_worker_that_is_killed_is_replaced_and_the_batches_are_the_same(
    remote: ImageList, here: ImageFolder, tmp_path: Path
) -> None:
    with DataLoader(here, 16, **OPTIONS) as loader:
        loader.set_epoch(1000)
        wanted = [(images.clone(), labels.clone()) for images, labels in loader]
    with DataLoader(remote, 16, **{**OPTIONS, "num_workers": 2, "prefetch": 1}) as loader:
        workers = all_workers(loader, 2)
        for path in kept(tmp_path):
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_leaves_the_connections_of_its_parent_alone(
    remote: ImageList, server: RangeServer
) -> None:
    for sample in range(4):
        made(remote, 24, sample, 0)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            made(remote, 24, 20, 0)
            remote.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    before = server.asked(".jpg")
    for sample in range(4, 8):
        made(remote, 24, sample, 0)
    assert server.asked(".jpg") == before + 4  # none was requested twice


def test_a_pickle_holds_no_image_and_no_connection(remote: ImageList, here: ImageFolder) -> None:
    made(remote, 24, 3, 3)
    assert len(pickle.dumps(remote)) < 5000
    copy = pickle.loads(pickle.dumps(remote))
    assert (made(copy, 24, 40, 3)[0] == made(here, 24, 40, 3)[0]).all()


# Folders of class folders


@pytest.fixture
def in_memory(folder: Path) -> Iterator[str]:
    """The folder in fsspec's memory: its URL. What is there is seen by this process alone."""
    there = fsspec.filesystem("memory")
    for name, data in contents(folder.parent).items():
        there.pipe_file(f"/bucket/{name}", data)
    yield "memory://bucket/photos"
    there.rm("/bucket", recursive=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_of_class_folders_is_that_folder(
    folder: Path, here: ImageFolder, wanted: list[Any], tmp_path: Path, workers: int
) -> None:
    data = ImageFolder(folder.as_uri(), local_dir=tmp_path)
    assert same(batches(data, num_workers=workers), wanted)
    assert (data.classes, data.fingerprint()) == (here.classes, here.fingerprint())
    assert (data.targets == here.targets).all()
    assert data.name(30) == f"{folder.as_uri()}/dogs/{Path(here.path(30)).name}"
    assert kept(tmp_path)


def test_order_and_nested_folders_equal_local_ones(tmp_path: Path) -> None:
    for name in ("b/x.jpg", "b/a-b/y.JPG", "b/a/z.png", "a b/1.webp", "a b/note.txt", "up.txt"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    here = ImageFolder(tmp_path / "photos")
    data = ImageFolder((tmp_path / "photos").as_uri().replace("%20", " "), local_dir=tmp_path)
    assert data.classes == ["a b", "b"]
    read = [data.store.read(sample, 0) for sample in range(4)]
    assert read == [here.store.read(sample, 0) for sample in range(4)]


def test_invalid_image_folder_is_rejected_like_local_one(in_memory: str, tmp_path: Path) -> None:
    there = fsspec.filesystem("memory")
    with pytest.raises(DatasetError, match=r"not a folder of images.*lie directly in it"):
        ImageFolder(f"{in_memory}/cats", local_dir=tmp_path)
    with pytest.raises(DatasetError, match="cannot be listed: FileNotFoundError"):
        ImageFolder(f"{in_memory}/nothing", local_dir=tmp_path)
    there.pipe_file("/bucket/photos/birds/notes.txt", b"no image")
    with pytest.raises(DatasetError, match=r"^class folders .*, 1 of 3: 'birds'.*notes\.txt"):
        ImageFolder(in_memory, local_dir=tmp_path)
    data = ImageFolder(in_memory, local_dir=tmp_path, extensions=(".jpg", ".txt"))
    assert data.classes == ["birds", "cats", "dogs"]


def test_replaced_image_is_seen_when_folder_is_listed(in_memory: str, tmp_path: Path) -> None:
    there = fsspec.filesystem("memory")
    data = ImageFolder(in_memory, local_dir=tmp_path)
    name = data.store.url(3).removeprefix("memory:/")
    old = data.store.read(3, 0)
    there.pipe_file(name, old + b"more")
    assert data.store.read(3, 0) == old  # it is kept here
    assert ImageFolder(in_memory, local_dir=tmp_path).store.read(3, 0) == old + b"more"
    there.pipe_file(name, old[:-1])  # and files of another length than listed are rejected
    data = ImageFolder(in_memory, local_dir=tmp_path / "other")
    there.pipe_file(name, old)
    with pytest.raises(ImageError, match=r"sample 3.*do not match the listing.*again"):
        made(data, 24, 3, 0)


# Lists


def test_lists_of_urls_equal_lists_of_files(
    folder: Path, here: ImageFolder, wanted: list[Any], tmp_path: Path
) -> None:
    urls = [Path(here.path(sample)).as_uri() for sample in range(len(here))]
    names = ["cats", "dogs"]
    csv = tmp_path / "list.csv"
    rows = [f"{url},{names[label]}" for url, label in zip(urls, here.targets, strict=True)]
    csv.write_text("path,label\n" + "\n".join(rows) + "\n")
    data = ImageList.from_csv(csv, local_dir=tmp_path)
    assert data.classes == names
    assert data.root == folder.as_uri()
    assert same(batches(data), wanted)
    below = ImageList(urls[:2], [0, 0], root=folder.parent.as_uri(), local_dir=tmp_path, check=True)
    assert below.root == folder.parent.as_uri()
    assert (made(below, 24, 1, 5)[0] == made(here, 24, 1, 5)[0]).all()


def test_two_hosts_in_one_list(
    server: RangeServer, here: ImageFolder, listed: Listed, folder: Path, tmp_path: Path
) -> None:
    other = RangeServer(folder.parent)
    try:
        hosts = [server.url, other.url, folder.parent.as_uri()]
        urls = [f"{hosts[k % 3]}/photos/{name}" for k, name in enumerate(listed)]
        data = ImageList(urls, listed.labels, local_dir=tmp_path)
        assert same(batches(data, num_workers=1), batches(here))
        assert server.asked(".jpg") == other.asked(".jpg") == COUNT // 3
        assert "3 hosts" in repr(data)
    finally:
        other.stop()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"paths": ["s3://b/a.jpg", "b.jpg"]}, r"sample 1 .* 'b\.jpg'.*URL.*'file:///.*b\.jpg'"),
        ({"paths": ["/b.jpg"], "root": "memory://b"}, r"sample 0 .*root='memory://b/' is a URL"),
        ({"paths": ["a.jpg"], "local_bytes": 5}, "local_bytes is only for URLs"),
        ({"paths": [Path("memory://b/a.jpg")]}, "pathlib reduced to one slash"),
        ({"paths": ["a.jpg"], "root": Path("memory://b")}, "pathlib reduced to one slash"),
        ({"paths": ["memory://b/a.jpg"], "local_bytes": 0}, "local_bytes must be"),
        ({"paths": ["zip://a.jpg::memory://b/c.zip"]}, "one protocol within another"),
        ({"paths": ["nonsense://b/a.jpg"]}, "cannot be opened by fsspec"),
    ],
    ids=str,
)
def test_contradictory_arguments_are_rejected(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ImageList(labels=[0] * len(given["paths"]), **given)


def test_a_password_is_not_shown(server: RangeServer, listed: Listed, tmp_path: Path) -> None:
    url = server.url.replace("//", "//me:secret@")
    data = ImageList(["nothing.jpg", *listed], [0, *listed.labels], root=url, local_dir=tmp_path)
    with pytest.raises(ImageError) as refused:
        made(data, 24, 0, 0)
    for said in (str(refused.value), repr(data), data.root, data.name(0)):
        assert "secret" not in said
    assert f"{server.url}/nothing.jpg" in str(refused.value)


def test_signatures_of_urls_are_not_shown(
    server: RangeServer, listed: Listed, tmp_path: Path
) -> None:
    signed = "nothing.jpg?X-Amz-Expires=60&X-Amz-Signature=secret"
    urls = [f"{server.url}/{name}" for name in (signed, *(f"photos/{each}" for each in listed))]
    data = ImageList(urls, [0, *listed.labels], local_dir=tmp_path / "copies")
    with pytest.raises(ImageError) as refused:
        made(data, 24, 0, 0)
    assert f"{server.url}/nothing.jpg?..." in str(refused.value)
    with DataLoader(data, 4, image_size=24, num_workers=1, on_error="skip") as loader:
        for _ in feedline.watch(loader, run=tmp_path / "run"):
            pass
        told = f"{loader.skipped} {data!r} {data.name(0)} {refused.value}"
    assert "nothing.jpg?..." in str(loader.skipped)
    told += (tmp_path / "run" / "trace.json").read_text()
    assert "secret" not in told
    with pytest.raises(UsageError) as unlabelled:
        ImageList([urls[0]], [None])
    assert "secret" not in str(unlabelled.value)


def test_operations_on_local_files_raise(remote: ImageList, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="copy them to a disk"):
        remote.path(0)
    with pytest.raises(UsageError, match="build it first"):
        batches(remote, cache=tmp_path / "not there")


def test_missing_files_are_found_ahead(server: RangeServer, tmp_path: Path) -> None:
    paths = ["cats/0.jpg", "cats/nothing.jpg"]
    options: dict[str, Any] = {"root": f"{server.url}/photos", "local_dir": tmp_path}
    with pytest.raises(DatasetError, match=r"1 of 2 images.*photos/cats/nothing\.jpg"):
        ImageList(paths, [0, 0], check=True, **options)
    assert len(ImageList(paths[:1], [0], check=True, **options)) == 1


# Faults


def reset(answer: Answer) -> bool:
    answer.reset()
    return True


def unavailable(answer: Answer) -> bool:
    answer.give(503, b"overloaded")
    return True


def cut_short(answer: Answer) -> bool:
    answer.give(206, answer.part[: len(answer.part) // 2], len(answer.part))
    return True


def no_http(answer: Answer) -> bool:
    answer.wfile.write(b"no HTTP\r\n\r\n")
    answer.close_connection = True
    return True


def half(answer: Answer) -> bool:
    answer.stop = answer.first + len(answer.whole) // 2
    answer.give(206, answer.part)
    return True


@pytest.mark.parametrize(
    "fault", [reset, unavailable, cut_short, no_http], ids=lambda each: each.__name__
)
@pytest.mark.parametrize("workers", [0, *slow(2)])
def test_request_is_retried_after_two_failures_and_batches_are_equal(
    remote: ImageList,
    server: RangeServer,
    wanted: list[Any],
    fault: Callable[[Answer], bool],
    workers: int,
    request: pytest.FixtureRequest,
) -> None:
    if not workers:
        request.getfixturevalue("pauses")
    asked: Counter[str] = Counter()

    def twice(answer: Answer) -> bool:
        asked[answer.path] += 1
        return answer.path.endswith("7.jpg") and asked[answer.path] <= 2 and fault(answer)

    server.fault = twice
    assert same(batches(remote, num_workers=workers), wanted)
    # A worker that is ahead may begin the next epoch while another fetches the same images.
    assert max(asked.values()) >= 3 if workers else max(asked.values()) == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_missing_image_is_named_and_skipped(
    server: RangeServer, listed: Listed, tmp_path: Path, workers: int
) -> None:
    paths, url = ["cats/nothing.jpg", *listed[1:]], f"{server.url}/photos"
    data = ImageList(paths, listed.labels, root=url, local_dir=tmp_path)
    with DataLoader(data, 16, **{**OPTIONS, "num_workers": workers, "on_error": "skip"}) as loader:
        assert sum(len(labels) for _, labels in loader) == COUNT - 1
        ((name, why),) = loader.skipped
    assert name == f"{url}/cats/nothing.jpg"
    assert f"'{url}/cats/nothing.jpg' cannot be read: FileNotFoundError" in why
    assert "misspelt" in why
    with pytest.raises(ImageError, match=r"nothing\.jpg"):
        batches(data, num_workers=workers)


@pytest.mark.parametrize(
    ("fault", "said"),
    [(unavailable, "tried .* 503.*server may be down"), (half, "RangeError.*sends bytes 0-")],
    ids=["unavailable", "half"],
)
def test_permanent_error_quotes_server(
    remote: ImageList,
    server: RangeServer,
    pauses: list[float],
    fault: Callable[[Answer], bool],
    said: str,
) -> None:
    server.fault = fault
    with pytest.raises(
        ImageError, match=rf"sample 3, {server.url}/photos/.*cannot be read.*{said}"
    ):
        made(remote, 24, 3, 0)
    assert sum(pauses) <= 1.5 * remote_reader.IMAGE_PATIENCE_S


def test_slow_server_only_costs_late_images(
    remote: ImageList, server: RangeServer, wanted: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_reader, "_DEADLINE_S", 1.0)
    asked: Counter[str] = Counter()
    ended = threading.Event()

    def once(answer: Answer) -> bool:
        asked[answer.path] += 1
        return answer.path.endswith("cats/7.jpg") and asked[answer.path] == 1 and ended.wait(60)

    server.fault = once
    try:
        assert same(batches(remote), wanted)
    finally:
        ended.set()
    assert sum(asked.values()) == COUNT + 1


def test_server_without_range_requests_is_supported(
    remote: ImageList, server: RangeServer, wanted: list[Any]
) -> None:
    def whole(answer: Answer) -> bool:
        answer.give(200, answer.whole)
        return True

    server.fault = whole
    assert same(batches(remote), wanted)


@pytest.mark.parametrize(
    ("length", "said"), [(10**12, "above the limit"), (None, "does not declare the length")]
)
def test_endless_body_is_not_read(
    remote: ImageList, server: RangeServer, length: int | None, said: str
) -> None:
    def endless(answer: Answer) -> bool:
        answer.send_response(200)
        answer.send_header(*(("X-No", "length") if length is None else ("Content-Length", length)))
        answer.end_headers()
        answer.close_connection = True
        return True

    server.fault = endless
    with pytest.raises(ImageError, match=said):
        made(remote, 24, 3, 0)


# What is kept


def test_damaged_local_copy_is_fetched_again(
    remote: ImageList, server: RangeServer, wanted: list[Any], tmp_path: Path
) -> None:
    assert same(batches(remote), wanted)
    (path,) = kept(tmp_path)
    slot = local_copies._SLOT_BYTES
    for place in (0, 7 * slot + 9, 20 * slot + 300):  # in a length, a checksum, an image
        flip(path, place)
    assert same(batches(remote), wanted)
    assert server.asked(".jpg") == COUNT + 3
    assert same(batches(remote), wanted)
    assert server.asked(".jpg") == COUNT + 3


@pytest.mark.parametrize("body", [b"<html>Log in</html>", None], ids=["a page", "a half"])
def test_response_that_is_not_an_image_is_not_stored(
    remote: ImageList, server: RangeServer, wanted: list[Any], tmp_path: Path, body: bytes | None
) -> None:
    wrong: list[str] = []

    def instead(answer: Answer) -> bool:
        if not answer.path.endswith("7.jpg"):
            return False
        wrong.append(answer.path)
        answer.give(200, answer.part[: len(answer.part) // 2] if body is None else body)
        return True

    server.fault = instead
    batches(remote, on_error="skip")
    assert len(wrong) == 8, "each of four is looked at once more"
    server.fault = None
    asked = server.asked(".jpg")
    assert same(batches(remote), wanted)
    assert server.asked(".jpg") == asked + 4
    assert same(batches(remote), wanted)
    assert server.asked(".jpg") == asked + 4


def test_single_wrong_response_is_harmless(
    remote: ImageList, server: RangeServer, wanted: list[Any]
) -> None:
    server.fault = lambda answer: (
        server.asked(answer.path) == 1 and answer.give(200, b"<html>Log in</html>") is None
    )
    assert same(batches(remote), wanted)
    assert server.asked(".jpg") == 2 * COUNT
    server.fault = None
    assert same(batches(remote), wanted)
    assert server.asked(".jpg") == 2 * COUNT


def test_broken_redirects_are_not_followed_again(remote: ImageList, server: RangeServer) -> None:
    server.fault = lambda answer: answer.redirect(answer.path) is None
    with pytest.raises(ImageError, match=r"cannot be read: TooManyRedirects"):
        made(remote, 24, 0, 0)
    server.fault = lambda answer: answer.redirect("file:///etc/passwd") is None
    with pytest.raises(ImageError, match=r"cannot be read: NonHttpUrlRedirect"):
        made(remote, 24, 1, 0)


def test_a_copy_is_that_of_its_url_alone(
    server: RangeServer, listed: Listed, here: ImageFolder, tmp_path: Path
) -> None:
    batches(at(server, listed, local_dir=tmp_path))
    other = Listed(here)
    other.reverse()
    other.labels.reverse()
    data = at(server, other, local_dir=tmp_path)
    for sample in (0, 5):
        assert (made(data, 24, sample, 1)[1]) == 1
        assert data.store.read(sample, 0) == Path(here.path(COUNT - 1 - sample)).read_bytes()
    # Other labels are no reason to fetch again.
    before = server.asked(".jpg")
    batches(ImageList(listed, range(COUNT), root=f"{server.url}/photos", local_dir=tmp_path))
    assert server.asked(".jpg") == before


def test_local_disk_smaller_than_epoch_is_used_as_far_as_possible(
    server: RangeServer, listed: Listed, wanted: list[Any], tmp_path: Path
) -> None:
    limit = 20 * 4096
    data = at(server, listed, local_dir=tmp_path, local_bytes=limit)
    for _ in range(3):
        before = server.asked(".jpg")
        assert same(batches(data), wanted)
        used = sum(512 * path.stat().st_blocks for path in kept(tmp_path))
        assert limit / 2 < used <= limit + 8192
    assert 0 < server.asked(".jpg") - before < COUNT


def test_image_larger_than_limit_is_fetched_each_time(
    remote: ImageList, server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_copies, "_MAX_IMAGE_BYTES", 100)
    for _ in range(2):
        made(remote, 24, 3, 0)
    assert server.asked(".jpg") == 2


def test_read_ahead_is_postponed_without_memory(
    remote: ImageList, server: RangeServer, wanted: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_reader, "_MAX_PREFETCHED_BYTES", 3000)
    assert same(batches(remote), wanted)
    assert same(batches(remote), wanted)
    assert server.asked(".jpg") == COUNT


# Caches of them


def test_a_cache_is_built_of_a_list_and_of_a_folder_at_a_url(
    remote: ImageList, folder: Path, server: RangeServer, listed: Listed, tmp_path: Path
) -> None:
    build(folder, tmp_path / "wanted")
    wanted = batches(ImageFolder(tmp_path / "wanted"))
    build(ImageFolder(folder.as_uri(), local_dir=tmp_path), tmp_path / "folder")
    assert same(batches(ImageFolder(tmp_path / "folder")), wanted)
    build(remote, tmp_path / "list")
    assert same(batches(ImageFolder(tmp_path / "list")), wanted)
    asked = server.asked(".jpg")
    assert same(batches(remote, cache=tmp_path / "list"), wanted)
    assert server.asked(".jpg") == asked
    broken = [*listed, "cats/nothing.jpg"]
    data = ImageList(broken, [*listed.labels, 0], root=remote.root, local_dir=tmp_path)
    with pytest.raises(ImageError, match=r"nothing\.jpg"):
        build(data, tmp_path / "broken")
    assert build(data, tmp_path / "skipped", on_error="skip").samples == COUNT


def test_a_build_does_without_a_page_that_came_once_in_the_place_of_an_image(
    remote: ImageList, server: RangeServer, tmp_path: Path
) -> None:
    server.fault = lambda answer: (
        server.asked(answer.path) == 1 and answer.give(200, b"<html>Log in</html>") is None
    )
    assert build(remote, tmp_path / "list").samples == COUNT


def test_build_from_an_unreachable_server_raises_and_skips_nothing(
    remote: ImageList, server: RangeServer, pauses: list[float], tmp_path: Path
) -> None:
    server.fault = unavailable
    with pytest.raises(DatasetError, match="server may be down"):
        build(remote, tmp_path / "cache", on_error="skip")
