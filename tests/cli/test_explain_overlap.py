"""`feedline explain-overlap` shows what it measured, and leaves nothing behind."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from processes import newcomers, own_family

QUICK = ("--image-size", 32, "--batch-size", 4, "--seconds", 0.05)


def test_both_loops_are_measured_and_drawn(feedline, tiny_set, tmp_path):
    svg, target = tmp_path / "o.svg", tmp_path / "o.json"
    before = own_family()
    ended = feedline(
        "explain-overlap", tiny_set, *QUICK, "--workers", 2, "--step-ms", 3,
        "--svg", svg, "--json", target,
    )  # fmt: skip
    assert ended.status == 0
    assert ended.err.count("\n") == ended.err.count("note: using ") == 1
    assert not newcomers(before)
    found = json.loads(target.read_text())
    alone, behind = found["sides"]
    assert (alone["workers"], behind["workers"]) == (0, 2)
    assert found["images"] == 16
    for side in found["sides"]:
        assert side["compute_ms"] >= 3
        assert side["step_ms"] >= side["wait_ms"] + side["compute_ms"] - 0.5
        assert side["images_per_s"] == pytest.approx(4000 / side["step_ms"])
        lanes = {lane["name"]: lane["spans"] for lane in side["timeline"]["lanes"]}
        assert lanes["step"]
        assert side["timeline"]["left_out"] == 0
    lanes = [lane["name"] for lane in alone["timeline"]["lanes"]]
    assert lanes == ["loading", "step"]
    assert alone["wait_ms"] > 0
    assert alone["load_ms"] > 0
    for span in alone["timeline"]["lanes"][0]["spans"]:
        assert span["stage"] in ("make", "unknown") or span["cause"] in ("behind", "nobody")
    lanes = [lane["name"] for lane in behind["timeline"]["lanes"]]
    assert lanes[-1] == "step"
    assert {"worker 0", "worker 1"} & {*lanes}
    for words in ("0 workers: ", "2 workers: ", "loading", "as many images/s"):
        assert words in " ".join(ended.out.split()), ended.out
    root = ElementTree.fromstring(svg.read_text())
    assert root.tag.endswith("svg")
    assert len(list(root.iter("{http://www.w3.org/2000/svg}rect"))) > 20
