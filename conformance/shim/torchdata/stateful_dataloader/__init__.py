"""Stand-in for torchdata, based on the class under test (CONFORMANCE_LOADER, "module:Class")."""

from __future__ import annotations

import importlib
import os
from typing import Any, Protocol, runtime_checkable

__all__ = ["Stateful", "StatefulDataLoader"]

_module, _, _name = os.environ["CONFORMANCE_LOADER"].partition(":")
_UnderTest: Any = getattr(importlib.import_module(_module), _name)


@runtime_checkable
class Stateful(Protocol):
    """An object with a state that can be saved and restored."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state."""
        ...


class StatefulDataLoader(_UnderTest):
    """The class under test, ignoring the additional keyword of torchdata.

    Args:
        snapshot_every_n_steps: how often torchdata's workers send their state; has no visible
            effect.
    """

    def __init__(self, *args: Any, snapshot_every_n_steps: int = 1, **keywords: Any) -> None:
        super().__init__(*args, **keywords)

    def __class_getitem__(cls, item: Any) -> Any:
        """Forward to the class under test."""
        return _UnderTest[item]
