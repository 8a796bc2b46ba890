"""What the suites import, made of the class under test (CONFORMANCE_LOADER, "module:Class")."""

from __future__ import annotations

import importlib
import os
from typing import Any, Protocol, runtime_checkable

__all__ = ["Stateful", "StatefulDataLoader"]

_module, _, _name = os.environ["CONFORMANCE_LOADER"].partition(":")
_UnderTest: Any = getattr(importlib.import_module(_module), _name)


@runtime_checkable
class Stateful(Protocol):
    """What can save its state and take it back."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state back."""
        ...


class StatefulDataLoader(_UnderTest):
    """The class under test, deaf to the one keyword that torchdata adds.

    Args:
        snapshot_every_n_steps: how often torchdata's workers send their state; nothing a caller
            can see depends on it.
    """

    def __init__(self, *args: Any, snapshot_every_n_steps: int = 1, **keywords: Any) -> None:
        super().__init__(*args, **keywords)

    def __class_getitem__(cls, item: Any) -> Any:
        """As the class under test has it, or not."""
        return _UnderTest[item]
