"""The public names, and an import that does nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import feedline

PACKAGE = Path(feedline.__file__).parent

NOTHING_HAPPENS = """
import os, sys, threading
before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
import feedline
heavy = {"torch", "numpy", "PIL", "cv2", "multiprocessing", "subprocess", "asyncio"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert threading.active_count() == 1
dir(feedline), feedline.__version__, repr(feedline)
assert not heavy & set(sys.modules), "looking around loads nothing"
assert not before or len(os.listdir("/proc/self/fd")) == len(before)
assert {name for name in sys.modules if name.startswith("feedline")} == {"feedline"}
"""


@pytest.mark.parametrize("name", feedline.__all__)
def test_every_public_name_resolves_and_is_cached(name):
    value = getattr(feedline, name)
    assert vars(feedline)[name] is value
    if name != "__version__":
        assert value.__name__ == name
        assert value.__doc__


def test_dir_lists_the_public_names_and_others_are_an_attribute_error():
    assert dir(feedline) == sorted(feedline.__all__)
    assert len(set(feedline.__all__)) == len(feedline.__all__)
    with pytest.raises(AttributeError, match="'feedline' has no attribute 'Dataloader'"):
        feedline.Dataloader  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from feedline import nothing  # noqa: F401


def test_type_checkers_see_exactly_the_public_names():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    assert len(blocks) == 1
    imported = {
        alias.name
        for node in ast.walk(blocks[0])
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == set(feedline.__all__) - {"__version__"}


def test_importing_feedline_loads_no_library_and_starts_nothing():
    done = subprocess.run([sys.executable, "-c", NOTHING_HAPPENS], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
