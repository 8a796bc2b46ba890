"""The notebook of the whole story: executed, cleaned of what is one machine's, shown on the site.

    python docs/notebook.py        executes examples/story.ipynb, and keeps what its cells say

Guarantees: a cell that fails is an error, and then the file stays as it was. What is kept names no
folder, user or host of the machine that it ran on.
Relies on: nbclient and ipykernel, for the execution alone. The site needs neither: a notebook is
JSON, and mkdocs asks `on_page_markdown` for the page.
"""

from __future__ import annotations

import base64
import getpass
import json
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["as_markdown", "cleaned", "executed", "on_page_markdown"]

NOTEBOOK = Path(__file__).parents[1] / "examples" / "story.ipynb"
PAGE = "STORY.md"
CELL_S = 300
"""How long a cell may take, in seconds."""

Notebook = dict[str, Any]


def executed(path: Path = NOTEBOOK) -> Notebook:
    """A notebook with what its cells say when they run in an empty folder.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=CELL_S,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": folder}},
        )
        tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        client.execute(env={**os.environ, "PATH": tools, "COLUMNS": "100", "NO_COLOR": "1"})
        found: Notebook = json.loads(nbformat.writes(notebook))
        return cleaned(found, [f"{Path(folder).resolve()}/", f"{folder}/"])


def cleaned(notebook: Notebook, folders: list[str]) -> Notebook:
    """The same without messages on stderr, and with no name of this machine.

    Args:
        notebook: executed.
        folders: that paths are said without.
    """
    paths = dict.fromkeys(folders, "") | {f"{sys.prefix}/": "", f"{Path.home()}/": "~/"}
    words = {socket.gethostname(): "host", getpass.getuser(): "user"}
    words.pop("root", None)  # names nobody, and is a word of its own

    def without(text: str) -> str:
        for path, instead in paths.items():
            text = text.replace(path, instead)
        for word, instead in words.items():
            text = re.sub(rf"\b{re.escape(word)}\b", instead, text)
        return text

    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        cell["outputs"] = _joined(each for each in cell["outputs"] if each.get("name") != "stderr")
        for output in cell["outputs"]:
            if "text" in output:
                output["text"] = _lines(without("".join(output["text"])))
            for kind, data in output.get("data", {}).items():
                output["data"][kind] = _lines(without("".join(data)))
    return notebook


def _joined(outputs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was said in parts, which are cut anywhere, as one."""
    found: list[dict[str, Any]] = []
    for output in outputs:
        if found and "text" in output and "text" in found[-1]:
            found[-1]["text"] = ["".join([*found[-1]["text"], *output["text"]])]
        else:
            found.append(output)
    return found


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def as_markdown(notebook: Notebook) -> str:
    """The cells and what they said, as a page."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        language, code = (
            ("bash", source[7:]) if source.startswith("%%bash\n") else ("python", source)
        )
        parts.append(_fenced(language, code))
        parts += [_shown(output) for output in cell["outputs"]]
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any]) -> str:
    data = {kind: "".join(value) for kind, value in output.get("data", {}).items()}
    if svg := data.get("image/svg+xml"):
        coded = base64.b64encode(svg.encode()).decode()
        return f'<img alt="what the cell drew" src="data:image/svg+xml;base64,{coded}">'
    if html := data.get("text/html"):
        return f"<div>\n{html}\n</div>"
    return _fenced("text", "".join(output.get("text", [data.get("text/plain", "")])))


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The site's page of the notebook has its cells below what it says itself."""
    if page.file.src_uri != PAGE:
        return markdown
    return f"{markdown}\n\n{as_markdown(json.loads(NOTEBOOK.read_text()))}"


def _main() -> None:
    text = json.dumps(executed(), indent=1, ensure_ascii=False) + "\n"
    NOTEBOOK.write_text(text)
    print(f"{NOTEBOOK.name}: {len(text) / 1000:.0f} kB")


if __name__ == "__main__":
    _main()
