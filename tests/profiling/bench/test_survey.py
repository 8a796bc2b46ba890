"""The first look at the images."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from feedline.errors import DatasetError
from feedline.images.folder import ImageFolder, sample_folder
from feedline.profile.bench.survey import survey_images


def test_images_are_measured_and_broken_ones_named(photos: Path, tmp_path: Path) -> None:
    root = tmp_path / "some"
    shutil.copytree(photos, root)
    whole = (root / "cats" / "3.jpg").read_bytes()
    (root / "cats" / "3.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "dogs" / "5.jpg").write_bytes(b"")
    folder = sample_folder(ImageFolder(root), seed=0)
    heard: list[int] = []
    found = survey_images(folder, seconds=60, advance=heard.append)

    assert heard == list(range(1, 21))
    broken = {Path(path).name: reason for path, reason in found.skipped}
    assert sorted(broken) == ["3.jpg", "5.jpg"]
    assert "ends before its last pixel" in broken["3.jpg"]
    assert "0 bytes" in broken["5.jpg"]
    assert len(found.images) == 18
    assert found.numbers == sorted(found.numbers)
    for look in found.images:
        path = Path(folder.path(look.sample))
        assert look.file_bytes == path.stat().st_size
        expected = (100, 90) if path.name == "0.jpg" else (200, 260)
        assert (look.height_px, look.width_px) == expected
    assert found.median_px == (200, 260)
    assert found.count_smaller(91) == 2
    assert found.count_smaller(90) == 0


def test_only_broken_images_raises_and_shows_one(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(3):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(b"no")
    with pytest.raises(DatasetError, match=r"of 3 images .*0\.jpg: it is no"):
        survey_images(ImageFolder(tmp_path), seconds=60, advance=lambda done: None)


def test_survey_ends_with_time_limit_after_the_first_few(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    for number in range(40):
        shutil.copy(photos / "cats" / "0.jpg", tmp_path / "cats" / f"{number:02}.jpg")
    found = survey_images(ImageFolder(tmp_path), seconds=0.0, advance=lambda done: None)
    assert found.numbers == list(range(32))
