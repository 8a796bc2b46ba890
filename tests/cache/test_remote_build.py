"""Caches that are built from and into object stores: the same to the byte as on a disk."""

import json
import os
import shutil
import threading
from dataclasses import replace

import pytest
from pictures import LABELS, pictures

from caches import contents, kill_after_a_unit, made, photo, photos, stopping
from feedline.cache.build import add_size, build_cache
from feedline.cache.source import CacheSource
from feedline.errors import DatasetError, ImageError, ResourceError, UsageError
from feedline.sources.manifest import MANIFEST, read_manifest
from feedline.sources.remote_files import THREADS, RemoteFolder
from feedline.sources.store import SampleStore
from image_inputs import encoded
from processes import eventually
from range_server import RangeServer, whole_file
from s3_server import Bucket, serving
from slow import slow

PER_CLASS = 40  # three units
STAMPS = "index/stamps.npy"

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of botocore


@pytest.fixture(scope="module")
def server():
    with serving() as running:
        yield running


@pytest.fixture
def bucket(server):
    return Bucket(server)


@pytest.fixture(scope="module")
def train(server, source):
    """Photographs in the store; tests must not change them."""
    return Bucket(server).fill("train", source)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """80 photographs of 2 classes, some in nested folders, so that order matters."""
    root = photos(tmp_path_factory.mktemp("many") / "photos", PER_CLASS)
    for name in ("a-b", "a", "a.b/c"):
        (root / "cats" / name).mkdir(parents=True)
        (root / "cats" / f"{len(name)}.jpg").rename(root / "cats" / name / "Ä photo.JPG")
    (root / "cats" / "notes.txt").write_text("none of them")
    return root


@pytest.fixture(scope="module")
def here(source, tmp_path_factory):
    """The cache of them that is built on a disk."""
    root = tmp_path_factory.mktemp("here") / "cache"
    made(source, root)
    return root


def far(source, root, **options):
    return build_cache(source, root, (16, 24), **{"workers": 0, **options})


def assert_same(found, expected, *, stamps):
    """Assert that two caches are equal except for the location and version of their source."""
    apart = {MANIFEST} | ({STAMPS} if stamps else set())
    assert {name: data for name, data in found.items() if name not in apart} == {
        name: data for name, data in expected.items() if name not in apart
    }
    manifests = []
    for files in (found, expected):
        manifest = json.loads(files[MANIFEST])
        del manifest["source"]
        if stamps:
            del manifest["digests"]["stamps"]
        manifests.append(manifest)
    assert manifests[0] == manifests[1]


def test_build_between_stores_equals_local_build(bucket, train, here):
    root = f"{bucket.url}/cache"
    seen = []
    manifest = far(train, root, workers=2, progress=seen.append)
    assert [said.images for said in seen[:1] + seen[-1:]] == [0, 80]
    assert manifest.source == ("folder", train)
    assert_same(bucket.contents("cache"), contents(here), stamps=True)
    seen.clear()
    assert far(train, root, progress=seen.append) == manifest
    assert seen == []  # all of it is there
    with pytest.raises(UsageError, match="is a cache"):
        far(root, f"{bucket.url}/other")


def test_any_fsspec_protocol_works(source, here, tmp_path):
    there = RemoteFolder(f"memory://{tmp_path}/cache")
    train = f"file://{source}"
    far(train, there.url)
    found = {name: there.read(name) for name in there.files()}
    assert_same(found, contents(here), stamps=True)
    far(train, there.url, workers=0)
    assert {name: there.read(name) for name in there.files()} == found


@pytest.mark.parametrize("named", ["a folder", *slow("a pattern", "a file")])
def test_tar_shards_in_a_store_are_a_source(bucket, here, tmp_path, named):
    # 80 images in three shards, such as those of a cache.
    local, shards = tmp_path / "data" / "deeper", bucket.fill("data/deeper", here / "24")
    shutil.copytree(here / "24", local)
    name = {"a folder": "", "a pattern": "/00000[02].tar", "a file": "/000001.tar"}[named]
    if not name:
        bucket.fill("data/.hidden", here / "16")
    made(f"{local}{name}" if name else tmp_path / "data", tmp_path / "local")
    manifest = far(f"{shards}{name}" if name else f"{bucket.url}/data", f"{bucket.url}/cache")
    assert manifest.source[0] == "webdataset"
    assert_same(bucket.contents("cache"), contents(tmp_path / "local"), stamps=True)


