"""The folder index against torchvision's, and against untidy folders."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.datasets import ImageFolder as TorchvisionFolder

from feedline.errors import DatasetError
from feedline.sources import folder as folder_module
from feedline.sources.folder import IMAGE_EXTENSIONS, scan_folder


def make(root, *paths):
    for path in paths:
        target = os.path.join(root, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb"):
            pass
    return str(root)


def listed(root, **options):
    index = scan_folder(root, **options)
    return [
        (os.fsencode(os.path.join(root, "")) + index.name(i), int(label))
        for i, label in enumerate(index.labels)
    ]


def torchvision_lists(root):
    folder = TorchvisionFolder(root)
    return [(os.fsencode(path), label) for path, label in folder.samples]


@pytest.mark.filterwarnings("ignore:.*1 .gif:UserWarning")
def test_order_and_numbers_match_torchvision(tmp_path):
    root = make(
        tmp_path,
        *("b/2.jpg", "b/10.jpg", "b/.jpg", "b/B.JPEG", "b/notes.txt", "b/x.gif"),
        *("b/a/z.png", "b/a-b/z.png", "b/a/c/z.Webp", "b/a.jpg/inside.tiff"),
        *("A/\u00e9.ppm", "A/\U0001f600.pgm", "A/\uff5e.bmp", "a b/new\nline.tif", "ignored.jpg"),
    )
    os.close(os.open(os.fsencode(root) + b"/A/\xff\xfe.jpg", os.O_CREAT | os.O_WRONLY))
    assert listed(root) == torchvision_lists(root)
    assert scan_folder(root).classes == TorchvisionFolder(root).classes


NAMES = st.text(st.sampled_from("aA0-._ é\uff5e"), min_size=1, max_size=4).filter(
    lambda name: name.strip(".") != ""
)
FILES = st.tuples(st.lists(NAMES, min_size=1, max_size=3), NAMES, st.sampled_from(IMAGE_EXTENSIONS))


@settings(max_examples=40, deadline=None)
@given(paths=st.lists(FILES, min_size=1, max_size=12))
def test_any_tree_is_listed_as_torchvision_lists_it(tmp_path_factory, paths):
    root = str(tmp_path_factory.mktemp("tree"))
    for folders, name, extension in paths:
        make(root, os.path.join(*(f"{folder}_" for folder in folders), name + extension))
    assert listed(root) == torchvision_lists(root)


def test_extensions_can_be_widened(tmp_path):
    root = make(tmp_path, "a/1.jpg", "a/2.GIF")
    with pytest.warns(UserWarning, match="1 .gif"):
        assert len(scan_folder(root)) == 1
    assert len(scan_folder(root, (*IMAGE_EXTENSIONS, ".gif"))) == 2
    assert len(scan_folder(root, (".GIF", ".Jpg"))) == 2


def test_links_are_followed_and_broken_ones_counted_as_torchvision_does(tmp_path):
    root = make(tmp_path / "data", "a/1.jpg")
    make(tmp_path, "elsewhere/2.jpg", "elsewhere/deep/3.jpg")
    os.symlink(tmp_path / "elsewhere", os.path.join(root, "a", "link"))
    os.symlink(tmp_path / "elsewhere", os.path.join(root, "b"))
    os.symlink(tmp_path / "nowhere", os.path.join(root, "b", "broken.jpg"))
    assert listed(root) == torchvision_lists(root)


def test_links_in_circles_end(tmp_path):
    root = make(tmp_path, "a/1.jpg", "a/deep/2.jpg", "b/3.jpg")
    os.symlink("itself", os.path.join(root, "itself"))  # no class
    os.symlink(root, os.path.join(root, "a", "deep", "root"))
    os.symlink("..", os.path.join(root, "a", "deep", "up"))
    os.symlink(".", os.path.join(root, "b", "self"))
    assert [name for name, _ in listed(root)] == [
        os.fsencode(os.path.join(root, path)) for path in ("a/1.jpg", "a/deep/2.jpg", "b/3.jpg")
    ]


@pytest.mark.parametrize(
    ("paths", "name", "said"),
    [
        ([], "trian", r"(?s)no such folder.*working directory"),
        (["train.tar"], "train.tar", r"got a file: .*train\.tar.*unpack"),
        ([], "", "no class folders"),
        (["1.jpg"], "", r"'1\.jpg' lie directly in it"),
        (
            ["full/1.jpg", *(f"none{k}/readme.txt" for k in range(7))],
            "",
            r"7 of 8: .*'none4', \.\.\.\. Looked.*'readme\.txt'",
        ),
        (["full/1.jpg", "bare/"], "", r"(?s)without images, 1 of 2: 'bare'.*remove it"),
    ],
)
def test_a_folder_of_another_layout_is_rejected(tmp_path, paths, name, said):
    for path in paths:
        (tmp_path / path).mkdir() if path.endswith("/") else make(tmp_path, path)
    with pytest.raises(DatasetError, match=said):
        scan_folder(str(tmp_path / name))


def test_folder_that_cannot_be_listed_raises(tmp_path, monkeypatch):
    root = make(tmp_path, "a/1.jpg", "a/secret/2.jpg")
    scandir = os.scandir

    def guarded(path):
        if str(path).endswith("secret"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(folder_module.os, "scandir", guarded)
    with pytest.raises(DatasetError, match=r"secret' cannot be listed: Permission denied"):
        scan_folder(root)


def test_the_arrays_travel_out_of_band_and_work_read_only(tmp_path):
    index = scan_folder(make(tmp_path, *(f"{c}/{i:04}.jpg" for c in "ab" for i in range(500))))
    buffers = []
    data = pickle.dumps(index, protocol=5, buffer_callback=buffers.append)
    assert len(data) < 2000
    arrays = index.blob, index.starts, index.labels
    assert sum(len(buffer.raw()) for buffer in buffers) == sum(array.nbytes for array in arrays)
    copies = [bytes(buffer.raw()) for buffer in buffers]
    other = pickle.loads(data, buffers=copies)
    assert not other.blob.flags.writeable
    assert [other.name(i) for i in range(1000)] == [index.name(i) for i in range(1000)]
    for outside in (-1, 1000):
        with pytest.raises(IndexError, match="for 1000 samples"):
            index.name(outside)
    assert np.array_equal(other.labels, index.labels)
    assert other.fingerprint() == index.fingerprint()


def test_the_fingerprint_follows_the_names_and_not_the_place(tmp_path):
    prints = {
        scan_folder(make(tmp_path / place, *paths)).fingerprint()
        for place, paths in {
            "1": ("a/1.jpg", "b/2.jpg"),
            "moved": ("a/1.jpg", "b/2.jpg"),
            "more": ("a/1.jpg", "b/2.jpg", "b/3.jpg"),
            "other class": ("a/1.jpg", "a/2.jpg", "b/3.jpg"),
            "renamed": ("a/1.jpg", "c/2.jpg"),
            "renamed file": ("a/1.jpg", "b/4.jpg"),
            "a boundary": ("a/1.jpg", "bc/1.jpg"),
            "another boundary": ("ab/1.jpg", "c/1.jpg"),
        }.items()
    }
    assert len(prints) == 7


def test_the_index_needs_no_torch():
    code = "import sys, feedline.sources.folder; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
