"""A pytest plugin: modules of a framework are imported with feedline's DataLoader for torch's."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from swap import swapped

NAMES = set(os.environ["CONFORMANCE_MODULES"].split())


class _Swapping(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """Not from a file of bytecode, which is of the text as it was."""
        return self.source_to_code(swapped(self.get_source(fullname)).encode(), self.path)


class _Finder(PathFinder):
    @classmethod
    def find_spec(
        cls,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """The module as ever, with its text swapped."""
        spec = super().find_spec(fullname, path, target) if fullname in NAMES else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Swapping(fullname, spec.origin)
        return spec


if early := NAMES & set(sys.modules):
    raise RuntimeError(f"imported before their class could be swapped: {sorted(early)}")
sys.meta_path.insert(0, _Finder)
