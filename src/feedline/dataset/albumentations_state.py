"""Random generators of albumentations' transforms, seeded through their `set_random_state`.

Guarantees: after `seed(outermost, number)` a Compose, or a single transform, and everything within
it depend on the number alone; `restore` undoes that. albumentations is never imported.

`set_random_seed` would not work: it seeds each transform of a Compose with the same number, so a
vertical and a horizontal flip would always coincide.

Relies on: transforms storing their random state in attributes.
"""

from __future__ import annotations

import random
import sys
from typing import Any, TypeAlias

import numpy as np

from feedline.dataset.attributes import class_of_any, parts
from feedline.order.seeds import extend

__all__ = ["classes", "restore", "seed", "state"]

_State: TypeAlias = list[tuple[dict[str, Any], dict[str, Any]]]
"""Attributes of each transform, with the values to restore."""

_MISSING: Any = object()
_MOST = 10_000


def classes() -> tuple[type, ...]:
    """Classes with generators of their own; none if albumentations is not imported.

    Releases before 1.4.19 draw from the global random states, and have none.
    """
    module = sys.modules.get("albumentations")
    if module is None:
        return ()
    kinds = [vars(module).get(name) for name in ("BaseCompose", "BasicTransform")]
    return tuple(
        kind for kind in kinds if isinstance(kind, type) and hasattr(kind, "set_random_state")
    )


def seed(outermost: Any, number: int) -> None:
    """Seed a Compose or transform, and everything within it, from 64 bits."""
    python = random.Random(extend(number, 1))
    outermost.set_random_state(np.random.default_rng(number), python)


def state(outermost: Any) -> _State:
    """Data that `restore` needs: everything that seeding changes, in any release."""
    within = [vars(thing) for thing in _within(outermost)]
    before = [dict(attributes) for attributes in within]
    try:
        seed(outermost, 0)
        return _differences(within, before)
    finally:
        restore(outermost, _differences(within, before))


def restore(_: object, state: _State) -> None:
    """Restore the state."""
    for attributes, had in state:
        for name, value in had.items():
            if value is _MISSING:
                attributes.pop(name, None)
            else:
                attributes[name] = value


def _differences(within: list[dict[str, Any]], before: list[dict[str, Any]]) -> _State:
    return [
        (now, {name: had.get(name, _MISSING) for name in _changed(had, now)})
        for now, had in zip(within, before, strict=True)
    ]


def _changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    names = {**before, **now}
    return [name for name in names if before.get(name, _MISSING) is not now.get(name, _MISSING)]


def _within(outermost: Any) -> list[Any]:
    """Yield a transform and all transforms within it."""
    kinds = classes()
    found, known, ahead = [], set[int](), [outermost]
    while ahead and len(known) < _MOST:
        thing = ahead.pop()
        if id(thing) in known:
            continue
        known.add(id(thing))
        if class_of_any(thing, kinds):
            found.append(thing)
        ahead.extend(part for _, part in parts(thing))
    return found
