"""The list of private names of other libraries is complete, and true of those installed."""

import ast
import importlib
import inspect
import pkgutil
import sys
from pathlib import Path

import pytest

import feedline
from feedline.errors import UsageError
from feedline.private_names import PRIVATE_NAMES, find_private

SOURCES = Path(feedline.__file__).parent
DOCUMENTED = {"_asdict"}
"""Names that begin with an underscore but are documented."""


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def own_names(nodes):
    """Names that feedline defines: functions, classes, variables, attributes of `self`."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            place = node.value
            yield from [node.attr] * (isinstance(place, ast.Name) and place.id in ("self", "cls"))


def used_names(nodes):
    """Private names that are imported, read as attributes, or written as whole strings."""
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        names = []
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(each.name for each in node.names)]
        elif isinstance(node, ast.Import):
            names = [part for each in node.names for part in each.name.split(".")]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            dotted = node.value.replace(".", "").isidentifier() and id(node) not in parts
            names = node.value.split(".") if dotted else []
        yield from filter(is_private, names)


def test_every_private_name_in_the_sources_is_listed_once():
    sources = {path: list(ast.walk(ast.parse(path.read_text()))) for path in SOURCES.rglob("*.py")}
    own = {name for nodes in sources.values() for name in own_names(nodes)}
    own |= {path.stem for path in SOURCES.rglob("_*.pyi")}  # native modules
    listed = {part for each in PRIVATE_NAMES for part in each.name.split(".")}
    known = own | listed | DOCUMENTED
    unlisted = {
        f"{path.relative_to(SOURCES)}: {name}"
        for path, nodes in sources.items()
        if path.stem != "private_names"
        for name in used_names(nodes)
        if name not in known
    }
    assert not unlisted
    names = [each.name for each in PRIVATE_NAMES]
    assert sorted(set(names)) == sorted(names)


def exists(name):
    """Return True if a name exists, as an object or as an attribute of a class's instances."""
    try:
        pkgutil.resolve_name(name)
    except AttributeError:
        place, _, last = name.rpartition(".")
        kind = pkgutil.resolve_name(place)
        return isinstance(kind, type) and any(
            last in inspect.getsource(each) for each in kind.__mro__[:-1]
        )
    return True


@pytest.mark.parametrize("listed", PRIVATE_NAMES, ids=lambda each: each.name)
def test_installed_libraries_have_the_listed_names(listed):
    if listed.name.startswith("_winapi") and sys.platform != "win32":
        pytest.skip("Windows only")
    pytest.importorskip(listed.name.partition(".")[0])
    assert listed.fallback or exists(listed.name)
    assert listed.versions


def test_a_missing_name_is_an_error_with_its_versions(monkeypatch):
    torch_utils = importlib.import_module("torch._utils")
    monkeypatch.delattr(torch_utils, "KeyErrorMessage")
    with pytest.raises(UsageError, match=r"torch .* has no torch\._utils\.KeyErrorMessage"):
        find_private("torch._utils.KeyErrorMessage")
    monkeypatch.undo()
    assert find_private("torch._utils.KeyErrorMessage") is torch_utils.KeyErrorMessage
