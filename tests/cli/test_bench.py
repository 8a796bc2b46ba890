"""`feedline bench`: small runs, usage errors, and clean-up."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from command_line import Command, assert_refused

from processes import newcomers, own_family

QUICK = ("--seconds", 0.05, "--batch-size", 4)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train/ with 24 photographs of 160 x 200 px, one image of 60 px and two broken files."""
    root = tmp_path_factory.mktemp("bench") / "photos"
    for name in ("ant", "bee"):
        (root / "train" / name).mkdir(parents=True)
        for number in range(12):
            y, x = np.mgrid[0:160, 0:200]
            waves = [np.sin((x * number + y * 3 + c * 50) / 29) for c in range(3)]
            pixels = (127 + 120 * np.stack(waves, axis=2)).astype(np.uint8)
            jpeg = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels))
            (root / "train" / name / f"{number}.jpg").write_bytes(jpeg)
    small = simplejpeg.encode_jpeg(np.zeros((60, 60, 3), np.uint8))
    (root / "train" / "ant" / "small.jpg").write_bytes(small)
    (root / "train" / "ant" / "empty.jpg").touch()
    (root / "train" / "bee" / "torn.jpg").write_bytes(b"\xff\xd8\xff\xe0 torn")
    return root


def test_a_run_prints_a_table_and_writes_its_results(
    feedline: Command, photos: Path, temporary: Path, tmp_path: Path
) -> None:
    before, target = own_family(), tmp_path / "result.json"
    ended = feedline("bench", photos, *QUICK, "--image-size", 80, "--workers", 1, "--json", target)
    assert ended.status == 0, ended.err
    assert ended.err.count("\n") == ended.err.count("note: using ") == 1
    assert list(temporary.iterdir()) == []
    assert not newcomers(before)

    for words in (
        "25 of 27 images",
        "one image in one process",
        "train/ant/empty.jpg: ",
        "train/bee/torn.jpg: ",
    ):
        assert words in " ".join(ended.out.split()), ended.out

    result = json.loads(target.read_text())
    assert result["settings"]["folder"] == str(photos / "train")
    assert result["workers"] == result["cores_used"] == 1
    assert [row["loader"] for row in result["rows"]] == ["feedline"]
    for row in result["rows"]:
        spread = row["images_per_s"]
        assert 0 < spread["low"] <= spread["median"] <= spread["high"]
        assert len(row["turns"]) >= 3
        assert row["first_batch_s"] > 0
    assert [Path(each["file"]).name for each in result["skipped"]] == ["empty.jpg", "torn.jpg"]
    assert result["left_out"] == []
    assert result["machine"]["cpu"]
    for name in ("python", "torch", "numpy", "simplejpeg", "pillow", "feedline"):
        assert name in result["versions"]
    assert result["verdict"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_torch_is_measured_on_request(
    feedline: Command, tiny_set: Path, temporary: Path, tmp_path: Path, workers: int
) -> None:
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


def test_missing_torchvision_raises_with_install_hint(
    feedline: Command, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    ended = feedline("bench", photos, "--against", "torch")
    assert_refused(ended, "--against torch", "ModuleNotFoundError", "pip install torchvision")


@pytest.mark.slow
def test_nothing_but_broken_images_is_rejected(feedline: Command, tmp_path: Path) -> None:
    (tmp_path / "ant").mkdir()
    (tmp_path / "ant" / "a.jpg").write_bytes(b"no image")
    ended = feedline("bench", tmp_path, *QUICK, "--workers", 1)
    assert_refused(ended, "of 1 images", "a.jpg: it is not a supported image", "downloaded")
