"""Caches on another machine: the same batches as from here, fetched once and many at a time."""

from pathlib import Path

import pytest
from torchvision import transforms
from torchvision.datasets import ImageFolder as TorchvisionFolder

from caches import made as build
from caches import photos as make_photos
from feedline import DataLoader, ImageFolder
from feedline.errors import UsageError
from range_server import OPTIONS, batches, copies, same

pytest.importorskip("aiohttp")

COUNT = 80


@pytest.fixture
def remote(server, tmp_path):
    return ImageFolder(f"{server.url}/cache/", local_dir=tmp_path / "local")


def test_adjacent_images_share_one_request(remote, server, served):
    ours = batches(remote, shuffle=False)
    assert server.asked(".tar") == 5  # each batch lies in one shard
    assert same(ours, batches(ImageFolder(served / "cache"), shuffle=False))


def test_loader_reads_sufficient_level_and_reports_location(remote, server, tmp_path):
    with DataLoader(remote, 16, schedule="16x1,24x1", num_workers=1) as loader:
        said = loader.explain()
        assert (
            f"copies      16 px JPEG q95 for 16 px, 24 px JPEG q95 for 24 px (cache {server.url}"
            f"/cache, kept in {tmp_path / 'local'}, at most "
        ) in said
        assert f"ImageFolder('{server.url}/cache'" in said
        assert [len(labels) for _ in range(2) for _, labels in loader] == [16] * 10
    shards = [path for path, _ in server.requests if path.endswith(".tar")]
    assert {path.split("/")[2] for path in shards} == {"16", "24"}


TRAIN = transforms.Compose([transforms.RandomResizedCrop(24), transforms.ToTensor()])


@pytest.mark.parametrize("collate", [None, list])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_torchvision_folder_reads_a_cache_at_a_url(server, served, tmp_path, collate, workers):
    folder = TorchvisionFolder(str(served / "photos"), TRAIN)
    cache = ImageFolder(f"{server.url}/cache", local_dir=tmp_path)
    options = {"seed": 3, "num_workers": workers, "collate_fn": collate}
    with (
        DataLoader(folder, 16, cache=served / "cache", **options) as here,
        DataLoader(folder, 16, cache=cache, **options) as there,
    ):
        assert f"24 px JPEG q95 for 24 px (cache {server.url}/cache, kept in" in there.explain()
        for wanted, found in zip(here, there, strict=True):
            assert str(wanted) == str(found)
    assert server.asked(".tar") < COUNT  # a batch's are fetched together


@pytest.mark.parametrize("workers", [0, 1])
def test_cache_is_opened_once_for_any_number_of_changes(
    served, server, tmp_path, workers, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    folder = TorchvisionFolder(str(served / "photos"), TRAIN)
    options = {"seed": 3, "num_workers": workers}
    with DataLoader(folder, 16, cache=f"{server.url}/cache", **options) as loader:
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
    (kept,) = (tmp_path / "xdg" / "feedline").iterdir()  # the folder by default
    assert kept.name.startswith("cache-")
    assert kept.stat().st_mode & 0o077 == 0


# What is kept


def test_damaged_local_copy_is_fetched_again(remote, server, served, tmp_path):
    wanted = batches(remote)
    for path in copies(tmp_path):
        whole = path.read_bytes()
        path.write_bytes(bytes(byte ^ 1 for byte in whole[: len(whole) // 2]))
    before = server.asked(".tar")
    assert same(batches(remote), wanted)
    after = server.asked(".tar")
    assert after > before
    assert same(batches(remote), wanted)
    assert server.asked(".tar") == after
    (labels,) = tmp_path.rglob("labels.npy")
    labels.write_bytes((labels.parent / "sizes.npy").read_bytes())
    assert same(batches(remote, num_workers=1), wanted)  # workers look for themselves
    assert server.asked("labels.npy") == 2


def test_index_is_fetched_once_and_again_for_another_cache(served, server, tmp_path):
    server.root = tmp_path
    build(served / "photos", tmp_path / "cache")
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
    for path in copies(local):
        path.unlink()
    with (
        pytest.raises(RuntimeError, match=r"cannot be loaded.*rebuilt there after the dataset was"),
        DataLoader(data, 16, **OPTIONS) as loader,
    ):
        next(iter(loader))


# What cannot be


def test_other_formats_raise_with_hint(served, server, tmp_path):
    server.root = tmp_path
    build(served / "photos", tmp_path / "files", "folder")
    with pytest.raises(
        UsageError, match=r"(?s)has the format 'folder'.*copy it.*--format webdataset"
    ):
        ImageFolder(f"{server.url}/files", local_dir=tmp_path / "local")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"root": "/here", "local_dir": "/tmp"}, r"local_dir is only for URLs.*'/here'"),
        ({"root": "http://h/c", "local_bytes": 0}, "whole number above 0, got 0"),
        ({"root": "http://h/c?key=1"}, "is not a folder"),
        ({"root": "zip://c::http://h/c"}, "is not a folder"),
        ({"root": "nothing://h/c"}, r"'?nothing'?.*Protocol not known|cannot be opened"),
        ({"root": Path("s3://bucket/cache")}, "pathlib reduced to one slash"),
        ({"root": "s3://b/c", "storage_options": {"no": 1}}, "cannot be opened by fsspec.*'no'"),
        ({"root": "http://h/c", "storage_options": {"batch_size": 0}}, "above 0, got 0"),
    ],
)
def test_unusable_arguments_are_rejected(arguments, said):
    with pytest.raises(UsageError, match=said):
        ImageFolder(**arguments)


@pytest.mark.parametrize("value", [3, ["/cache"]])
def test_invalid_cache_is_rejected(served, value):
    with pytest.raises(UsageError, match="cache must be the folder or the URL of a cache"):
        DataLoader(ImageFolder(served / "photos"), 4, image_size=24, cache=value)
    with pytest.raises(UsageError, match="is not a cache"):
        DataLoader(
            ImageFolder(served / "photos"), 4, image_size=24, cache=ImageFolder(served / "photos")
        )


def test_missing_package_is_named_with_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UsageError, match=r"feedline\[remote\]"):
        ImageFolder("http://127.0.0.1/cache")
