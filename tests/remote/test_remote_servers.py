"""Caches and originals on real servers: nginx, and one that speaks S3's protocol."""

import os
import shutil
import socket
import subprocess

import pytest

from caches import flip
from feedline import ImageFolder, ImageList
from feedline.cache.damage import verify
from feedline.cache.rates import cache_info
from feedline.errors import DatasetError, FeedlineError, ImageError
from feedline.sources.remote_cache import open_cache
from processes import eventually
from range_server import RangeServer, batches, same
from row_of import row
from s3_server import Bucket, serving
from slow import slow

COUNT = 80


@pytest.fixture(scope="module")
def cache(served):
    return served / "cache"


# nginx


@pytest.fixture(scope="module")
def nginx(cache, tmp_path_factory):
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

    def answers():
        assert server.poll() is None, (scratch / "error.log").read_text()
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", port)) == 0

    try:
        assert eventually(answers)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


# S3


@pytest.fixture(scope="module")
def bucket(cache):
    """A folder in S3 with the cache and its originals."""
    with serving() as server:
        made_there = Bucket(server)
        made_there.fill("cache", cache)
        made_there.fill("photos", cache.parent / "photos")
        yield made_there


@pytest.fixture(params=["nginx", "s3"])
def place(request):
    """The URL of a folder with the cache and its originals."""
    if request.param == "nginx":
        return str(request.getfixturevalue("nginx"))
    return str(request.getfixturevalue("bucket").url)


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
def test_batches_of_cache_folder_and_list_equal_local_ones(place, cache, tmp_path, how):
    here = ImageFolder(cache.parent / "photos")
    names = [os.path.relpath(here.path(k), here.root) for k in range(len(here))]
    urls = [f"{place}/photos/{name}" for name in names]
    for there, local in (
        (ImageFolder(f"{place}/cache", local_dir=tmp_path), ImageFolder(cache)),
        (ImageFolder(f"{place}/photos", local_dir=tmp_path), here),
        (ImageList(urls, here.targets, local_dir=tmp_path, check=True), here),
    ):
        assert same(batches(there, **how), batches(local))
    assert ImageFolder(f"{place}/photos", local_dir=tmp_path).fingerprint() == here.fingerprint()
    missing = ImageList([f"{place}/nothing.jpg"], [0], local_dir=tmp_path)
    with pytest.raises(ImageError, match=rf"{place}/nothing\.jpg.*FileNotFoundError"):
        row(missing, 0, 24, 0)
    with pytest.raises(DatasetError, match=rf"{place}/elsewhere.*FileNotFoundError.*is misspelt"):
        ImageFolder(f"{place}/elsewhere", local_dir=tmp_path)


@pytest.mark.slow
def test_an_endpoint_may_be_named_in_the_options(bucket, cache, tmp_path, monkeypatch):
    options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"], "key": "key", "secret": "word"}
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    data = ImageFolder(f"{bucket.url}/cache", local_dir=tmp_path, storage_options=options)
    assert same(batches(data, num_workers=2), batches(ImageFolder(cache)))
    with pytest.raises(FeedlineError, match=r'NoCredentialsError.*AWS_PROFILE.*"anon": True'):
        ImageFolder(
            f"{bucket.url}/cache",
            local_dir=tmp_path,
            storage_options={"endpoint_url": options["endpoint_url"]},
        )


def test_modified_shard_is_detected_and_named(bucket, cache, tmp_path):
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


def test_verification_and_info_are_local_ones_and_store_no_images(
    bucket, cache, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = verify(f"{bucket.url}/cache", workers=2, decode=True)
    assert (found.is_sound, found.images) == (True, 2 * COUNT)
    assert not list(tmp_path.rglob("*.part"))
    here, there = (cache_info(root, measure=False) for root in (cache, f"{bucket.url}/cache"))
    assert there.root == f"{bucket.url}/cache"
    assert (there.manifest, there.levels) == (here.manifest, here.levels)


@pytest.mark.parametrize("status", [200, 206])
def test_endpoint_that_ignores_ranges_is_rejected(bucket, cache, tmp_path, status):
    folder = tmp_path / bucket.url.removeprefix("s3://")
    folder.mkdir(parents=True)
    (folder / "cache").symlink_to(cache)
    server = RangeServer(tmp_path)

    def more(answer):
        if answer.path.endswith(".json") and status == 206:
            return False
        return answer.give(status, answer.whole)

    server.fault = more
    options, local = {"endpoint_url": server.url}, tmp_path / "local"
    try:
        with pytest.raises(FeedlineError, match=r"RangeError.*(status 200|server sends \d+)"):
            row(ImageFolder(f"{bucket.url}/cache", local_dir=local, storage_options=options), 0, 24)
    finally:
        server.stop()
