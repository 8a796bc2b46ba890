"""Write the list of names, signatures and summaries at the top of each reference page.

Run `python docs/reference_index.py` after a change of a public signature or docstring.
mkdocstrings fills in the directives only when the site is built; readers of the files
get the list.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parent / "reference"
BEGIN = "<!-- begin: python docs/reference_index.py -->"
END = "<!-- end -->"
_DIRECTIVE = re.compile(r"^::: (\S+)", re.MULTILINE)
_PLAIN = (bool, int, float, str, type(None))


def with_index(page: str) -> str:
    """The text of a page with a list of its directives; unchanged without any."""
    names = _DIRECTIVE.findall(page)
    if not names:
        return page
    page = re.sub(f"{BEGIN}.*?{END}\n\n", "", page, flags=re.DOTALL)
    title, _, rest = page.partition("\n\n")
    lines = "\n".join(line for name in names for line in _lines(name))
    return f"{title}\n\n{BEGIN}\n\n{lines}\n\n{END}\n\n{rest}"


def _lines(name: str) -> Iterator[str]:
    holder, _, last = name.rpartition(".")
    thing = getattr(importlib.import_module(holder), last)
    if not inspect.ismodule(thing):
        yield _line(name, thing, _signature(thing))
        return
    for member in thing.__all__:
        kind = getattr(thing, member)
        if inspect.isclass(kind):
            bases = ", ".join(base.__name__ for base in kind.__bases__)
            yield _line(f"{name}.{member}", kind, f"({bases})")


def _line(name: str, thing: Any, signature: str) -> str:
    summary = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    short = name.rpartition(".")[2]
    text = f"- [`{short}`](#{name})`{signature}`: {summary}"
    return textwrap.fill(
        text,
        110,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _signature(thing: Any) -> str:
    """Parameters and their defaults, without annotations."""
    plain = []
    for each in inspect.signature(thing).parameters.values():
        default = each.default
        if default is not each.empty and type(default) not in _PLAIN:
            default = ...
        plain.append(each.replace(annotation=each.empty, default=default))
    return str(inspect.Signature(plain)).replace("Ellipsis", "...")


if __name__ == "__main__":
    for path in sorted(PAGES.glob("*.md")):
        path.write_text(with_index(path.read_text()), newline="\n")
