"""Copy a suite: find it, patch it, and add a stand-in for torchdata."""

from __future__ import annotations

import shutil
from pathlib import Path

from patches import apply_patch, patches

__all__ = ["FILES", "SuiteNotFound", "copy_suite", "find_suite"]

FILES = ("test_dataloader.py", "test_state_dict.py", "test_sampler.py")

_HOME = Path("test/stateful_dataloader")
_SHIM = Path(__file__).parent / "shim"
_IMPORT = "from torchdata.stateful_dataloader import"


class SuiteNotFound(Exception):
    """The folder does not contain the suite."""


def find_suite(folder: Path) -> Path:
    """Folder of the suite's files: the given one, or their location in a checkout of pytorch/data.

    Raises:
        SuiteNotFound: no such folder, or files are missing.
    """
    if not folder.is_dir():
        raise SuiteNotFound(f"no such folder: {folder}")
    for place in (folder, folder / _HOME):
        if all((place / name).is_file() for name in FILES):
            return place
    missing = [name for name in FILES if not (folder / name).is_file()]
    raise SuiteNotFound(
        f"no suite in {folder}: looked for {', '.join(FILES)} there and in {folder / _HOME}; "
        f"missing: {', '.join(missing)}"
    )


def copy_suite(source: Path, target: Path, heals: bool) -> None:
    """Copy the suite into an empty folder, patched, with the stand-in for torchdata.

    Raises:
        SuiteChanged: a text that a patch replaces does not occur exactly once.
        SuiteNotFound: a file does not import the class to swap.
    """
    texts = {name: (source / name).read_text() for name in FILES}
    for name, text in texts.items():
        if _IMPORT not in text:
            raise SuiteNotFound(f"the suite changed: {source / name} has no line {_IMPORT!r}")
    for patch in patches(heals):
        texts[patch.file] = apply_patch(texts[patch.file], patch)
    without = shutil.ignore_patterns("__pycache__", "test_scripts.py")  # a test of frameworks.py
    shutil.copytree(_SHIM, target, dirs_exist_ok=True, ignore=without)
    for name, text in texts.items():
        (target / name).write_text(text)
    (target / "pytest.ini").write_text("[pytest]\n")
    (target / "tmp").mkdir()
