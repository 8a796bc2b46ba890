"""Result of a search: reasons, arguments, other programs, and the plot."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from feedline.errors import UsageError
from feedline.tuning import result
from feedline.tuning.result import TunedPhase, TuningResult, curve_svg
from feedline.tuning.search import LoaderSetting, LoaderTrial
from throughput.phases import a_window

_SVG = "{http://www.w3.org/2000/svg}"


def trial(workers, steps_per_s, error=0.05):
    window = a_window(
        steps=100, seconds=100 / steps_per_s, wait_s=0.0, workers=workers, error=error
    )
    setting = LoaderSetting(workers=workers, prefetch=3, task_ms=50.0)
    return LoaderTrial(setting=setting, window=window)


def phase(size, rates, ceiling=50.0):
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


def tuned(*phases):
    start = LoaderSetting(workers=2, prefetch=3, task_ms=50.0)
    return TuningResult(phases=phases, seconds=12.0, batch_size=32, start=start)


@pytest.mark.parametrize(
    ("status", "text"), [("interrupted", "Ctrl-C"), ("budget", "30 s"), ("error", "KeyError: 3")]
)
def test_the_reason_for_an_empty_phase_names_the_end(status, text):
    error = "the step raised KeyError: 3" if status == "error" else ""
    empty = replace(phase(None, {}, None), status=status, full_search_s=30.0, error=error)
    assert empty.reason.startswith("not measured: ")
    assert text in empty.reason


def test_reason_names_the_bottleneck_unless_the_step_is_it():
    found = phase(224, {1: 16.0, 2: 18.5}, ceiling=50.0)
    assert "37% of the compute-bound rate" in found.reason
    assert "bottleneck: the cores" in replace(found, bottleneck="cores").reason
    bound = replace(found, is_compute_bound=True, bottleneck="compute")
    assert bound.reason.startswith("compute-bound: ")


def test_busy_machine_is_reported(monkeypatch):
    monkeypatch.setattr(result, "usable_cores", lambda: 4)
    quiet = phase(None, {1: 10.0, 2: 20.0})
    assert tuned(quiet).busy_machine == ""
    busy = tuned(replace(quiet, trials=tuple(replace(t, other_cores=2.5) for t in quiet.trials)))
    assert busy.as_dict()["other_cores"] == pytest.approx(2.5)
    assert "2.5 of 4 cores" in busy.busy_machine
    assert busy.busy_machine in str(busy)


@pytest.mark.parametrize("loader", ["feedline", "torch"])
def test_arguments_without_workers_have_no_prefetch(loader):
    start = LoaderSetting(workers=2, prefetch=2, pin=False)
    none = phase(None, {1: 10.0})
    assert none.best is not None
    best = replace(none.best, setting=replace(start, workers=0))
    found = replace(tuned(replace(none, best=best)), loader=loader, start=start)
    pin = {"pin_memory": False} if loader == "torch" else {}
    assert found.arguments == {"num_workers": 0, **pin}
    assert found.saved is not None
    assert found.saved.num_workers == 0


def test_workers_that_noted_no_times_allow_no_prediction():
    found = tuned(phase(None, {1: 10.0}))
    for ask in (lambda: found.what_if("gpu=2"), lambda: found.forecast("x1")):
        with pytest.raises(UsageError, match="no times"):
            ask()


def drawn(found):
    return ElementTree.fromstring(curve_svg(found))


def test_every_trial_has_a_mark_and_the_chosen_one_is_filled():
    picture = drawn(tuned(phase(112, {1: 10.0, 4: 38.0, 2: 20.0}), phase(224, {1: 9.0, 2: 12.0})))
    marks = [each for each in picture.iter() if "mark" in (each.get("class") or "").split()]
    assert [mark.find(f"{_SVG}title").text for mark in marks] == [
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
    far = " ".join(drawn(tuned(phase(None, {1: 1.0}, ceiling=1e9))).itertext())
    assert "all batches, compute-bound" not in far


@pytest.mark.parametrize("found", [tuned(), tuned(phase(112, {}, None))])
def test_empty_result_is_not_drawn(found):
    assert "nothing was measured" in " ".join(drawn(found).itertext())


def test_many_workers_and_phases_stay_readable():
    rates = {workers: 1.0 + workers for workers in range(1, 100)}
    picture = drawn(tuned(*(phase(32 * k, rates) for k in range(1, 10))))
    labels = [each.text for each in picture.iter(f"{_SVG}text") if (each.text or "").isdecimal()]
    assert len(labels) < 30
    assert len(list(picture.iter(f"{_SVG}polyline"))) == 4
