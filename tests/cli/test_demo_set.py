"""The demo set: deterministic, photograph-like, and whole or not there."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from command_line import Command

from feedline.cli.demo_set import CLASS_NAMES, DemoSet, demo_jpeg, demo_pixels, write_demo_set
from feedline.errors import DatasetError, UsageError

SMALL = DemoSet(num_classes=2, train_per_class=2, val_per_class=1)


def fingerprint(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*.jpg"))
    }


def test_image_depends_only_on_class_number_split_and_seed() -> None:
    assert demo_jpeg("dots", number=3) == demo_jpeg("dots", number=3)
    others = [
        demo_jpeg("rings", number=3),
        demo_jpeg("dots", number=4),
        demo_jpeg("dots", number=3, split="val"),
        demo_jpeg("dots", number=3, seed=1),
    ]
    assert len({demo_jpeg("dots", number=3), *others}) == 5


def test_generated_images_cost_like_imagenet_and_some_are_portrait() -> None:
    jpegs = [demo_jpeg(name, number=number) for name in CLASS_NAMES[:6] for number in range(4)]
    shapes = {simplejpeg.decode_jpeg(jpeg).shape for jpeg in jpegs}
    assert shapes == {(375, 500, 3), (500, 375, 3)}
    assert 90_000 < np.mean([len(jpeg) for jpeg in jpegs]) < 140_000


@pytest.mark.parametrize("name", CLASS_NAMES)
def test_every_class_draws_with_full_contrast(name: str) -> None:
    pixels = demo_pixels(name, number=0)
    assert pixels.dtype == np.uint8
    assert pixels.std() > 25


def test_demo_set_has_requested_images_in_class_folders(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    write_demo_set(
        tmp_path / "demo", SMALL, progress=lambda done, total: seen.append((done, total))
    )
    assert list(fingerprint(tmp_path / "demo")) == [
        "train/dots/dots-00000.jpg",
        "train/dots/dots-00001.jpg",
        "train/stripes/stripes-00000.jpg",
        "train/stripes/stripes-00001.jpg",
        "val/dots/dots-00000.jpg",
        "val/stripes/stripes-00000.jpg",
    ]
    assert seen == [(done, 6) for done in range(1, 7)]


def test_existing_demo_set_is_kept_and_regeneration_is_identical(tmp_path: Path) -> None:
    assert write_demo_set(tmp_path / "demo", SMALL)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "demo").rglob("*")}
    assert not write_demo_set(tmp_path / "demo", SMALL)
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "demo").rglob("*")}
    assert write_demo_set(tmp_path / "again", SMALL)
    assert fingerprint(tmp_path / "again") == fingerprint(tmp_path / "demo")


def test_other_or_damaged_set_is_rejected_and_untouched(tmp_path: Path) -> None:
    demo = tmp_path / "demo"
    write_demo_set(demo, SMALL)
    with pytest.raises(DatasetError, match="not empty"):
        write_demo_set(demo, DemoSet(num_classes=3, train_per_class=1, val_per_class=1))
    (demo / "val/dots/dots-00000.jpg").unlink()
    whole = fingerprint(demo)
    with pytest.raises(DatasetError, match="not empty"):
        write_demo_set(demo, SMALL)
    assert fingerprint(demo) == whole


@pytest.mark.parametrize("where", ["holiday.jpg", "train/dots/mine.jpg"])
def test_folder_with_foreign_files_is_rejected_and_untouched(tmp_path: Path, where: str) -> None:
    demo = tmp_path / "demo"
    if where.startswith("train"):
        write_demo_set(demo, SMALL)
    (demo / where).parent.mkdir(parents=True, exist_ok=True)
    (demo / where).write_bytes(b"precious")
    before = sorted(demo.rglob("*"))
    with pytest.raises(DatasetError, match="not empty"):
        write_demo_set(demo, DemoSet(num_classes=3))
    assert sorted(demo.rglob("*")) == before
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


def test_empty_folder_is_filled_and_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert write_demo_set(tmp_path / "empty", SMALL)
    (tmp_path / "file").touch()
    with pytest.raises(DatasetError, match="is a file"):
        write_demo_set(tmp_path / "file", SMALL)


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_demo_set(tmp_path / "demo", SMALL, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_killed_run_are_removed(tmp_path: Path) -> None:
    dead = tmp_path / ".demo.partial-999999999"  # above the largest process id Linux gives
    (dead / "train" / "dots").mkdir(parents=True)
    (dead / "train" / "dots" / "dots-00001.jpg").write_bytes(b"incomplete")
    write_demo_set(tmp_path / "demo", SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


def test_foreign_files_among_leftovers_stay(tmp_path: Path) -> None:
    notes = tmp_path / ".demo.partial-999999999" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine")
    write_demo_set(tmp_path / "demo", SMALL)
    assert notes.read_text() == "mine"


@pytest.mark.parametrize(
    ("setting", "value"),
    [("num_classes", 1), ("num_classes", 13), ("train_per_class", 0), ("seed", -1)],
)
def test_size_out_of_range_raises_with_value(setting: str, value: int) -> None:
    with pytest.raises(UsageError, match=rf"{setting}.*got {value}$"):
        DemoSet(**{setting: value})


def test_a_device_name_of_windows_is_refused_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(UsageError, match="'con'"):
        write_demo_set(tmp_path / "con", SMALL)
    assert not list(tmp_path.iterdir())


# The command


OPTIONS = ("--num-classes", 2, "--train-per-class", 2, "--val-per-class", 1)


def test_demo_set_is_written_once_and_reused(feedline: Command, tmp_path: Path) -> None:
    first = feedline("demo-data", tmp_path / "demo", *OPTIONS, "--json", tmp_path / "a.json")
    assert first.status == 0
    begun, done = first.out.splitlines()
    assert "writing 6 images of 2 classes" in begun
    assert "wrote 6 images of 2 classes" in done
    assert json.loads((tmp_path / "a.json").read_text())["written"] is True
    assert len(list((tmp_path / "demo").rglob("*.jpg"))) == 6

    second = feedline("demo-data", tmp_path / "demo", *OPTIONS, "--json", tmp_path / "b.json")
    assert second.status == 0
    assert "already there" in second.out
    assert json.loads((tmp_path / "b.json").read_text())["written"] is False
    assert first.err == second.err == ""


def test_foreign_folder_is_rejected(feedline: Command, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    ended = feedline("demo-data", tmp_path)
    assert ended.status == 2
    assert "thesis.tex" in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
