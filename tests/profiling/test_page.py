"""The page as text: one file, nothing from elsewhere, everything escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from runs import MACHINE, UNKNOWN, named, recorded, verdict

from feedline.profile.chart import ticks
from feedline.profile.finding import Finding, Gain
from feedline.profile.page import diagnosis_html, page
from feedline.profile.report_data import ReportData, build_report
from feedline.timing.run import Run

VOID = {"meta", "link", "br", "hr", "img", "input"}
NASTY = "</title></style><script>alert(1)</script><img src=x onerror=alert(1)>\"' &amp; {{ 7*7 }}"


class Elements(HTMLParser):
    """Elements of a page with their attributes; fails if they are not nested properly."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


@pytest.fixture(scope="module")
def facts() -> ReportData:
    return build_report(recorded(sizes=(64, 96)), verdict())


def assert_harmless(text: str) -> Elements:
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
        f"#fl-{name}" for name in ("making", "copying", "nobody", "unknown", "others", "behind")
    ]
    assert "@import" not in text
    return made


def test_page_is_self_contained(facts: ReportData) -> None:
    text = page(facts, "runs/1")
    made = assert_harmless(text)
    policy = [a["content"] for tag, a in made.found if a.get("http-equiv")]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert "http" not in re.sub(r'http-equiv|xmlns="[^"]*"', "", text)
    assert len(text) < 400_000


def test_page_has_content_of_terminal_report(facts: ReportData) -> None:
    said = " ".join(Elements(page(facts, "runs/1")).text.split())
    for words in (
        "feedline report: runs/1",
        "Highly input-bound: data wait is 41% of the time.",
        "copying to the device not measured",
        "Now 1000 images/s; compute-bound 1702 images/s",
        "decode-bound Decoding takes most of the workers' time.",
        "Fix Build a cache of 128 px copies",
        "Gain 1.80x as fast (1.60 to 2.00)",
        "The latest steps",
        "worker 0",
        "not recorded",
        "64 px",
        "96 px",
        "transform: Resize",
        "torchvision.datasets.folder.ImageFolder",
        "how busy the GPU was: there is none",
    ):
        assert words in said, words


def test_every_figure_has_a_text_alternative(facts: ReportData) -> None:
    made = Elements(page(facts, "runs/1"))
    for tag, attributes in made.found:
        if tag == "svg" and attributes.get("role") != "img" and "aria-hidden" not in attributes:
            assert set(attributes) <= {"y", "width", "height", "overflow"}  # within a picture
    labels = [a["aria-label"] or "" for t, a in made.found if t == "svg" and "aria-label" in a]
    assert any(label.startswith("worker 0: ") for label in labels)
    assert any(label.startswith("Time: waiting") for label in labels)
    assert any(label.startswith("Images per second over") for label in labels)
    figures = ("%" in label or "images/s" in label or " ms" in label for label in labels)
    assert all(figures)


def test_names_are_escaped() -> None:
    said = verdict(
        findings=[
            Finding(
                rule=NASTY,
                cause=NASTY,
                evidence=NASTY,
                fix=NASTY,
                gain=Gain(predicted=1.0, low=1.0, high=1.0),
            )
        ]
    )
    made = assert_harmless(page(build_report(named(NASTY), said), NASTY))
    assert made.text.count("{{ 7*7 }}") > 10
    assert "49" not in re.findall(r"\b49\b", made.text)
    notebook = assert_harmless(diagnosis_html(said))
    assert notebook.text.count("<script>alert(1)</script>") == 4


def test_unusual_characters_of_names_are_escaped() -> None:
    name = "a\x00b\x1b[31mc\u202ed\udce9"
    text = page(build_report(named(name), UNKNOWN), name)
    assert "a\\x00b\\x1b[31mc\\u202ed\\udce9" in text
    text.encode()


def test_page_of_empty_run_renders() -> None:
    made = Elements(page(build_report(Run(machine=MACHINE), UNKNOWN), "x"))
    said = " ".join(made.text.split())
    assert "Inconclusive" in said
    assert "no timeline" in said
    assert "Throughput over time Not measured." in said
    assert "computing not measured" in said


@pytest.mark.parametrize(
    ("length", "found"),
    [
        (10.0, [0, 2, 4, 6, 8, 10]),
        (1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (7.0, [0, 2, 4, 6]),
        (1e-4, [0, 2e-5, 4e-5, 6e-5, 8e-5, 1e-4]),
        (0.0, []),
        (float("nan"), []),
    ],
)
def test_an_axis_has_a_few_round_places(length: float, found: list[float]) -> None:
    assert ticks(length) == pytest.approx(found)
