"""Whatever a run says, a verdict comes of it, and its advice can be followed."""

import math
import re
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedline.profile.diagnose import diagnose
from feedline.throughput.thresholds import THRESHOLDS
from feedline.timing.run import Histogram, Pass, Process, ResourceUse, Run, SlowSample, StageTime
from profiling.diagnosed_runs import LOADER, MACHINE

ms = st.floats(0, 1e6, allow_nan=False)
few = st.integers(0, 400)
maybe = st.none() | ms


@st.composite
def histograms(draw):
    made = Histogram()
    for value, count in draw(st.lists(st.tuples(ms, st.integers(1, 30)), max_size=4)):
        for _ in range(count):
            made.add(value)
    return made


passes = st.builds(
    Pass,
    loader=st.integers(0, 3),
    epoch=st.integers(0, 5),
    image_size=st.none() | st.sampled_from([32, 64, 224]),
    batch_size=st.none() | st.integers(1, 512),
    start_ms=histograms(),
    batches=few,
    samples=st.none() | st.integers(0, 10**6),
    bytes=st.integers(0, 10**10),
    float_bytes=st.integers(0, 10**10),
    pinned=st.none() | st.booleans(),
    wait=histograms(),
    copy=st.none() | histograms(),
    compute=histograms(),
    first_steps_ms=st.lists(ms, max_size=8),
    first_steps_cpu_ms=st.lists(ms, max_size=8),
    built=st.integers(0, 3),
    wait_cpu_ms=maybe,
    compute_cpu_ms=maybe,
    tasks=st.none() | few,
    tasks_ms=maybe,
    disk_bytes=st.none() | st.integers(0, 10**10),
    ended=st.sampled_from(["", "exhausted", "left", "raised"]),
    device_clock=st.booleans(),
)
loaders = st.builds(
    lambda kind, workers, prefetch, lives, collate: replace(
        LOADER,
        kind=kind,
        workers=workers,
        prefetch_factor=prefetch,
        persistent_workers=lives,
        collate=collate,
    ),
    st.sampled_from(["torch", "feedline", "other"]),
    st.none() | st.integers(0, 64),
    st.none() | st.integers(1, 8),
    st.none() | st.booleans(),
    st.sampled_from(["", "mixup", "own"]),
)
stages = st.builds(
    StageTime,
    name=st.sampled_from(
        [
            "dataset",
            "read",
            "open",
            "read and decode",
            "decode",
            "collate",
            "pack",
            "fetch",
            "mix: MixUp",
            "transform: ColorJitter",
            "transform: ToTensor",
            "transform: Own",
        ]
    ),
    count=few,
    total_ms=ms,
    longest_ms=ms,
    cpu_ms=maybe,
)
processes = st.builds(
    Process,
    role=st.sampled_from(["trainer", "worker"]),
    pid=st.integers(1, 99),
    seconds=st.floats(0, 1e5),
    cpu_s=st.floats(0, 1e5),
    queued_s=st.none() | st.floats(0, 1e5),
    read_bytes=st.none() | st.integers(0, 10**12),
    major_faults=st.none() | few,
    called_bytes=st.none() | st.integers(0, 10**12),
)
runs = st.builds(
    Run,
    seconds=st.floats(0, 1e5),
    machine=st.builds(
        lambda cores, usable, gpu, shared: replace(
            MACHINE, cores=cores, usable_cores=usable, gpu=gpu, shared_by=shared
        ),
        st.integers(0, 64),
        st.integers(0, 64),
        st.none() | st.just("a device"),
        st.integers(1, 8),
    ),
    loaders=st.lists(loaders, max_size=3),
    passes=st.lists(passes, max_size=4),
    stages=st.lists(stages, max_size=6),
    tasks=few,
    tasks_ms=ms,
    timed=few,
    timed_ms=ms,
    timed_cpu_ms=ms,
    timed_queued_ms=maybe,
    decoded=few,
    decoded_px=st.none() | st.floats(1, 5000),
    sample_sizes=st.dictionaries(st.integers(0, 39), st.tuples(few, ms), max_size=5),
    slowest=st.lists(st.builds(SlowSample, name=st.text(max_size=5), ms=ms), max_size=3),
    use=st.builds(
        ResourceUse,
        processes=st.lists(processes, max_size=5),
        worker_deaths=st.integers(0, 3),
        throttled_s=st.none() | st.floats(0, 1e4),
        gpu_busy=st.none() | st.floats(0, 1),
        threads=st.none() | st.integers(0, 64),
        worker_threads=st.none() | st.integers(0, 64),
        shared_memory_bytes=st.none() | st.integers(0, 10**11),
        cacheable_bytes=st.none() | st.integers(0, 10**11),
        dataset_bytes=st.none() | st.integers(0, 10**11),
    ),
)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(runs)
def test_any_run_has_a_verdict_whose_advice_can_be_followed(run):
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


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(runs, st.integers(1, 512))
def test_no_fix_gains_more_than_the_compute_bound_throughput_allows(run, samples):
    known = [replace(each, samples=samples * each.batches) for each in run.passes]
    verdict = diagnose(replace(run, passes=known))
    if verdict.compute_bound is not None and verdict.images_per_s:
        bound = verdict.compute_bound.images_per_s / verdict.images_per_s
        for finding in verdict.findings:
            assert finding.gain is None or finding.gain.high <= max(1.0, bound) * (1 + 1e-9)
