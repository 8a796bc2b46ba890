"""Comparable runs are compared; others are rejected with the reason."""

from dataclasses import replace

import pytest
from runs import LOADER, MACHINE, PHASE, points, verdict

from feedline.errors import UsageError
from feedline.profile.compare import compare
from feedline.profile.finding import Finding
from feedline.profile.report import build_report, rate_intervals
from feedline.timing.run import Run

WOBBLE = (0.98, 1.02, 1.0, 0.97, 1.03, 0.99, 1.01)


def facts(rate=1000.0, **changed):
    """A run at this rate, which varies by a few percent."""
    made = build_report(
        Run(
            machine=MACHINE,
            loaders=[LOADER],
            course=points([rate * wobble for wobble in WOBBLE * 9]),
        ),
        verdict(phases=[replace(PHASE, images_per_s=rate)]),
    )
    return replace(made, **{"images_per_s": rate, **changed})


@pytest.mark.parametrize(
    ("rate", "status", "said"),
    [
        (1200, 0, "faster, beyond the spread."),
        (900, 1, "slower, beyond the spread."),
        (999, 0, "no difference beyond the spread."),
    ],
)
def test_a_difference_beyond_the_spread_is_reported(rate, status, said):
    found = compare(facts(1000), facts(rate))
    assert (found.status, found.said.endswith(said)) == (status, True)
    assert found.ratio is not None
    assert found.ratio.times == pytest.approx(rate / 1000)
    assert found.ratio.low is not None
    assert 0.9 < found.ratio.low / found.ratio.times < 1
    (pair,) = found.phases
    assert pair.rates == (1000, rate)
    # Starts of passes count in the whole run, and not in a phase.
    found = compare(facts(images_per_s=500.0), facts(images_per_s=rate))
    assert (found.phases[0].rates, found.rates) == ((1000, 1000), pytest.approx((500, rate)))
    assert (found.status, found.ratio.times) == (0, pytest.approx(rate / 500))


def test_a_run_that_is_too_short_is_inconclusive():
    short = facts(1200, throughput_history=rate_intervals(points([1200.0, 1200.0])))
    found = compare(facts(1000), short)
    assert found.status == 3
    assert "1.20x as fast as A; a run is too short" in found.said
    unknown = facts(phases=[replace(PHASE, images_per_s=None)])
    found = compare(facts(), unknown)
    assert found.status == 3
    assert [pair.wait_pct for pair in found.phases] == [(PHASE.wait_pct, PHASE.wait_pct)]
    assert compare(facts(1000), facts(1200, bound="inconclusive")).status == 3


def test_a_run_disturbed_by_other_programs_is_not_comparable():
    busy = Finding(rule="busy-machine", cause="Other programs.", evidence="load 9")
    other = Finding(rule="decode-bound", cause="Decoding.", evidence="75%")
    for pair in ((facts(), facts(700, findings=[busy])), (facts(findings=[busy]), facts(700))):
        assert compare(*pair).status == 4
    # If there is another cause, the difference may be that one's.
    assert compare(facts(), facts(700, findings=[busy, other])).status == 1


def test_phases_are_compared_one_by_one_and_together_by_their_time():
    def two(first, second):
        course = points([first * wobble for wobble in WOBBLE * 4])
        course += points([second * wobble for wobble in WOBBLE * 4], size=128)
        phases = [
            replace(PHASE, images_per_s=first),
            replace(PHASE, image_size=128, images_per_s=second),
        ]
        rate = 2 / (1 / first + 1 / second)
        return facts(rate, phases=phases, throughput_history=rate_intervals(course))

    found = compare(two(1000, 500), two(1000, 1000))
    assert [pair.ratio.times for pair in found.phases if pair.ratio] == [1.0, 2.0]
    assert found.ratio is not None
    assert found.ratio.times == pytest.approx((1.6 + 3.2) / (1.6 + 1.6))
    assert found.rates == pytest.approx((3200 / 4.8, 1000))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"machine": replace(MACHINE, cpu="Another")}, "processor 'A Processor of 2 Cores' and"),
        ({"machine": replace(MACHINE, quota_cores=1.5)}, "CPU quota none and 1.5"),
        ({"machine": replace(MACHINE, gpu="H200")}, "GPU none and 'H200'"),
        ({"machine": replace(MACHINE, memory_bytes=8 << 30)}, "memory "),
        ({"world_size": 8}, "processes of the training 1 and 8"),
        ({"loaders": [replace(LOADER, dataset="other.Set")]}, "dataset 'torchvision.datasets"),
        ({"loaders": [replace(LOADER, batch_size=7)]}, "batch size 8 and 7"),
        ({"loaders": [LOADER, LOADER]}, "number of loaders 1 and 2"),
        ({"phases": [replace(PHASE, image_size=224)]}, "phases 64 px @8 and 224 px @8"),
        ({"phases": []}, "phases 64 px @8 and none"),
    ],
)
def test_incomparable_runs_are_rejected(changed, words):
    with pytest.raises(UsageError, match="cannot be compared") as refused:
        compare(facts(), facts(**changed))
    assert words in str(refused.value)


def test_changed_or_unknown_facts_are_reported_without_error():
    other = facts(
        machine=replace(
            MACHINE, host="there", memory_bytes=23 << 30, versions={"feedline": "0.2.0"}
        ),
        loaders=[replace(LOADER, kind="feedline", name="feedline.DataLoader", samples=None)],
        settings={"lr": "0.1"},
    )
    found = compare(facts(), other)
    changed = {name: (one, two) for name, one, two in found.changed}
    assert changed["loader: kind"] == ("torch", "feedline")
    assert changed["version: feedline"] == ("0.1.0", "0.2.0")
    assert changed["lr"] == ("", "0.1")
    assert changed["host"] == ("here", "there")
    said = " ".join(found.notes)
    assert "two different hosts" in said
    assert "number of samples of the second run is unknown" in said
