"""Each rule reports its bottleneck, and stays silent for similar ones."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import feedline
from feedline.profile.diagnose import Diagnosis, diagnose
from feedline.timing.run import Event, Pass, RankTimes, Run, SlowSample, TimelineSample
from profiling.diagnosed_runs import LOADER, a_run, finding_of, one_pass, rules_of, times

# 4 workers, 320 ms of work for a batch: one each 80 ms, and the step computes for 50 ms.
SLOW = one_pass(wait=30.0)


def first_of(run: Run) -> str:
    return rules_of(run)[0]


def test_workers_that_are_at_work_all_the_time_are_too_few() -> None:
    found = finding_of(a_run(SLOW, work=320.0), "too-few-workers")
    assert first_of(a_run(SLOW, work=320.0)) == "too-few-workers"
    assert found.gain is not None
    assert found.gain.predicted == pytest.approx(80 / 53, rel=0.1)
    assert "num_workers=7" in found.fix


def paused(wait: float) -> Pass:
    """Two of a hundred steps take 2 s longer: the training evaluates and saves."""
    passed = one_pass(wait=wait, compute=10.0)
    passed.compute = times(10.0, 98)
    passed.compute += times(2010.0, 2)
    return passed


def latest(steps: list[float]) -> list[TimelineSample]:
    """The latest steps of a run, in ms."""
    events = [
        Event(lane="step", stage="compute", begun_ms=end, ended_ms=end + 50.0, batch=k)
        for k, end in enumerate(np.cumsum([0.0, *steps]).tolist())
    ]
    return [TimelineSample(why="latest", begun_s=0.0, events=events)]


def width(run: Run, rule: str) -> float:
    """Predicted gain of a finding, relative to the lower end of its interval."""
    gain = finding_of(run, rule).gain
    assert gain is not None
    return gain.predicted / gain.low


def test_interval_of_a_short_run_is_from_blocks_of_its_latest_steps() -> None:
    # The same steps: mixed, their mean is known well; if they become slower, it is not.
    mixed, slower = (
        a_run(SLOW, work=320.0, excerpts=latest(steps))
        for steps in ([60.0, 100.0] * 16, [60.0] * 16 + [100.0] * 16)
    )
    assert width(mixed, "too-few-workers") < width(slower, "too-few-workers")


def test_pauses_of_the_step_hide_no_workers_that_are_too_few() -> None:
    # A batch each 40 ms for steps of 10 ms, while the mean step, pauses included, computes for 50.
    run = a_run(paused(30.0), work=160.0)
    found = finding_of(run, "too-few-workers")
    assert rules_of(run)[0] == "too-few-workers"
    assert "shallow-prefetch" not in rules_of(run)
    assert found.gain is not None
    # Of 80 ms a step 40 are pauses, which stay; of the others 8 workers leave 20.
    assert found.gain.predicted == pytest.approx(80 / 60, rel=0.05)


def test_pauses_that_may_be_the_devices_own_work_are_computing() -> None:
    # By the host's clock: every fiftieth step waits for the device to finish the others.
    run = a_run(paused(0.0), work=80.0, machine={"gpu": "a device"})
    assert rules_of(run) == ["compute-bound"]
    assert rules_of(a_run(paused(0.0), work=80.0)) == ["compute-bound"]


def test_more_workers_are_not_recommended_if_all_cores_are_busy() -> None:
    run = a_run(SLOW, work=320.0, machine={"cores": 4, "usable_cores": 4})
    assert "too-few-workers" not in rules_of(run)


def test_more_workers_are_not_recommended_if_workers_are_idle() -> None:
    assert "too-few-workers" not in rules_of(a_run(SLOW, work=40.0))


def test_no_workers_at_all_are_too_few() -> None:
    run = a_run(one_pass(wait=60.0), work=60.0, loader={"workers": 0})
    found = finding_of(run, "too-few-workers")
    assert found.gain is not None
    assert found.gain.predicted == pytest.approx(110 / 50, rel=0.1)


def test_zero_workers_are_fine_if_batches_are_cheap() -> None:
    run = a_run(one_pass(wait=0.5, compute=2.0), work=0.4, loader={"workers": 0})
    assert "too-few-workers" not in rules_of(run)


def test_many_workers_beyond_the_cores_are_too_many() -> None:
    run = a_run(one_pass(), loader={"workers": 20})
    assert first_of(run) == "too-many-workers"
    assert "too-many-workers" not in rules_of(a_run(one_pass(), loader={"workers": 10}))


def test_workers_beyond_the_cores_that_make_starts_slow_are_too_many() -> None:
    passes = [one_pass(steps=10, start=500.0, epoch=k) for k in range(6)]
    run = a_run(*passes, work=100.0, loader={"workers": 12})
    assert first_of(run) == "too-many-workers"


def test_many_workers_that_wait_for_a_network_are_not_too_many() -> None:
    run = a_run(one_pass(), cpu=0.1, loader={"workers": 20})
    assert "too-many-workers" not in rules_of(run)


def test_workers_of_each_epoch_are_restarted() -> None:
    passes = [one_pass(steps=20, start=600.0, epoch=k) for k in range(6)]
    run = a_run(*passes, loader={"persistent_workers": False})
    assert first_of(run) == "workers-restarted"
    found = finding_of(run, "workers-restarted")
    assert found.gain is not None
    # Of 6 epochs of a second each, 5 begin with 0.6 s of which a batch takes 40 ms.
    assert found.gain.predicted == pytest.approx(9.0 / 6.2, rel=0.03)
    assert "workers-restarted" not in rules_of(a_run(*passes))


def test_short_epochs_of_torch_wait_for_their_first_batches() -> None:
    passes = [one_pass(steps=8, start=100.0, epoch=k) for k in range(10)]
    found = finding_of(a_run(*passes, loader={"persistent_workers": True}), "epoch-starts")
    assert found.gain is not None
    assert found.gain.predicted == pytest.approx((80 * 50 + 900) / (80 * 50), rel=0.05)
    for other in ({"persistent_workers": False}, {"kind": "feedline", "persistent_workers": True}):
        assert "epoch-starts" not in rules_of(a_run(*passes, loader=other))


def test_dead_workers_are_reported_first() -> None:
    run = a_run(SLOW, work=320.0, use={"worker_deaths": 3})
    assert first_of(run) == "workers-restarted"


def test_a_loader_for_each_epoch_is_rebuilt_and_not_restarted() -> None:
    passes = [one_pass(steps=20, start=600.0, epoch=k, built=k + 1) for k in range(6)]
    run = a_run(*passes, loader={"persistent_workers": False})
    assert first_of(run) == "loader-rebuilt"
    assert "workers-restarted" not in rules_of(run)


def _of_two_epochs(rebuild_s: float) -> Run:
    """Three loaders of two epochs: 0.6 s to start, 1 s of steps, a pause of 0.1 or `rebuild_s`."""
    passes, now_s = list[Pass](), 0.0
    for k in range(6):
        now_s += 0.0 if k == 0 else rebuild_s if k % 2 == 0 else 0.1
        end_s = now_s + 1.6
        made = one_pass(steps=20, start=600.0, epoch=k, built=1 + k // 2)
        passes.append(replace(made, begun_s=now_s, ended_s=end_s))
        now_s = end_s
    return a_run(*passes)


def test_the_time_before_a_rebuilt_loader_is_part_of_rebuilding_it() -> None:
    found = finding_of(_of_two_epochs(1.1), "loader-rebuilt")
    assert found.gain is not None
    # Of 5 starts after the first, 2 of rebuilt loaders; 2 x 1 s to end workers and list samples.
    assert found.gain.predicted == pytest.approx((9.0 + 2.5) / (9.0 + 2.5 - 3.2), rel=0.05)
    quick = finding_of(_of_two_epochs(0.1), "loader-rebuilt").gain
    assert quick is not None
    assert found.gain.predicted > quick.predicted


def test_second_loader_for_validation_is_not_a_rebuilt_loader() -> None:
    passes = [one_pass(steps=20, start=600.0, epoch=k, loader=k % 2, built=1) for k in range(6)]
    for other in (replace(LOADER, dataset="here.Others"), replace(LOADER, samples=800)):
        assert "loader-rebuilt" not in rules_of(a_run(*passes, loaders=[LOADER, other]))


def test_a_loader_for_each_batch_size_is_rebuilt() -> None:
    passes = [one_pass(steps=20, start=600.0, epoch=k, loader=k, built=1) for k in range(6)]
    loaders = [replace(LOADER, batch_size=32 - 4 * k) for k in range(6)]
    assert first_of(a_run(*passes, loaders=loaders)) == "loader-rebuilt"


def finding_rate(run: Run, rule: str) -> float:
    gains = [each.gain for each in diagnose(run).findings if each.rule == rule]
    return gains[0].predicted if gains and gains[0] else 1.0


QUOTA = {"cores": 16, "usable_cores": 4, "quota_cores": 4.0}


def test_exhausted_quota_is_reported_instead_of_more_workers() -> None:
    run = a_run(SLOW, work=310.0, machine=QUOTA)
    assert first_of(run) == "cpu-quota"
    assert "too-few-workers" not in rules_of(run)


def test_restricted_affinity_is_reported_with_its_calls() -> None:
    found = diagnose(a_run(SLOW, work=310.0, machine={"cores": 16, "usable_cores": 1})).findings[0]
    assert found.rule == "cpu-quota"
    assert "taskset" in found.fix
    assert "sched_setaffinity" in found.fix


def test_unused_quota_is_not_reported() -> None:
    assert "cpu-quota" not in rules_of(a_run(one_pass(), machine=QUOTA))
    other_ranks = {"cores": 16, "usable_cores": 4, "shared_by": 4}
    assert "cpu-quota" not in rules_of(a_run(SLOW, work=310.0, machine=other_ranks))


FAR = {"dataset": 0.1, "read and decode": 0.8, "collate": 0.1}


def from_disk(run: Run, **counters: int) -> Run:
    """The same, with these counters of the kernel for each worker."""
    trainer, *workers = run.use.processes
    read = [replace(each, **(counters or {"read_bytes": 10**8})) for each in workers]
    return replace(run, use=replace(run.use, processes=[trainer, *read]))


def test_workers_that_wait_and_read_from_a_disk_indicate_slow_storage() -> None:
    run = from_disk(a_run(SLOW, work=320.0, cpu=0.2, stages=FAR))
    assert first_of(run) == "slow-storage"
    assert not {"decode-bound", "blocked-workers"} & set(rules_of(run))
    assert "num_workers=" in finding_of(run, "slow-storage").fix


def test_waiting_that_is_not_known_to_be_a_disk_is_not_called_storage() -> None:
    for stages in (FAR, {"dataset": 1.0}):
        run = a_run(SLOW, work=320.0, cpu=0.2, stages=stages)
        assert first_of(run) == "blocked-workers"
        assert "slow-storage" not in rules_of(run)
    own = {"kind": "feedline", "made_by": "image rows"}
    run = a_run(SLOW, work=320.0, cpu=0.2, stages={"read": 0.8, "decode": 0.2}, loader=own)
    assert first_of(run) == "slow-storage"


def test_workers_that_block_each_other_are_reported_before_more_workers() -> None:
    # A lock that all share, or a server that answers slowly: nothing of it is read by calls.
    run = a_run(SLOW, work=320.0, cpu=0.25, stages={"dataset": 0.95})
    assert first_of(run) == "blocked-workers"
    assert "lock" in finding_of(run, "blocked-workers").fix
    more = finding_of(run, "too-few-workers")
    assert more.gain is not None
    # All 8 wait for as long together as these 4 do, if it is a lock.
    assert more.gain.low == 1.0
    assert "waits for something" in more.evidence


def test_storage_finding_quotes_kernel_counters() -> None:
    run = a_run(SLOW, work=320.0, cpu=0.2, stages=FAR)
    found = finding_of(from_disk(run, major_faults=5000), "slow-storage")
    assert "20,000 pages" in found.evidence
    assert "fewer workers" in found.fix


def test_a_first_epoch_from_the_disk_is_a_cold_cache() -> None:
    cold = one_pass(wait=50.0, disk_bytes=10**9)
    warm = one_pass(wait=0.0, epoch=1, disk_bytes=0)
    run = a_run(cold, warm, work=320.0, cpu=0.2, stages=FAR)
    assert first_of(run) == "cold-cache"
    assert "slow-storage" not in rules_of(run)


def test_a_few_pages_from_the_disk_are_not_the_samples() -> None:
    run = a_run(one_pass(wait=50.0, disk_bytes=10**5), work=320.0, cpu=0.2, stages=FAR)
    assert first_of(from_disk(run, read_bytes=10**4)) == "blocked-workers"


def test_epochs_that_all_read_from_the_disk_have_a_slow_storage() -> None:
    passes = [one_pass(wait=50.0, epoch=k, disk_bytes=10**9) for k in range(2)]
    run = from_disk(a_run(*passes, work=400.0, cpu=0.2, stages=FAR))
    assert first_of(run) == "slow-storage"


CORES = {"cores": 4, "usable_cores": 4}
DECODE = {"read and decode": 0.7, "dataset": 0.1, "collate": 0.1}


def test_workers_that_decode_large_images_on_all_cores_are_decode_bound() -> None:
    run = a_run(SLOW, work=320.0, stages=DECODE, machine=CORES, decoded=800, decoded_px=512.0)
    assert first_of(run) == "decode-bound"
    found = finding_of(run, "decode-bound")
    assert found.gain is not None
    assert found.gain.predicted == pytest.approx(80 / 50, rel=0.1)


def test_images_near_output_size_gain_nothing_from_copies() -> None:
    run = a_run(SLOW, work=320.0, stages=DECODE, machine=CORES, decoded=800, decoded_px=64.0)
    assert finding_rate(run, "decode-bound") == 1.0


def test_slowest_transform_is_named() -> None:
    stages = {"read and decode": 0.2, "transform: Sharpened": 0.6, "collate": 0.1}
    run = a_run(SLOW, work=320.0, stages=stages, machine=CORES)
    assert first_of(run) == "slow-transform"
    assert "Sharpened" in finding_of(run, "slow-transform").cause


def test_other_programs_widen_the_intervals_of_gains() -> None:
    alone, beside = (
        a_run(
            SLOW,
            work=320.0,
            cpu=1 - queued,
            stages={"transform: Sharpened": 0.9},
            machine=CORES,
            timed_queued_ms=12 * 320 * queued,
            excerpts=latest([80.0] * 32),
        )
        for queued in (0.0, 0.5)
    )
    assert width(alone, "slow-transform") < width(beside, "slow-transform")


def test_opaque_dataset_is_named_if_nothing_else_is() -> None:
    run = a_run(SLOW, work=320.0, stages={"dataset": 0.95}, machine=CORES)
    assert "Photos" in finding_of(run, "slow-transform").cause
    assert first_of(a_run(SLOW, work=320.0, stages={"dataset": 0.95})) == "too-few-workers"


def test_a_few_slow_samples_are_named() -> None:
    # 12 timed tasks of 32 samples: 380 of 1 ms, 4 of 500 ms.
    sizes = {20: (380, 500.0), 28: (4, 2000.0)}
    slowest = [SlowSample(name="cats/huge.jpg", ms=520.0)]
    run = a_run(SLOW, work=320.0, stages={"dataset": 0.95}, sample_sizes=sizes, slowest=slowest)
    assert first_of(run) == "slow-samples"
    assert "cats/huge.jpg" in finding_of(run, "slow-samples").evidence


def test_a_few_samples_that_wait_are_not_workers_that_wait() -> None:
    sizes = {20: (380, 500.0), 28: (4, 2000.0)}
    run = a_run(SLOW, work=320.0, cpu=0.3, stages={"dataset": 0.95}, sample_sizes=sizes)
    assert first_of(run) == "slow-samples"
    assert "blocked-workers" not in rules_of(run)


def test_samples_that_waited_for_a_core_are_not_slow() -> None:
    sizes = {20: (380, 500.0), 28: (4, 2000.0)}
    run = a_run(
        SLOW, work=320.0, machine=CORES, cpu=0.3, timed_queued_ms=12 * 320 * 0.7, sample_sizes=sizes
    )
    assert "busy-machine" in rules_of(run)
    assert "slow-samples" not in rules_of(run)


def test_uniform_samples_are_not_slow() -> None:
    run = a_run(SLOW, work=320.0, sample_sizes={20: (200, 200.0), 21: (184, 370.0)})
    assert "slow-samples" not in rules_of(run)


def test_slow_user_collate_is_named() -> None:
    stages = {"dataset": 0.2, "collate": 0.7}
    run = a_run(SLOW, work=320.0, stages=stages, machine=CORES, loader={"collate": "listed"})
    assert first_of(run) == "collate"
    assert "listed" in finding_of(run, "collate").cause


@pytest.mark.parametrize(
    ("stages", "collate"),
    [
        ({"dataset": 0.3, "mix: MixUp": 0.5, "collate": 0.1}, "joined"),
        ({"dataset": 0.3, "collate": 0.6}, "mixup_collate"),
        ({"transform: ColorJitter": 0.3, "transform: RandomRotation": 0.3, "dataset": 0.3}, ""),
    ],
)
def test_mixing_and_augmenting_on_the_cpu(stages: dict[str, float], collate: str) -> None:
    run = a_run(SLOW, work=320.0, stages=stages, machine=CORES, loader={"collate": collate})
    assert first_of(run) == "cpu-mix"


def test_idle_workers_with_wait_in_each_step_indicate_hand_over() -> None:
    passed = one_pass(wait=30.0, wait_cpu_ms=25.0 * 100, bytes=40 << 20)
    run = a_run(passed, work=20.0)
    assert first_of(run) == "hand-over"
    assert "shallow-prefetch" not in rules_of(run)


def test_an_archive_opened_for_each_sample_is_named_before_small_costs() -> None:
    stages = {"open": 0.75, "read and decode": 0.1, "transform: ToTensor": 0.1, "collate": 0.05}
    floats = one_pass(wait=30.0, bytes=101 * (19 << 20), float_bytes=101 * (19 << 20))
    run = a_run(floats, work=320.0, stages=stages, machine=CORES)
    assert first_of(run) == "slow-transform"
    assert "before decoding" in finding_of(run, "slow-transform").cause


def test_a_trivial_finding_is_not_the_first() -> None:
    # Workers need 320 ms for a batch; all of it in the dataset, but for collating floats.
    stages = {"dataset": 0.93, "collate": 0.07}
    floats = one_pass(wait=270.0, bytes=101 * (19 << 20), float_bytes=101 * (19 << 20))
    run = a_run(
        floats, work=320.0, stages=stages, loader={"workers": 1}, machine={"usable_cores": 1}
    )
    assert first_of(run) not in ("float-copy", "hand-over", "inconclusive")


@pytest.mark.parametrize("loader", [{}, {"kind": "feedline", "made_by": "samples"}])
def test_an_unfused_pipeline_is_a_finding_with_its_gain(loader: dict[str, Any]) -> None:
    stages = {"read and decode": 0.4, "transform: RandomResizedCrop": 0.3, "collate": 0.05}
    stages |= {"transform: ToTensor": 0.15, "transform: Normalize": 0.1}
    run = a_run(SLOW, work=320.0, stages=stages, machine=CORES, loader=loader)
    found = finding_of(run, "uncompiled-transform")
    assert found.gain is not None
    assert found.gain.predicted > 1.4
    fused = a_run(SLOW, work=320.0, stages=stages, machine=CORES, loader={"fused": "a, b"})
    assert "uncompiled-transform" not in rules_of(fused)


def test_gains_of_small_batches_are_lower_bounds() -> None:
    tiny = one_pass(
        wait=0.8, compute=0.1, steps=1000, samples=1001, batch_size=1, bytes=1001 * 3000
    )
    run = a_run(replace(tiny, wait_cpu_ms=0.6 * 1000), work=0.3)
    found = finding_of(run, "small-batch")
    assert found.gain is not None
    assert found.gain.at_least


def test_short_runs_that_wait_get_a_hint() -> None:
    verdict = diagnose(a_run(one_pass(wait=90.0, compute=10.0, steps=8, ended="left"), work=100.0))
    assert verdict.state == "inconclusive"
    assert "workers" in verdict.findings[0].fix
    fine = diagnose(a_run(one_pass(steps=8, ended="left")))
    assert "workers" not in fine.findings[0].fix


def ranks(*waits: float, cpu: tuple[float, ...] = ()) -> list[RankTimes]:
    """Ranks of 100 steps that wait, and compute on a core, for these times."""
    return [
        RankTimes(
            rank=rank,
            host="here",
            wait=times(wait, 100),
            compute=times(80.0 - wait, 100),
            compute_cpu_ms=100 * (cpu[rank] if cpu else 20.0),
        )
        for rank, wait in enumerate(waits)
    ]


def test_the_rank_that_others_wait_for_is_named() -> None:
    run = a_run(one_pass(compute=80.0), world_size=4, ranks=ranks(1.0, 1.0, 31.0, 1.0))
    found = finding_of(run, "slow-rank")
    assert "Rank 2 has slow input" in found.cause
    assert found.gain is not None
    assert found.gain.predicted == pytest.approx(80 / 50, rel=0.02)
    slow = ranks(1.0, 1.0, cpu=(20.0, 60.0))
    computing = a_run(one_pass(compute=80.0), world_size=2, ranks=slow)
    assert "Rank 1 has slow computing" in finding_of(computing, "slow-rank").cause
    equal = a_run(one_pass(compute=80.0), world_size=2, ranks=ranks(1.0, 2.0))
    assert rules_of(equal) == ["compute-bound"]


def test_a_run_ends_in_one_state() -> None:
    assert diagnose(a_run(one_pass())).state == "healthy"
    assert diagnose(a_run(SLOW, work=320.0)).state == "finding"
    assert diagnose(a_run(SLOW, work=40.0)).state == "inconclusive"


def uneven(steps: int = 100) -> Pass:
    """Nine steps of ten do not wait; the tenth waits long."""
    passed = one_pass(steps=steps)
    passed.wait = times(0.0, steps * 9 // 10)
    passed.wait += times(300.0, steps // 10)
    return passed


def test_occasional_long_waits_with_fast_workers_recommend_more_prefetch() -> None:
    events = [
        Event(
            lane="step",
            stage="wait",
            begun_ms=100.0 * k,
            ended_ms=100.0 * k + (90 if k % 8 == 0 else 0),
            batch=k,
        )
        for k in range(32)
    ]
    run = a_run(
        uneven(),
        work=150.0,
        excerpts=[TimelineSample(why="latest", begun_s=0.0, events=events)],
        stages={"dataset": 0.9},
    )
    assert first_of(run) == "shallow-prefetch"


def test_more_prefetch_saves_no_more_than_the_waits() -> None:
    # The trainer also lacks a core for most of its computing, as ranks share the cores.
    passed = replace(uneven(), compute_cpu_ms=15.0 * 100)
    machine = {"cores": 4, "usable_cores": 2, "shared_by": 2}
    run = a_run(passed, work=10.0, stages={"dataset": 0.9}, machine=machine)
    gain = finding_of(with_trainer(run, 0.3, 0.6), "shallow-prefetch").gain
    assert gain is not None
    assert gain.predicted == pytest.approx(80 / 50, rel=0.02)


def test_recommended_prefetch_fits_memory() -> None:
    large = replace(uneven(), bytes=101 * (60 << 20))
    work = {"work": 150.0, "stages": {"dataset": 0.9}}
    run = a_run(large, **work, use={"shared_memory_bytes": 1 << 30})
    assert "prefetch_factor=3" in finding_of(run, "shallow-prefetch").fix
    for use in ({"shared_memory_bytes": 700 << 20}, {"cacheable_bytes": 1 << 30}):
        assert "shallow-prefetch" not in rules_of(a_run(large, **work, use=use))
    other = a_run(
        large, **work, use={"shared_memory_bytes": 700 << 20}, loader={"kind": "feedline"}
    )
    assert "prefetch_factor=4" in finding_of(other, "shallow-prefetch").fix


def test_waits_in_every_step_with_idle_workers_do_not_recommend_prefetch() -> None:
    assert rules_of(a_run(SLOW, work=40.0)) == ["inconclusive"]


def test_pin_thread_is_late_if_workers_idle_and_steps_wait() -> None:
    passed = one_pass(wait=30.0, wait_cpu_ms=0.2 * 100, pinned=True, device_clock=True)
    run = a_run(passed, work=20.0, loader={"pin_memory": True}, machine={"gpu": "a device"})
    assert rules_of(run) == ["hand-over"]
    assert "pins" in finding_of(run, "hand-over").cause


def cpu_of(run: Run, *shares: float) -> Run:
    """The same, with workers on cores for these shares of the time."""
    trainer, *workers = run.use.processes
    made = [
        replace(each, cpu_s=share * each.seconds)
        for each, share in zip(workers, shares, strict=True)
    ]
    return replace(run, use=replace(run.use, processes=[trainer, *made]))


def test_workers_without_data_are_reported() -> None:
    run = a_run(SLOW, work=80.0)
    one = cpu_of(run, 0.95, 0.01, 0.01, 0.01)
    assert first_of(one) == "uneven-workers"
    assert "as if 1 of 4 workers" in finding_of(one, "uneven-workers").evidence
    assert finding_rate(one, "uneven-workers") == pytest.approx(80 / 50, rel=0.02)
    assert "uneven-workers" not in rules_of(cpu_of(run, 0.3, 0.2, 0.2, 0.3))


def test_workers_of_a_second_loader_may_have_less_to_do() -> None:
    run = a_run(SLOW, one_pass(loader=1), work=80.0, loaders=[LOADER, replace(LOADER, samples=9)])
    assert "uneven-workers" not in rules_of(cpu_of(run, 0.95, 0.95, 0.01, 0.01))


def test_deep_prefetching_is_not_made_deeper() -> None:
    run = a_run(uneven(), work=150.0, stages={"dataset": 0.9}, loader={"prefetch_factor": 8})
    assert "shallow-prefetch" not in rules_of(run)


def test_batches_that_fill_shared_memory_are_reported() -> None:
    large = one_pass(bytes=101 * (60 << 20))
    run = a_run(large, use={"shared_memory_bytes": 512 << 20})
    assert first_of(run) == "shared-memory"
    fits = a_run(large, use={"shared_memory_bytes": 8 << 30})
    assert "shared-memory" not in rules_of(fits)
    other = a_run(large, use={"shared_memory_bytes": 512 << 20}, loader={"kind": "feedline"})
    assert "shared-memory" not in rules_of(other)
    # Of passes of five batches no more than these are ever ready.
    short = [one_pass(steps=4, epoch=k, bytes=5 * (60 << 20)) for k in range(10)]
    assert "shared-memory" not in rules_of(a_run(*short, use={"shared_memory_bytes": 512 << 20}))


def test_tiny_batches_are_reported_instead_of_collate() -> None:
    tiny = one_pass(
        wait=0.8, compute=0.1, steps=1000, samples=2002, batch_size=2, bytes=1001 * 6000
    )
    run = a_run(tiny, work=0.3, stages={"dataset": 0.2, "collate": 0.7})
    assert first_of(run) == "small-batch"
    assert "collate" not in rules_of(run)


FLOATS = {"transform: ToTensor": 0.3, "transform: Normalize": 0.3, "collate": 0.3}


def test_floats_are_reported_if_their_bytes_cost_time() -> None:
    floats = one_pass(wait=30.0, bytes=101 * (19 << 20), float_bytes=101 * (19 << 20))
    run = a_run(floats, work=320.0, stages=FLOATS, machine=CORES)
    assert first_of(run) == "float-copy"
    assert "no GPU" in finding_of(run, "float-copy").fix
    with_gpu = a_run(floats, work=320.0, stages=FLOATS, machine=CORES | {"gpu": "a device"})
    assert "no GPU" not in finding_of(with_gpu, "float-copy").fix
    idle = a_run(replace(floats, wait=times(0.0, 100)), stages=FLOATS)
    assert "float-copy" not in rules_of(idle)


def test_the_size_of_a_float_is_that_of_its_type() -> None:
    values = 101 * 32 * 3 * 224 * 224
    for size in (4, 8):
        floats = one_pass(wait=30.0, image_size=224, bytes=size * values, float_bytes=size * values)
        run = a_run(floats, work=320.0, stages={"dataset": 0.5, "collate": 0.5}, machine=CORES)
        assert f"{size} times" in finding_of(run, "float-copy").cause
        assert "collate" not in rules_of(run)


def test_unpinned_memory_is_reported_with_device() -> None:
    passed = one_pass(bytes=101 * (19 << 20), pinned=False, copy=times(10.0, 100))
    run = a_run(passed, machine={"gpu": "a device"})
    assert first_of(run) == "unpinned-copy"
    assert finding_rate(run, "unpinned-copy") == pytest.approx(60 / 50, rel=0.05)
    assert "unpinned-copy" not in rules_of(a_run(passed))


def test_unmeasured_copy_is_reported_if_it_may_take_long() -> None:
    large = one_pass(bytes=101 * (19 << 20), pinned=False)
    found = finding_of(a_run(large, machine={"gpu": "a device"}), "unpinned-copy")
    assert found.gain is None
    assert "at 2 GB/s it is 9.96 ms of a step's 50.0 ms" in found.evidence
    small = one_pass(bytes=101 * (2 << 20), pinned=False)
    assert rules_of(a_run(small, machine={"gpu": "a device"})) == ["compute-bound"]


def test_slow_first_steps_at_new_size_are_reported() -> None:
    first = one_pass(first_steps_ms=[900.0] * 3 + [50.0] * 5)
    second = one_pass(image_size=96, epoch=1, first_steps_ms=[900.0] * 3 + [50.0] * 5)
    gpu = {"gpu": "a device"}
    assert first_of(a_run(first, second, machine=gpu)) == "new-shape"
    assert "new-shape" not in rules_of(a_run(first, one_pass(epoch=1), machine=gpu))


@pytest.mark.parametrize(
    ("cpu_ms", "named"),
    [
        ([880.0] * 3 + [2.0] * 5, True),  # kernels are compiled on a core
        ([2.0] * 8, False),  # the steps waited, for a core for example
        ([], False),  # not measured
    ],
)
def test_on_a_cpu_slow_first_steps_need_cpu_time(cpu_ms: list[float], named: bool) -> None:
    second = one_pass(
        image_size=96,
        epoch=1,
        first_steps_ms=[900.0] * 3 + [50.0] * 5,
        first_steps_cpu_ms=cpu_ms,
        compute_cpu_ms=sum(cpu_ms) + 2.0 * 92,
    )
    assert ("new-shape" in rules_of(a_run(one_pass(), second))) == named


def test_sleeping_first_steps_on_cpu_are_not_new_shapes() -> None:
    def batches() -> Iterator[torch.Tensor]:
        for side in (8, 16):
            for _ in range(40):
                yield torch.zeros(4, 3, side, side)

    watched, seen = feedline.watch(batches()), dict[int, int]()
    for batch in watched:
        seen[batch.shape[-1]] = count = seen.get(batch.shape[-1], 0) + 1
        time.sleep(0.05 if count <= 3 else 0.001)
    assert [len(each.first_steps_cpu_ms) for each in watched.run.passes] == [8, 8]
    assert "new-shape" not in rules_of(watched.run)


def test_host_that_launches_all_the_time_is_host_bound() -> None:
    passed = one_pass(compute_cpu_ms=49.0 * 100, device_clock=True)
    run = a_run(passed, machine={"gpu": "a device"}, use={"gpu_busy": 0.4})
    assert first_of(run) == "host-bound"
    busy = a_run(passed, machine={"gpu": "a device"}, use={"gpu_busy": 0.95})
    assert "host-bound" not in rules_of(busy)
    assert "host-bound" not in rules_of(a_run(replace(passed, device_clock=False)))


def test_thread_waiting_for_device_is_not_host_bound() -> None:
    # As with .item() in each step: the thread spins until the device is done.
    passed = one_pass(compute_cpu_ms=49.0 * 100, device_clock=True)
    run = a_run(passed, machine={"gpu": "a device"}, use={"gpu_busy": None})
    assert rules_of(run) == ["compute-bound"]


def test_threads_in_workers_are_reported() -> None:
    run = a_run(SLOW, work=320.0, machine=CORES, use={"worker_threads": 10})
    processes = [
        each if each.role == "trainer" else replace(each, cpu_s=3 * each.cpu_s)
        for each in run.use.processes
    ]
    noisy = replace(run, use=replace(run.use, processes=processes))
    assert first_of(noisy) == "noisy-threads"
    assert "noisy-threads" not in rules_of(run)


def test_threads_in_trainer_are_reported() -> None:
    run = a_run(one_pass(), use={"threads": 32})
    trainer, *workers = run.use.processes
    trainer = replace(trainer, cpu_s=3 * trainer.seconds, queued_s=4 * trainer.seconds)
    crowded = replace(run, use=replace(run.use, processes=[trainer, *workers]))
    assert first_of(crowded) == "noisy-threads"
    assert "noisy-threads" not in rules_of(run)


def test_cores_used_by_other_programs_are_reported() -> None:
    run = a_run(SLOW, work=320.0, machine=CORES, cpu=0.3, timed_queued_ms=12 * 320 * 0.7)
    assert "busy-machine" in rules_of(run)
    assert "slow-storage" not in rules_of(run)
    assert "busy-machine" not in rules_of(a_run(SLOW, work=320.0, machine=CORES))


def test_ranks_of_one_machine_are_not_other_programs() -> None:
    for shared_by, named in ((1, True), (2, False)):
        run = a_run(
            SLOW,
            work=320.0,
            cpu=0.5,
            machine={"cores": 4, "usable_cores": 2, "shared_by": shared_by},
            timed_queued_ms=12 * 320 * 0.4,
        )
        assert ("busy-machine" in rules_of(run)) == named


def with_trainer(run: Run, cpu: float, queued: float | None) -> Run:
    """A run whose trainer is on a core, and ready without one, for these shares of the time."""
    trainer, *workers = run.use.processes
    queued_s = None if queued is None else queued * trainer.seconds
    trainer = replace(trainer, cpu_s=cpu * trainer.seconds, queued_s=queued_s)
    return replace(run, use=replace(run.use, processes=[trainer, *workers]))


def test_other_programs_on_cores_of_step_are_named() -> None:
    run = a_run(one_pass(compute_cpu_ms=15.0 * 100))
    found = finding_of(with_trainer(run, 0.3, 0.6), "busy-machine")
    assert found.gain is not None
    assert found.gain.predicted == pytest.approx(50 / 20, rel=0.1)
    assert first_of(with_trainer(run, 0.3, 0.6)) == "busy-machine"


@pytest.mark.parametrize(
    ("cpu", "queued", "machine"),
    [
        (0.3, None, {}),  # a system that does not report it
        (0.3, 0.01, {}),
        (2.0, 6.0, {"cores": 2, "usable_cores": 2}),  # more own threads than cores
        (0.3, 0.6, {"gpu": "a device"}),  # which may compute during the wait
    ],
)
def test_trainer_without_lost_cores_is_not_on_a_busy_machine(
    cpu: float, queued: float | None, machine: dict[str, Any]
) -> None:
    run = a_run(one_pass(compute_cpu_ms=15.0 * 100), machine=machine)
    assert "busy-machine" not in rules_of(with_trainer(run, cpu, queued))


def test_loop_without_waits_is_compute_bound() -> None:
    assert rules_of(a_run(one_pass())) == ["compute-bound"]
    assert rules_of(a_run(one_pass(wait=1.0), work=150.0)) == ["compute-bound"]
    without_workers = a_run(one_pass(wait=0.5), work=0.4, loader={"workers": 0})
    assert rules_of(without_workers) == ["compute-bound"]


@pytest.mark.parametrize(
    ("passes", "word"),
    [
        ([], "No batch"),
        ([Pass(loader=0, epoch=0, ended="exhausted")], "no batch"),
        ([Pass(loader=0, epoch=0, ended="raised")], "raised"),
        ([one_pass(steps=5, ended="left")], "ended early"),
    ],
)
def test_too_few_steps_are_inconclusive(passes: list[Pass], word: str) -> None:
    verdict = diagnose(a_run(*passes))
    assert verdict.bound == "inconclusive"
    (only,) = verdict.findings
    assert only.rule == "inconclusive"
    assert word.lower() in (only.cause + only.evidence).lower()
    assert only.fix


def test_opaque_loader_has_unknown_cause() -> None:
    run = a_run(
        SLOW, loader={"kind": "other", "workers": None}, tasks=0, tasks_ms=0.0, timed=0, stages={}
    )
    verdict = diagnose(run)
    assert verdict.bound == "highly input-bound"
    assert verdict.findings[0].rule == "inconclusive"


def test_split_is_none_if_not_measured() -> None:
    verdict = diagnose(a_run(one_pass(wait=30.0), work=320.0))
    split = verdict.time_split_s
    assert split["copy"] is None
    assert (split["wait"], split["compute"]) == pytest.approx((3.0, 5.0))
    (phase,) = verdict.phases
    assert phase.copy_ms is None
    assert phase.wait_ms is not None
    assert phase.wait_ms[0] == pytest.approx(30.0, rel=0.05)
    assert phase.hidden_ms == pytest.approx(50.0)
    unknown = diagnose(a_run(SLOW, tasks=0, tasks_ms=0.0)).phases[0]
    assert unknown.hidden_ms is None


def test_ceiling_is_rate_of_steps_without_waiting() -> None:
    waits = diagnose(a_run(one_pass(wait=30.0), work=320.0))
    assert waits.compute_bound is not None
    assert waits.compute_bound.images_per_s == pytest.approx(32 / 0.05)
    assert waits.images_per_s == pytest.approx(32 / 0.08)
    passes = [one_pass(steps=20, start=600.0, epoch=k) for k in range(6)]
    started = diagnose(a_run(*passes))
    assert started.compute_bound is not None
    assert started.compute_bound.images_per_s == pytest.approx((6 * 20 + 5) * 32 / 6.0)
    assert started.images_per_s == pytest.approx((6 * 20 + 5) * 32 / 9.0)


def with_gap(gap_s: float) -> Diagnosis:
    """Two passes of 8 s with a gap between them."""
    first = one_pass(wait=30.0, start=0.0, ended_s=8.0)
    second = one_pass(wait=30.0, start=2000.0, epoch=1, begun_s=8.0 + gap_s, ended_s=18.0 + gap_s)
    return diagnose(a_run(first, second, work=320.0))


def test_parts_of_the_time_add_up_to_the_whole_run() -> None:
    split = with_gap(gap_s=2.0).time_split_s
    assert split == pytest.approx(
        {"starts": 2, "wait": 6, "copy": None, "core": 0, "shape": 0, "compute": 10, "between": 2}
    )
    evaluated = with_gap(gap_s=2.0)
    assert evaluated.wait_pct == pytest.approx(100 * (2 + 6) / 20)
    assert evaluated.images_per_s == pytest.approx(201 * 32 / 20)
    assert evaluated.compute_bound is not None
    assert evaluated.compute_bound.images_per_s == pytest.approx(201 * 32 / 12)


def test_a_pause_longer_than_all_passes_is_not_part_of_the_training() -> None:
    assert with_gap(gap_s=3600.0).time_split_s["between"] == 0


def test_workers_prepare_no_more_than_cores_allow() -> None:
    def rate(cores: int) -> float | None:
        run = a_run(SLOW, work=320.0, machine={"cores": cores, "usable_cores": cores})
        found = diagnose(run).compute_bound
        return None if found is None else found.workers_images_per_s

    assert rate(2) == pytest.approx((rate(4) or 0) / 2)
    assert rate(8) == rate(4)  # of 4 workers


@pytest.mark.parametrize(
    ("wait", "bound"),
    [
        (1.0, "not input-bound"),
        (5.0, "moderately input-bound"),
        (20.0, "highly input-bound"),
    ],
)
def test_input_bound_share_is_reported(wait: float, bound: str) -> None:
    run = a_run(one_pass(wait=wait), work=300.0)
    assert diagnose(run).bound == bound


def test_steps_below_clock_resolution_promise_bounded_gain() -> None:
    nothing = one_pass(wait=0.001, compute=5e-324, samples=202, bytes=202)
    verdict = diagnose(a_run(nothing, work=0.0))
    assert verdict.compute_bound is None
    assert all(each.gain is None or math.isfinite(each.gain.high) for each in verdict.findings)


def test_batches_without_sample_are_not_called_small() -> None:
    empty = one_pass(wait=1.0, compute=0.1, samples=0, batch_size=None, bytes=0)
    assert "small-batch" not in rules_of(a_run(empty, work=0.3))


UNCOMPILED = {
    "kind": "feedline",
    "made_by": "dataset",
    "dataset": "torchvision.datasets.folder.ImageFolder",
    "because": "The loader opened is not torchvision's own.",
    "uncompiled": True,
    "accepts": (),
}
LARGE = {"decoded_px": 600.0, "stages": {"decode": 0.8, "to values": 0.2}}


def test_uncompiled_transform_is_reported_first_with_reason() -> None:
    run = a_run(SLOW, work=320.0, loader=UNCOMPILED, **LARGE)
    assert first_of(run) == "uncompiled-transform"
    assert "opened" in finding_of(run, "uncompiled-transform").evidence
    fine = a_run(one_pass(), work=320.0, loader=UNCOMPILED)
    assert "uncompiled-transform" not in rules_of(fine)


@pytest.mark.parametrize(
    ("loader", "cache", "device"),
    [
        ({}, True, True),
        ({"kind": "feedline", "made_by": "image rows", "accepts": ("cache", "device")}, True, True),
        ({"kind": "feedline", "made_by": "samples", "accepts": ("cache",)}, True, False),
        ({"kind": "feedline", "made_by": "image rows", "accepts": ("device",)}, False, True),
        (UNCOMPILED, False, False),
        ({"kind": "feedline", "made_by": "dataset", "accepts": ()}, False, False),
    ],
)
def test_advice_is_accepted_by_loader(loader: dict[str, Any], cache: bool, device: bool) -> None:
    """If the loader would reject an argument, the advice says so or names the prerequisite."""
    floats = one_pass(wait=30.0, bytes=101 * 40_000_000, float_bytes=101 * 40_000_000)
    run = a_run(floats, work=320.0, loader=loader, **LARGE)
    for rule, accepted, name in (
        ("decode-bound", cache, "cache="),
        ("float-copy", device, "device="),
    ):
        fix = finding_of(run, rule).fix
        conditional = "compiled" in fix or f"refuses {name}" in fix
        assert conditional != accepted, fix


def test_prefetch_is_recommended_by_effective_argument() -> None:
    late = times(0.0, 80)
    late += times(50.0, 20)
    shallow = one_pass(wait=10.0)
    shallow.wait = late
    options = {"kind": "feedline", "prefetch_factor": 2}
    for made_by, name in (("image rows", "prefetch="), ("dataset", "prefetch_factor=")):
        run = a_run(shallow, work=120.0, loader={**options, "made_by": made_by})
        assert name in finding_of(run, "shallow-prefetch").fix
