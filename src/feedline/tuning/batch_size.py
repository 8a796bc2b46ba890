"""`feedline.find_batch_size`: the largest batch that fits into a GPU's memory.

The first trial uses a small size. The next sizes follow from the memory that trials used, on the
line through the last two. If the line predicts badly, since kernels choose their workspace by the
size, the gap is doubled or halved. At the end all phases run in sequence.

Guarantees: the model, the optimizer and the random states are unchanged afterwards. No size is
tried twice. The answer was tried and fits; the next larger size was tried and does not fit, or
exceeds the maximum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from feedline.errors import UsageError
from feedline.order.schedule import Phase, Schedule, is_count
from feedline.system import rank_and_world
from feedline.text import format_table, plural
from feedline.tuning.training_step import (
    BatchTrial,
    BatchTrials,
    CudaMemory,
    HasStateDict,
    Loss,
    MakeBatch,
    Step,
    class_loss,
    noise_batches,
    training_step,
)

_PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)
_MULTIPLE = 8  # for tensor cores (NVIDIA, "Train with Mixed Precision", shape constraints)
_FIRST_ROWS = 8
_EXTRAPOLATED = 3  # trials that follow a line; later ones halve or double
_SMALLER = 0.95
_GB = 1 << 30
Bound = Literal["memory", "most", "asked"]
_BOUNDS: dict[Bound, str] = {
    "memory": "limited by memory",
    "most": "limited by the maximum",
    "asked": "set by the schedule",
}


def find_batch_size(
    model: nn.Module,
    schedule: int | str | Schedule | Phase | Iterable[Phase],
    *,
    step: Step | None = None,
    batch: MakeBatch | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    loss: Loss = class_loss,
    stateful: Sequence[HasStateDict] = (),
    precision: torch.dtype = torch.float32,
    max_batch_size: int = 4096,
    on_trial: Callable[[int, BatchTrial], object] | None = None,
) -> BatchSizes:
    """Find the largest batch that fits into a GPU's memory, for each phase of a schedule.

    On a CUDA device, runs training steps on images of noise (forward, backward, optimizer) with
    growing batches until memory runs out. 8% of the memory stays free, and at the end all phases
    must run in sequence within the rest.

    Args:
        model: on its device, before DistributedDataParallel wraps it. It is unchanged afterwards.
        schedule: as in `feedline.DataLoader`, or one image size in pixels. A batch size of the
            schedule is kept, and checked for fit.
        step: training step on a batch, instead of a plain one; it needs `optimizer`. Name other
            objects that it changes in `stateful`.
        batch: function of (rows, size) that makes a batch on the device. Default: images, float32,
            shape (N, 3, H, W), channels_last, and labels, int64, shape (N,).
        optimizer: optimizer of the model. Default: AdamW, whose state is twice the parameters.
        loss: loss of outputs and labels in the plain step.
        stateful: objects with `state_dict` and `load_state_dict` that a step changes, such as a
            gradient scaler, a learning-rate scheduler or averaged weights.
        precision: autocast dtype of the plain step: bfloat16, float16, or float32 for none.
        max_batch_size: largest batch to try.
        on_trial: called after each trial with the image size.

    Raises:
        UsageError: there is no GPU; the schedule has no sizes; a batch size of the schedule does
            not fit, or no batch does; the model cannot be tried; a `step` without its optimizer.
        Exception: any error of the step except out of memory.

    Example:
        >>> found = feedline.find_batch_size(model, "112x10,224x10")            # doctest: +SKIP
        >>> loader = feedline.DataLoader(data, schedule=found.schedule)         # doctest: +SKIP
    """
    if isinstance(schedule, int):
        schedule = Phase(image_size=schedule, epochs=1)
    phases = Schedule.of(schedule)
    _check(model, phases, precision, max_batch_size)
    own = (optimizer, *stateful)
    if step is not None and not any(isinstance(each, torch.optim.Optimizer) for each in own):
        raise UsageError(
            "step= changes the state of an optimizer, which is restored only if it is named",
            hint="pass optimizer=, and further ones in stateful=[...]",
        )
    memory = CudaMemory(model)
    if optimizer is None:
        optimizer = torch.optim.AdamW(each for each in model.parameters() if each.requires_grad)
    trials = BatchTrials(
        model,
        memory,
        step or training_step(model, optimizer, loss, precision),
        batch or noise_batches(memory.device),
        [model, optimizer, *stateful],
        on_trial,
    )
    known: dict[tuple[int | None, int | None], PhaseBatch] = {}
    found = list[PhaseBatch]()
    try:
        for phase in phases.phases:
            key = phase.image_size, phase.batch_size
            if key not in known:
                known[key] = _find(phase, trials, max_batch_size)
            each = known[key]
            found.append(replace(each, phase=replace(phase, batch_size=each.rows)))
        while (failing := trials.find_failing_phase([each.stage for each in found])) is not None:
            found[failing] = _shrink(found[failing], trials)
    finally:
        memory.clear()
    return BatchSizes(
        phases=tuple(found),
        where=memory.name,
        usable_bytes=trials.usable_bytes,
        memory_bytes=trials.memory_bytes,
    )


def _check(model: nn.Module, phases: Schedule, precision: torch.dtype, max_batch_size: int) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if not phases.image_sizes:
        raise UsageError(
            f"each phase needs an image size, got {str(phases)!r}", hint='write e.g. "224x1"'
        )
    if precision not in _PRECISIONS:
        raise UsageError(f"precision must be float32, bfloat16 or float16, got {precision!r}")
    if not is_count(max_batch_size) or max_batch_size < 1:
        raise UsageError(
            f"max_batch_size must be a whole number of at least 1, got {max_batch_size!r}"
        )
    parameters = list(model.parameters())
    if any(isinstance(each, nn.parameter.UninitializedParameter) for each in parameters):
        raise UsageError(
            "the model has uninitialized parameters", hint="call it on one batch first"
        )
    if not any(each.requires_grad for each in parameters):
        raise UsageError("no parameter of the model requires gradients")
    wrapped = isinstance(model, nn.parallel.DistributedDataParallel)
    sharded = any(type(each).__name__ == "DTensor" for each in parameters)
    synced = any(isinstance(each, nn.SyncBatchNorm) for each in model.modules())
    if wrapped or sharded or (synced and rank_and_world()[1] > 1):
        raise UsageError(
            "a step of this model waits for other ranks, and would wait forever if memory runs out "
            "on one of them",
            hint="pass the model before it is wrapped, sharded or converted to "
            "SyncBatchNorm, and use the smallest batch size of all ranks",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseBatch:
    """Batch size of one phase."""

    phase: Phase  # of the schedule, with the batch size
    peak_bytes: int  # of a step, as reserved by torch
    bound: Bound  # limit of the size
    trials: tuple[BatchTrial, ...]

    @property
    def rows(self) -> int:
        """Images in a batch."""
        return self.phase.batch_size or 0

    @property
    def stage(self) -> tuple[int, int]:
        """Image size and images in a batch."""
        return self.phase.image_size or 0, self.rows


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSizes:
    """Largest batch of each phase."""

    phases: tuple[PhaseBatch, ...]
    where: str  # name of the device
    usable_bytes: int  # limit of a batch
    memory_bytes: int  # available to a training

    @property
    def schedule(self) -> Schedule:
        """Schedule with these batch sizes."""
        return Schedule(tuple(each.phase for each in self.phases))

    @property
    def largest(self) -> int:
        """Largest batch of any phase."""
        return max(each.rows for each in self.phases)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary, memory in bytes."""
        return {
            "where": self.where,
            "memory_bytes": self.memory_bytes,
            "usable_bytes": self.usable_bytes,
            "schedule": str(self.schedule),
            "phases": [
                {
                    "image_size": each.phase.image_size,
                    "batch_size": each.rows,
                    "peak_bytes": each.peak_bytes,
                    "bound": each.bound,
                    "trials": [asdict(trial) for trial in each.trials],
                }
                for each in self.phases
            ],
        }

    def __str__(self) -> str:
        """Return a line for each phase, and the schedule."""
        rows = [
            (
                f"{each.phase.image_size} px",
                plural(each.rows, "image"),
                f"{each.peak_bytes / _GB:.1f} GB",
                f"({_BOUNDS[each.bound]}, {plural(len(each.trials), 'trial')})",
            )
            for each in self.phases
        ]
        return "\n".join(
            [
                f"batch sizes for {self.where}: at most {self.usable_bytes / _GB:.1f} of "
                f"{self.memory_bytes / _GB:.1f} GB, the rest stays free",
                *format_table(rows),
                f"schedule={str(self.schedule)!r}",
            ]
        )


