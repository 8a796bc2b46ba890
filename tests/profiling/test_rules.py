"""Each rule reports its bottleneck, and stays silent for similar ones."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from feedline.profile.diagnose import diagnose
from feedline.timing.run import Event, Histogram, Pass, RankTimes, SlowSample, TimelineSample
from profiling.diagnosed_runs import LOADER, a_run, finding_of, one_pass, rules_of, times

# 4 workers, 320 ms of work for a batch: one each 80 ms, and the step computes for 50 ms.
SLOW = one_pass(wait=30.0)
CORES = {"cores": 4, "usable_cores": 4}
GPU = {"gpu": "a device"}
QUOTA = {"cores": 16, "usable_cores": 4, "quota_cores": 4.0}
RANKS = {"cores": 4, "usable_cores": 2, "shared_by": 2}
FAR = {"dataset": 0.1, "read and decode": 0.8, "collate": 0.1}
DECODE = {"read and decode": 0.7, "dataset": 0.1, "collate": 0.1}
FLOATS = {"transform: ToTensor": 0.3, "transform: Normalize": 0.3, "collate": 0.3}
ARCHIVE = {"open": 0.75, "read and decode": 0.1, "transform: ToTensor": 0.1, "collate": 0.05}
STEPWISE = {
    "read and decode": 0.4,
    "transform: RandomResizedCrop": 0.3,
    "transform: ToTensor": 0.15,
    "transform: Normalize": 0.1,
    "collate": 0.05,
}
UNCOMPILED = {
    "kind": "feedline",
    "made_by": "dataset",
    "dataset": "torchvision.datasets.folder.ImageFolder",
    "because": "The loader opened is not torchvision's own.",
    "uncompiled": True,
    "accepts": (),
}
LARGE = {"decoded_px": 600.0, "stages": {"decode": 0.8, "to values": 0.2}}


def busy(**more):
    """A run whose workers need 320 ms for a batch."""
    return a_run(SLOW, **{"work": 320.0, **more})


def mixture(*parts):
    """Durations in ms, each with its number."""
    mixed = Histogram()
    for part in parts:
        mixed += times(*part)
    return mixed


def paused(wait):
    """Two of a hundred steps take 2 s longer: the training evaluates and saves."""
    computing = mixture((10.0, 98), (2010.0, 2))
    return replace(one_pass(wait=wait, compute=10.0), compute=computing)


def uneven(**more):
    """Nine steps of ten do not wait; the tenth waits long."""
    return replace(one_pass(), wait=mixture((0.0, 90), (300.0, 10)), **more)


def batches_of(mib, **more):
    return one_pass(bytes=101 * (mib << 20), **more)


def floats(**more):
    """Steps that wait for batches of 19 MiB, all of them floats."""
    return batches_of(19, **{"wait": 30.0, "float_bytes": 101 * (19 << 20), **more})


def epochs(count=6, **more):
    """Epochs of a second, each 0.6 s after its start."""
    return [one_pass(**{"steps": 20, "start": 600.0, "epoch": k, **more}) for k in range(count)]


def of_two_epochs(rebuild_s):
    """Three loaders of two epochs: 0.6 s to start, 1 s of steps, a pause of 0.1 or `rebuild_s`."""
    passes, now_s = list[Pass](), 0.0
    for k, each in enumerate(epochs()):
        now_s += 0.0 if k == 0 else rebuild_s if k % 2 == 0 else 0.1
        passes.append(replace(each, built=1 + k // 2, begun_s=now_s, ended_s=now_s + 1.6))
        now_s += 1.6
    return a_run(*passes)


def latest(steps):
    events = [
        Event(lane="step", stage="compute", begun_ms=end, ended_ms=end + 50.0, batch=k)
        for k, end in enumerate(np.cumsum([0.0, *steps]).tolist())
    ]
    return [TimelineSample(why="latest", begun_s=0.0, events=events)]


def ranks(*waits, cpu=()):
    """Ranks of 100 steps that wait, and compute on a core, for these times."""
    found = [
        RankTimes(
            rank=rank,
            host="here",
            wait=times(wait, 100),
            compute=times(80.0 - wait, 100),
            compute_cpu_ms=100 * (cpu[rank] if cpu else 20.0),
        )
        for rank, wait in enumerate(waits)
    ]
    return a_run(one_pass(compute=80.0), world_size=len(waits), ranks=found)


def from_disk(run, **counters):
    """The same, with these counters of the kernel for each worker."""
    trainer, *workers = run.use.processes
    read = [replace(each, **(counters or {"read_bytes": 10**8})) for each in workers]
    return replace(run, use=replace(run.use, processes=[trainer, *read]))


def cpu_of(run, *shares):
    """The same, with workers on cores for these shares of the time."""
    trainer, *workers = run.use.processes
    made = [
        replace(each, cpu_s=share * each.seconds)
        for each, share in zip(workers, shares, strict=True)
    ]
    return replace(run, use=replace(run.use, processes=[trainer, *made]))


def with_trainer(run, cpu, queued):
    """The same, with a trainer on a core, and ready without one, for these shares of the time."""
    trainer, *workers = run.use.processes
    queued_s = None if queued is None else queued * trainer.seconds
    trainer = replace(trainer, cpu_s=cpu * trainer.seconds, queued_s=queued_s)
    return replace(run, use=replace(run.use, processes=[trainer, *workers]))


def reported(run, rule, *without, first=True, gain=None, rel=0.05, **words):
    """Check the finding of a rule, and return it.

    Args:
        run: the run.
        rule: id of the rule.
        without: rules that are silent.
        first: False if there may be a larger finding.
        gain: that is predicted; None compares none.
        rel: relative tolerance of the gain.
        words: patterns in the finding's `cause`, `evidence` and `fix`.
    """
    rules = rules_of(run)
    assert rule in (rules[:1] if first else rules)
    assert not {*without} & {*rules}
    found = finding_of(run, rule)
    for part, pattern in words.items():
        assert re.search(pattern, getattr(found, part))
    if gain is not None:
        assert found.gain is not None
        assert found.gain.predicted == pytest.approx(gain, rel=rel)
    return found


def silent(rule, *runs):
    """Check that a rule does not report similar runs."""
    assert [rule in rules_of(run) for run in runs] == [False] * len(runs)


def alone(rule, *runs):
    """Check that each run has one finding."""
    assert [rules_of(run) for run in runs] == [[rule]] * len(runs)


# Workers


def test_busy_workers_are_too_few():
    reported(busy(), "too-few-workers", gain=80 / 50, fix="num_workers=7")
    none = {"workers": 0}
    waits = a_run(one_pass(wait=60.0), work=60.0, loader=none)
    reported(waits, "too-few-workers", gain=110 / 50)
    cheap = a_run(one_pass(wait=0.5, compute=2.0), work=0.4, loader=none)
    silent("too-few-workers", cheap, busy(machine=CORES), busy(work=40.0))
    # A batch each 40 ms for steps of 10 ms, while the mean step, pauses included, computes for 50.
    run = a_run(paused(30.0), work=160.0)
    # Of 80 ms a step 40 are pauses, which stay; of the others 8 workers leave 20.
    reported(run, "too-few-workers", "shallow-prefetch", gain=80 / 60)


def test_workers_beyond_the_cores_are_too_many():
    reported(a_run(one_pass(), loader={"workers": 20}), "too-many-workers")
    slow_starts = epochs(steps=10, start=500.0)
    reported(a_run(*slow_starts, work=100.0, loader={"workers": 12}), "too-many-workers")
    network = a_run(one_pass(), cpu=0.1, loader={"workers": 20})
    silent("too-many-workers", a_run(one_pass(), loader={"workers": 10}), network)


def test_workers_of_each_epoch_are_restarted():
    run = a_run(*epochs(), loader={"persistent_workers": False})
    # Of 6 epochs of a second each, 5 begin with 0.6 s of which a batch takes 40 ms.
    reported(run, "workers-restarted", gain=9.0 / 6.2, rel=0.03)
    reported(busy(use={"worker_deaths": 3}), "workers-restarted")
    silent("workers-restarted", a_run(*epochs()))


def test_short_epochs_of_torch_wait_for_their_first_batches():
    persistent, passes = {"persistent_workers": True}, epochs(10, steps=8, start=100.0)
    run = a_run(*passes, loader=persistent)
    reported(run, "epoch-starts", gain=(80 * 50 + 900) / (80 * 50))
    silent("epoch-starts", a_run(*passes, loader={"persistent_workers": False}))
    unseeded = a_run(*passes, loader={"kind": "feedline", **persistent})
    assert "seed=" in reported(unseeded, "epoch-starts").fix
    # A batch takes 40 ms, and the first one comes after a second.
    late = a_run(*epochs(10, steps=8, start=1000.0), work=40.0)
    reported(late, "epoch-starts", cause="sampler", gain=13_000 / 4360, rel=0.02)


@pytest.mark.parametrize(("rebuild_s", "run_s", "saved_s"), [(1.1, 11.5, 3.2), (0.1, 9.5, 1.2)])
def test_a_loader_for_each_epoch_or_batch_size_is_rebuilt(rebuild_s, run_s, saved_s):
    # Of 5 starts after the first, 2 of rebuilt loaders; 2 x 1 s to end workers and list samples.
    reported(of_two_epochs(rebuild_s), "loader-rebuilt", gain=run_s / (run_s - saved_s))
    passes = [replace(each, loader=k, built=1) for k, each in enumerate(epochs())]
    loaders = [replace(LOADER, batch_size=32 - 4 * k) for k in range(6)]
    reported(a_run(*passes, loaders=loaders), "loader-rebuilt")
    passes = [replace(each, loader=k % 2, built=1) for k, each in enumerate(epochs())]
    for other in (replace(LOADER, dataset="here.Others"), replace(LOADER, samples=800)):
        silent("loader-rebuilt", a_run(*passes, loaders=[LOADER, other]))  # of a validation


def test_workers_without_data_are_reported():
    run, words = busy(work=80.0), "as if 1 of 4 workers"
    one = cpu_of(run, 0.95, 0.01, 0.01, 0.01)
    reported(one, "uneven-workers", gain=80 / 50, rel=0.02, evidence=words)
    loaders = [LOADER, replace(LOADER, samples=9)]
    two = a_run(SLOW, one_pass(loader=1), work=80.0, loaders=loaders)
    silent("uneven-workers", cpu_of(run, 0.3, 0.2, 0.2, 0.3), cpu_of(two, 0.95, 0.95, 0.01, 0.01))


def test_threads_beyond_the_cores_are_reported():
    workers = busy(machine=CORES, use={"worker_threads": 10})
    reported(cpu_of(workers, 3, 3, 3, 3), "noisy-threads")
    trainer = a_run(one_pass(), use={"threads": 32})
    reported(with_trainer(trainer, 3.0, 4.0), "noisy-threads")
    silent("noisy-threads", workers, trainer)


# Cores


def test_cores_withheld_by_quota_or_affinity_are_reported():
    reported(busy(work=310.0, machine=QUOTA), "cpu-quota", "too-few-workers")
    affinity = busy(work=310.0, machine={"cores": 16, "usable_cores": 1})
    reported(affinity, "cpu-quota", fix="taskset")
    ranks = {"cores": 16, "usable_cores": 4, "shared_by": 4}
    silent("cpu-quota", a_run(one_pass(), machine=QUOTA), busy(work=310.0, machine=ranks))
    throttled = a_run(one_pass(), machine=QUOTA, use={"throttled_s": 1.0})  # in 5 s
    reported(throttled, "cpu-quota", evidence="throttled for 1.0 s")
    reported(replace(throttled, seconds=100 * throttled.seconds), "cpu-quota")  # a resumed training


def test_cores_used_by_other_programs_are_reported():
    queued = {"cpu": 0.3, "timed_queued_ms": 12 * 320 * 0.7}
    run = busy(machine=CORES, **queued)
    reported(run, "busy-machine", "slow-storage", first=False)
    ranks = {"cpu": 0.5, "timed_queued_ms": 12 * 320 * 0.4}
    one_rank = busy(machine={**RANKS, "shared_by": 1}, **ranks)
    reported(one_rank, "busy-machine", first=False)
    silent("busy-machine", busy(machine=CORES), busy(machine=RANKS, **ranks))
    silent("busy-machine", busy(machine=CORES, use={"other_cores": 0.1}, **queued))
    reported(busy(machine=CORES, use={"other_cores": 1.0}, **queued), "busy-machine", first=False)
    # A time below the resolution of a clock is not divided by.
    silent("busy-machine", replace(busy(), timed_cpu_ms=2e-313, timed_queued_ms=100.0))


def test_other_programs_on_cores_of_step_are_named():
    run = a_run(one_pass(compute_cpu_ms=15.0 * 100))
    reported(with_trainer(run, 0.3, 0.6), "busy-machine", gain=50 / 20, rel=0.1)
    two = replace(run, machine=replace(run.machine, cores=2, usable_cores=2))
    silent(
        "busy-machine",
        with_trainer(run, 0.3, None),  # a system that does not report it
        with_trainer(run, 0.3, 0.01),
        with_trainer(two, 2.0, 6.0),  # more own threads than cores
        with_trainer(replace(run, machine=replace(run.machine, **GPU)), 0.3, 0.6),
    )


# Storage


def test_workers_that_wait_and_read_from_a_disk_indicate_slow_storage():
    run, others = busy(cpu=0.2, stages=FAR), ("decode-bound", "blocked-workers")
    reported(from_disk(run), "slow-storage", *others, fix="num_workers=")
    paged = from_disk(run, major_faults=5000)
    reported(paged, "slow-storage", evidence="20,000 pages", fix="fewer workers")
    own = {"kind": "feedline", "made_by": "image rows"}
    read = busy(cpu=0.2, stages={"read": 0.8, "decode": 0.2}, loader=own)
    reported(read, "slow-storage")

    # Waiting that is not known to be for a disk is not called storage.
    for stages in (FAR, {"dataset": 1.0}):
        reported(busy(cpu=0.2, stages=stages), "blocked-workers", "slow-storage")
    few_pages = a_run(one_pass(wait=50.0, disk_bytes=10**5), work=320.0, cpu=0.2, stages=FAR)
    reported(from_disk(few_pages, read_bytes=10**4), "blocked-workers")


@pytest.mark.parametrize(
    ("stall_s", "rule"), [(None, "cold-cache"), (9.0, "cold-cache"), (1.0, "blocked-workers")]
)
def test_a_first_epoch_from_the_disk_explains_no_waiting_for_something_else(stall_s, rule):
    cold = one_pass(wait=50.0, disk_bytes=10**9)
    use = {"storage_stall_s": stall_s}  # the four workers are blocked for 6.5 s each
    run = a_run(cold, work=320.0, cpu=0.2, stages=FAR, use=use)
    reported(run, rule, "slow-storage")
    reported(from_disk(run), rule, "slow-storage")
    resumed = replace(run, seconds=100 * run.seconds)  # its use is that of the latest start
    reported(resumed, rule, "slow-storage")


def test_workers_that_block_each_other_are_reported_before_more_workers():
    # A lock that all share, or a server that answers slowly: nothing of it is read by calls.
    run = busy(cpu=0.25, stages={"dataset": 0.95})
    reported(run, "blocked-workers", fix="lock")
    more = reported(run, "too-few-workers", first=False, evidence="waits for something")
    assert more.gain is not None
    # All 8 wait for as long together as these 4 do, if it is a lock.
    assert more.gain.low == 1.0


def test_a_first_epoch_from_the_disk_is_a_cold_cache():
    waits = {"work": 320.0, "cpu": 0.2, "stages": FAR}
    cold = one_pass(wait=50.0, disk_bytes=10**9)
    warm = one_pass(wait=0.0, epoch=1, disk_bytes=0)
    reported(a_run(cold, warm, **waits), "cold-cache", "slow-storage")
    colder = a_run(cold, replace(cold, epoch=1), **{**waits, "work": 400.0})
    reported(from_disk(colder), "slow-storage")


# Stages


def test_workers_that_decode_large_images_on_all_cores_are_decode_bound():
    decoding = {"stages": DECODE, "machine": CORES, "decoded": 800}
    reported(busy(**decoding, decoded_px=512.0), "decode-bound", gain=80 / 50)
    silent("decode-bound", busy(**decoding, decoded_px=64.0))


def test_slowest_transform_is_named():
    own = {"read and decode": 0.2, "transform: Sharpened": 0.6, "collate": 0.1}
    reported(busy(stages=own, machine=CORES), "slow-transform", cause="Sharpened")
    opaque = {"dataset": 0.95}
    reported(busy(stages=opaque, machine=CORES), "slow-transform", first=False, cause="Photos")
    reported(busy(stages=opaque), "too-few-workers")
    archive = a_run(floats(), work=320.0, stages=ARCHIVE, machine=CORES)
    reported(archive, "slow-transform", cause="before decoding")


def test_a_few_slow_samples_are_named():
    # 12 timed tasks of 32 samples: 380 of 1 ms, 4 of 500 ms.
    few = {"stages": {"dataset": 0.95}, "sample_sizes": {20: (380, 500.0), 28: (4, 2000.0)}}
    slowest = [SlowSample(name="cats/huge.jpg", ms=520.0)]
    reported(busy(**few, slowest=slowest), "slow-samples", evidence="cats/huge.jpg")
    reported(busy(**few, cpu=0.3), "slow-samples", "blocked-workers")
    queued = busy(**few, machine=CORES, cpu=0.3, timed_queued_ms=12 * 320 * 0.7)
    reported(queued, "busy-machine", "slow-samples", first=False)
    silent("slow-samples", busy(sample_sizes={20: (200, 200.0), 21: (184, 370.0)}))


def test_mixing_and_augmenting_on_the_cpu():
    for rule, stages, collate in (
        ("collate", {"dataset": 0.2, "collate": 0.7}, "listed"),
        ("cpu-mix", {"dataset": 0.3, "mix: MixUp": 0.5, "collate": 0.1}, "joined"),
        ("cpu-mix", {"dataset": 0.3, "collate": 0.6}, "mixup_collate"),
        ("cpu-mix", {"transform: ColorJitter": 0.3, "transform: RandomRotation": 0.3}, ""),
    ):
        reported(busy(stages=stages, machine=CORES, loader={"collate": collate}), rule)


def test_uncompiled_transform_is_reported_with_its_gain_and_reason():
    for loader in ({}, {"kind": "feedline", "made_by": "samples"}):
        run = busy(stages=STEPWISE, machine=CORES, loader=loader)
        reported(run, "uncompiled-transform", first=False, gain=1.6)
    silent("uncompiled-transform", busy(stages=STEPWISE, machine=CORES, loader={"fused": "a, b"}))
    reported(busy(loader=UNCOMPILED, **LARGE), "uncompiled-transform", evidence="opened")
    silent("uncompiled-transform", a_run(one_pass(), work=320.0, loader=UNCOMPILED))


# Batches


def test_idle_workers_with_wait_in_each_step_indicate_hand_over():
    copied = one_pass(wait=30.0, wait_cpu_ms=25.0 * 100, bytes=40 << 20)
    reported(a_run(copied, work=20.0), "hand-over", "shallow-prefetch")
    short = one_pass(wait=8.0, wait_cpu_ms=2.0 * 100)
    reported(a_run(short, work=120.0), "hand-over", "shallow-prefetch", gain=58 / 50)
    pinned = one_pass(wait=30.0, wait_cpu_ms=0.2 * 100, pinned=True, device_clock=True)
    run = a_run(pinned, work=20.0, loader={"pin_memory": True}, machine=GPU)
    alone("hand-over", run)
    reported(run, "hand-over", cause="pins")


def test_causes_too_small_for_a_change_are_listed():
    run = a_run(one_pass(wait=3.0, wait_cpu_ms=1.6 * 100), work=170.0)
    found = reported(run, "inconclusive", "hand-over", cause="small", evidence=r"hand-over 1\.06")
    assert found.fix


def test_small_batches_are_reported_instead_of_collate():
    def tiny(size, **more):
        samples, shape = 1001 * size, {"wait": 0.8, "compute": 0.1, "steps": 1000}
        return one_pass(**shape, samples=samples, batch_size=size, bytes=3000 * samples, **more)

    found = reported(a_run(tiny(1, wait_cpu_ms=0.6 * 1000), work=0.3), "small-batch")
    assert found.gain is not None
    assert found.gain.at_least
    collating = a_run(tiny(2), work=0.3, stages={"dataset": 0.2, "collate": 0.7})
    reported(collating, "small-batch", "collate")
    empty = one_pass(wait=1.0, compute=0.1, samples=0, batch_size=None, bytes=0)
    silent("small-batch", a_run(empty, work=0.3))


def test_occasional_long_waits_with_fast_workers_recommend_more_prefetch():
    occasional = {"work": 150.0, "stages": {"dataset": 0.9}}
    reported(a_run(uneven(), **occasional), "shallow-prefetch")
    silent("shallow-prefetch", a_run(uneven(), **occasional, loader={"prefetch_factor": 8}))
    # If the trainer lacks a core as well, it saves no more than the waits.
    lacking = a_run(uneven(compute_cpu_ms=15.0 * 100), **occasional | {"work": 10.0}, machine=RANKS)
    lacking = with_trainer(lacking, 0.3, 0.6)
    reported(lacking, "shallow-prefetch", first=False, gain=80 / 50, rel=0.02)


def test_batches_that_fill_shared_memory_are_reported():
    large, small = batches_of(60), {"use": {"shared_memory_bytes": 512 << 20}}
    reported(a_run(large, **small), "shared-memory")
    fits = a_run(large, use={"shared_memory_bytes": 8 << 30})
    # Of passes of five batches no more than these are ever ready.
    short = [one_pass(steps=4, epoch=k, bytes=5 * (60 << 20)) for k in range(10)]
    own = a_run(large, **small, loader={"kind": "feedline"})
    silent("shared-memory", fits, own, a_run(*short, **small))


def test_floats_are_reported_if_their_bytes_cost_time():
    run = {"work": 320.0, "stages": FLOATS}
    reported(a_run(floats(), **run, machine=CORES), "float-copy", fix="no GPU")
    with_gpu = reported(a_run(floats(), **run, machine=CORES | GPU), "float-copy", first=False)
    assert "no GPU" not in with_gpu.fix
    silent("float-copy", a_run(floats(wait=0.0), stages=FLOATS))


# The device


def test_unpinned_memory_is_reported_with_device():
    run = batches_of(19, pinned=False, copy=times(10.0, 100))
    reported(a_run(run, machine=GPU), "unpinned-copy", gain=60 / 50)
    silent("unpinned-copy", a_run(run))
    large, words = batches_of(19, pinned=False), "at 2 GB/s it is 9.96 ms of a step's 50.0 ms"
    found = reported(a_run(large, machine=GPU), "unpinned-copy", first=False, evidence=words)
    assert found.gain is None  # the copy is not measured
    alone("compute-bound", a_run(batches_of(2, pinned=False), machine=GPU))


def test_slow_first_steps_at_new_size_are_reported_on_a_cpu_if_they_compute():
    first = one_pass(first_steps_ms=[900.0] * 3 + [50.0] * 5)
    second = replace(first, image_size=96, epoch=1)
    reported(a_run(first, second, machine=GPU), "new-shape")
    silent("new-shape", a_run(first, one_pass(epoch=1), machine=GPU))
    # On a CPU they need CPU time: kernels are compiled on a core. If not, they waited.
    for cpu_ms, named in (([880.0] * 3 + [2.0] * 5, True), ([2.0] * 8, False), ([], False)):
        used = {"first_steps_cpu_ms": cpu_ms, "compute_cpu_ms": sum(cpu_ms) + 2.0 * 92}
        run = a_run(one_pass(), replace(second, **used))
        assert ("new-shape" in rules_of(run)) == named


def test_host_that_launches_all_the_time_is_host_bound():
    passed = one_pass(compute_cpu_ms=49.0 * 100, device_clock=True)
    reported(a_run(passed, machine=GPU, use={"gpu_busy": 0.4}), "host-bound")
    without_clock = a_run(replace(passed, device_clock=False), machine=GPU)
    silent("host-bound", a_run(passed, machine=GPU, use={"gpu_busy": 0.95}), without_clock)
    # As with .item() in each step: the thread spins until the device is done.
    alone("compute-bound", a_run(passed, machine=GPU, use={"gpu_busy": None}))


# Ranks


def test_the_rank_that_others_wait_for_is_named():
    words = "Rank 2 has slow input"
    reported(ranks(1.0, 1.0, 31.0, 1.0), "slow-rank", gain=80 / 50, rel=0.02, cause=words)
    computing = ranks(1.0, 1.0, cpu=(20.0, 60.0))
    reported(computing, "slow-rank", first=False, cause="Rank 1 has slow computing")
    alone("compute-bound", ranks(1.0, 2.0))


# No bottleneck


def test_loop_without_waits_is_compute_bound():
    without_workers = a_run(one_pass(wait=0.5), work=0.4, loader={"workers": 0})
    alone("compute-bound", a_run(one_pass()), a_run(one_pass(wait=1.0), work=150.0))
    alone("compute-bound", without_workers)
    # By the host's clock: every fiftieth step waits for the device to finish the others.
    pauses = a_run(paused(0.0), work=80.0, machine=GPU)
    alone("compute-bound", pauses, a_run(paused(0.0), work=80.0))


@pytest.mark.parametrize(
    ("passes", "word"),
    [
        ([], "no batch"),
        ([Pass(loader=0, epoch=0, ended="exhausted")], "no batch"),
        ([Pass(loader=0, epoch=0, ended="raised")], "raised"),
        ([one_pass(steps=5, ended="left")], "ended early"),
    ],
)
def test_too_few_steps_are_inconclusive(passes, word):
    verdict = diagnose(a_run(*passes))
    assert verdict.bound == "inconclusive"
    (only,) = verdict.findings
    assert only.rule == "inconclusive"
    assert word in (only.cause + only.evidence).lower()
    assert only.fix


def test_unknown_causes_are_inconclusive():
    alone("inconclusive", busy(work=40.0))  # waits in every step, and idle workers
    opaque = {"kind": "other", "workers": None}
    run = a_run(SLOW, loader=opaque, tasks=0, tasks_ms=0.0, timed=0, stages={})
    reported(run, "inconclusive")
    short = one_pass(wait=90.0, compute=10.0, steps=8, ended="left")
    reported(a_run(short, work=100.0), "inconclusive", fix="more workers")
    for persistent, fix in ((False, "persistent_workers=True"), (True, "more workers")):
        loader = {"persistent_workers": persistent}
        starts = a_run(*epochs(2, steps=4, start=1000.0), loader=loader)
        reported(starts, "inconclusive", fix=fix)
    # A run ends in one state, and is bound by its input to some degree.
    runs = (a_run(one_pass()), busy(), busy(work=40.0), a_run(one_pass(steps=8)))
    states = [diagnose(each).state for each in runs]
    assert states == ["healthy", "finding", "inconclusive", "inconclusive"]
    moderate = a_run(one_pass(wait=5.0), work=300.0)
    bounds = [diagnose(each).bound for each in (run, moderate)]
    assert bounds == ["highly input-bound", "moderately input-bound"]


# Gains and advice


def width(run, rule):
    """Predicted gain of a finding, relative to the lower end of its interval."""
    gain = finding_of(run, rule).gain
    assert gain is not None
    return gain.predicted / gain.low


def test_interval_of_a_short_run_is_from_blocks_of_its_latest_steps():
    # The same steps: mixed, their mean is known well; if they become slower, it is not.
    mixed, slower = (
        busy(excerpts=latest(steps)) for steps in ([60.0, 100.0] * 16, [60.0] * 16 + [100.0] * 16)
    )
    assert width(mixed, "too-few-workers") < width(slower, "too-few-workers")


def test_other_programs_widen_the_intervals_of_gains():
    alone, beside = (
        busy(
            cpu=1 - queued,
            stages={"transform: Sharpened": 0.9},
            machine=CORES,
            timed_queued_ms=12 * 320 * queued,
            excerpts=latest([80.0] * 32),
        )
        for queued in (0.0, 0.5)
    )
    assert width(alone, "slow-transform") < width(beside, "slow-transform")


def test_a_trivial_finding_is_not_the_first():
    # Workers need 320 ms for a batch; all of it in the dataset, but for collating floats.
    run = a_run(
        floats(wait=270.0),
        work=320.0,
        stages={"dataset": 0.93, "collate": 0.07},
        loader={"workers": 1},
        machine={"usable_cores": 1},
    )
    assert rules_of(run)[0] not in ("float-copy", "hand-over", "inconclusive")


@pytest.mark.parametrize(
    ("use", "loader", "fix"),
    [
        ({"shared_memory_bytes": 1 << 30}, {}, "prefetch_factor=3"),
        ({"shared_memory_bytes": 700 << 20}, {}, None),
        ({"cacheable_bytes": 1 << 30}, {}, None),
        ({"shared_memory_bytes": 700 << 20}, {"kind": "feedline"}, "prefetch_factor=4"),
        ({}, {"kind": "feedline", "made_by": "dataset"}, "prefetch_factor=4"),
        ({}, {"kind": "feedline", "made_by": "image rows"}, "prefetch="),
    ],
)
def test_recommended_prefetch_fits_memory_and_is_the_loaders_argument(use, loader, fix):
    large = uneven(bytes=101 * (60 << 20))
    run = a_run(large, work=150.0, stages={"dataset": 0.9}, use=use, loader=loader)
    assert ("shallow-prefetch" in rules_of(run)) == (fix is not None)
    assert fix is None or fix in finding_of(run, "shallow-prefetch").fix


@pytest.mark.parametrize("size", [4, 8])
def test_the_size_of_a_float_is_that_of_its_type(size):
    count = size * 101 * 32 * 3 * 224 * 224
    passed = one_pass(wait=30.0, image_size=224, bytes=count, float_bytes=count)
    run = a_run(passed, work=320.0, stages={"dataset": 0.5, "collate": 0.5}, machine=CORES)
    assert f"{size} times" in finding_of(run, "float-copy").cause
    assert "collate" not in rules_of(run)


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
def test_advice_is_accepted_by_loader(loader, cache, device):
    """If the loader would reject an argument, the advice says so or names the prerequisite."""
    passed = one_pass(wait=30.0, bytes=101 * 40_000_000, float_bytes=101 * 40_000_000)
    run = a_run(passed, work=320.0, loader=loader, **LARGE)
    for rule, accepted, name in (
        ("decode-bound", cache, "cache="),
        ("float-copy", device, "device="),
    ):
        fix = finding_of(run, rule).fix
        conditional = "compiled" in fix or f"refuses {name}" in fix
        assert conditional != accepted, fix


# Rates and shares


def test_split_is_none_if_not_measured():
    verdict = diagnose(busy())
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


def rates(verdict):
    """Rate of a run, and its compute-bound rate, in images/s."""
    bound = verdict.compute_bound
    return verdict.images_per_s, bound and bound.images_per_s


def with_gap(gap_s):
    """Two passes of 8 s with a gap between them."""
    first = one_pass(wait=30.0, start=0.0, ended_s=8.0)
    second = one_pass(wait=30.0, start=2000.0, epoch=1, begun_s=8.0 + gap_s, ended_s=18.0 + gap_s)
    return diagnose(a_run(first, second, work=320.0))


def test_ceiling_is_rate_of_steps_without_waiting_and_parts_add_up_to_the_whole_run():
    assert rates(diagnose(busy())) == pytest.approx((32 / 0.08, 32 / 0.05))
    images = (6 * 20 + 5) * 32
    assert rates(diagnose(a_run(*epochs()))) == pytest.approx((images / 9.0, images / 6.0))
    evaluated = with_gap(gap_s=2.0)
    assert rates(evaluated) == pytest.approx((201 * 32 / 20, 201 * 32 / 12))
    assert evaluated.time_split_s == pytest.approx(
        {"starts": 2, "wait": 6, "copy": None, "core": 0, "shape": 0, "compute": 10, "between": 2}
    )
    assert evaluated.wait_pct == pytest.approx(100 * (2 + 6) / 20)
    # A pause longer than all passes is not part of the training.
    assert with_gap(gap_s=3600.0).time_split_s["between"] == 0


def test_workers_prepare_no_more_than_cores_allow():
    def rate(cores):
        found = diagnose(busy(machine={"cores": cores, "usable_cores": cores})).compute_bound
        return None if found is None else found.workers_images_per_s

    assert rate(2) == pytest.approx((rate(4) or 0) / 2)
    assert rate(8) == rate(4)  # of 4 workers


def test_steps_below_clock_resolution_promise_bounded_gain():
    nothing = one_pass(wait=0.001, compute=5e-324, samples=202, bytes=202)
    verdict = diagnose(a_run(nothing, work=0.0))
    assert verdict.compute_bound is None
    assert all(each.gain is None or math.isfinite(each.gain.high) for each in verdict.findings)
