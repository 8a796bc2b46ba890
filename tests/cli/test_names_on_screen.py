"""Names of files and classes neither control the terminal nor pass for a line of feedline."""

import json
import shutil
import sys

import pytest
import torch

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows refuses such names")

MODEL = "test_resnet.r160_in1k"
PLAIN = ("--device", "cpu", "--workers", 0)
# A colour, a window title, a deleted line, a faked line, a right-to-left override.
HOSTILE = "\x1b[31m\x1b]0;title\x07\r\x9b2K\nerror: faked\nhint: faked\u202e"
SHOWN = r"\x1b[31m\x1b]0;title\x07\r\x9b2K\nerror: faked\nhint: faked\u202e"


@pytest.fixture
def photos(tiny_set, tmp_path):
    """Classes and files with hostile names; one file is broken."""
    root = tmp_path / "photos"
    shutil.copytree(tiny_set / "train" / "dark", root / f"dark{HOSTILE}")
    shutil.copytree(tiny_set / "train" / "light", root / "light")
    (root / "light" / f"broken{HOSTILE}.jpg").write_bytes(b"torn")
    return root


@pytest.fixture
def hostile(trained, tmp_path):
    best = torch.load(trained / "best.pt", weights_only=True)
    torch.save(best | {"classes": [f"dark{HOSTILE}", "light"]}, tmp_path / "best.pt")
    return tmp_path / "best.pt"


def unprintable(text):
    return [each for each in text if not each.isprintable() and each not in "\n\t"]


def assert_safe(ended):
    assert not unprintable(ended.output)
    assert "faked" in ended.output
    labels = [line for line in ended.output.splitlines() if line.startswith(("error", "hint"))]
    assert not [line for line in labels if "faked" in line.partition(": ")[2][:5]]


def test_names_are_escaped_by_evaluate_and_predict(feedline, photos, hostile, tmp_path):
    target = tmp_path / "found.json"
    skip = ("--on-error", "skip", "--json", target)
    ended = feedline("evaluate", hostile, photos, *PLAIN, *skip)
    assert ended.status == 0, ended.err
    assert f"dark{SHOWN}" in ended.out
    assert_safe(ended)
    assert json.loads(target.read_text())["classes"][0] == f"dark{HOSTILE}"

    ended = feedline("predict", hostile, photos, *PLAIN, *skip, "--topk", 2)
    assert ended.status == 0, ended.err
    assert_safe(ended)
    rows = [line.split("\t") for line in ended.out.splitlines()]
    assert [len(row) for row in rows] == [5] * 16
    assert any(SHOWN in row[0] for row in rows)
    assert len(ended.err.splitlines()) == 1
    predictions = json.loads(target.read_text())["predictions"]
    assert {each["path"] for each in predictions} == {
        str(path) for path in photos.rglob("*.jpg") if "broken" not in path.name
    }


def test_names_are_escaped_by_doctor_and_caches(feedline, photos, tmp_path):
    ended = feedline("doctor", photos, "--verify", "--workers", 0)
    assert ended.status == 1
    assert SHOWN in ended.out
    assert_safe(ended)

    plan = ("--schedule", "16x1", "--seconds", 0.01, "--workers", 0)
    ended = feedline("cache", "plan", photos, *plan)
    assert ended.status == 0, ended.err
    assert_safe(ended)

    cache, target = tmp_path / f"cache{HOSTILE}", tmp_path / "info.json"
    build = ("cache", "build", photos, cache, "--sizes", 16, "--workers", 0)
    ended = feedline(*build)
    assert ended.status == 1
    assert ended.err.startswith("error: ")
    assert_safe(ended)
    assert_safe(feedline(*build, "--on-error", "skip"))
    ended = feedline("cache", "info", cache, "--no-measure", "--json", target)
    assert ended.status == 0, ended.err
    assert_safe(ended)
    assert json.loads(target.read_text())["folder"] == str(cache)
    (shard,) = (cache / "16").glob("*.tar")
    shard.write_bytes(shard.read_bytes()[:-2000])
    ended = feedline("cache", "verify", cache)
    assert ended.status == 1
    assert_safe(ended)


def test_names_in_training_are_escaped(feedline, photos, tmp_path):
    quick = ("--model", MODEL, "--schedule", "32x1", "--batch-size", 8, *PLAIN)
    out = tmp_path / f"run{HOSTILE}"
    ended = feedline("train", photos, *quick, "--out", out)
    assert ended.status == 1
    assert_safe(ended)
    ended = feedline("train", photos, *quick, "--out", out, "--on-error", "skip")
    assert ended.status == 0, ended.err
    assert_safe(ended)
    assert not unprintable(feedline("report", out).output)


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", HOSTILE),
        ("train", ".", f"--{HOSTILE}"),
        ("train", ".", "--aa", HOSTILE),
        ("train", ".", "--resume", HOSTILE),
        ("report", HOSTILE),
        ("cache", "info", HOSTILE),
        ("cache", HOSTILE),
        ("train", "--config", HOSTILE),
    ],
)
def test_errors_escape_what_they_quote(feedline, arguments):
    ended = feedline(*arguments)
    assert ended.status == 2
    assert ended.err.startswith("error: ")
    assert_safe(ended)
