"""The page as text: one file, nothing from elsewhere, everything escaped."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from runs import MACHINE, UNKNOWN, named, recorded, verdict

from feedline.profile.finding import Finding, Gain
from feedline.profile.page import diagnosis_html, page, ticks, training_curves
from feedline.profile.report import EpochMetrics, build_report
from feedline.timing.run import Run

VOID = {"meta", "link", "br", "hr", "img", "input"}
NASTY = "</title></style><script>alert(1)</script><img src=x onerror=alert(1)>\"' &amp; {{ 7*7 }}"


class Elements(HTMLParser):
    """Elements of a page with their attributes; fails if they are not nested properly."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.text = ""
        self._open = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += f"{data} "


@pytest.fixture(scope="module")
def facts():
    return build_report(recorded(sizes=(64, 96)), verdict())


def assert_harmless(text):
    """No script, no handler, and nothing that is fetched."""
    made = Elements(text)
    tags = {tag for tag, _ in made.found}
    assert not tags & {"script", "iframe", "object", "embed", "link", "img", "base", "form", "a"}
    for _, attributes in made.found:
        for name, value in attributes.items():
            assert not name.startswith("on")
            assert name not in ("src", "href", "xlink:href", "action", "style") or (
                name == "style" and value in ("position:absolute", "stroke-width:1")
            )
    assert re.findall(r"url\(([^)]*)\)", text) == [
        f"#fl-{name}"
        for name in ("making", "starts", "copying", "nobody", "unknown", "others", "behind")
    ]
    assert "@import" not in text
    return made


def test_page_is_self_contained(facts):
    text = page(facts, "runs/1")
    made = assert_harmless(text)
    policy = [a["content"] for tag, a in made.found if a.get("http-equiv")]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert "http" not in re.sub(r'http-equiv|xmlns="[^"]*"', "", text)
    said = " ".join(made.text.split())
    for words in (
        "decode-bound Decoding takes most of the workers' time.",
        "Fix Build a cache of 128 px copies",
        "Gain 1.80x as fast (1.60 to 2.00)",
        "transform: Resize",
        "how busy the GPU was: there is none",
    ):
        assert words in said, words
    assert len(text) < 400_000


def test_every_figure_has_a_text_alternative(facts):
    made = Elements(page(facts, "runs/1"))
    labels = [a["aria-label"] or "" for t, a in made.found if t == "svg" and "aria-label" in a]
    for words in ("worker 0: ", "Time: waiting", "Images per second over"):
        assert any(label.startswith(words) for label in labels)
    assert all("%" in label or "images/s" in label or " ms" in label for label in labels)


def test_names_are_escaped():
    gain = Gain(predicted=1.0, low=1.0, high=1.0)
    finding = Finding(rule=NASTY, cause=NASTY, evidence=NASTY, fix=NASTY, gain=gain)
    said = verdict(findings=[finding])
    made = assert_harmless(page(build_report(named(NASTY), said), NASTY))
    assert made.text.count("{{ 7*7 }}") > 10
    assert "49" not in re.findall(r"\b49\b", made.text)
    notebook = assert_harmless(diagnosis_html(said))
    assert notebook.text.count("<script>alert(1)</script>") == 4
    name = "a\x00b\x1b[31mc\u202ed\udce9"
    text = page(build_report(named(name), UNKNOWN), name)
    assert "a\\x00b\\x1b[31mc\\u202ed\\udce9" in text
    text.encode()


def test_page_of_empty_run_renders():
    made = Elements(page(build_report(Run(machine=MACHINE), UNKNOWN), "x"))
    said = " ".join(made.text.split())
    assert "Inconclusive" in said
    assert "no timeline" in said
    assert "Throughput over time Not measured." in said
    assert "computing not measured" in said


@pytest.mark.parametrize(
    ("length", "found"),
    [
        (7.0, [0, 2, 4, 6]),
        (1e-4, [0, 2e-5, 4e-5, 6e-5, 8e-5, 1e-4]),
        (0.0, []),
        (float("nan"), []),
    ],
)
def test_an_axis_has_a_few_round_places(length, found):
    assert ticks(length) == pytest.approx(found)


