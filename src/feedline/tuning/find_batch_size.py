"""`feedline.find_batch_size`: the largest batch that fits into a GPU's memory.

Guarantees: the model, the optimizer and the random states are unchanged afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from feedline.errors import UsageError
from feedline.order.schedule import Phase, Schedule
from feedline.tuning.batch_search import BatchTrial
from feedline.tuning.batch_sizes import BatchSizes
from feedline.tuning.device_memory import CudaMemory
from feedline.tuning.measured_batches import TrainingSetup, measure_batch_sizes
from feedline.tuning.preserve_state import HasStateDict
from feedline.tuning.training_step import Loss, MakeBatch, Step, class_loss

__all__ = ["find_batch_size"]

_PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)


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
    device = _device(model)
    training = TrainingSetup(
        model=model,
        step=step,
        batch=batch,
        optimizer=optimizer,
        loss=loss,
        stateful=tuple(stateful),
        precision=precision,
        device=device,
    )
    return measure_batch_sizes(
        training,
        phases,
        memory=CudaMemory(device),
        where=torch.cuda.get_device_name(device),
        max_rows=max_batch_size,
        on_trial=on_trial,
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
    if (
        isinstance(max_batch_size, bool)
        or not isinstance(max_batch_size, int)
        or max_batch_size < 1
    ):
        raise UsageError(
            f"max_batch_size must be a whole number of at least 1, got {max_batch_size!r}"
        )
    if any(isinstance(each, nn.parameter.UninitializedParameter) for each in model.parameters()):
        raise UsageError(
            "the model has uninitialized parameters", hint="call it on one batch first"
        )
    if not any(each.requires_grad for each in model.parameters()):
        raise UsageError("no parameter of the model requires gradients")


def _device(model: nn.Module) -> torch.device:
    """Return the GPU of the model."""
    devices = {parameter.device for parameter in model.parameters()}
    device = next(iter(devices))
    if len(devices) == 1 and device.type == "cuda":
        return device
    where = " and ".join(sorted(map(str, devices)))
    if not torch.cuda.is_available():
        raise UsageError(
            f"find_batch_size needs a CUDA device, but torch sees none (the model is on {where})",
            hint="the reference page on tuning lists estimates for common models and GPUs",
        )
    raise UsageError(
        f"find_batch_size needs a model on one CUDA device, but it is on {where}",
        hint="move it with model.cuda()",
    )
