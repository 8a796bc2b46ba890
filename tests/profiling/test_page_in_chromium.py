"""The page in a real browser, also at the width of a phone."""

import shutil

import pytest
from runs import named, recorded, verdict

from feedline.profile.page import diagnosis_html, page
from feedline.profile.report import EpochMetrics, build_report
from slow import slow

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")

NASTY = "</title><script>document.body.dataset.run = 'yes'</script><img src=x onerror=alert(1)>"
LONG = "/data/" + "a-very-long-folder-name/" * 12 + "image.jpg"

LEARNED = [
    EpochMetrics(
        epoch=k,
        size_px=64 if k < 4 else 96,
        ended_s=3600.0 * k,
        train_loss=1 / k,
        val_loss=2 / k,
        val_top1=k / 10,
        val_top5=k / 8,
        lr=0.1,
    )
    for k in range(1, 9)
]


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    texts = {
        "usual": page(
            build_report(recorded(steps=30, sizes=(64, 96)), verdict(), LEARNED), "runs/1"
        ),
        "nasty": page(build_report(named(NASTY), verdict()), NASTY),
        "long": page(build_report(named(LONG), verdict()), LONG),
        "notebook": "<!DOCTYPE html><title>n</title><body>" + diagnosis_html(verdict()),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.fixture
def opened(browser, pages):
    """Open a page; requests and console messages are recorded in `asked` and `said`."""
    contexts = []

    def open(name, *, width=1200):
        context = browser.new_context(viewport={"width": width, "height": 900})
        contexts.append(context)
        tab = context.new_page()
        tab.asked, tab.said = [], []
        tab.on("request", lambda request: tab.asked.append(request.url))
        tab.on("console", lambda message: tab.said.append(message.text))
        tab.on("pageerror", lambda error: tab.said.append(str(error)))
        tab.goto(pages[name].as_uri())
        return tab

    yield open
    for context in contexts:
        context.close()


@pytest.mark.parametrize("name", ["usual", "nasty", "long"])
def test_page_makes_no_requests_and_logs_no_errors(opened, name):
    tab = opened(name)
    assert [url.rpartition("/")[2] for url in tab.asked] == [f"{name}.html"]
    assert tab.said == []
    assert tab.evaluate("document.body.dataset.run") is None
    assert tab.evaluate("document.images.length") == 0


@pytest.mark.parametrize("name", ["usual", "nasty", "long", "notebook"])
@pytest.mark.parametrize("width", [320, 1600, *slow(360, 768)])
def test_nothing_overflows_the_page(opened, name, width):
    tab = opened(name, width=width)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    wide = tab.evaluate(
        "[...document.querySelectorAll('.lanes svg, .chart, .split')]"
        ".filter(e => e.getBoundingClientRect().right > innerWidth).length"
    )
    assert wide == 0
