"""From figures to words, to a table and to JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from results import result, row

from feedline.profile.bench.options import BenchmarkOptions
from feedline.profile.bench.result import Omission
from feedline.profile.bench.survey import Survey, SurveyedImage
from feedline.profile.bench.table import notes, table, verdict


def test_largest_stage_of_an_image_is_the_bottleneck() -> None:
    stages = result().stages
    (said,) = verdict(result())
    for fact in ("decoding, 80% of the 4.00 ms", "resizing 18%", "reading 2%"):
        assert fact in said
    (said,) = verdict(result(stages=replace(stages, resize_ms=9.0)))
    assert "cropping and resizing, 73%" in said
    (said,) = verdict(result(stages=replace(stages, read_ms=9.0)))
    assert "reading, 70%" in said


def test_reading_is_bottleneck_of_cold_loader_if_it_takes_longest() -> None:
    slow = replace(result().stages, read_cold_ms=12.0)
    assert "12.00 ms an image from the disk" in verdict(result(stages=slow))[1]
    unknown = replace(slow, read_cold_ms=None, cold_not_measured="a RAM disk")
    assert len(verdict(result(stages=unknown))) == 1
    (note,) = notes(result(stages=unknown))
    assert "a RAM disk" in note


def test_torch_is_compared_only_if_measured() -> None:
    rows = (*result().rows, row("torch", 250, 240, 260))
    assert "2.00x (2.00-2.00) torch" in verdict(result(rows=rows))[-1]


def test_unusual_circumstances_are_noted() -> None:
    assert notes(result()) == []
    small = Survey(
        images=[SurveyedImage(0, 900, 20, 30), SurveyedImage(1, 900, 400, 400)], skipped=[]
    )
    said = notes(result(survey=small, workers=1))
    assert "1 of 2 images" in said[0]
    assert "224 px" in said[0]
    assert "2 images are fewer than a batch of 64" in said[1]
    assert "1 for 2 usable cores" in said[2]
    noisy = (*result().rows, row("torch", 100, 250, 260))
    assert "differ by up to 64% (torch)" in notes(result(rows=noisy))[0]


def test_table_has_one_line_per_contestant_and_fits_terminal() -> None:
    path = "photos/" + "very-long-names/" * 9 + "1.jpg"
    text = table(
        result(
            rows=(*result().rows, row("torch", 250, 240, 260)),
            left_out=[Omission("torch + Pillow", "it broke")],
            skipped=[(path, "it is empty")] * 7,
        )
    )
    lines = text.splitlines()
    assert lines[0].startswith("100 images, 110 KB, 500x400 px, to 224 px in batches of 64; 2 work")
    assert " ".join(lines[2].split()) == "images/s range per core x feedline first batch CPU s/1000"
    assert " ".join(lines[3].split()) == "feedline 500 480-520 250 1.00 1.25 s 2.00"
    assert " ".join(lines[4].split()) == "torch 250 240-260 125 0.50 1.25 s 2.00"
    assert "torch + Pillow left out: it broke" in lines
    assert "unreadable images skipped: 7, for example" in lines
    assert sum(line == f"  {path}: it is empty" for line in lines) == 3
    assert max(len(line) for line in lines if path not in line) <= 100


def test_both_counts_of_large_folder_are_reported() -> None:
    assert table(result(images=1_300_000)).startswith("100 of 1300000 images")


def test_result_is_json_with_units_in_field_names() -> None:
    rows = (*result().rows, row("torch", 250, 240, 260))
    everything = result(
        rows=rows,
        settings=BenchmarkOptions(folder=Path("photos"), against="torch"),
        left_out=[Omission("torch", "it broke")],
        skipped=[("a.jpg", "it is empty")],
    )
    read = json.loads(json.dumps(everything.as_dict(), allow_nan=False))
    assert read["settings"]["folder"] == "photos"
    assert read["data"]["height_px_median"] == 400
    first, second = read["rows"]
    assert first["images_per_s"] == {"median": 500.0, "low": 480.0, "high": 520.0}
    assert first["cpu_s_per_1000_images"] == 2.0
    assert [turn["images"] for turn in first["turns"]] == [5000, 4800, 5200]
    assert second["ratio_to_feedline"]["median"] == 0.5
    assert read["one_image"]["total_ms"] == 4.0
    assert read["left_out"] == [{"what": "torch", "reason": "it broke"}]
    assert read["skipped"] == [{"file": "a.jpg", "reason": "it is empty"}]
