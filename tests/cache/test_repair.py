"""Repaired caches are identical to the first build."""

from __future__ import annotations

import itertools
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import feedline
import preloaded
from caches import (
    FORMATS,
    STOPPED,
    environment,
    everything,
    find,
    flip,
    made,
    photo,
    photos,
    stopping,
)
from feedline.cache.damage import verify
from feedline.errors import DatasetError, UsageError
from feedline.sources.manifest import read_manifest
from feedline.sources.remote_cache import open_cache
from slow import slow

Copied = Callable[[str], Path]


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Caches of 80 images at 16 and 24 px, each built once."""
    root = tmp_path_factory.mktemp("whole")

    def cache(form: str) -> Path:
        if not (root / form).exists():
            made(source, root / form, form)
        return root / form

    return cache


@pytest.fixture
def copied(whole: Callable[[str], Path], tmp_path: Path) -> Copied:
    return lambda form: Path(shutil.copytree(whole(form), tmp_path / "cache"))


def file_of(root: Path, sample: int, side: int) -> tuple[Path, int]:
    """File of a copy, and its position in it."""
    store = open_cache(root)
    data = bytes(store.read(sample, side))
    store.close()
    (path,) = (
        path
        for path in (root / str(side)).rglob("*.*")
        if path.is_file() and data in path.read_bytes()
    )
    return path, find(path, data) + len(data) // 2


def flip_copies(root: Path) -> None:
    """Damage copies of both levels, in two shards."""
    places = [file_of(root, sample, side) for sample, side in ((5, 16), (70, 24), (71, 24))]
    for path, at in places:
        flip(path, at)


def cut(root: Path) -> None:
    """Cut the largest file of a level short."""
    path = max((root / "24").rglob("*.*"), key=lambda each: each.stat().st_size)
    os.truncate(path, path.stat().st_size // 2)


def remove(root: Path) -> None:
    min(path for path in (root / "16").rglob("*.*") if path.is_file()).unlink()


def remove_level(root: Path) -> None:
    shutil.rmtree(root / "24")


@pytest.mark.parametrize(
    ("form", "harm"),
    [
        ("webdataset", flip_copies),
        ("webdataset", remove_level),
        *slow(*itertools.product(("lmdb", "folder"), (flip_copies, remove_level))),
    ],
)
def test_repaired_cache_equals_built_cache(
    whole: Callable[[str], Path], copied: Copied, form: str, harm: Callable[[Path], None]
) -> None:
    root = copied(form)
    harm(root)
    assert not verify(root, workers=1).is_sound
    done = feedline.repair_cache(root, workers=0)
    assert not done.verification.is_sound
    assert everything(root) == everything(whole(form))
    assert verify(root, workers=1).is_sound
    assert feedline.repair_cache(root, workers=0).images == 0


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="maps are listed on Linux only")
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("again", [False, True], ids=["repair", "build"])
@pytest.mark.filterwarnings("ignore:.*is completed from")  # the copied source
def test_no_file_is_mapped_when_it_is_replaced(
    again: bool,
    form: str,
    source: Path,
    whole: Callable[[str], Path],
    copied: Copied,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Windows would refuse it."""
    root, replace, replaced = copied(form), os.replace, list[str]()
    flip_copies(root)

    def replace_unmapped(new: Path, old: Path) -> None:
        assert str(old) not in Path("/proc/self/maps").read_text()
        replaced.append(str(old))
        replace(new, old)

    monkeypatch.setattr(os, "replace", replace_unmapped)
    if again:
        changed = Path(shutil.copytree(source, tmp_path / "photos"))
        photo(changed / "cats" / "0.jpg", 99)
        made(changed, root, form)
    else:
        feedline.repair_cache(root, workers=0)
    assert any("index" in name for name in replaced)
    assert verify(root, workers=1).is_sound or again


@pytest.mark.parametrize("form", ["webdataset", *slow("lmdb", "folder")])
def test_killed_repair_can_be_repeated(
    whole: Callable[[str], Path], copied: Copied, form: str
) -> None:
    root = copied(form)
    for sample in (5, 40, 70):
        flip(*file_of(root, sample, 24))
    script = (
        f"feedline.repair_cache({str(root)!r}, workers=0, progress=lambda stage, done, total: "
        "os._exit(99) if stage == 'repairing' and done else None)"
    )
    command = stopping(f"import feedline\n{script}")
    ended = preloaded.run(command, capture_output=True, timeout=60, env=environment())
    assert ended.returncode == STOPPED, ended.stderr
    assert len(feedline.ImageFolder(root)) == 80  # it is a cache all the while
    feedline.repair_cache(root, workers=0)
    assert everything(root) == everything(whole(form))


