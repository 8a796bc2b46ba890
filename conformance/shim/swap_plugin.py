"""pytest plugin: import modules of a framework with feedline's DataLoader instead of torch's."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from swap import swap_loader_class

NAMES = set(os.environ["CONFORMANCE_MODULES"].split())


class _Swapping(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """Compile the swapped text instead of reading cached bytecode."""
        return self.source_to_code(swap_loader_class(self.get_source(fullname)).encode(), self.path)


class _Finder(PathFinder):
    @classmethod
    def find_spec(
        cls,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Find the module as usual, with its text swapped."""
        spec = super().find_spec(fullname, path, target) if fullname in NAMES else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Swapping(fullname, spec.origin)
        return spec


if early := NAMES & set(sys.modules):
    raise RuntimeError(f"imported before their class could be swapped: {sorted(early)}")
sys.meta_path.insert(0, _Finder)
