"""`feedline cache`: building, verifying, repairing, and Ctrl-C."""

import json
import os
import re
import shlex
import signal
import sys

import pytest
from command_line import assert_refused, interrupt

from feedline import ImageFolder
from feedline.sources.manifest import read_manifest
from feedline.text import as_bytes
from slow import slow


def test_build_prints_its_estimate_and_its_result(feedline, photos, tmp_path):
    root, target = tmp_path / "cache", tmp_path / "result.json"
    command = "cache", "build", photos, root, "--sizes", "16,24", "--workers", 1, "--json", target
    ended = feedline(*command)
    assert (ended.status, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert re.fullmatch(r"16 px JPEG q95: about [1-9][\d.]* kB", lines[0])
    assert re.fullmatch(r"24 px JPEG q95: about [1-9][\d.]* kB", lines[1])
    assert lines[2].startswith("16 images: about ")
    level = f"16 px JPEG q95 {as_bytes(read_manifest(str(root)).levels[0].bytes)}"
    assert lines[3].startswith(f"{root}: 16 images, webdataset: {level}, ")
    assert "16 images" in lines[4]
    assert len(ImageFolder(root)) == 16

    manifest, result = read_manifest(str(root)), json.loads(target.read_text())
    assert result["levels"] == [
        {"size_px": level.side, "quality": 95, "bytes": level.bytes} for level in manifest.levels
    ]
    assert (result["images"], result["made"], result["skipped"]) == (16, 16, [])
    assert result["source"] == {"kind": "folder", "path": str(photos), "images": 16}
    assert result["classes"] == ["dark", "light"]
    assert result["seconds"] > 0
    assert result["images_per_s"] > 0

    again = feedline(*command)
    assert again.status == 0
    assert f"hint: feedline cache verify {root}" in again.err
    assert json.loads(target.read_text())["made"] == 0


def test_cache_of_dataset_with_splits_uses_training_images(feedline, tiny_set, tmp_path):
    root = tmp_path / "cache"
    ended = feedline("cache", "build", tiny_set, root, "--sizes", "16", "--workers", 0)
    assert ended.status == 0, ended
    (line,) = ended.err.splitlines()
    assert f"{tiny_set}/train" in line
    manifest = read_manifest(str(root))
    assert (manifest.samples, manifest.classes) == (16, ("dark", "light"))
    assert manifest.source[1] == f"{tiny_set}/train"
    again = feedline("cache", "add-size", root, 24, "--source", tiny_set, "--workers", 0)
    assert again.status == 0, again


def test_build_options_are_passed_on(feedline, photos, tmp_path):
    root = tmp_path / "cache"
    (tmp_path / "photos").mkdir()
    for name in ("dark", "light"):
        (tmp_path / "photos" / name).symlink_to(photos / name)
    (tmp_path / "photos" / "torn").mkdir()
    (tmp_path / "photos" / "torn" / "a.jpg").write_bytes(b"\xff\xd8\xff torn")
    ended = feedline(
        "cache", "build", tmp_path / "photos", root, "--sizes", 16, "--format", "folder",
        "--raw", "--exif", "--mode", "L", "--on-error", "skip", "--workers", 0,
    )  # fmt: skip
    assert ended.status == 0, ended.err
    assert "skipped 1 broken" in ended.out
    assert "torn/a.jpg: " in ended.out
    manifest = read_manifest(str(root))
    assert (manifest.format, manifest.exif, manifest.levels[0].quality) == ("folder", True, None)
    assert manifest.layout.channels == 1
    ended = feedline("cache", "build", tmp_path / "photos", tmp_path / "other", "--sizes", 16)
    assert ended.status == 1
    assert "torn/a.jpg" in ended.err
    ended = feedline("cache", "build", photos, tmp_path / "q", "--sizes", 16, "--quality", 40)
    assert read_manifest(str(tmp_path / "q")).levels[0].quality == 40


def test_add_size_info_and_verify_of_a_whole_cache(feedline, photos, tmp_path, monkeypatch):
    monkeypatch.setattr("feedline.cache.rates._INFO_S", 0.02)
    root, target = tmp_path / "cache", tmp_path / "result.json"
    assert feedline("cache", "build", photos, root, "--sizes", "16,24").status == 0
    add = ("cache", "add-size", root, 20, "--quality", 50, "--workers", 1, "--json", target)
    ended = feedline(*add)
    assert (ended.status, ended.err) == (0, "")
    assert re.match(r"20 px JPEG q50: about [1-9][\d.]* kB\n", ended.out)
    result = json.loads(target.read_text())
    levels = [(level["size_px"], level["quality"]) for level in result["levels"]]
    assert levels == [(16, 95), (20, 50), (24, 95)]
    assert result["made"] == 16
    assert_refused(feedline("cache", "add-size", root, 20), "already has copies of 20 px")

    ended = feedline("cache", "verify", root, "--decode", "--json", target)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith(f"{root}: verified 48 copies in ")
    result = json.loads(target.read_text())
    assert (result["sound"], result["images"], result["damaged"]) == (True, 48, [])

    for is_measured in (False, True):
        measure = () if is_measured else ("--no-measure",)
        ended = feedline("cache", "info", root, *measure, "--json", target)
        assert (ended.status, ended.err) == (0, "")
        assert ended.out.startswith(f"{root}: 16 images of 2 classes, webdataset\n")
        assert re.search(r"^20 px JPEG q50: [1-9][\d.]* kB, ", ended.out, re.MULTILINE)
        assert ("images/s" in ended.out) == is_measured
        for level in json.loads(target.read_text())["levels"]:
            assert bool(level["images_per_s"]) == is_measured
            assert level["bytes_on_disk"] == level["bytes"]


def test_verify_lists_damage_and_fails(feedline, photos, tmp_path):
    root, target = tmp_path / "cache", tmp_path / "result.json"
    made = feedline("cache", "build", photos, root, "--sizes", "16,24", "--format", "folder")
    assert made.status == 0
    torn = root / "16" / "light" / "000000009-1.jpg"
    torn.write_bytes(torn.read_bytes()[:-1])
    ended = feedline("cache", "verify", root, "--json", target)
    assert ended.status == 1
    result, detail = ended.out.splitlines()
    assert result.startswith(f"{root}: verified 32 copies in ")
    assert detail.startswith(f"{torn}: sample 9, light/1.jpg: ")
    result = json.loads(target.read_text())
    assert not result["sound"]
    (damage,) = result["damaged"]
    assert (damage["level"], damage["sample"]) == (16, 9)
    assert (damage["name"], damage["file"]) == ("light/1.jpg", str(torn))

    for path in [*(root / "16").rglob("*.jpg"), *(root / "24" / "dark").glob("*.jpg")]:
        path.unlink()
    ended = feedline("cache", "verify", root, "--json", target)
    assert ended.status == 1
    assert sum(": sample " in line for line in ended.out.splitlines()) == 20
    assert "4 more" in ended.out
    assert len(json.loads(target.read_text())["damaged"]) == 24
    hint = ended.err.splitlines()[-1]
    assert hint.startswith("hint: feedline cache repair ")

    ended = feedline(*shlex.split(hint)[2:], "--workers", 0, "--json", target)
    assert ended.status == 0, ended
    assert len(json.loads(target.read_text())["damaged"]) == 24
    assert feedline("cache", "verify", root).status == 0
    assert feedline("cache", "repair", root, "--workers", 0, "--json", target).status == 0
    assert json.loads(target.read_text())["damaged"] == []


def test_truncated_shard_is_one_problem_with_the_number_of_copies(feedline, photos, tmp_path):
    root, target = tmp_path / "cache", tmp_path / "result.json"
    assert feedline("cache", "build", photos, root, "--sizes", "16,24").status == 0
    shard = root / "24" / "000000.tar"
    size = shard.stat().st_size
    os.truncate(shard, size // 2)
    ended = feedline("cache", "verify", root, "--json", target)
    assert ended.status == 1
    result, problem = ended.out.splitlines()
    assert "16 damaged copies, 1 damaged file" in result
    assert problem.startswith(f"{shard}: ")
    for fact in (f"expected {size} bytes", f"got {size // 2}", "16 copies"):
        assert fact in problem
    (file,) = json.loads(target.read_text())["files"]
    assert (file["file"], file["images"]) == (str(shard), 16)
    assert "repaired 16 damaged copies, 1 damaged file" in feedline("cache", "repair", root).out


@pytest.mark.slow
def test_verify_and_info_accept_urls(feedline, photos, tmp_path, monkeypatch):
    pytest.importorskip("fsspec")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    feedline("cache", "build", photos, tmp_path / "cache", "--sizes", "16")
    url = (tmp_path / "cache").as_uri()
    ended = feedline("cache", "verify", url, "--workers", 1)
    assert ended.status == 0, ended
    assert ended.out.startswith(f"{url}: ")
    assert f"{url}: " in feedline("cache", "info", url).out
    shard = tmp_path / "cache" / "16" / "000000.tar"
    shard.write_bytes(bytes(shard.stat().st_size))
    ended = feedline("cache", "verify", url, "--workers", 1)
    assert ended.status == 1
    assert f"{url}/16/000000.tar: sample 0" in ended.out
    assert f"hint: feedline cache repair {url}" in ended.err


SLOW = """
import sys
import time
from pathlib import Path
import feedline.cache.level_encoder as encoder
from feedline.cli.app import main

put, seen, paused, root = encoder.LevelEncoder.make_copies, 0, Path(sys.argv[1]), Path(sys.argv[2])

def one_shard_alone(self, image):
    # The estimate looks at 64 images, a shard has 32; then it stands still.
    global seen
    seen += 1
    if seen > 64 + 40:
        while not list(root.glob("unfinished*/*.npz")):
            time.sleep(0.01)
        paused.touch()
        time.sleep(600)
    return put(self, image)

encoder.LevelEncoder.make_copies = one_shard_alone
main(sys.argv[3:])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize(
    ("command", "signum"),
    [
        ("build", signal.SIGINT),
        *slow(
            ("build", signal.SIGTERM),
            ("add-size", signal.SIGINT),
            ("add-size", signal.SIGTERM),
        ),
    ],
)
def test_signal_leaves_no_partial_files_and_same_command_resumes(
    feedline, photos, tmp_path, command, signum
):
    many, root, target = tmp_path / "many", tmp_path / "cache", tmp_path / "result.json"
    for number in range(5):
        for name in ("dark", "light"):
            (many / name).mkdir(parents=True, exist_ok=True)
            for path in (photos / name).iterdir():
                os.link(path, many / name / f"{number}{path.name}")
    arguments = ["cache", "build", str(many), str(root), "--sizes", "16,24"]
    if command == "add-size":
        assert feedline(*arguments).status == 0
        arguments = ["cache", "add-size", str(root), "20"]
    before = {path: path.read_bytes() for path in root.rglob("*.tar")}
    paused = tmp_path / "paused"
    ended = interrupt(
        [paused, root, *arguments, "--workers", 1],
        lambda _: paused.exists(),
        signum,
        script=SLOW,
    )
    assert ended.err.startswith("interrupted\nhint: " if signum == signal.SIGINT else "")
    assert "Traceback" not in ended.err
    assert not list(root.rglob("*.partial"))
    assert {path: path.read_bytes() for path in before} == before

    ended = feedline(*arguments, "--workers", 1, "--json", target)
    assert ended.status == 0, ended.err
    assert "80 images, 32 already done: about " in ended.out
    assert json.loads(target.read_text())["made"] == 48
    assert feedline("cache", "verify", root).status == 0
    assert not list(root.glob("unfinished*"))
