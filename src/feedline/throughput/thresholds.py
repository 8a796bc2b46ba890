"""All thresholds of measuring, diagnosing, tuning and adapting, with their reasons."""

from __future__ import annotations

from dataclasses import dataclass


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
    long_start: float = 4.0  # times the work of a batch: workers do not explain a longer start
    nearly_all_steps: float = 0.7  # that wait: no queue of batches ever fills
    even: float = 0.65  # of the workers share the work: below, some have no data
    full: float = 0.8  # of shared memory or of the cores
    crowded: float = 1.5  # times as long as alone, or cores wanted: other programs use the cores
    throttled: float = 0.05  # of the time, by a CPU quota
    idle_device: float = 0.7  # busy share below which the device waits for the host
    from_disk: float = 0.3  # of the bytes read, and of the time that workers wait: it is the disk
    disk_sample_bytes: int = 4096  # a page, the least that is read from a disk
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
    # errs by up to a fifth of the time that it predicts to be saved, by `laboratory/`. 65 of 78
    # what-ifs on an idle machine are within their intervals with it, 58 without.
    run_to_run: float = 0.05
    model_error: float = 0.2


THRESHOLDS = Thresholds()
"""The thresholds; a module reads `THRESHOLDS.name` when it needs one."""
