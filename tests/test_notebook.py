"""The notebook of the whole story: it runs, and what is kept of it is no one machine's."""

from __future__ import annotations

import getpass
import importlib
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "story.ipynb"
MOST_BYTES = 300_000

pytestmark = pytest.mark.skipif(not NOTEBOOK.exists(), reason="tests run apart from the repository")


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    yield importlib.import_module("notebook")
    sys.modules.pop("notebook", None)


def code_cells(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in found["cells"] if cell["cell_type"] == "code"]


def test_what_is_kept_was_executed_in_order_and_without_an_error() -> None:
    cells = code_cells(json.loads(NOTEBOOK.read_text()))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {
        *("stream", "display_data", "execute_result")
    }
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert {"text/html", "image/svg+xml"} <= kinds, "the verdict and the picture"


def test_what_is_kept_is_small_and_names_no_place_of_a_machine() -> None:
    text = NOTEBOOK.read_text()
    assert len(text.encode()) < MOST_BYTES
    for cell in code_cells(json.loads(text)):
        said = json.dumps(cell["outputs"])
        for place in ("/home/", "/root", "/tmp", "/usr", "/Users", "/work", "site-packages"):
            assert place not in said, (place, cell["source"])


def test_names_of_the_machine_are_taken_out(notebook: ModuleType) -> None:
    said = f"{sys.prefix}/bin at /tmp/xyz/demo-data for {getpass.getuser()}@{socket.gethostname()}"
    stream = {"output_type": "stream", "name": "stdout", "text": [said]}
    error = {"output_type": "stream", "name": "stderr", "text": ["a warning"]}
    shown = {"output_type": "display_data", "data": {"text/html": [f"<p>{said}</p>"]}}
    cell = {"cell_type": "code", "source": [], "outputs": [stream, error, shown]}
    (found,) = notebook.cleaned({"cells": [cell]}, ["/tmp/xyz/"])["cells"]
    assert len(found["outputs"]) == 2
    user = "root" if getpass.getuser() == "root" else "user"
    kept = f"bin at demo-data for {user}@host"
    assert found["outputs"][0]["text"] == [kept]
    assert found["outputs"][1]["data"]["text/html"] == [f"<p>{kept}</p>"]


def test_the_sites_page_has_the_cells(notebook: ModuleType) -> None:
    page = notebook.as_markdown(json.loads(NOTEBOOK.read_text()))
    assert page.startswith("# The whole story\n")
    assert "```bash\nfeedline demo-data demo-data" in page
    assert "```python\nimport torch\n" in page
    assert "data:image/svg+xml;base64," in page


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_runs(notebook: ModuleType) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    kept, found = json.loads(NOTEBOOK.read_text()), notebook.executed()
    assert [cell["source"] for cell in kept["cells"]] == [cell["source"] for cell in found["cells"]]
    for before, now in zip(code_cells(kept), code_cells(found), strict=True):
        assert bool(before["outputs"]) == bool(now["outputs"]), now["source"]
