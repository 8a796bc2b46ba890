"""A bounded look into folders of all kinds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from feedline.profile.doctor import folder
from feedline.profile.doctor.folder import scan_folder

LONG_S = 60.0


def fill(root: Path, layout: dict[str, int], ending: str = ".jpg", size: int = 10) -> None:
    """Create folders with this many files each."""
    for name, count in layout.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (root / name / f"{number}{ending}").write_bytes(b"x" * size)


def test_a_small_folder_is_counted_to_the_end(tmp_path: Path) -> None:
    fill(tmp_path, {"train/cat": 3, "train/dog": 5, "val/cat": 1, "val/dog": 0})
    (tmp_path / "train" / "notes.TXT").write_text("hello")
    (tmp_path / "loose.PNG").write_bytes(b"abcd")
    found = scan_folder(str(tmp_path), LONG_S)
    assert (found.images, found.files, found.folders) == (10, 11, 6)
    assert (found.loose_images, found.class_folders) == (1, 2)
    assert found.complete
    assert found.endings == {".jpg": 9, ".txt": 1, ".png": 1}
    assert len(found.sample) == 10
    assert found.mean_bytes == pytest.approx(9.4)


def test_sample_of_other_files_contains_only_them(tmp_path: Path) -> None:
    fill(tmp_path, {"shards": 4}, ending=".tar", size=100)
    found = scan_folder(str(tmp_path), LONG_S)
    assert (found.images, found.files, found.mean_bytes) == (0, 4, 100)


def test_empty_folder_has_no_files(tmp_path: Path) -> None:
    found = scan_folder(str(tmp_path), LONG_S)
    assert (found.files, found.sample, found.mean_bytes, found.complete) == (0, (), None, True)


def test_large_folder_is_listed_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, {".": 2000})
    monkeypatch.setattr(folder, "_MAX_ENTRIES", 500)
    found = scan_folder(str(tmp_path), LONG_S)
    assert not found.complete
    assert 500 <= found.files < 2000
    assert len(found.sample) == folder._SAMPLE


def test_zero_time_still_gives_an_answer(tmp_path: Path) -> None:
    fill(tmp_path, {f"class{n}": 30 for n in range(30)})
    found = scan_folder(str(tmp_path), 0.0)
    assert not found.complete


def test_symlink_loops_end(tmp_path: Path) -> None:
    fill(tmp_path, {"a/b": 2})
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "b" / "here").symlink_to(tmp_path / "a" / "b")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    elsewhere = tmp_path / "linked"
    elsewhere.symlink_to(tmp_path / "a")
    found = scan_folder(str(tmp_path), LONG_S)
    assert found.complete
    assert found.images == 4  # linked folders count, as they do for ImageFolder


def test_deep_tree_ends(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * 40)
    deep.mkdir(parents=True)
    (deep / "x.jpg").write_bytes(b"x")
    found = scan_folder(str(tmp_path), LONG_S)
    assert not found.complete
    assert found.images == 0


def test_non_files_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "real.jpg").write_bytes(b"abc")
    assert [Path(file.path).name for file in scan_folder(str(tmp_path), LONG_S).sample] == [
        "real.jpg"
    ]


def test_names_of_any_bytes_are_listed(tmp_path: Path) -> None:
    os.makedirs(os.fsencode(tmp_path) + b"/\xff\xfe")
    with open(os.fsencode(tmp_path) + b"/\xff\xfe/\x80.jpg", "wb") as file:
        file.write(b"x")
    found = scan_folder(str(tmp_path), LONG_S)
    assert (found.images, found.mean_bytes) == (1, 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_folders_that_cannot_be_listed_are_counted(tmp_path: Path) -> None:
    fill(tmp_path, {"open": 2, "closed": 2})
    (tmp_path / "closed").chmod(0)
    try:
        found = scan_folder(str(tmp_path), LONG_S)
    finally:
        (tmp_path / "closed").chmod(0o700)
    assert (found.images, found.unreadable, found.complete) == (2, 1, False)


def test_missing_folder_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        scan_folder(str(tmp_path / "nowhere"), LONG_S)
