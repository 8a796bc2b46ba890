"""Whether two runs can be compared: what a rate depends on besides the loading of data.

Guarantees: pure; what is not known of one of them counts as no difference.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from feedline.diagnose.finding import PhaseSplit
from feedline.report.facts import Facts

__all__ = ["PhaseKey", "differences", "phase_label", "phases_of"]

_SAME_MEMORY = 0.05  # what a cgroup leaves of it varies a little

PhaseKey: TypeAlias = "tuple[int | None, int | None]"
"""A phase's image size in pixels, and its batch size."""


def differences(first: Facts, second: Facts) -> list[str]:
    """What makes two runs incomparable."""
    one, two = first.machine, second.machine
    pairs: list[tuple[str, Any, Any]] = [
        ("processor", one.cpu, two.cpu),
        ("logical cores", one.cores, two.cores),
        ("usable cores", one.usable_cores, two.usable_cores),
        ("CPU quota", one.quota_cores, two.quota_cores),
        ("GPU", one.gpu, two.gpu),
        ("processes of the training", first.world_size, second.world_size),
    ]
    if not math.isclose(one.memory_bytes, two.memory_bytes, rel_tol=_SAME_MEMORY):
        pairs.append(("memory", one.memory_bytes, two.memory_bytes))
    if len(first.loaders) != len(second.loaders):
        pairs.append(("number of loaders", len(first.loaders), len(second.loaders)))
    for old, new in zip(first.loaders, second.loaders, strict=False):
        if old.dataset and new.dataset:
            pairs.append(("dataset", old.dataset, new.dataset))
        for name, a, b in (
            ("samples", old.samples, new.samples),
            ("batch size", old.batch_size, new.batch_size),
        ):
            if a is not None and b is not None:
                pairs.append((name, a, b))
    found = [f"{name} {_said(a)} and {_said(b)}" for name, a, b in pairs if a != b]
    before, after = phases_of(first).keys(), phases_of(second).keys()
    if before != after:
        found.append(f"phases {_listed(before)} and {_listed(after)}")
    return list(dict.fromkeys(found))


def _said(value: object) -> str:
    return "none" if value is None else repr(value) if isinstance(value, str) else str(value)


def _listed(keys: Any) -> str:
    return ", ".join(phase_label(*key) for key in keys) or "none"


def phase_label(image_size: int | None, batch_size: int | None) -> str:
    """What a phase is called where epochs do not matter."""
    size = "no image size" if image_size is None else f"{image_size} px"
    return size if batch_size is None else f"{size} @{batch_size}"


def phases_of(facts: Facts) -> dict[PhaseKey, list[PhaseSplit]]:
    """The phases that have steps, by image size and batch size, in order."""
    found: dict[PhaseKey, list[PhaseSplit]] = {}
    for phase in facts.phases:
        if phase.steps:
            found.setdefault((phase.image_size, phase.batch_size), []).append(phase)
    return found
