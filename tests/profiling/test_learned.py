"""Training figures of a run, read and plotted for any values."""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import MACHINE, UNKNOWN, recorded, verdict

from feedline.profile.epoch_metrics import EpochMetrics, read_epoch_metrics
from feedline.profile.page import page
from feedline.profile.report_data import build_report
from feedline.profile.tables import learned_table
from feedline.profile.training_curves import training_curves
from feedline.timing.run import Run


def line(epoch: int, size: int = 64, **changes: Any) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "size_px": size,
        "seconds": 10.0,
        "first_wait_s": 1.0,
        "val_seconds": 2.0,
        "train_loss": 2.0 / epoch,
        "val_loss": 2.5 / epoch,
        "val_top1": 1 - 1 / (epoch + 1),
        "val_top5": None,
        "lr": 0.1 * epoch,
        **changes,
    }


def write(folder: Path, lines: list[Any]) -> Path:
    text = "".join(each if isinstance(each, str) else json.dumps(each) + "\n" for each in lines)
    (folder / "metrics.jsonl").write_text(text)
    return folder


def learned(folder: Path, *lines: Any) -> list[EpochMetrics]:
    found, note = read_epoch_metrics(write(folder, list(lines)))
    assert note == ""
    return found


def texts(html: str) -> str:
    said: list[str] = []
    parser = HTMLParser()
    parser.handle_data = said.append  # type: ignore[method-assign]
    parser.feed(html)
    return " ".join(said)


def test_all_lines_of_a_long_file_are_read(tmp_path: Path) -> None:
    text = "".join(f'{{"epoch": {epoch}}}\n' for epoch in range(1, 100_001))
    (tmp_path / "metrics.jsonl").write_text(text)
    epochs, note = read_epoch_metrics(tmp_path)
    assert (len(epochs), epochs[-1].epoch, note) == (100_000, 100_000, "")


def test_epochs_are_read_with_the_time_trained_by_their_end(tmp_path: Path) -> None:
    found = learned(tmp_path, line(1), line(2, 96, val_seconds=None))
    assert [each.ended_s for each in found] == [13.0, 24.0]
    assert found[1].image_size == 96
    assert found[0].top5 is None
    assert found[0].top1 == 0.5


def test_a_folder_without_figures_has_no_epochs(tmp_path: Path) -> None:
    assert read_epoch_metrics(tmp_path) == ([], "")
    write(tmp_path, [])
    assert read_epoch_metrics(tmp_path) == ([], "")
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").mkdir()
    assert read_epoch_metrics(tmp_path) == ([], "")


def test_invalid_epochs_are_skipped_and_counted(tmp_path: Path) -> None:
    torn = ['{"epoch": 3, "tra\n', "[1]\n", '{"epoch": "4"}\n', "[" * 100_000 + "\n"]
    found, note = read_epoch_metrics(
        write(tmp_path, [line(1), *torn, line(1), {"epoch": 0}, line(5)])
    )
    assert [each.epoch for each in found] == [1, 5]
    assert note.startswith("6 lines of metrics.jsonl")


def test_non_numbers_are_not_figures(tmp_path: Path) -> None:
    (found,) = learned(
        tmp_path,
        line(1, train_loss=math.nan, val_loss=math.inf, val_top1=7.0, lr="x", size_px=True),
    )
    assert found == EpochMetrics(epoch=1, ended_s=13.0)
    big = '{"epoch": 1, "train_loss": 1' + "0" * 400 + "}\n"
    (found,) = learned(tmp_path, big)
    assert (found.loss, found.ended_s) == (None, None)


def test_chart_shows_known_values_and_phases(tmp_path: Path) -> None:
    found = learned(tmp_path, line(1), line(2), line(3, 96), line(4, 96))
    chart = training_curves(found)
    assert chart is not None
    assert [each.name for each in chart.lines] == ["training", "validation"]
    assert chart.words == (
        "training loss 2 in epoch 1, 0.5 in 4, best 0.5 in 4; "
        "validation loss 2.5 in epoch 1, 0.625 in 4, best 0.625 in 4; "
        "validation accuracy 50% in epoch 1, 80% in 4, best 80% in 4"
    )
    assert [(mark.at, mark.label) for mark in chart.phases] == [(0, "64 px"), (50, "96 px")]
    assert [each.at for each in chart.epochs] == [12.5, 37.5, 62.5, 87.5]
    assert chart.went_on is None
    ys = [y for _, y, _ in chart.lines[0].dots]
    assert ys == sorted(ys), "a loss that falls goes down"