def next_size(trials: Mapping[int, BatchTrial], usable_bytes: int, max_rows: int) -> int | None:
    """Return the next batch size to try: 1 to 8, or a multiple of 8, at most `max_rows`.

    None if the largest size that fits into `usable_bytes` is known. Pure: `trials` are by size.
    """
    end = _larger(max_rows)
    if not trials:
        return min(_FIRST_ROWS, _rounded(max_rows))
    low = largest_fitting(trials)
    high = min((rows for rows, trial in trials.items() if not trial.fits), default=end)
    if _larger(low) >= high:
        return None
    target = _extrapolate(trials, usable_bytes) if len(trials) <= _EXTRAPOLATED else None
    if target is None:
        # Until a size fails, the gap has no upper end to be halved.
        target = 2 * low if high == end and low else (low + high) // 2
    return min(max(_rounded(target), _larger(low)), _rounded(high - 1))


def largest_fitting(trials: Mapping[int, BatchTrial]) -> int:
    """Largest size that fits, below all that do not; 0 if none fits."""
    failed = min((rows for rows, trial in trials.items() if not trial.fits), default=None)
    return max((rows for rows in trials if failed is None or rows < failed), default=0)


def _extrapolate(trials: Mapping[int, BatchTrial], usable_bytes: int) -> int | None:
    """Largest size on the line through the two largest measured sizes."""
    known = sorted((rows, each.peak_bytes) for rows, each in trials.items() if each.peak_bytes)
    if not known:
        return None
    # A single point underestimates, since some bytes do not depend on the size.
    (few, less), (many, more) = known[-2:] if len(known) > 1 else [(0, 0), known[0]]
    if more <= less:
        return None
    return int(many + (usable_bytes - more) * (many - few) / (more - less))