def trained(*losses, sizes=(64, 64, 96, 96)):
    return [
        EpochMetrics(
            epoch=k,
            size_px=sizes[min(k, len(sizes)) - 1],
            train_loss=loss,
            val_loss=None if loss is None else 1.25 * loss,
            val_top1=1 - 1 / (k + 1),
        )
        for k, loss in enumerate(losses, 1)
    ]


def places(path):
    pairs = (part.removesuffix("h0").split() for part in re.split("[ML]", path)[1:])
    return [(float(x), float(y)) for x, y in pairs]


def test_curves_show_known_values_and_phases():
    chart = training_curves(trained(2.0, 1.0, 0.75, 0.5))
    assert chart is not None
    assert list(chart["lines"]) == ["training", "validation"]
    assert "training loss 2 in epoch 1, 0.5 in epoch 4, best 0.5 in epoch 4" in chart["words"]
    assert "validation accuracy 50.0% in epoch 1, 80.0% in epoch 4, best 80" in chart["words"]
    assert [(mark.at, mark.label) for mark in chart["phases"]] == [(0, "64 px"), (50, "96 px")]
    xs, ys = zip(*places(chart["lines"]["training"]), strict=True)
    assert xs == (12.5, 37.5, 62.5, 87.5)
    assert list(ys) == sorted(ys), "a loss that falls goes down"
    assert chart["resumed"] is None


def test_missing_figure_leaves_a_gap_and_one_epoch_is_a_dot():
    chart = training_curves(trained(5.0, 4.0, None, 2.0))
    assert chart is not None
    assert chart["lines"]["training"].count("M") == 2
    chart = training_curves(trained(5.0))
    assert chart is not None
    assert places(chart["lines"]["training"])[0][0] == 50
    many = training_curves(trained(*(1 / k for k in range(1, 3001))))
    assert many is not None
    assert 100 < len(places(many["lines"]["training"])) <= 200


def test_page_shows_training_and_marks_a_resumed_start():
    run = recorded()
    epochs = trained(4.0, 3.0, 2.0, 1.0)
    assert build_report(run, verdict(), epochs).resumed_at_epoch is None
    for each in run.passes:
        each.epoch += 2
    report = build_report(run, verdict(), epochs)
    assert report.resumed_at_epoch == 2
    chart = training_curves(report.epochs_trained, report.resumed_at_epoch)
    assert chart is not None
    assert chart["resumed"] == 50
    assert "the latest start resumed here" in page(report, "x")
    # Curves, text and table.
    epochs = trained(2.0, 1.0, sizes=(64, 96))
    text = page(build_report(recorded(sizes=(64, 96)), verdict(), epochs), "runs/1")
    said = Elements(text).text
    assert "Training curves" in said
    assert "best 66.7% in epoch 2" in said
    assert text.count('<path class="line-validation"') == 2  # and in the legend
    assert "Training curves" not in page(build_report(Run(machine=MACHINE), UNKNOWN), "x")
    unfinished = build_report(Run(machine=MACHINE, settings={"model": "x"}), UNKNOWN)
    assert "No epoch has finished." in page(unfinished, "x")


_figure = st.none() | st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(_figure, st.none() | st.integers(1, 1 << 30)), max_size=30))
@example([(-1.67e308, None)])  # its axis would begin at minus infinity
def test_any_figures_can_be_drawn(figures):
    epochs = [
        EpochMetrics(epoch=k, train_loss=loss, size_px=size)
        for k, (loss, size) in enumerate(figures, 1)
    ]
    chart = training_curves(epochs)
    assert (chart is None) == (not figures)
    for path in chart["lines"].values() if chart else ():
        assert all(0 <= value <= 100 for point in places(path) for value in point)
    for value in (0.0, -1.0, 1e-300, 1e300):  # a figure that never changes
        chart = training_curves([EpochMetrics(epoch=k, train_loss=value) for k in (1, 2)])
        assert places(chart["lines"]["training"])[0][1] == pytest.approx(50)
