"""Messages of Python functions, in the words of a command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from command_line import Command

from feedline.cli.option_names import in_options


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("leave it out: quality=50", "leave it out: --quality 50"),
        ('leave them out: on_error="skip".', "leave them out: --on-error skip."),
        ("num_workers=0 works", "--workers 0 works"),
        ("pass exif=True, or not", "pass --exif, or not"),
        ("name it: source=...", "name it: --source ..."),
        ("or enlarge=True", "or enlarge=True (in Python)"),
        ("pass exif=False", "pass exif=False (in Python)"),
        ("s3://bucket/source=a/b", "s3://bucket/source=a/b"),
        ("ImageFolder(exif=True)", "ImageFolder(exif=True)"),
        ("x=3 and resource=2", "x=3 and resource=2"),
    ],
)
def test_arguments_are_called_as_options(message: str, said: str) -> None:
    options = {"--quality", "--on-error", "--workers", "--exif", "--source"}
    assert in_options(message, options) == said


def test_a_broken_image_is_left_out_by_the_option_that_is_named(
    feedline: Command, tmp_path: Path
) -> None:
    source = images(tmp_path / "photos")
    (source / "cats" / "1.jpg").write_bytes(b"no image")
    build = ("cache", "build", source, tmp_path / "cache", "--sizes", 16, "--workers", 0)
    ended = feedline(*build)
    assert ended.status == 1
    assert "--on-error skip" in ended.err
    assert "on_error" not in ended.err


@pytest.mark.filterwarnings("default")
def test_images_with_other_endings_are_counted_once(feedline: Command, tmp_path: Path) -> None:
    source = images(tmp_path / "photos")
    for name in ("cats/a.gif", "cats/b.GIF", "dogs/c.heic", "dogs/notes.txt"):
        (source / name).touch()
    ended = feedline("cache", "build", source, tmp_path / "cache", "--sizes", 16, "--workers", 0)
    assert ended.status == 0, ended
    (line,) = ended.err.splitlines()
    assert "2 .gif, 1 .heic" in line
    assert ".txt" not in line


@pytest.mark.parametrize("command", ["train", "bench"])
def test_a_table_is_told_where_it_is_read(feedline: Command, tmp_path: Path, command: str) -> None:
    (tmp_path / "table.csv").write_text("path,label\n")
    ended = feedline(command, tmp_path / "table.csv")
    assert ended.status == 2
    assert "ImageList.from_csv" in ended.err


def test_a_class_that_only_validation_has_is_one_class(feedline: Command, tmp_path: Path) -> None:
    images(tmp_path / "set" / "train")
    images(tmp_path / "set" / "val", ("cats", "dogs", "owls"))
    ended = feedline("train", tmp_path / "set", "--schedule", "16x1", "--out", tmp_path / "run")
    assert ended.status == 2
    assert "1 class " in ended.err


def images(root: Path, classes: tuple[str, ...] = ("cats", "dogs")) -> Path:
    for name in classes:
        (root / name).mkdir(parents=True)
        for number in range(2):
            pixels = np.full((20, 20, 3), 40 * number, np.uint8)
            (root / name / f"{number}.jpg").write_bytes(simplejpeg.encode_jpeg(pixels))
    return root
