"""Throughput model: the time of a step, from the needs of its parts; and all thresholds.

A step cannot be shorter than any of three times: the training process's own work for it (it
computes, and takes the batch over); a worker's work for a batch divided by the number of workers;
and the time on cores that all processes need, divided by the number of cores. Without workers the
first two add up. If batches take unequal time, some are late although there are enough workers on
average: that waiting is added to the first. This is the roofline of a pipeline (Williams et al.,
"Roofline", CACM 2009, applied to stages in place of bandwidths).

If the cores are always busy, a training process that computes on them sometimes waits for one, less
often the more cores there are. So if it is on a core half of the time or more, the first and the
third time, c and k, are combined to (c**p + k**p)**(1/p), with p twice the number of cores: for two
cores this adds 19% if both are equal, 2% if one is twice the other. If it is on a core for less,
and otherwise waits for a device, proportionally less is added. This is fitted to measurements of
`laboratory/` on two cores.

Guarantees: pure; more workers never make a step longer, nor do more cores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

__all__ = ["THRESHOLDS", "StepLoad", "Thresholds", "with_workers"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """Thresholds of measuring, diagnosing, tuning and adapting: shares, ratios and seconds."""

    # Verdict on a run. 5% and 20% are the limits of the input-pipeline analyzer of TensorFlow's
    # profiler. With less than 5% of data wait a run is compute-bound: the best loader would make
    # it 1.053 times as fast, so the least gain of a recommendation is the same limit.
    data_wait: float = 0.05
    high_data_wait: float = 0.20
    min_gain: float = 1.05
    min_steps: int = 20  # fewer do not show a steady state: queues and caches fill meanwhile

    # Equality: two trials of one setting on an idle machine differ by 1 to 2%.
    alike: float = 0.02
    noise: float = 0.05  # a gain that is hardly noise, required where more was expected
    close: float = 0.07  # trials this close may change places when repeated
    close_on_all_cores: float = 0.3  # and if the workers leave no core to the training loop

    # Number of workers. Batches are uneven, so the mean need is too few.
    spare: float = 1.1
    ample: float = 1.3  # kept when workers are removed, so that they are not added again
    busy: float = 0.9  # share of their time: above, workers are missing; below, batches are uneven
    calm: float = 0.01  # data wait up to which fewer workers may do: a fifth of `data_wait`
    superlinear: float = 0.05  # busy workers never gain more than their proportion, but for noise

    # Blocked work: above a half, workers leave cores to others; from 0.3 on, work on a core may
    # need the same lock as the work that waits.
    may_hold_lock: float = 0.3
    mostly_blocked: float = 0.5
    workers_per_core: int = 4  # if nearly all of their work is waiting

    # Search of settings. Trials are compared within `alike`, so it looks for more than the verdict
    # asks for. A trial ends once its error is small, or another setting is clearly faster.
    search_wait: float = 0.03  # data wait from which on other settings may be faster
    tiny_step_s: float = 0.01  # longest step to try without workers, if their work is unknown
    repeat_rounds: int = 2
    ceiling_s: float = 1.0  # of the compute-bound steps
    trial_s: float = 1.0
    max_trial_s: float = 2.5  # if figures vary
    min_trial_steps: int = 4  # two for warm-up and two that count
    usual_trial_steps: int = 8  # including those of the previous setting
    trial_steps: int = 16  # two for each block of `error_of`, before a small error is trusted
    trial_error: float = 0.01
    later_trial_error: float = 0.03  # halfway from the shortest duration to the longest
    clearly_slower: float = 0.1
    warmup_steps: int = 2  # cuDNN chooses kernels in the first, the allocator settles in the second
    alone: float = 1 / 3  # of the time of a dry run, for the compute-bound steps
    forward: float = 1 / 3  # a validation image to a training step; backward is about twice
    kept_batches: int = 3  # in memory, for the compute-bound rate: different data, little memory

    # Hand-over and late batches of a measured step.
    ready: float = 0.6  # of a step for a batch: below, one is usually ready in time
    hand_over: float = 0.3  # of a step: longest wait for a batch that is ready
    hand_over_cpu: float = 2.0  # times its CPU time: the rest is waiting for late batches
    late: float = 0.05  # of a step: a shorter wait does not prove late batches
    pools_differ: float = 1.3  # busy workers of two pools, to see the effect on their waiting
    wide_range: float = 1.2  # upper to lower limit of a prediction from which both are printed

    # Windows of an adapting loader: at least a second and as many steps as `error_of` has blocks.
    window_s: float = 1.0
    window_steps: int = 8
    window_error: float = 0.2  # of the step time: with more, one window is not enough
    patience: int = 3  # windows that must agree, if the change is not urgent
    many_windows: int = 8  # to see uneven batches, of which one window may have none
    max_windows: int = 32  # older ones may be of another workload
    other_work: float = 1.5  # ratio of need: the workload has changed, and is tried again
    shorter_tasks: float = 4.0  # beyond a quarter the gain is 1.1 at most, by simulation
    min_task_ms: float = 2.0  # its message of 0.2 ms is a tenth
    # Batches to wait for each batch in flight before measuring again with more batches ahead:
    # workers are often only slightly faster than the step, so the queue fills slowly.
    batches_to_fill: int = 4
    memory_share: float = 0.5  # of the available memory, for more workers and batches ahead

    # Findings. A part of the workers' work is named from `some_work` on if it is usually small
    # (opening files, mixing), from `much_work` on otherwise.
    some_work: float = 0.2
    much_work: float = 0.35
    trivial: float = 0.1  # of the possible gain: less does not explain a run
    sure_gain: float = 1.1  # reported although the interval of a noisy run holds 1.0
    at_work: float = 0.7  # busy share below which steps do not wait for the workers' work
    at_rest: float = 0.4  # busy share below which batches are ready, and steps wait to receive them
    nearly_all_steps: float = 0.7  # that wait: no queue of batches ever fills
    even: float = 0.65  # of the workers share the work: below, some have no data
    full: float = 0.8  # of shared memory or of the cores
    crowded: float = 1.5  # times as long as alone, or cores wanted: other programs use the cores
    throttled: float = 0.05  # of the time, by a CPU quota
    idle_device: float = 0.7  # busy share below which the device waits for the host
    from_disk: float = 0.3  # of the bytes read: workers that wait, wait for the disk
    large_batch_bytes: int = 1 << 20  # its copies take time
    tiny_batch: int = 32  # samples
    min_batch_work_ms: float = 1.0  # less costs more to hand from process to process
    # Compiled pipelines decode only the crop, and make one pass of the other steps: with half of
    # the work for decoding they are 4 times as fast; `benchmarks/recipes.py` measures 3.0 to 5.1.
    fused_decode: float = 0.4
    fused_work: float = 0.1
    slow_sample_octaves: int = 3  # a slow sample takes at least 8 times the median
    slow_samples: float = 0.1  # of all samples, at most: more are usual
    pause: float = 8.0  # times the median step: the model is evaluated or saved
    steps_per_pause: int = 16  # prefetched batches can bridge more frequent ones

    watched_s: float = 0.5  # of a process, to know its rate: the kernel counts in steps of 10 ms
    # Of the usable cores, by other programs: reported with a measurement, and warned of by doctor.
    other_cores: float = 0.1
    busy_cores: float = 0.5
    fast_enough: float = 0.5  # of the needed rate of a disk: decoding and a short read vary
    noisy_rounds: float = 0.3  # range of the rates of `bench`, as a share of their median

    # Intervals of gains: two runs of one loop on an idle machine differ by up to 5%; the model
    # errs by up to a fifth of the time that it predicts to be saved, by `laboratory/`.
    run_to_run: float = 0.05
    model_error: float = 0.2


THRESHOLDS = Thresholds()
"""The thresholds; a module reads `THRESHOLDS.name` when it needs one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepLoad:
    """Needs of a step, in milliseconds.

    Args:
        workers: processes that make batches; 0: the training process makes them.
        cores: cores that all may use.
        compute_ms: the step's own work, undisturbed.
        work_cpu_ms: CPU time to make a batch.
        work_blocked_ms: blocked time to make a batch.
        step_cpu_ms: CPU time of the step's own work, all threads.
        hand_ms: time to take a batch over, if the step waits for it.
        hand_cpu_ms: CPU time of that.
        beside_cpu_ms: CPU time of workers for a batch outside their tasks.
        late_ms: wait for late batches although there are enough workers on average: the work is
            uneven, or other programs use the cores.
        copy_ms: time to copy a batch to the device, if the step waits for it.
    """

    workers: int
    cores: float
    compute_ms: float
    work_cpu_ms: float
    work_blocked_ms: float = 0.0
    step_cpu_ms: float = 0.0
    hand_ms: float = 0.0
    hand_cpu_ms: float = 0.0
    beside_cpu_ms: float = 0.0
    late_ms: float = 0.0
    copy_ms: float = 0.0

    @property
    def consume_ms(self) -> float:
        """Time that the training process needs for a step."""
        return self.compute_ms + self.hand_ms + self.copy_ms

    @property
    def produce_ms(self) -> float:
        """Time that the workers need for a batch."""
        return max(self.made_ms, self.cores_ms) if self.workers else self.made_ms

    @property
    def work_ms(self) -> float:
        """Time that one worker needs for a batch if a core is free."""
        return self.work_cpu_ms + self.work_blocked_ms

    @property
    def blocked_share(self) -> float:
        """Share of `work_ms` that is blocked."""
        return self.work_blocked_ms / self.work_ms if self.work_ms > 0 else 0.0

    @property
    def made_ms(self) -> float:
        """Time that the workers need for a batch if each has a core."""
        return self.work_ms / max(1, self.workers)

    @property
    def cores_ms(self) -> float:
        """Time that all processes need of the cores for a step and a batch."""
        cpu = self.work_cpu_ms + self.beside_cpu_ms + self.step_cpu_ms + self.hand_cpu_ms
        return cpu / self.cores

    @property
    def step_ms(self) -> float:
        """Time of the whole step."""
        if self.workers == 0:
            return self.consume_ms + self.produce_ms
        return max(self.made_ms, self.even_ms + self.late_ms)

    @property
    def even_ms(self) -> float:
        """Time of the whole step if a batch is always ready."""
        alone = max(self.consume_ms, self.cores_ms)
        joint = _joint(self.consume_ms, self.cores_ms, 2 * self.cores)
        on_core = (
            (self.step_cpu_ms + self.hand_cpu_ms) / self.consume_ms if self.consume_ms else 0.0
        )
        return alone + min(1.0, 2 * on_core) * (joint - alone)

    @property
    def waits(self) -> bool:
        """True if steps wait for batches, by the model."""
        return self.step_ms > (1 + THRESHOLDS.alike) * self.consume_ms

    @property
    def need(self) -> float:
        """Number of workers that are busy all the time if steps never wait."""
        if self.work_ms <= 0:
            return 0.0
        return self.work_ms / self.consume_ms if self.consume_ms > 0 else math.inf

    def scaled(self, *, compute: float = 1.0, work: float = 1.0) -> StepLoad:
        """Return the load with other times of the step's own work, and of all else."""
        own = ("compute_ms", "step_cpu_ms")
        counts = ("workers", "cores")
        times = {name: getattr(self, name) for name in StepLoad.__slots__ if name not in counts}
        return replace(
            self, **{name: ms * (compute if name in own else work) for name, ms in times.items()}
        )


def with_workers(load: StepLoad, workers: int, shared: float = 0.0) -> StepLoad:
    """Return the same load with another number of workers.

    Args:
        load: with workers.
        workers: new number.
        shared: how far the resource that workers wait for (a disk, a server, a lock) serves one at
            a time: 0 if it serves all at once, 1 if waiting grows in proportion to the workers.
    """
    if load.workers == 0 or workers == load.workers:
        return replace(load, workers=workers)
    longer = (workers / load.workers) ** shared
    return replace(
        load,
        workers=workers,
        work_blocked_ms=load.work_blocked_ms * longer,
        # While one worker makes a long batch, each of the others makes batches that hide it.
        late_ms=load.late_ms * load.workers / max(1, workers),
    )


def _joint(one: float, other: float, power: float) -> float:
    """p-norm of two figures: close to the larger one, more if they are equal."""
    less, more = sorted((one, other))
    return float(more * (1 + (less / more) ** power) ** (1 / power)) if more > 0 else 0.0
