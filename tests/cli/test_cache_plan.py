"""`feedline cache plan`: output, rejected input, and Ctrl-C."""

import json

QUICK = ("--seconds", 0.01, "--workers", 0)


def test_a_plan_is_a_table_with_a_reason_and_a_command(
    feedline, photos, temporary, tmp_path, monkeypatch
):
    monkeypatch.setattr("feedline.cache.rates._MIN_TURN_S", 0.0)
    target = tmp_path / "plan.json"
    ended = feedline(
        "cache", "plan", photos, "--schedule", "16x2,32x1@8", *QUICK, "--disk", 1,
        "--disk-speed", 2000, "--json", target,
    )  # fmt: skip
    assert (ended.status, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert "16x2,32x1@8" in lines[0]
    heads, originals, *choices = lines[1:6]
    assert heads.split()[:5] == ["16", "px", "32", "px", "loading"]
    assert originals.split()[0] == "originals"
    assert [line.split()[:2] for line in choices] == [
        ["48", "q95"],
        ["19,48", "q95"],
        ["19,48", "raw"],
    ]
    text = " ".join(ended.out.split())
    assert "copy/size" in heads
    assert "1.0 GB of disk" in text
    assert "2.0 GB/s" in text
    assert list(temporary.iterdir()) == []

    plan = json.loads(target.read_text())
    assert plan["source"] == str(photos)
    assert plan["limits"]["disk_bytes"] == 1e9
    assert plan["limits"]["disk_bytes_per_s"] == 2e9
    assert plan["transform"].startswith("TrainCrop(")
    assert plan["reason"] in text
    assert (plan["command"] or "") in text

    ended = feedline(
        "cache", "plan", photos, "--schedule", "28x1", *QUICK, "--sizes", "32,40", "--images", 9,
        "--transform", "eval", "--disk", "1e-9", "--json", target,
    )  # fmt: skip
    assert ended.status == 0, ended.err
    plan = json.loads(target.read_text())
    assert plan["images_measured"] == 9
    assert plan["transform"] == "EvalCrop(fraction=0.875, filter='bilinear')"
    assert [level["size_px"] for level in plan["choices"][1]["levels"]] == [32, 40]
    assert plan["recommended"] is None
