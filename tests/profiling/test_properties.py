"""Whatever a run says, a verdict comes of it, and its advice can be followed."""

import math
import re
from dataclasses import fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedline.profile.diagnose import diagnose
from feedline.throughput.thresholds import THRESHOLDS
from feedline.timing.run import Histogram, Run

ms = st.floats(0, 1e6)
few = st.integers(0, 400)


@st.composite
def histograms(draw):
    made = Histogram()
    for value, count in draw(st.lists(st.tuples(ms, st.integers(1, 30)), max_size=3)):
        made.add_all([value] * count)
    return made


STAGES = ["dataset", "read", "open", "read and decode", "decode", "collate", "pack", "fetch"]
STAGES += ["mix: MixUp", *(f"transform: {name}" for name in ("ColorJitter", "ToTensor", "Own"))]
OF_TYPE: dict[Any, Any] = {
    bool: st.booleans(),
    int: few,
    float: ms,
    str: st.just("some"),
    NoneType: st.none(),
    Histogram: histograms(),
}
OF_FIELD = {
    "loader": st.integers(0, 3),
    "built": st.integers(0, 3),
    "image_size": st.none() | st.sampled_from([32, 64, 224]),
    "name": st.sampled_from(STAGES),
    "collate": st.sampled_from(["", "mixup", "own"]),
    "ended": st.sampled_from(["", "exhausted", "left", "raised"]),
    "cores": st.integers(0, 64),
    "usable_cores": st.integers(0, 64),
    "shared_by": st.integers(1, 8),
    "world_size": st.integers(1, 8),
    "gpu_busy": st.none() | st.floats(0, 1),
    "decoded_px": st.none() | st.floats(1, 5000),
    "sample_sizes": st.dictionaries(st.integers(0, 39), st.tuples(few, ms), max_size=5),
    "excerpts": st.just([]),
    "versions": st.just({}),
    "settings": st.just({}),
}


def any_value(kind: Any) -> Any:
    """Any value of a type, as a run may contain it."""
    if kind in OF_TYPE:
        return OF_TYPE[kind]
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return st.builds(kind, **{f.name: any_field(f.name, hints[f.name]) for f in fields(kind)})
    parts = get_args(kind)
    if get_origin(kind) is Literal:
        return st.sampled_from(parts)
    if get_origin(kind) in (UnionType, Union):
        return st.one_of(map(any_value, parts))
    return st.lists(any_value(parts[0]), max_size=3)


def any_field(name: str, kind: Any) -> Any:
    if name in OF_FIELD:
        return OF_FIELD[name]
    return any_value(kind).map(lambda n: n and 10**7 * n if name.endswith("bytes") else n)


runs = any_value(Run)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(runs, st.integers(1, 512))
def test_any_run_has_a_verdict_whose_advice_and_gains_are_possible(run, samples):
    verdict = diagnose(run)
    assert verdict.findings
    # Workers that mostly wait need no core of their own.
    cores = THRESHOLDS.workers_per_core * max(1, run.machine.usable_cores)
    for finding in verdict.findings:
        assert finding.rule
        assert finding.cause
        assert finding.evidence
        for number in re.findall(r"num_workers=(\d+)", finding.fix):
            assert 1 <= int(number) <= cores
        if finding.gain is not None:
            low, predicted, high = finding.gain.low, finding.gain.predicted, finding.gain.high
            assert 1 <= low <= predicted <= high
            assert math.isfinite(high)
    if verdict.compute_bound is not None:
        assert verdict.images_per_s is not None
        assert math.isfinite(verdict.compute_bound.images_per_s)
        assert math.isfinite(verdict.images_per_s)
    rules = [finding.rule for finding in verdict.findings]
    assert len(rules) == len(set(rules))
    fine = {"compute-bound", "inconclusive"} & set(rules)
    assert not fine or len(rules) == 1
    # No fix gains more than the compute-bound throughput allows.
    known = [replace(each, samples=samples * each.batches) for each in run.passes]
    verdict = diagnose(replace(run, passes=known))
    if verdict.compute_bound is not None and verdict.images_per_s:
        bound = verdict.compute_bound.images_per_s / verdict.images_per_s
        for finding in verdict.findings:
            assert finding.gain is None or finding.gain.high <= max(1.0, bound) * (1 + 1e-9)
