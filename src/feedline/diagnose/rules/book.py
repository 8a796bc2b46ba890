"""All rules, and in which order what they find is told.

What is told first is what gains most, with a preference for what is plainly wrong: a defect, or a
setting, before the nature of the work. So a finding comes before those of rules further down where
it gains at least a part of what they do.
"""

from __future__ import annotations

from collections.abc import Callable

from feedline.diagnose.facts import Facts
from feedline.diagnose.finding import Finding
from feedline.diagnose.rules.handing import (
    collate,
    hand_over,
    shallow_prefetch,
    shared_memory,
    small_batch,
)
from feedline.diagnose.rules.machine import busy_machine, cpu_quota, noisy_threads
from feedline.diagnose.rules.making import (
    cpu_mix,
    decode_bound,
    largest_part,
    slow_samples,
    slow_transform,
    uncompiled_transform,
)
from feedline.diagnose.rules.step import host_bound, new_shape
from feedline.diagnose.rules.storage import cold_cache, slow_storage
from feedline.diagnose.rules.transfer import float_copy, unpinned_copy
from feedline.diagnose.rules.workers import (
    loader_rebuilt,
    too_few_workers,
    too_many_workers,
    uneven_workers,
    workers_restarted,
)

__all__ = ["MENDING", "RULE_IDS", "mended"]

Rule = Callable[[Facts], Finding | None]

MENDING: tuple[Rule, ...] = (
    shared_memory,
    noisy_threads,
    cpu_quota,
    uncompiled_transform,
    slow_samples,
    cold_cache,
    slow_storage,
    cpu_mix,
    slow_transform,
    float_copy,
    collate,
    small_batch,
    hand_over,
    loader_rebuilt,
    workers_restarted,
    uneven_workers,
    too_many_workers,
    too_few_workers,
    shallow_prefetch,
    new_shape,
    host_bound,
    unpinned_copy,
    decode_bound,
    busy_machine,
)
"""What finds something to mend, plain defects first and the nature of the work last."""

RULE_IDS = (
    "busy-machine",
    "collate",
    "cold-cache",
    "compute-bound",
    "cpu-mix",
    "cpu-quota",
    "decode-bound",
    "float-copy",
    "hand-over",
    "healthy",
    "host-bound",
    "inconclusive",
    "loader-rebuilt",
    "new-shape",
    "noisy-threads",
    "shallow-prefetch",
    "shared-memory",
    "slow-samples",
    "slow-storage",
    "slow-transform",
    "small-batch",
    "too-few-workers",
    "too-many-workers",
    "uncompiled-transform",
    "uneven-workers",
    "unpinned-copy",
    "workers-restarted",
)
"""All ids that a finding may have; each has a page in docs/rules."""

_ENOUGH = 1 / 3
"""A finding comes before later ones where it gains this part of what the best of them does."""

_NATURE = 0.3
"""What counts of the gain where other data or another machine is asked for: settings go first."""

_OF_NATURE = (decode_bound, busy_machine)

_DEFECTS = ("shared-memory", "noisy-threads", "uncompiled-transform", "workers-restarted")
"""What is told first although no gain is predicted; other findings without a gain come last."""


def mended(facts: Facts) -> list[Finding]:
    """What there is to mend, most important first."""
    defects: list[Finding] = []
    others: list[Finding] = []
    left: list[tuple[Finding, float]] = []
    for rule in MENDING:
        found = rule(facts)
        if found is None:
            continue
        if found.gain is not None:
            left.append(
                (found, (found.gain.predicted - 1) * (_NATURE if rule in _OF_NATURE else 1.0))
            )
        else:
            (defects if found.rule in _DEFECTS else others).append(found)
    ordered = []
    while left:
        best = max(gains for _, gains in left)
        first = next(k for k, (_, gains) in enumerate(left) if gains >= _ENOUGH * best)
        ordered.append(left.pop(first)[0])
    found_any = defects + ordered + others
    if found_any:
        return found_any
    last = largest_part(facts)
    return [] if last is None else [last]
