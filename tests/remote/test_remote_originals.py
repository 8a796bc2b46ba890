"""Original images at URLs: batches equal those of a local folder, fetched once, with recovery."""

import threading
from collections import Counter
from pathlib import Path

import fsspec
import pytest

import feedline
from caches import contents, flip
from caches import made as build
from caches import photos as make_photos
from feedline import DataLoader, ImageFolder, ImageList
from feedline.errors import DatasetError, ImageError, UsageError
from feedline.sources import local_copies, remote_reader
from range_server import OPTIONS, RangeServer, batches, copies, same, unavailable, whole_file
from row_of import row

pytest.importorskip("aiohttp")

COUNT = 48
PATHS = sorted(f"{name}/{k}.jpg" for name in ("cats", "dogs") for k in range(COUNT // 2))
LABELS = [0] * (COUNT // 2) + [1] * (COUNT // 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """48 photographs in 2 classes, as "photos" in a folder."""
    return make_photos(tmp_path_factory.mktemp("originals") / "photos", COUNT // 2)


@pytest.fixture(scope="module")
def here(folder):
    return ImageFolder(folder)


@pytest.fixture(scope="module")
def wanted(here):
    return batches(here)


@pytest.fixture
def server(folder):
    served = RangeServer(folder.parent)
    yield served
    served.fault = None
    served.stop()


@pytest.fixture
def remote(server, tmp_path):
    return ImageList(PATHS, LABELS, root=f"{server.url}/photos", local_dir=tmp_path / "local")


# Folders of class folders


@pytest.fixture
def in_memory(folder):
    """The folder in fsspec's memory: its URL. What is there is seen by this process alone."""
    there = fsspec.filesystem("memory")
    for name, data in contents(folder.parent).items():
        there.pipe_file(f"/bucket/{name}", data)
    yield "memory://bucket/photos"
    there.rm("/bucket", recursive=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_of_class_folders_is_that_folder(folder, here, wanted, tmp_path, workers):
    data = ImageFolder(folder.as_uri(), local_dir=tmp_path)
    assert same(batches(data, num_workers=workers), wanted)
    assert (data.classes, data.fingerprint()) == (here.classes, here.fingerprint())
    assert (data.targets == here.targets).all()
    assert data.name(30) == f"{folder.as_uri()}/dogs/{Path(here.path(30)).name}"
    assert copies(tmp_path)


def test_order_and_nested_folders_equal_local_ones(tmp_path):
    for name in ("b/x.jpg", "b/a-b/y.JPG", "b/a/z.png", "a b/1.webp", "a b/note.txt", "up.txt"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    here = ImageFolder(tmp_path / "photos")
    data = ImageFolder((tmp_path / "photos").as_uri().replace("%20", " "), local_dir=tmp_path)
    assert data.classes == ["a b", "b"]
    read = [data.store.read(sample, 0) for sample in range(4)]
    assert read == [here.store.read(sample, 0) for sample in range(4)]


def test_invalid_image_folder_is_rejected_like_local_one(in_memory, tmp_path):
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


def test_replaced_image_is_seen_when_folder_is_listed(in_memory, tmp_path):
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
        row(data, 3, 24, 0)


# Lists


def test_lists_of_urls_equal_lists_of_files(folder, here, wanted, tmp_path):
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
    assert (row(below, 1, 24, 5)[0] == row(here, 1, 24, 5)[0]).all()


def test_two_hosts_in_one_list(server, here, folder, tmp_path):
    other = RangeServer(folder.parent)
    try:
        hosts = [server.url, other.url, folder.parent.as_uri()]
        urls = [f"{hosts[k % 3]}/photos/{name}" for k, name in enumerate(PATHS)]
        data = ImageList(urls, LABELS, local_dir=tmp_path)
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
        ({"paths": [Path("memory://b/a.jpg")]}, "pathlib reduced to one slash"),
        ({"paths": ["zip://a.jpg::memory://b/c.zip"]}, "one protocol within another"),
    ],
    ids=str,
)
def test_contradictory_arguments_are_rejected(given, said):
    with pytest.raises(UsageError, match=said):
        ImageList(labels=[0] * len(given["paths"]), **given)


def test_signatures_of_urls_are_not_shown(server, tmp_path):
    signed = "nothing.jpg?X-Amz-Expires=60&X-Amz-Signature=secret"
    urls = [f"{server.url}/{name}" for name in (signed, *(f"photos/{each}" for each in PATHS))]
    data = ImageList(urls, [0, *LABELS], local_dir=tmp_path / "copies")
    with pytest.raises(ImageError) as refused:
        row(data, 0, 24, 0)
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


def test_operations_on_local_files_raise(remote, tmp_path):
    with pytest.raises(UsageError, match="copy them to a disk"):
        remote.path(0)
    with pytest.raises(UsageError, match="build it first"):
        batches(remote, cache=tmp_path / "not there")


# Faults


@pytest.mark.parametrize("workers", [0, 2])
def test_missing_image_is_named_and_skipped(server, tmp_path, workers):
    paths, url = ["cats/nothing.jpg", *PATHS[1:]], f"{server.url}/photos"
    data = ImageList(paths, LABELS, root=url, local_dir=tmp_path)
    with DataLoader(data, 16, **{**OPTIONS, "num_workers": workers, "on_error": "skip"}) as loader:
        assert sum(len(labels) for _, labels in loader) == COUNT - 1
        ((name, why),) = loader.skipped
    assert name == f"{url}/cats/nothing.jpg"
    assert f"'{url}/cats/nothing.jpg' cannot be read: FileNotFoundError" in why
    assert "misspelt" in why
    with pytest.raises(ImageError, match=r"nothing\.jpg"):
        batches(data, num_workers=workers)
    if not workers:  # or it is found ahead
        options = {"root": url, "local_dir": tmp_path, "check": True}
        with pytest.raises(DatasetError, match=r"1 of 2 images.*photos/cats/nothing\.jpg"):
            ImageList(paths[:2], [0, 0], **options)
        assert len(ImageList(paths[1:2], [0], **options)) == 1


def test_half_of_a_file_is_refused(remote, server):
    def half(answer):
        answer.stop = answer.first + len(answer.whole) // 2
        return answer.give(206, answer.part)

    server.fault = half
    said = rf"sample 3, {server.url}/photos/.*cannot be read.*RangeError.*sends bytes 0-"
    with pytest.raises(ImageError, match=said):
        row(remote, 3, 24, 0)


def test_slow_server_only_costs_late_images(remote, server, wanted, monkeypatch):
    monkeypatch.setattr(remote_reader, "_DEADLINE_S", 1.0)
    asked = Counter()
    ended = threading.Event()

    def once(answer):
        asked[answer.path] += 1
        return answer.path.endswith("cats/7.jpg") and asked[answer.path] == 1 and ended.wait(60)

    server.fault = once
    try:
        assert same(batches(remote), wanted)
    finally:
        ended.set()
    assert sum(asked.values()) == COUNT + 1


def test_server_without_range_requests_is_supported(remote, server, wanted):
    server.fault = whole_file
    assert same(batches(remote), wanted)


@pytest.mark.parametrize(
    ("length", "said"), [(10**12, "above the limit"), (None, "does not declare the length")]
)
def test_endless_body_is_not_read(remote, server, length, said):
    def endless(answer):
        answer.send_response(200)
        answer.send_header(*(("X-No", "length") if length is None else ("Content-Length", length)))
        answer.end_headers()
        answer.close_connection = True
        return True

    server.fault = endless
    with pytest.raises(ImageError, match=said):
        row(remote, 3, 24, 0)


# What is kept


def test_damaged_local_copy_is_fetched_again(remote, server, wanted, tmp_path):
    assert same(batches(remote), wanted)
    (path,) = copies(tmp_path)
    slot = local_copies._SLOT_BYTES
    for place in (0, 7 * slot + 9, 20 * slot + 300):  # in a length, a checksum, an image
        flip(path, place)
    assert same(batches(remote), wanted)
    assert server.asked(".jpg") == COUNT + 3
    assert same(batches(remote), wanted)
    assert server.asked(".jpg") == COUNT + 3


@pytest.mark.parametrize("body", [b"<html>Log in</html>", None], ids=["a page", "a half"])
def test_response_that_is_not_an_image_is_replaced(remote, server, wanted, body):
    wrong = []

    def instead(answer):
        if not answer.path.endswith("7.jpg"):
            return False
        wrong.append(answer.path)
        return answer.give(200, answer.part[: len(answer.part) // 2] if body is None else body)

    server.fault = instead
    batches(remote, on_error="skip")
    assert len(wrong) == 8, "each of four is looked at once more"
    server.fault = None
    asked = server.asked(".jpg")
    assert same(batches(remote), wanted)
    assert server.asked(".jpg") == asked + 4
    assert same(batches(remote), wanted)
    assert server.asked(".jpg") == asked + 4


def test_single_wrong_response_is_harmless(remote, server, wanted):
    server.fault = lambda answer: (
        server.asked(answer.path) == 1 and answer.give(200, b"<html>Log in</html>")
    )
    assert same(batches(remote), wanted)
    assert server.asked(".jpg") == 2 * COUNT
    server.fault = None
    assert same(batches(remote), wanted)
    assert server.asked(".jpg") == 2 * COUNT


def test_broken_redirects_are_not_followed_again(remote, server):
    server.fault = lambda answer: answer.redirect(answer.path)
    with pytest.raises(ImageError, match=r"cannot be read: TooManyRedirects"):
        row(remote, 0, 24, 0)
    server.fault = lambda answer: answer.redirect("file:///etc/passwd")
    with pytest.raises(ImageError, match=r"cannot be read: NonHttpUrlRedirect"):
        row(remote, 1, 24, 0)


def test_a_copy_is_that_of_its_url_alone(server, here, tmp_path):
    options = {"root": f"{server.url}/photos", "local_dir": tmp_path}
    batches(ImageList(PATHS, LABELS, **options))
    data = ImageList(PATHS[::-1], LABELS[::-1], **options)
    for sample in (0, 5):
        assert (row(data, sample, 24, 1)[1]) == 1
        assert data.store.read(sample, 0) == Path(here.path(COUNT - 1 - sample)).read_bytes()
    # Other labels are no reason to fetch again.
    before = server.asked(".jpg")
    batches(ImageList(PATHS, range(COUNT), **options))
    assert server.asked(".jpg") == before


def test_image_larger_than_limit_is_fetched_each_time(remote, server, monkeypatch):
    monkeypatch.setattr(local_copies, "_MAX_IMAGE_BYTES", 100)
    for _ in range(2):
        row(remote, 3, 24, 0)
    assert server.asked(".jpg") == 2


def test_read_ahead_is_postponed_without_memory(remote, server, wanted, monkeypatch):
    monkeypatch.setattr(remote_reader, "_MAX_PREFETCHED_BYTES", 3000)
    assert same(batches(remote), wanted)
    assert same(batches(remote), wanted)
    assert server.asked(".jpg") == COUNT


# Caches of them


def test_a_cache_is_built_of_a_list_and_of_a_folder_at_a_url(remote, folder, server, tmp_path):
    build(folder, tmp_path / "wanted")
    wanted = batches(ImageFolder(tmp_path / "wanted"))
    build(ImageFolder(folder.as_uri(), local_dir=tmp_path), tmp_path / "folder")
    assert same(batches(ImageFolder(tmp_path / "folder")), wanted)
    build(remote, tmp_path / "list")
    assert same(batches(ImageFolder(tmp_path / "list")), wanted)
    asked = server.asked(".jpg")
    assert same(batches(remote, cache=tmp_path / "list"), wanted)
    assert server.asked(".jpg") == asked
    broken = [*PATHS, "cats/nothing.jpg"]
    data = ImageList(broken, [*LABELS, 0], root=remote.root, local_dir=tmp_path)
    with pytest.raises(ImageError, match=r"nothing\.jpg"):
        build(data, tmp_path / "broken")
    assert build(data, tmp_path / "skipped", on_error="skip").samples == COUNT


def test_a_build_does_without_a_page_that_came_once_in_the_place_of_an_image(
    remote, server, tmp_path
):
    server.fault = lambda answer: (
        server.asked(answer.path) == 1 and answer.give(200, b"<html>Log in</html>")
    )
    assert build(remote, tmp_path / "list").samples == COUNT


def test_build_from_an_unreachable_server_raises_and_skips_nothing(
    remote, server, pauses, tmp_path
):
    server.fault = unavailable
    with pytest.raises(DatasetError, match="server may be down"):
        build(remote, tmp_path / "cache", on_error="skip")
