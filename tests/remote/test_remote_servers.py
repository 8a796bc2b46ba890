"""Caches and originals on real servers: nginx, and one that speaks S3's protocol."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caches import flip
from feedline import ImageFolder, ImageList
from feedline.cache.damage import verify
from feedline.cache.rates import cache_info
from feedline.errors import DatasetError, FeedlineError, ImageError
from feedline.sources.remote_cache import open_cache
from processes import eventually
from range_server import Answer, RangeServer
from remote_reading import batches, same
from row_of import made
from s3_server import Bucket, serving
from slow import slow

COUNT = 80


@pytest.fixture(scope="module")
def cache(served: Path) -> Path:
    return served / "cache"


@pytest.fixture(scope="module")
def wanted(cache: Path) -> list[Any]:
    return batches(ImageFolder(cache))


# nginx


@pytest.fixture(scope="module")
def nginx(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the folder that the cache lies in."""
    binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if binary is None:
        pytest.skip("there is no nginx: apt-get install nginx-light")
    scratch = tmp_path_factory.mktemp("nginx")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    temporary = "".join(
        f"{name}_temp_path {scratch};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;" if os.getuid() == 0 else ""
    (scratch / "nginx.conf").write_text(
        f"daemon off; {user} pid {scratch}/pid; error_log {scratch}/error.log;"
        "events { worker_connections 512; }"
        f"http {{ access_log off; {temporary} default_type application/octet-stream;"
        "gzip on; gzip_types *; gzip_min_length 1;"
        f"server {{ listen 127.0.0.1:{port}; root {cache.parent}; autoindex on; }} }}"
    )
    server = subprocess.Popen(
        [binary, "-c", scratch / "nginx.conf", "-e", scratch / "error.log"],
        stderr=subprocess.DEVNULL,
    )

    def answers() -> bool:
        assert server.poll() is None, (scratch / "error.log").read_text()
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", port)) == 0

    try:
        assert eventually(answers)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def test_nginx_batches_equal_those_of_cache_and_folder(
    nginx: str, cache: Path, wanted: list[Any], tmp_path: Path
) -> None:
    folder = batches(ImageFolder(cache.parent / "photos"))
    for name, expected in (("cache", wanted), ("photos", folder)):
        data = ImageFolder(f"{nginx}/{name}", local_dir=tmp_path)
        for _ in range(2):
            assert same(batches(data, num_workers=2), expected)
    with pytest.raises(DatasetError, match="copied incompletely"):
        ImageFolder(f"{nginx}/elsewhere", local_dir=tmp_path)


# S3


@pytest.fixture(scope="module")
def bucket(cache: Path) -> Iterator[Bucket]:
    """A folder in S3 with the cache and its originals."""
    with serving() as server:
        made_there = Bucket(server)
        made_there.fill("train", cache)
        made_there.fill("photos", cache.parent / "photos")
        yield made_there


@pytest.mark.parametrize(
    "how",
    [
        {"num_workers": 0},
        {"num_workers": 2, "start_method": "forkserver"},
        *slow(
            {"num_workers": 2, "start_method": "fork"}, {"num_workers": 2, "start_method": "spawn"}
        ),
    ],
    ids=lambda how: str(how.get("start_method", "here")),
)
def test_s3_batches_equal_those_of_cache(
    bucket: Bucket, wanted: list[Any], tmp_path: Path, how: dict[str, Any]
) -> None:
    data = ImageFolder(f"{bucket.url}/train", local_dir=tmp_path)
    assert same(batches(data, **how), wanted)
    assert same(batches(data, **how), wanted)


@pytest.mark.parametrize("workers", [0, *slow(2)])
def test_s3_batches_equal_those_of_folder_and_list(
    bucket: Bucket, cache: Path, tmp_path: Path, workers: int
) -> None:
    here = ImageFolder(cache.parent / "photos")
    wanted = batches(here)
    data = ImageFolder(f"{bucket.url}/photos", local_dir=tmp_path)
    assert data.fingerprint() == here.fingerprint()
    assert same(batches(data, num_workers=workers), wanted)
    names = [os.path.relpath(here.path(k), here.root) for k in range(len(here))]
    urls = [f"{bucket.url}/photos/{name}" for name in names]
    listed = ImageList(urls, here.targets, local_dir=tmp_path, check=True)
    assert same(batches(listed, num_workers=workers), wanted)
    missing = ImageList([f"{bucket.url}/nothing.jpg"], [0], local_dir=tmp_path)
    with pytest.raises(ImageError, match=rf"{bucket.url}/nothing\.jpg.*FileNotFoundError"):
        made(missing, 24, 0, 0)
    options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"], "batch_size": 4}
    data = ImageFolder(f"{bucket.url}/photos", storage_options=options, local_dir=tmp_path / "new")
    assert same(batches(data, num_workers=workers), wanted)


@pytest.mark.slow
def test_an_endpoint_may_be_named_in_the_options(
    bucket: Bucket, wanted: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"], "key": "key", "secret": "word"}
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    data = ImageFolder(f"{bucket.url}/train", local_dir=tmp_path, storage_options=options)
    assert same(batches(data, num_workers=2), wanted)
    with pytest.raises(FeedlineError, match=r'NoCredentialsError.*AWS_PROFILE.*"anon": True'):
        ImageFolder(
            f"{bucket.url}/train",
            local_dir=tmp_path,
            storage_options={"endpoint_url": options["endpoint_url"]},
        )


def test_missing_object_in_s3_is_named(bucket: Bucket, tmp_path: Path) -> None:
    for url in (f"{bucket.url}/nothing", "s3://no-such-bucket/train"):
        with pytest.raises(DatasetError, match=rf"{url}.*FileNotFoundError.*URL is misspelt"):
            ImageFolder(url, local_dir=tmp_path)


def test_modified_shard_is_detected_and_named(bucket: Bucket, cache: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(cache, tmp_path / "damaged")
    store = open_cache(cache)
    place = int(store.reader(store.level_for(24))._entries[40, 1])
    flip(damaged / "24" / "000001.tar", place)
    os.truncate(damaged / "16" / "000002.tar", 40 * 1024)
    url = bucket.fill("damaged", damaged)
    found = verify(url, workers=1)
    assert found.images == 2 * COUNT
    assert {(each.level, each.sample) for each in found.damaged} > {(24, 40)}
    assert {each.level for each in found.damaged if each.sample != 40} == {16}
    (one,) = (each for each in found.damaged if each.level == 24)
    assert (one.name, one.file) == (store.name(40), f"{url}/24/000001.tar")
    assert "checksum differs" in one.why
    assert all(each.file == f"{url}/16/000002.tar" for each in found.damaged if each.level == 16)


def test_verifying_a_remote_cache_stores_no_images(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = verify(f"{bucket.url}/train", workers=2, decode=True)
    assert found.is_sound
    assert found.images == 2 * COUNT
    assert not list(tmp_path.rglob("*.part"))


def test_info_of_remote_cache_equals_local_info(
    bucket: Bucket, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here, there = (cache_info(root, measure=False) for root in (cache, f"{bucket.url}/train"))
    assert there.root == f"{bucket.url}/train"
    assert (there.manifest, there.levels) == (here.manifest, here.levels)


@pytest.mark.parametrize("status", [200, 206])
def test_endpoint_that_ignores_ranges_is_rejected(
    bucket: Bucket, cache: Path, tmp_path: Path, status: int
) -> None:
    folder = tmp_path / bucket.url.removeprefix("s3://")
    folder.mkdir(parents=True)
    (folder / "train").symlink_to(cache)
    server = RangeServer(tmp_path)

    def more(answer: Answer) -> bool:
        if answer.path.endswith(".json") and status == 206:
            return False
        answer.give(status, answer.whole)
        return True

    server.fault = more
    try:
        with pytest.raises(FeedlineError, match=r"RangeError.*(status 200|server sends \d+)"):
            made(
                ImageFolder(
                    f"{bucket.url}/train",
                    local_dir=tmp_path / "local",
                    storage_options={"endpoint_url": server.url},
                ),
                *(24, 0, 0),
            )
    finally:
        server.stop()