def test_moved_originals_are_used_and_changed_ones_are_rejected(
    whole: Callable[[str], Path], copied: Copied, source: Path, tmp_path: Path
) -> None:
    root, moved = copied("webdataset"), tmp_path / "moved"
    flip(*file_of(root, 5, 24))
    shutil.copytree(source, moved)
    name = open_cache(root).name(5)
    kept = (moved / name).rename(tmp_path / "away.jpg")
    with pytest.raises(DatasetError, match=str(moved)):
        feedline.repair_cache(root, source=moved, workers=0)
    photo(moved / name, 3, 1)  # another image of the same name
    with pytest.raises(DatasetError, match=f"{name}.*has another size"):
        feedline.repair_cache(root, source=moved, workers=0)
    assert len(verify(root, workers=1).damaged) == 1

    kept.replace(moved / name)
    feedline.repair_cache(root, source=moved, workers=0)
    assert everything(root).keys() == everything(whole("webdataset")).keys()
    assert (root / "24" / "000000.tar").read_bytes() == (
        whole("webdataset") / "24" / "000000.tar"
    ).read_bytes()
    assert read_manifest(str(root)).source == ("folder", str(moved))


def test_skipped_image_stays_skipped(tmp_path: Path) -> None:
    source, root = photos(tmp_path / "photos"), tmp_path / "cache"
    (source / "cats" / "3.jpg").write_bytes(b"no image")
    made(source, root, on_error="skip")
    first = everything(root)
    flip(*file_of(root, 7, 24))
    flip(root / "index" / "level-16.npy", 200)
    feedline.repair_cache(root, workers=0)
    assert everything(root) == first


def test_copies_of_a_dataset_are_repaired_from_it(tmp_path: Path) -> None:
    images = [(np.full((40, 40 + n, 3), 5 * n, np.uint8), n % 2) for n in range(8)]
    made(images, tmp_path / "cache", raw=True)  # type: ignore[arg-type]
    first = everything(tmp_path / "cache")
    flip(tmp_path / "cache" / "24" / "000000.tar", 2000)
    with pytest.raises(UsageError, match="source"):
        feedline.repair_cache(tmp_path / "cache", workers=0)
    feedline.repair_cache(tmp_path / "cache", source=images, workers=0)
    assert everything(tmp_path / "cache") == first


def test_a_cache_at_a_url_is_repaired(
    whole: Callable[[str], Path], copied: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    root = copied("webdataset")
    flip_copies(root)
    (root / "24" / "000000.tar").unlink()
    (root / ".lock").unlink()  # of the build on this machine
    feedline.repair_cache(root.as_uri(), workers=0)
    assert everything(root) == everything(whole("webdataset"))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("harm", [cut, remove])
def test_build_does_not_accept_cache_with_missing_files(
    whole: Callable[[str], Path],
    copied: Copied,
    source: Path,
    form: str,
    harm: Callable[[Path], None],
) -> None:
    root = copied(form)
    harm(root)
    with pytest.warns(UserWarning, match="feedline cache verify"):
        made(source, root, form)
    assert everything(root) == everything(whole(form))


def test_build_from_another_source_is_rejected_and_moved_source_is_reported(
    whole: Callable[[str], Path], copied: Copied, source: Path, tmp_path: Path
) -> None:
    root = copied("webdataset")
    other = photos(tmp_path / "other", 2)
    with pytest.raises(UsageError, match=f"{source}.*{other}"):
        made(other, root)
    assert everything(root) == everything(whole("webdataset"))
    moved = shutil.copytree(source, tmp_path / "moved")
    with pytest.warns(UserWarning, match=f"{source}.*{moved}"):
        made(moved, root)
    (tmp_path / "link").symlink_to(source)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made(tmp_path / "link", Path(shutil.copytree(whole("webdataset"), tmp_path / "again")))


def test_unfinished_build_of_another_source_is_reported(tmp_path: Path, source: Path) -> None:
    other, root = photos(tmp_path / "other"), tmp_path / "cache"

    def stop(said: object) -> None:
        if said.new_images:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made(source, root, progress=stop)
    with pytest.warns(UserWarning, match=f"{source}.*{other}"):
        made(other, root)
    assert len(feedline.ImageFolder(root)) == 12


def test_invalid_cache_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="is not a cache"):
        feedline.repair_cache(tmp_path, workers=0)
    assert list(tmp_path.iterdir()) == []