def test_parquet_files_in_a_store_are_a_source(bucket, tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    data = [encoded(picture, "PNG") for picture in pictures()]
    for name, rows in (("a", slice(0, 3)), ("b", slice(3, 8))):
        table = pa.table({"image": pa.array(data[rows], pa.binary()), "label": LABELS[rows]})
        (tmp_path / "set").mkdir(exist_ok=True)
        pq.write_table(table, tmp_path / "set" / f"{name}.parquet", row_group_size=2)
    made(tmp_path / "set", tmp_path / "local")
    far(bucket.fill("set", tmp_path / "set"), f"{bucket.url}/cache")
    assert_same(bucket.contents("cache"), contents(tmp_path / "local"), stamps=True)
    far(f"{bucket.url}/set/[ab].parquet", f"{bucket.url}/other")
    assert_same(bucket.contents("other"), contents(tmp_path / "local"), stamps=True)


@pytest.fixture
def web(tmp_path):
    """The URL of a web server that serves tmp_path, whole files only."""
    server = RangeServer(tmp_path)
    server.fault = whole_file
    yield server.url
    server.stop()


def test_class_folders_that_a_web_server_lists_are_a_source_without_its_password(web, tmp_path):
    made(photos(tmp_path / "photos", 3), tmp_path / "local")
    url = f"{web}/photos".replace("//", "//me:secret@")
    manifest = far(url, tmp_path / "cache", workers=2)
    assert manifest.source == ("folder", f"{web}/photos")
    found = contents(tmp_path / "cache")
    assert_same(found, contents(tmp_path / "local"), stamps=True)
    assert not any(b"secret" in data for data in found.values())


def test_server_without_range_requests_differs_from_broken_images(web, tmp_path, here):
    shutil.copytree(here / "24", tmp_path / "data")
    with pytest.raises(DatasetError, match=r"support HTTP's Range"):
        far(f"{web}/data/000001.tar", tmp_path / "cache", on_error="skip")
    with pytest.raises(DatasetError, match=r"lock' cannot be written: .*501"):
        far(tmp_path / "data", f"{web}/cache")


# Broken off


def test_interrupted_build_resumes_on_any_machine(bucket, source, here, tmp_path, monkeypatch):
    root = f"{bucket.url}/cache"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(KeyboardInterrupt):
        far(source, root, workers=0, progress=stopping(1))
    assert list(tmp_path.iterdir()) == []
    assert sorted(bucket.contents("cache")) == [
        "16/000000.tar", "24/000000.tar", "unfinished/000000.npz", "unfinished/settings.json"
    ]  # fmt: skip
    with pytest.raises(UsageError, match=rf"'{root}' holds an unfinished build with levels"):
        build_cache(source, root, (16,))
    with pytest.raises(DatasetError, match=rf"'{root}' is not a finished cache"):
        add_size(root, 20)
    seen = []
    far(source, root, progress=seen.append)
    assert (seen[0].images, seen[-1].new_images) == (32, 48)
    assert_same(bucket.contents("cache"), contents(here), stamps=False)


@pytest.mark.slow
def test_killed_build_leaves_lock_with_resume_hint(bucket, source, here):
    root = f"{bucket.url}/cache"
    kill_after_a_unit(
        f"feedline.build_cache({str(source)!r}, {root!r}, (16, 24), workers=0, progress=progress)"
    )
    with pytest.raises(
        UsageError, match=rf"(?s)another build is running .*since 2.*`aws s3 rm {root}/.lo"
    ):
        far(source, root)
    assert ".lock" in bucket.contents("cache")
    bucket.there.remove("cache/.lock")
    seen = []
    far(source, root, progress=seen.append)
    assert (seen[0].images, seen[-1].new_images) == (32, 48)
    assert_same(bucket.contents("cache"), contents(here), stamps=False)


def test_build_without_output_leaves_no_files(bucket, source):
    with pytest.raises(KeyboardInterrupt):
        far(source, f"{bucket.url}/cache", progress=stopping(0))
    assert bucket.contents("cache") == {}


def test_uploaded_shards_without_record_are_removed(bucket, source, monkeypatch):
    put = RemoteFolder.put

    def torn(there, name, file):
        if name.endswith(".npz"):
            raise KeyboardInterrupt
        put(there, name, file)

    monkeypatch.setattr(RemoteFolder, "put", torn)
    with pytest.raises(KeyboardInterrupt):
        far(source, f"{bucket.url}/cache", workers=0)
    assert bucket.contents("cache") == {}


def test_concurrent_builds_in_one_place_are_rejected(bucket, source, here):
    refused = []

    def meanwhile(said):
        if not refused:
            with pytest.raises(UsageError) as other:
                far(source, f"{bucket.url}/cache")
            refused.append(str(other.value))

    far(source, f"{bucket.url}/cache", progress=meanwhile)
    assert f"process {os.getpid()}, since 2" in refused[0]
    assert_same(bucket.contents("cache"), contents(here), stamps=False)


def test_lock_rewritten_by_same_build_is_accepted(bucket, source, here, monkeypatch):
    create = RemoteFolder.create

    def repeated(there, name, data):
        create(there, name, data)
        create(there, name, data)  # as when the answer was lost

    monkeypatch.setattr(RemoteFolder, "create", repeated)
    far(source, f"{bucket.url}/cache")
    assert_same(bucket.contents("cache"), contents(here), stamps=False)


def test_lock_taken_by_another_build_is_kept(bucket, source):
    def take_over(said):
        bucket.there.remove("cache/.lock")
        bucket.there.create("cache/.lock", b"me@there, process 1, since 2020\n")

    far(source, f"{bucket.url}/cache", progress=take_over)
    assert bucket.contents("cache")[".lock"].startswith(b"me@there")


# Changed and added images


def test_interrupted_update_resumes(bucket, tmp_path):
    source = photos(tmp_path / "photos", PER_CLASS)
    root = f"{bucket.url}/cache"
    far(source, root)
    for label, name in enumerate(("cats", "dogs")):
        photo(source / name / "9.jpg", 7, label)
    with pytest.raises(KeyboardInterrupt):
        far(source, root, workers=0, progress=stopping(1))
    assert MANIFEST not in bucket.contents("cache")
    seen = []
    far(source, root, progress=seen.append)
    assert seen[0].images == 64
    made(source, tmp_path / "local")
    assert_same(bucket.contents("cache"), contents(tmp_path / "local"), stamps=False)


@pytest.mark.slow
def test_size_is_added(bucket, train, source, tmp_path):
    root = f"{bucket.url}/cache"
    first = far(train, root)
    with pytest.raises(KeyboardInterrupt):
        add_size(root, 20, workers=0, progress=stopping(1))
    assert "unfinished-20/000000.npz" in bucket.contents("cache")
    manifest = add_size(root, 20, workers=2)
    made(source, tmp_path / "all", sizes=(16, 20, 24))
    assert_same(bucket.contents("cache"), contents(tmp_path / "all"), stamps=True)
    expected = read_manifest(str(tmp_path / "all"))
    digests = {**expected.digests, "stamps": manifest.digests["stamps"]}
    assert manifest == replace(expected, source=first.source, digests=digests)
    with pytest.raises(UsageError, match=rf"the cache '{root}' already has copies of 20 px"):
        add_size(root, 20)


# What cannot be


def test_unsupported_build_raises_with_its_name(bucket, train, source, tmp_path, monkeypatch):
    root = f"{bucket.url}/cache"
    for format in ("lmdb", "folder"):
        with pytest.raises(UsageError, match=f"(?s)format {format} .*webdataset"):
            far(train, root, format=format)
    with pytest.raises(UsageError, match="inside its source"):
        far(train, f"{train}/cache")
    with pytest.raises(UsageError, match=r"is not empty.* 'cats/"):
        far(source, train)
    with pytest.raises(DatasetError, match=r"nowhere' cannot be listed: FileNotFoundError: The sp"):
        far(train, "s3://nowhere-at-all/nowhere")
    with pytest.raises(DatasetError, match=r"/traim' cannot be listed: FileNotFoundError"):
        far(f"{bucket.url}/traim", root)
    with pytest.raises(
        UsageError, match=r"'nonsense://x/y' cannot be opened by fsspec: .*nonsense"
    ):
        far("nonsense://x/y", root)
    with pytest.raises(DatasetError, match=r"lie directly in it. Each class needs a folder"):
        far(f"{train}/dogs", root)
    free = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    with pytest.raises(ResourceError, match=r"(?s)shards of each size, .*\$TMPDIR"):
        far(train, root)
    assert bucket.contents("cache") == {}


# Images that are fetched ahead


class CountingStore(SampleStore):
    """Returns the numbers of samples as bytes, and records the requested ones."""

    is_remote = True

    def __init__(self):
        self.requested = []
        self.gate = threading.Event()

    def read(self, sample, side):
        self.requested.append(sample)
        self.gate.wait(30)
        if sample == 7:
            raise ImageError("torn")
        return str(sample).encode()

    def reload(self, sample, refused):
        """Return nothing better."""


def test_images_are_prefetched_up_to_a_limit_and_only_if_needed():
    store = CountingStore()
    store.gate.set()
    ahead = CacheSource(store, "there", None).read_ahead(iter(range(100)))
    for expected, (sample, read) in enumerate(ahead):
        assert sample == expected
        least = min(100, expected + THREADS)
        assert eventually(lambda least=least: len(store.requested) >= least)
        assert len(store.requested) <= sample + THREADS
        if sample == 7:
            with pytest.raises(ImageError, match="torn"):
                read()
            continue
        assert read() == str(sample).encode()
    assert sorted(store.requested) == list(range(100))
    # Of a build that ends, no more are fetched.
    store = CountingStore()
    ahead = CacheSource(store, "there", None).read_ahead(range(100))
    next(ahead)
    ahead.close()
    store.gate.set()
    assert len(store.requested) <= THREADS
