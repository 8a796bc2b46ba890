"""The copy of a suite that is run: found, copied, patched, with a stand-in for torchdata."""

from __future__ import annotations

import shutil
from pathlib import Path

from patches import applied, patches

__all__ = ["FILES", "NoSuite", "copied", "found"]

FILES = ("test_dataloader.py", "test_state_dict.py", "test_sampler.py")

_HOME = Path("test/stateful_dataloader")
_SHIM = Path(__file__).parent / "shim"
_IMPORT = "from torchdata.stateful_dataloader import"


class NoSuite(Exception):
    """There is no suite where one was named."""


def found(folder: Path) -> Path:
    """Where the suite's files lie: the folder, or their place in a checkout of pytorch/data.

    Raises:
        NoSuite: no such folder, or files are missing.
    """
    if not folder.is_dir():
        raise NoSuite(f"there is no folder {folder}")
    for place in (folder, folder / _HOME):
        if all((place / name).is_file() for name in FILES):
            return place
    missing = [name for name in FILES if not (folder / name).is_file()]
    raise NoSuite(
        f"no suite in {folder}: looked for {', '.join(FILES)} there and in {folder / _HOME}; "
        f"there, {', '.join(missing)} missing"
    )


def copied(source: Path, target: Path, heals: bool) -> None:
    """Copies the suite into an empty folder, patched, beside what stands in for torchdata.

    Raises:
        SuiteChanged: a text that a patch replaces is not there.
        NoSuite: a file does not import what is to be swapped.
    """
    texts = {name: (source / name).read_text() for name in FILES}
    for name, text in texts.items():
        if _IMPORT not in text:
            raise NoSuite(f"the suite changed: {source / name} has no line {_IMPORT!r}")
    for patch in patches(heals):
        texts[patch.file] = applied(texts[patch.file], patch)
    without = shutil.ignore_patterns("__pycache__", "test_scripts.py")  # a test of frameworks.py
    shutil.copytree(_SHIM, target, dirs_exist_ok=True, ignore=without)
    for name, text in texts.items():
        (target / name).write_text(text)
    (target / "pytest.ini").write_text("[pytest]\n")
    (target / "tmp").mkdir()
