"""From figures to words, to a table and to JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from results import COPIES, result, row

from feedline.bench.result import LeftOut
from feedline.bench.settings import Settings
from feedline.bench.survey import Look, Survey
from feedline.bench.table import table
from feedline.bench.verdict import notes, verdict


def test_the_largest_part_of_an_image_is_the_bound() -> None:
    stages = result().stages
    (said,) = verdict(result())
    assert said == (
        "Decoding bounds the loader: it takes 80% of the 4.00 ms of an image, cropping and "
        "resizing 18% and reading 2%; handing batches over costs 4% (2%-4%)."
    )
    (said,) = verdict(result(stages=replace(stages, resize_ms=9.0)))
    assert said.startswith("Cropping and resizing bounds the loader: it takes 73%")
    (said,) = verdict(result(stages=replace(stages, read_ms=9.0)))
    assert said.startswith("Reading bounds the loader")


def test_handing_over_is_the_bound_where_it_costs_most() -> None:
    rows = row("feedline", "originals", 100), row("bare", "originals", 500)
    (said,) = verdict(result(rows=rows))
    assert said.startswith("Handing batches over bounds the loader: it costs 80%")
    assert "decoding takes 80% of the 4.00 ms" in said


def test_what_noise_hides_costs_nothing_that_can_be_measured() -> None:
    rows = row("feedline", "originals", 505), row("bare", "originals", 500)
    (said,) = verdict(result(rows=rows))
    assert said.endswith("handing batches over costs nothing that can be measured.")
    (said,) = verdict(result(rows=rows[:1]))
    assert "Decoding bounds" in said


def test_reading_bounds_a_cold_loader_where_it_takes_longer_than_all_else() -> None:
    slow = replace(result().stages, read_cold_ms=12.0)
    assert "reading bounds it: 12.00 ms an image from the disk" in verdict(result(stages=slow))[1]
    unknown = replace(slow, read_cold_ms=None, cold_not_measured="a RAM disk")
    assert len(verdict(result(stages=unknown))) == 1
    assert notes(result(stages=unknown)) == ["reading from the disk was not measured: a RAM disk"]


def test_copies_are_praised_by_what_they_gain_and_only_then() -> None:
    rows = result().rows
    faster = (*rows, row("feedline", "copies", 1500, 1440, 1600), row("bare", "copies", 1700, 1, 1))
    said = verdict(result(rows=faster, copies=COPIES))[1]
    assert said == (
        "Copies with a shorter side of 256 px make it 3.00x (3.00-3.08) as fast, and take 29 KB "
        "an image, not 110 KB."
    )
    same = (*rows, row("feedline", "copies", 505, 480, 520))
    assert "would not help: 1.00x" in verdict(result(rows=same, copies=COPIES))[1]
    few = replace(COPIES, as_they_are=7)
    assert "7 of 100 copies are originals" in notes(result(rows=faster, copies=few))[0]


def test_torch_is_compared_where_it_was_measured() -> None:
    rows = (*result().rows, row("torch", "originals", 250, 240, 260))
    assert verdict(result(rows=rows))[-1] == (
        "feedline's rate is 2.00x (2.00-2.00) torch, originals."
    )


def test_odd_circumstances_are_noted() -> None:
    assert notes(result()) == []
    small = Survey(looks=[Look(0, 900, 20, 30, ""), Look(1, 900, 400, 400, "")], skipped=[])
    said = notes(result(survey=small, workers=1))
    assert said[0] == "1 of 2 images have a side shorter than 224 px: they are enlarged"
    assert said[1].startswith("2 images are fewer than a batch of 64")
    assert said[2] == "more workers could help: 1 for 2 usable cores"
    noisy = (*result().rows, row("torch", "originals", 100, 250, 260))
    assert "differ by up to 64% (torch, originals)" in notes(result(rows=noisy))[0]


def test_the_table_has_a_line_for_each_contestant_and_fits_a_terminal() -> None:
    path = "photos/" + "very-long-names/" * 9 + "1.jpg"
    text = table(
        result(
            rows=(*result().rows, row("torch", "originals", 250, 240, 260)),
            left_out=[LeftOut("256 px copies", "they need up to 40 MB, and /tmp has 20 MB free")],
            skipped=[(path, "it is empty")] * 7,
        )
    )
    lines = text.splitlines()
    assert lines[0].startswith("100 images, 110 KB, 500x400 px, to 224 px in batches of 64; 2 work")
    assert " ".join(lines[2].split()) == "images/s range per core x feedline first batch CPU s/1000"
    assert " ".join(lines[3].split()) == "feedline, originals 500 480-520 250 1.00 1.25 s 2.00"
    assert " ".join(lines[4].split()) == "bare, originals 510 500-540 255 1.04 - 2.00"
    assert " ".join(lines[5].split()) == "torch, originals 250 240-260 125 0.50 1.25 s 2.00"
    assert "256 px copies left out: they need up to 40 MB, and /tmp has 20 MB free" in lines
    assert "unreadable images skipped: 7, such as" in lines
    assert sum(line == f"  {path}: it is empty" for line in lines) == 3
    assert max(len(line) for line in lines if path not in line) <= 100


def test_the_numbers_of_a_large_folder_are_both_told() -> None:
    assert table(result(images=1_300_000)).startswith("100 of 1300000 images")


def test_a_result_is_json_with_units_in_its_names() -> None:
    rows = (*result().rows, row("feedline", "copies", 1500, 1440, 1600))
    everything = result(
        rows=rows,
        copies=COPIES,
        settings=Settings(folder=Path("photos"), against="torch"),
        left_out=[LeftOut("torch", "it broke")],
        skipped=[("a.jpg", "it is empty")],
    )
    read = json.loads(json.dumps(everything.as_dict(), allow_nan=False))
    assert read["settings"]["folder"] == "photos"
    assert read["data"]["height_px_median"] == 400
    first, _, third = read["rows"]
    assert first["images_per_s"] == {"median": 500.0, "low": 480.0, "high": 520.0}
    assert first["cpu_s_per_1000_images"] == 2.0
    assert [turn["images"] for turn in first["turns"]] == [5000, 4800, 5200]
    assert third["ratio_to_feedline"]["median"] == 3.0
    assert read["one_image"]["total_ms"] == 4.0
    assert read["loader_to_bare"]["originals"]["high"] <= 1
    assert read["copies"]["shorter_side_px"] == 256
    assert read["left_out"] == [{"what": "torch", "reason": "it broke"}]
    assert read["skipped"] == [{"file": "a.jpg", "reason": "it is empty"}]
