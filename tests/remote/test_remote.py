"""Caches on another machine: the same batches as from here, fetched once and many at a time."""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder as TorchvisionFolder

from caches import made as build
from caches import photos as make_photos
from feedline import DataLoader, EvalCrop, ImageFolder
from feedline.errors import DatasetError, UsageError
from feedline.sources import remote_reader
from processes import all_workers
from range_server import Answer, RangeServer
from row_of import made
from slow import slow

pytest.importorskip("aiohttp")

COUNT = 80
OPTIONS: dict[str, Any] = {"seed": 1, "shuffle": True, "image_size": 24, "num_workers": 0}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """80 photographs of 2 classes, so three shards."""
    return make_photos(tmp_path_factory.mktemp("originals") / "photos", COUNT // 2)


@pytest.fixture(scope="module")
def caches(originals: Path) -> Path:
    """A folder with two caches of 16 and 24 px: "jpeg" and "raw"."""
    root = originals.parent / "caches"
    for name in ("jpeg", "raw"):
        build(originals, root / name, raw=name == "raw")
    return root


@pytest.fixture
def server(caches: Path) -> Iterator[RangeServer]:
    served = RangeServer(caches)
    yield served
    served.stop()


@pytest.fixture
def remote(server: RangeServer, tmp_path: Path) -> ImageFolder:
    return ImageFolder(f"{server.url}/jpeg/", local_dir=tmp_path / "local")


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each image is a request."""
    monkeypatch.setattr(remote_reader, "GAP_BYTES", 0)


def batches(data: Any, **options: Any) -> list[Any]:
    with DataLoader(data, 16, **{**OPTIONS, **options}) as loader:
        return [(images.clone(), labels.clone()) for images, labels in loader]


def same(ours: list[Any], theirs: list[Any]) -> bool:
    return len(ours) == len(theirs) and all(
        torch.equal(one, other)
        for pair in zip(ours, theirs, strict=True)
        for one, other in zip(*pair, strict=True)
    )


def images_asked(server: RangeServer) -> int:
    return server.asked(".tar")


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("jpeg", {"num_workers": 0}),
        ("raw", {"num_workers": 0}),
        ("jpeg", {"num_workers": 2, "start_method": "fork"}),
        *slow(
            ("raw", {"num_workers": 2, "start_method": "forkserver"}),
            ("jpeg", {"num_workers": 2, "start_method": "spawn"}),
        ),
    ],
    ids=str,
)
def test_batches_equal_those_of_cache_and_are_fetched_once(
    server: RangeServer, caches: Path, tmp_path: Path, name: str, how: dict[str, Any]
) -> None:
    wanted = batches(ImageFolder(caches / name))
    data = ImageFolder(f"{server.url}/{name}", local_dir=tmp_path)
    made(data, 24, 0, 0)  # opened in this process, too
    assert same(batches(data, **how), wanted)
    asked = images_asked(server)
    assert asked
    assert same(batches(data, **how), wanted)
    assert images_asked(server) == asked


def nothing(worker: int) -> None:
    """A worker_init_fn."""


@pytest.mark.parametrize("init", [None, nothing])
def test_missing_parts_of_task_are_requested_concurrently(
    remote: ImageFolder, server: RangeServer, caches: Path, apart: None, init: Any
) -> None:
    together = threading.Barrier(16)

    def wait(answer: Answer) -> bool:
        together.wait(timeout=30)  # if they came one by one, none would ever be answered
        return False

    server.fault = wait
    with DataLoader(remote, 16, worker_init_fn=init, **OPTIONS) as loader:
        ours = [(images.clone(), labels.clone()) for images, labels in loader]
    assert server.most_in_flight == 16
    assert images_asked(server) == COUNT
    assert same(ours, batches(ImageFolder(caches / "jpeg")))


def test_concurrent_requests_are_limited(server: RangeServer, tmp_path: Path, apart: None) -> None:
    few = {"batch_size": 3}
    data = ImageFolder(f"{server.url}/jpeg", local_dir=tmp_path, storage_options=few)
    batches(data)
    assert server.most_in_flight <= 3
    assert images_asked(server) == COUNT


def test_adjacent_images_share_one_request(
    remote: ImageFolder, server: RangeServer, caches: Path
) -> None:
    ours = batches(remote, shuffle=False)
    assert images_asked(server) == 5  # each batch lies in one shard
    assert same(ours, batches(ImageFolder(caches / "jpeg"), shuffle=False))


def test_loader_reads_sufficient_level_and_reports_location(
    remote: ImageFolder, server: RangeServer, tmp_path: Path
) -> None:
    with DataLoader(remote, 16, schedule="16x1,24x1", num_workers=1) as loader:
        said = loader.explain()
        assert (
            f"copies      16 px JPEG q95 for 16 px, 24 px JPEG q95 for 24 px (cache {server.url}"
            f"/jpeg, kept in {tmp_path / 'local'}, at most "
        ) in said
        assert f"ImageFolder('{server.url}/jpeg'" in said
        assert [len(labels) for _ in range(2) for _, labels in loader] == [16] * 10
    assert {path.split("/")[2] for path, _ in server.requests if path.endswith(".tar")} == {
        "16",
        "24",
    }


def test_state_resumes_within_epoch(remote: ImageFolder, caches: Path) -> None:
    wanted = batches(ImageFolder(caches / "jpeg"))
    with DataLoader(remote, 16, **OPTIONS) as loader:
        for _ in zip(range(2), loader, strict=False):
            pass
        state = json.loads(json.dumps(loader.state_dict()))
    with DataLoader(remote, 16, **{**OPTIONS, "num_workers": 2}) as loader:
        loader.load_state_dict(state)
        rest = [(images.clone(), labels.clone()) for images, labels in loader]
    assert same(rest, wanted[2:])
    # It is the state of the same samples and pixels, wherever these lie.
    with DataLoader(ImageFolder(caches / "jpeg"), 16, **OPTIONS) as loader:
        loader.load_state_dict(state)
        assert len(list(loader)) == 3


def test_a_worker_that_is_killed_is_replaced_and_the_batches_are_the_same(
    remote: ImageFolder, caches: Path, tmp_path: Path
) -> None:
    with DataLoader(ImageFolder(caches / "jpeg"), 16, **OPTIONS) as loader:
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


def test_a_pickle_holds_no_connection_and_is_used_in_other_processes(
    remote: ImageFolder, caches: Path
) -> None:
    made(remote, 24, 3, 3)
    size = len(pickle.dumps(remote))
    assert size < 5000
    copy = pickle.loads(pickle.dumps(remote))
    here = ImageFolder(caches / "jpeg")
    assert (made(copy, 24, 70, 3)[0] == made(here, 24, 70, 3)[0]).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_leaves_the_connections_of_its_parent_alone(
    remote: ImageFolder, server: RangeServer
) -> None:
    for sample in range(8):
        made(remote, 24, sample, 0)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            made(remote, 24, 40, 0)
            remote.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    before = images_asked(server)
    for sample in range(8, 16):
        made(remote, 24, sample, 0)
    assert images_asked(server) == before + 8  # none was requested twice


# Beside the originals


TRAIN = transforms.Compose([transforms.RandomResizedCrop(24), transforms.ToTensor()])


@pytest.mark.parametrize("collate", [None, list])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_torchvision_folder_reads_a_cache_at_a_url(
    originals: Path, server: RangeServer, caches: Path, tmp_path: Path, collate: Any, workers: int
) -> None:
    folder = TorchvisionFolder(str(originals), TRAIN)
    cache = ImageFolder(f"{server.url}/jpeg", local_dir=tmp_path)
    options: dict[str, Any] = {"seed": 3, "num_workers": workers, "collate_fn": collate}
    with (
        DataLoader(folder, 16, cache=caches / "jpeg", **options) as here,
        DataLoader(folder, 16, cache=cache, **options) as there,
    ):
        assert f"24 px JPEG q95 for 24 px (cache {server.url}/jpeg, kept in" in there.explain()
        for wanted, found in zip(here, there, strict=True):
            assert str(wanted) == str(found)
    assert images_asked(server) < COUNT  # a batch's are fetched together


@pytest.mark.parametrize("workers", [0, 1])
def test_cache_is_opened_once_for_any_number_of_changes(
    originals: Path, server: RangeServer, tmp_path: Path, workers: int, monkeypatch: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = TorchvisionFolder(str(originals), TRAIN)
    options: dict[str, Any] = {"seed": 3, "num_workers": workers}
    with DataLoader(folder, 16, cache=f"{server.url}/jpeg", **options) as loader:
        assert sum(len(labels) for _, labels in loader) == COUNT
        asked = len(server.requests)
        server.stop()
        try:
            folder.transform = transforms.Compose([*TRAIN.transforms, transforms.Normalize(0.5, 1)])
            assert sum(len(labels) for _, labels in loader) == COUNT
        finally:
            server.start()
        assert len(server.requests) == asked
        loader.refresh()
        assert sum(len(labels) for _, labels in loader) == COUNT
        assert server.asked(".json") == 2


def test_cache_is_named_by_url_with_default_folder(
    originals: Path, server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    data = ImageFolder(originals)
    with DataLoader(data, 16, cache=f"{server.url}/jpeg", **OPTIONS) as loader:
        assert sum(len(labels) for _, labels in loader) == COUNT
    (kept,) = (tmp_path / "xdg" / "feedline").iterdir()
    assert kept.name.startswith("jpeg-")
    assert kept.stat().st_mode & 0o077 == 0


# What is kept


def kept(local: Path) -> list[Path]:
    return sorted(local.rglob("*.part"))


def test_damaged_local_copy_is_fetched_again(
    remote: ImageFolder, server: RangeServer, caches: Path, tmp_path: Path
) -> None:
    wanted = batches(remote)
    for path in kept(tmp_path):
        whole = path.read_bytes()
        path.write_bytes(bytes(byte ^ 1 for byte in whole[: len(whole) // 2]))
    before = images_asked(server)
    assert same(batches(remote), wanted)
    after = images_asked(server)
    assert after > before
    assert same(batches(remote), wanted)
    assert images_asked(server) == after
    (labels,) = tmp_path.rglob("labels.npy")
    labels.write_bytes((labels.parent / "sizes.npy").read_bytes())
    assert same(batches(remote, num_workers=1), wanted)  # workers look for themselves
    assert server.asked("labels.npy") == 2


def test_local_disk_smaller_than_epoch_is_used_as_far_as_possible(
    server: RangeServer, caches: Path, tmp_path: Path, apart: None
) -> None:
    wanted = batches(ImageFolder(caches / "raw"))
    limit = 200_000
    data = ImageFolder(f"{server.url}/raw", local_dir=tmp_path, local_bytes=limit)
    for _ in range(3):
        before = images_asked(server)
        assert same(batches(data), wanted)
        files = [path.stat() for path in tmp_path.rglob("*.*") if path.is_file()]
        assert limit / 2 < sum(512 * status.st_blocks for status in files) <= limit + 4096
    assert 0 < images_asked(server) - before < COUNT
    copies = data.with_transform(EvalCrop(1.0))
    assert same(batches(copies), batches(ImageFolder(caches / "raw", EvalCrop(1.0))))


def test_index_is_fetched_once_and_again_for_another_cache(
    server: RangeServer, originals: Path, tmp_path: Path
) -> None:
    server.root = tmp_path
    build(originals, tmp_path / "cache")
    local = tmp_path / "local"
    data = ImageFolder(f"{server.url}/cache", local_dir=local)
    wanted = batches(data)
    fetched = server.asked(".npy")
    assert fetched == 8
    assert same(batches(ImageFolder(f"{server.url}/cache", local_dir=local)), wanted)
    assert (server.asked(".npy"), server.asked(".json")) == (fetched, 2)

    other = make_photos(tmp_path / "other", COUNT // 2 + 1)
    build(other, tmp_path / "rebuilt", sizes=(16, 24), quality=60)
    (tmp_path / "cache").rename(tmp_path / "old")
    (tmp_path / "rebuilt").rename(tmp_path / "cache")
    assert same(batches(data), wanted)  # all of it is local
    anew = ImageFolder(f"{server.url}/cache", local_dir=local)
    assert len(anew) == COUNT + 2
    assert same(batches(anew), batches(ImageFolder(tmp_path / "cache")))
    for path in kept(local):
        path.unlink()
    with (
        pytest.raises(RuntimeError, match=r"cannot be loaded.*rebuilt there after the dataset was"),
        DataLoader(data, 16, **OPTIONS) as loader,
    ):
        next(iter(loader))


@pytest.mark.slow
def test_two_runs_keep_their_images_in_one_folder(
    server: RangeServer, caches: Path, tmp_path: Path
) -> None:
    wanted = batches(ImageFolder(caches / "jpeg"))
    data = ImageFolder(f"{server.url}/jpeg", local_dir=tmp_path)
    options = {**OPTIONS, "num_workers": 1}
    with DataLoader(data, 16, **options) as one, DataLoader(data, 16, **options) as other:
        pairs = [
            [(images.clone(), labels.clone()) for images, labels in both]
            for both in zip(one, other, strict=True)
        ]
    for number in range(2):
        assert same([pair[number] for pair in pairs], wanted)


# What cannot be


def test_other_formats_raise_with_hint(
    server: RangeServer, originals: Path, tmp_path: Path
) -> None:
    server.root = tmp_path
    build(originals, tmp_path / "files", "folder")
    with pytest.raises(
        UsageError, match=r"(?s)has the format 'folder'.*copy it.*--format webdataset"
    ):
        ImageFolder(f"{server.url}/files", local_dir=tmp_path / "local")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"root": "/here", "local_dir": "/tmp"}, r"local_dir is only for URLs.*'/here'"),
        ({"root": "/here", "local_bytes": 3}, "local_bytes is only for URLs"),
        ({"root": "/here", "storage_options": {}}, "storage_options is only for URLs"),
        ({"root": "http://h/c", "local_bytes": 0}, "whole number above 0, got 0"),
        ({"root": "http://h/c", "local_bytes": True}, "whole number above 0, got True"),
        ({"root": "http://h/c?key=1"}, "is not a folder"),
        ({"root": "zip://c::http://h/c"}, "is not a folder"),
        ({"root": "nothing://h/c"}, r"'?nothing'?.*Protocol not known|cannot be opened"),
        ({"root": Path("s3://bucket/cache")}, "pathlib reduced to one slash"),
        ({"root": "s3://b/c", "storage_options": {"no": 1}}, "cannot be opened by fsspec.*'no'"),
        ({"root": "http://h/c", "storage_options": {"batch_size": 0}}, "above 0, got 0"),
    ],
)
def test_unusable_arguments_are_rejected(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ImageFolder(**arguments)


@pytest.mark.parametrize("value", [3, ["/cache"]])
def test_invalid_cache_is_rejected(originals: Path, value: object) -> None:
    with pytest.raises(UsageError, match="cache must be the folder or the URL of a cache"):
        DataLoader(ImageFolder(originals), 4, image_size=24, cache=value)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is not a cache"):
        DataLoader(ImageFolder(originals), 4, image_size=24, cache=ImageFolder(originals))


def test_missing_package_is_named_with_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UsageError, match=r"feedline\[remote\]"):
        ImageFolder("http://127.0.0.1/cache")


def test_a_password_in_a_url_is_not_shown(
    server: RangeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "feedline")
    url = f"{server.url}/jpeg".replace("//", "//me:secret@")
    data = ImageFolder(url, local_dir=tmp_path)
    with DataLoader(data, 16, **OPTIONS) as loader:
        shown = [loader.explain(), repr(data), data.root, str(loader.state_dict())]
    with pytest.raises(DatasetError) as refused:
        ImageFolder(f"{url}/nowhere", local_dir=tmp_path)
    shown += [str(refused.value), caplog.text, *map(str, tmp_path.rglob("*"))]
    assert all("secret" not in text for text in shown)
    # The copies are shared with the same URL without it.
    ImageFolder(f"{server.url}/jpeg", local_dir=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_any_protocol_of_fsspec_serves(caches: Path, tmp_path: Path, protocol: str) -> None:
    import fsspec

    url = (caches / "jpeg").as_uri()
    if protocol == "memory":
        memory = fsspec.filesystem("memory")
        memory.put(str(caches / "jpeg"), "/cache", recursive=True)
        url = "memory://cache"
    data = ImageFolder(url, local_dir=tmp_path)
    assert same(batches(data), batches(ImageFolder(caches / "jpeg")))