def next_smaller(rows: int) -> int:
    """Size to try after this one failed: about 5% smaller; 0 below 1."""
    return _rounded(min(int(_SMALLER * rows), rows - 1))


def _rounded(rows: int) -> int:
    """Largest size that is at most this."""
    return max(0, rows) if rows < _MULTIPLE else rows - rows % _MULTIPLE


def _larger(rows: int) -> int:
    """Smallest size above this."""
    return rows + 1 if rows < _MULTIPLE else _rounded(rows) + _MULTIPLE


def _find(phase: Phase, trials: BatchTrials, max_rows: int) -> PhaseBatch:
    """Find the largest batch of one phase, or try the one that the schedule sets."""
    size, rows = phase.image_size or 0, phase.batch_size
    limit = f"{trials.usable_bytes / _GB:.1f} GB of {trials.memory_bytes / _GB:.1f} GB"
    tried: dict[int, BatchTrial] = {}
    if rows is not None:
        trial = tried[rows] = trials.trial(size, rows)
        if not trial.fits:
            needs = f"it needs {(trial.peak_bytes or 0) / _GB:.1f} GB"
            raise UsageError(
                f"the batch size {rows} of the schedule at {size} px does not fit into {limit} "
                f"({trials.last_error if trial.peak_bytes is None else needs})",
                hint=f"remove @{rows} to search for the largest",
            )
        bound: Bound = "asked"
    else:
        while (rows := next_size(tried, trials.usable_bytes, max_rows)) is not None:
            tried[rows] = trials.trial(size, rows)
        rows = largest_fitting(tried)
        bound = "most" if all(trial.fits for trial in tried.values()) else "memory"
    if not rows:
        raise UsageError(
            f"not even one image of {size} px fits into {limit} with the model and its optimizer "
            f"({trials.last_error})",
            hint="use a smaller model or image size, or end other programs on the device",
        )
    return PhaseBatch(
        phase=replace(phase, batch_size=rows),
        peak_bytes=tried[rows].peak_bytes or 0,
        bound=bound,
        trials=tuple(tried.values()),
    )


def _shrink(found: PhaseBatch, trials: BatchTrials) -> PhaseBatch:
    """Reduce the batch of a phase that fails after other phases."""
    size, rows = found.stage
    smaller = next_smaller(rows)
    if found.bound == "asked" or not smaller:
        raise UsageError(
            f"batches of {rows} at {size} px fit alone, but not after the other phases "
            f"({trials.last_error})",
            hint="use smaller ones, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        )
    trial = trials.trial(size, smaller)
    return PhaseBatch(
        phase=replace(found.phase, batch_size=smaller),
        peak_bytes=found.peak_bytes if trial.peak_bytes is None else trial.peak_bytes,
        bound="memory",
        trials=(*found.trials, trial),
    )
