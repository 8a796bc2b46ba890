"""Plot of the tried settings."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from feedline.throughput.windows import StepWindow
from feedline.tuning.curve import curve_svg
from feedline.tuning.result import TunedPhase, TuningResult
from feedline.tuning.search import LoaderSetting, LoaderTrial

_SVG = "{http://www.w3.org/2000/svg}"


def trial(workers: int, steps_per_s: float, error: float = 0.05) -> LoaderTrial:
    window = StepWindow(
        phase=None,
        steps=100,
        seconds=100 / steps_per_s,
        wait_s=0.0,
        tasks_s=1.0,
        on_core=None,
        queued=None,
        workers=workers,
    )
    setting = LoaderSetting(workers=workers, prefetch=3, task_ms=50.0)
    return LoaderTrial(setting=setting, window=window, error=error)


def phase(size: int | None, rates: dict[int, float], ceiling: float | None = 50.0) -> TunedPhase:
    trials = tuple(trial(workers, rate) for workers, rate in rates.items())
    return TunedPhase(
        size=size,
        batch_size=32,
        ceiling=ceiling,
        trials=trials,
        best=trials[-1] if trials else None,
        is_compute_bound=False,
        status="done",
        full_search_s=10.0,
    )


def tuned(*phases: TunedPhase) -> TuningResult:
    start = LoaderSetting(workers=2, prefetch=3, task_ms=50.0)
    return TuningResult(phases=phases, seconds=12.0, batch_size=32, start=start)


def drawn(found: TuningResult) -> ElementTree.Element:
    return ElementTree.fromstring(curve_svg(found))


def test_every_trial_has_a_mark_and_the_chosen_one_is_filled() -> None:
    picture = drawn(tuned(phase(112, {1: 10.0, 4: 38.0, 2: 20.0}), phase(224, {1: 9.0, 2: 12.0})))
    marks = [each for each in picture.iter() if "mark" in (each.get("class") or "").split()]
    assert [mark.find(f"{_SVG}title").text for mark in marks] == [  # type: ignore[union-attr]
        "1 worker: 320",
        "2 workers: 640",
        "4 workers: 1216",
        "1 worker: 288",
        "2 workers: 384",
    ]
    assert [mark.get("class") for mark in marks if "b" in mark.get("class", "")[-2:]] == [
        "mark l0 b0",
        "mark l1 b1",
    ]
    assert {mark.tag.removeprefix(_SVG) for mark in marks} == {"circle", "rect"}
    words = " ".join(picture.itertext())
    assert "images/s" in words
    assert "112 px, compute-bound" in words
    heights = [float(mark.get("cy", "0")) for mark in marks[:3]]
    assert heights == sorted(heights, reverse=True)


def test_outliers_are_not_drawn() -> None:
    words = " ".join(drawn(tuned(phase(None, {1: 1.0}, ceiling=1e9))).itertext())
    assert "all batches, compute-bound" not in words
    assert "all batches" in words


@pytest.mark.parametrize("found", [tuned(), tuned(phase(112, {}, None))])
def test_empty_result_is_not_drawn(found: TuningResult) -> None:
    assert "nothing was measured" in " ".join(drawn(found).itertext())


def test_many_workers_and_phases_stay_readable() -> None:
    rates = {workers: 1.0 + workers for workers in range(1, 100)}
    picture = drawn(tuned(*(phase(32 * k, rates) for k in range(1, 10))))
    labels = [each.text for each in picture.iter(f"{_SVG}text") if (each.text or "").isdecimal()]
    assert len(labels) < 30
    assert len(list(picture.iter(f"{_SVG}polyline"))) == 4


def test_plot_file_is_self_contained(tmp_path: Path) -> None:
    text = curve_svg(tuned(phase(112, {1: 10.0})))
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in text
