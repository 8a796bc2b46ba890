"""Smaller copies in a temporary folder."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
from PIL import Image
from tasks import limit_files

from feedline.bench.copies import JpegCopies, copies_side, make_jpeg_copies, space_problem
from feedline.bench.pool import ProcessPool
from feedline.bench.survey import Survey, survey_images
from feedline.images.folder import ImageFolder


@pytest.fixture
def looked(folder: ImageFolder, image_pool: ProcessPool) -> Survey:
    return survey_images(image_pool, folder, seconds=60, advance=lambda done: None)


@pytest.mark.parametrize(
    ("size_px", "side_px"),
    [(1, 128), (112, 128), (113, 256), (224, 256), (225, 512), (384, 512), (448, 512), (449, 1024)],
)
def test_copies_leave_an_eighth_for_the_crop(size_px: int, side_px: int) -> None:
    assert copies_side(size_px) == side_px


def test_copies_have_requested_size_and_are_never_enlarged(
    folder: ImageFolder, looked: Survey, image_pool: ProcessPool, tmp_path: Path
) -> None:
    heard: list[int] = []
    with make_jpeg_copies(
        image_pool, folder, looked, 128, advance=heard.append, parent=tmp_path
    ) as made:
        assert isinstance(made, JpegCopies)
        assert made.root.parent == tmp_path
        assert (made.images, made.unchanged, made.side_px) == (20, 2, 128)
        assert heard == list(range(1, 21))
        copied = ImageFolder(made.root)
        for k in range(20):
            original, copy = Path(folder.path(k)), Path(copied.path(k))
            with Image.open(copy) as image:
                assert image.format == "JPEG"
                assert image.size == ((90, 100) if original.name == "0.jpg" else (166, 128))
                assert (copy.read_bytes() == original.read_bytes()) == (original.name == "0.jpg")
        files = [path for path in made.root.rglob("*") if path.is_file()]
        assert made.file_bytes == sum(path.stat().st_size for path in files) / 20
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_copies_are_removed_in_all_cases(
    folder: ImageFolder,
    looked: Survey,
    image_pool: ProcessPool,
    tmp_path: Path,
    error: type[BaseException],
) -> None:
    def break_off() -> None:
        with make_jpeg_copies(
            image_pool, folder, looked, 128, advance=lambda done: None, parent=tmp_path
        ) as made:
            assert isinstance(made, JpegCopies)
            raise error

    with pytest.raises(error):
        break_off()
    assert list(tmp_path.iterdir()) == []


def test_missing_image_is_skipped(photos: Path, tmp_path: Path, image_pool: ProcessPool) -> None:
    root = tmp_path / "some"
    shutil.copytree(photos, root)
    folder = ImageFolder(root)
    looked = survey_images(image_pool, folder, seconds=60, advance=lambda done: None)
    (root / "cats" / "4.jpg").unlink()
    with make_jpeg_copies(
        image_pool, folder, looked, 128, advance=lambda done: None, parent=tmp_path
    ) as made:
        assert isinstance(made, JpegCopies)
        assert made.images == 19


def test_lack_of_space_is_detected_before_writing(
    folder: ImageFolder, looked: Survey, image_pool: ProcessPool, tmp_path: Path
) -> None:
    assert space_problem(tmp_path, 1) == ""
    assert "they need up to 1,125,899,907 MB, and" in space_problem(tmp_path, 1 << 50)

    large = [image._replace(height_px=200, width_px=1 << 50) for image in looked.images]
    with make_jpeg_copies(
        image_pool,
        folder,
        dataclasses.replace(looked, images=large),
        128,
        advance=lambda done: None,
        parent=tmp_path,
    ) as made:
        assert isinstance(made, str)
        assert "MB free" in made
    assert list(tmp_path.iterdir()) == []


def test_in_memory_folder_respects_memory_limit() -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir():
        pytest.skip("no /dev/shm here")
    needed = shutil.disk_usage(shared).free // 2
    assert "of memory" in space_problem(shared, needed) or space_problem(shared, needed) == ""
    assert space_problem(shared, 1) == ""


def test_no_copies_if_folder_is_not_writable(
    folder: ImageFolder, looked: Survey, image_pool: ProcessPool, tmp_path: Path
) -> None:
    for parent in (tmp_path / "missing", tmp_path / "file"):
        (tmp_path / "file").touch()
        with make_jpeg_copies(
            image_pool, folder, looked, 128, advance=lambda done: None, parent=parent
        ) as made:
            assert isinstance(made, str)
            assert "cannot be written" in made
            assert "TMPDIR" in made


def test_disk_that_fills_up_ends_copying_and_leaves_nothing(
    folder: ImageFolder, looked: Survey, image_pool: ProcessPool, tmp_path: Path
) -> None:
    image_pool.each(limit_files, [(1000,)])
    try:
        with make_jpeg_copies(
            image_pool, folder, looked, 128, advance=lambda done: None, parent=tmp_path
        ) as made:
            assert isinstance(made, str)
            assert "cannot be written" in made
            assert list(tmp_path.iterdir()) == []
    finally:
        image_pool.each(limit_files, [(-1,)])
