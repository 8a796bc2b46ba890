"""The demo set: deterministic, of full contrast, and whole or not there."""

import json
import sys

import pytest
import simplejpeg

from feedline.cli.demo_set import CLASS_NAMES, DemoSet, demo_jpeg, demo_pixels, write_demo_set
from feedline.errors import DatasetError, UsageError

SMALL = DemoSet(num_classes=2, train_per_class=2, val_per_class=1)


def images(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*.jpg"))
    }


def test_image_depends_only_on_class_number_split_and_seed():
    others = [
        demo_jpeg("rings", number=3),
        demo_jpeg("dots", number=4),
        demo_jpeg("dots", number=3, split="val"),
        demo_jpeg("dots", number=3, seed=1),
    ]
    assert len({demo_jpeg("dots", number=3), demo_jpeg("dots", number=3), *others}) == 5
    shapes = {simplejpeg.decode_jpeg(jpeg).shape for jpeg in others}
    assert shapes <= {(375, 500, 3), (500, 375, 3)}
    assert all(demo_pixels(name, number=0).std() > 25 for name in CLASS_NAMES)


def test_demo_set_is_written_once_and_reused(feedline, tmp_path):
    demo, told = tmp_path / "demo", tmp_path / "told.json"
    demo.mkdir()
    command = ("demo-data", demo, "--num-classes", 2, "--train-per-class", 2, "--val-per-class", 1)
    first = feedline(*command, "--json", told)
    assert (first.status, first.err) == (0, "")
    assert "wrote 6 images of 2 classes" in first.out
    assert json.loads(told.read_text())["written"] is True
    written = images(demo)
    assert list(written) == [
        "train/dots/dots-00000.jpg",
        "train/dots/dots-00001.jpg",
        "train/stripes/stripes-00000.jpg",
        "train/stripes/stripes-00001.jpg",
        "val/dots/dots-00000.jpg",
        "val/stripes/stripes-00000.jpg",
    ]
    times = {path: path.stat().st_mtime_ns for path in demo.rglob("*")}
    second = feedline(*command, "--json", told)
    assert (second.status, second.err) == (0, "")
    assert "already there" in second.out
    assert json.loads(told.read_text())["written"] is False
    assert times == {path: path.stat().st_mtime_ns for path in demo.rglob("*")}
    seen = []
    other = tmp_path / "again"
    assert write_demo_set(other, SMALL, progress=lambda *at: seen.append(at))
    assert images(other) == written
    assert seen == [(done, 6) for done in range(1, 7)]


def test_other_set_or_foreign_files_are_rejected_and_untouched(tmp_path, monkeypatch):
    demo, mine = tmp_path / "demo", tmp_path / "mine"
    write_demo_set(demo, SMALL)
    mine.mkdir()
    (mine / "holiday.jpg").write_bytes(b"precious")

    def assert_rejected(folder, wanted):
        before = images(folder)
        with pytest.raises(DatasetError, match="not empty"):
            write_demo_set(folder, wanted)
        assert images(folder) == before

    assert_rejected(mine, SMALL)
    assert_rejected(demo, DemoSet(num_classes=3, train_per_class=1, val_per_class=1))
    (demo / "train/dots/mine.jpg").write_bytes(b"precious")
    assert_rejected(demo, DemoSet(num_classes=3))
    (demo / "train/dots/mine.jpg").unlink()
    (demo / "val/dots/dots-00000.jpg").unlink()
    assert_rejected(demo, SMALL)
    with pytest.raises(DatasetError, match="is a file"):
        write_demo_set(mine / "holiday.jpg", SMALL)
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(UsageError, match="'con'"):  # the name of a device there
        write_demo_set(tmp_path / "con", SMALL)
    assert {path.name for path in tmp_path.iterdir()} == {"demo", "mine"}


def test_leftovers_of_killed_run_are_removed_and_foreign_files_stay(tmp_path):
    dead = tmp_path / ".demo.partial-999999999"  # above the largest process id Linux gives
    (dead / "train" / "dots").mkdir(parents=True)
    (dead / "train" / "dots" / "dots-00001.jpg").write_bytes(b"incomplete")
    other = tmp_path / ".demo.partial-999999998" / "notes.txt"
    other.parent.mkdir()
    other.write_text("mine")
    write_demo_set(tmp_path / "demo", SMALL)
    assert {path.name for path in tmp_path.iterdir()} == {"demo", other.parent.name}
    assert other.read_text() == "mine"