def test_one_epoch_is_a_dot(tmp_path: Path) -> None:
    chart = training_curves(learned(tmp_path, line(1, val_loss=None, val_top1=None)))
    assert chart is not None
    assert chart.lines[0].pieces == []
    ((x, y, _),) = chart.lines[0].dots
    assert (x, y) == pytest.approx((50, 50))


def test_missing_figure_leaves_a_gap(tmp_path: Path) -> None:
    lines = [line(k, train_loss=math.nan) if k == 3 else line(k) for k in range(1, 6)]
    chart = training_curves(learned(tmp_path, *lines))
    assert chart is not None
    training = chart.lines[0]
    assert len(training.pieces) == 2
    assert len(training.dots) == 4


def test_thousands_of_epochs_are_drawn_in_some_hundred(tmp_path: Path) -> None:
    chart = training_curves(learned(tmp_path, *(line(k) for k in range(1, 3001))))
    assert chart is not None
    drawn = chart.lines[0]
    assert 100 < len(drawn.pieces) < 200
    assert drawn.dots == []
    assert "are drawn, evenly spaced" in chart.note
    assert len(chart.epochs) <= 9


def test_resumed_start_is_marked(tmp_path: Path) -> None:
    found = learned(tmp_path, line(1), line(2), line(3), line(4))
    run = recorded()
    assert build_report(run, verdict(), found).resumed_at_epoch is None
    for each in run.passes:
        each.epoch += 2
    facts = build_report(run, verdict(), found)
    assert facts.resumed_at_epoch == 2
    chart = training_curves(facts.epochs_trained, facts.resumed_at_epoch)
    assert chart is not None
    assert chart.went_on == 50
    assert "Dotted: the latest start resumed here." in texts(page(facts, "x"))


def test_page_shows_training_as_plots_text_and_table(tmp_path: Path) -> None:
    found = learned(tmp_path, line(1, val_top5=0.75), line(2, 96))
    facts = build_report(recorded(sizes=(64, 96)), verdict(), found)
    html = page(facts, "runs/1")
    said = texts(html)
    assert "Training curves" in said
    assert "validation accuracy 50% in epoch 1, 67% in 2, best 67% in 2" in said
    for kind in ("train", "val"):
        assert f'<g class="line-{kind}">' in html
    assert learned_table(facts).rows[0] == [
        *("1", "64", "2", "2.5", "50.0%", "75.0%", "0.1", "13 s")
    ]
    assert build_report(recorded(), verdict(), [], "figures lack").notes[-1] == "figures lack"


def test_page_without_training_omits_chart() -> None:
    assert "Training curves" not in page(build_report(Run(machine=MACHINE), UNKNOWN), "x")


def test_training_without_finished_epoch_is_reported() -> None:
    run = Run(machine=MACHINE, settings={"model": "x"})
    assert "No epoch has finished." in page(build_report(run, UNKNOWN), "x")


_figure = st.none() | st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(_figure, _figure, st.none() | st.integers(1, 1 << 30)), max_size=30))
def test_any_figures_can_be_drawn(figures: list[tuple[Any, Any, Any]]) -> None:
    found = [
        EpochMetrics(epoch=k, loss=loss, lr=lr, image_size=size)
        for k, (loss, lr, size) in enumerate(figures, 1)
    ]
    chart = training_curves(found)
    assert (chart is None) == (not figures)
    if chart is not None:
        places = [
            value
            for each in chart.lines
            for piece in (*each.pieces, *(dot[:2] for dot in each.dots))
            for value in piece
        ]
        assert all(0 <= value <= 100 for value in places)


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-300, 1e300])
def test_a_figure_that_never_changes_has_a_place(value: float) -> None:
    chart = training_curves([EpochMetrics(epoch=k, loss=value) for k in (1, 2)])
    assert chart is not None
    (_, y, _), _ = chart.lines[0].dots
    assert y == pytest.approx(50)
