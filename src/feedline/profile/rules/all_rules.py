"""All rules, and the order of their findings.

Findings are ordered by gain, with a preference for plain defects and settings over the nature of
the work: a finding precedes those of later rules if it gains at least a part of what they gain.
"""

from __future__ import annotations

from collections.abc import Callable

from feedline.profile.facts import RunFacts
from feedline.profile.finding import Finding
from feedline.profile.rules.batch_work import (
    cpu_mix,
    decode_bound,
    largest_part,
    slow_samples,
    slow_transform,
    uncompiled_transform,
)
from feedline.profile.rules.hand_over import (
    collate,
    hand_over,
    shallow_prefetch,
    shared_memory,
    small_batch,
)
from feedline.profile.rules.machine import busy_machine, cpu_quota, noisy_threads
from feedline.profile.rules.step import host_bound, new_shape
from feedline.profile.rules.storage import cold_cache, slow_storage
from feedline.profile.rules.transfer import float_copy, unpinned_copy
from feedline.profile.rules.workers import (
    loader_rebuilt,
    too_few_workers,
    too_many_workers,
    uneven_workers,
    workers_restarted,
)

__all__ = ["RULES", "RULE_IDS", "find_causes"]

Rule = Callable[[RunFacts], Finding | None]

RULES: tuple[Rule, ...] = (
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
"""Rules with a fix, plain defects first and the nature of the work last."""

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
"""All ids of findings; each has a page in docs/rules."""

_ENOUGH = 1 / 3
"""Share of the best later gain from which on a finding precedes the later ones."""

_NATURE = 0.3
"""Weight of a gain that needs other data or another machine, so that settings come first."""

_OF_NATURE = (decode_bound, busy_machine)

_DEFECTS = ("shared-memory", "noisy-threads", "uncompiled-transform", "workers-restarted")
"""Rules reported first even without a predicted gain; other findings without a gain come last."""


def find_causes(facts: RunFacts) -> list[Finding]:
    """Return the findings of all rules, most important first."""
    defects: list[Finding] = []
    others: list[Finding] = []
    left: list[tuple[Finding, float]] = []
    for rule in RULES:
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
