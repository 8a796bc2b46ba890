"""`feedline bench`: small runs, usage errors, and clean-up."""

import json
import sys
from pathlib import Path

import pytest
from command_line import assert_refused
from PIL import Image

from caches import photos as write_photos
from processes import newcomers, own_family

QUICK = ("--seconds", 0.05, "--batch-size", 4)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """train/ with 24 photographs of 40 px, one image of 20 px and two broken files."""
    root = tmp_path_factory.mktemp("bench") / "photos"
    write_photos(root / "train", 12)
    Image.new("RGB", (20, 20)).save(root / "train" / "cats" / "small.jpg")
    (root / "train" / "cats" / "empty.jpg").touch()
    (root / "train" / "dogs" / "torn.jpg").write_bytes(b"\xff\xd8\xff\xe0 torn")
    return root


def test_a_run_prints_a_table_and_writes_its_results(feedline, photos, temporary, tmp_path):
    before, target = own_family(), tmp_path / "result.json"
    ended = feedline("bench", photos, *QUICK, "--image-size", 32, "--workers", 1, "--json", target)
    assert ended.status == 0, ended.err
    assert ended.err.count("\n") == ended.err.count("note: using ") == 1
    assert list(temporary.iterdir()) == []
    assert not newcomers(before)
    for words in ("25 of 27 images", "train/cats/empty.jpg: ", "train/dogs/torn.jpg: "):
        assert words in " ".join(ended.out.split()), ended.out

    result = json.loads(target.read_text())
    assert result["settings"]["folder"] == str(photos / "train")
    assert result["workers"] == result["cores_used"] == 1
    (row,) = result["rows"]
    assert row["loader"] == "feedline"
    assert 0 < row["images_per_s"]["low"] <= row["images_per_s"]["high"]
    assert len(row["turns"]) >= 3
    assert row["first_batch_s"] > 0
    assert [Path(each["file"]).name for each in result["skipped"]] == ["empty.jpg", "torn.jpg"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_torch_is_measured_on_request(feedline, tiny_set, temporary, tmp_path, workers):
    pytest.importorskip("torchvision")
    before, target = own_family(), tmp_path / "result.json"
    ended = feedline(
        "bench", tiny_set, "--seconds", 0.05, "--image-size", 32, "--workers", workers,
        "--batch-size", 30, "--against", "torch", "--json", target,
    )  # fmt: skip
    assert ended.status == 0, ended.err
    assert not newcomers(before)
    assert not list(temporary.glob("feedline*"))
    for words in ("torch + Pillow, float32", "torch + torchvision v2, uint8"):
        assert words in " ".join(ended.out.split()), ended.out
    result = json.loads(target.read_text())
    assert [row["loader"] for row in result["rows"]] == ["feedline", "torch", "torch"]
    assert all(row["first_batch_s"] for row in result["rows"])
    assert result["versions"]["torchvision"]


def test_missing_torchvision_raises_with_install_hint(feedline, photos, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    ended = feedline("bench", photos, "--against", "torch")
    assert_refused(ended, "--against torch", "ModuleNotFoundError", "pip install torchvision")
