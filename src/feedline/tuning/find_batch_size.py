"""`feedline.find_batch_size`: the largest batch that a GPU's memory holds, for each phase.

Guarantees: the model, the optimizer and the random states are afterwards as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from feedline.errors import UsageError
from feedline.plan.schedule import Phase, Schedule
from feedline.tuning.batch_search import BatchTrial
from feedline.tuning.batch_sizes import BatchSizes
from feedline.tuning.batches_estimated import batches_estimated
from feedline.tuning.batches_tried import Training, batches_tried
from feedline.tuning.device_memory import CudaMemory
from feedline.tuning.kept import Stateful
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
    also: Sequence[Stateful] = (),
    precision: torch.dtype = torch.float32,
    most: int = 4096,
    gpu_memory: float | None = None,
    told: Callable[[int, BatchTrial], object] | None = None,
) -> BatchSizes:
    """Find the largest batch that a GPU's memory holds, for each phase of a schedule.

    On a CUDA device it is tried: training steps with images of noise, forward, backward and
    optimizer, with growing batches until memory is out; 8% of the memory is left free, and at the
    end all phases run one after another within the rest. With `gpu_memory` it is estimated from the
    tensors of a step, which needs no GPU.

    Args:
        model: where it trains, before DistributedDataParallel wraps it. Nothing of it changes.
        schedule: in any form that `feedline.DataLoader` takes, or one image size in pixels. A phase
            that names a batch size keeps it, and it is tried whether it fits.
        step: one training step on a batch, in the place of a plain one; `optimizer` is needed with
            it. What it changes besides these belongs into `also`. Only by trial.
        batch: makes a batch on the device from (rows, size); None makes images, float32,
            shape (N, 3, H, W), channels_last, and labels, int64, shape (N,). Only by trial.
        optimizer: of the model; None takes AdamW, whose state is twice the parameters.
        loss: of outputs and labels, in the plain step.
        also: what has `state_dict` and `load_state_dict` and changes in a step: a scaler, a
            scheduler, an average of the weights.
        precision: of autocast in the plain step: bfloat16, float16, or float32 for none.
        most: no larger batch is tried.
        gpu_memory: of a GPU, in GB as its name says it: 8, 24, 80. Estimates for that one.
        told: is called after each trial, with the image size.

    Raises:
        UsageError: there is no GPU and no `gpu_memory`; the schedule has no sizes; a batch that the
            schedule names does not fit, or none does; the model cannot be tried or estimated; a
            step without its optimizer.
        Exception: whatever the step raises that is no lack of memory.

    Example:
        >>> found = feedline.find_batch_size(model, "112x10,224x10")            # doctest: +SKIP
        >>> loader = feedline.DataLoader(data, schedule=found.schedule)         # doctest: +SKIP
    """
    if isinstance(schedule, int):
        schedule = Phase(size=schedule, epochs=1)
    phases = Schedule.of(schedule)
    _check(model, phases, precision, most)
    if gpu_memory is not None:
        if step is not None or batch is not None:
            raise UsageError(
                "step and batch run on a GPU only, and gpu_memory asks for an estimate, which "
                "counts a plain step of the model; leave them or gpu_memory out"
            )
        return batches_estimated(
            model,
            phases,
            gpu_memory=gpu_memory,
            optimizer=optimizer,
            loss=loss,
            precision=precision,
            most=most,
        )
    own = (optimizer, *also)
    if step is not None and not any(isinstance(each, torch.optim.Optimizer) for each in own):
        raise UsageError(
            "a step of your own changes the state of its optimizer, which is put back only if it "
            "is named: optimizer=..., and others in also=[...]"
        )
    device = _device(model)
    training = Training(
        model=model,
        step=step,
        batch=batch,
        optimizer=optimizer,
        loss=loss,
        also=tuple(also),
        precision=precision,
        device=device,
    )
    return batches_tried(
        training,
        phases,
        memory=CudaMemory(device),
        where=torch.cuda.get_device_name(device),
        most=most,
        told=told,
    )


def _check(model: nn.Module, phases: Schedule, precision: torch.dtype, most: int) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(f"find_batch_size takes a torch.nn.Module, got {type(model).__name__}")
    if not phases.sizes:
        raise UsageError(
            f"each phase needs an image size to try batches of, got {str(phases)!r}; write e.g. "
            '"224x1"'
        )
    if precision not in _PRECISIONS:
        raise UsageError(f"precision must be float32, bfloat16 or float16, got {precision!r}")
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise UsageError(f"most must be a whole number of at least 1, got {most!r}")
    if any(isinstance(each, nn.parameter.UninitializedParameter) for each in model.parameters()):
        raise UsageError("the model has parameters of no shape yet: call it on one batch first")
    if not any(each.requires_grad for each in model.parameters()):
        raise UsageError("no parameter of the model requires gradients, so no step trains it")


def _device(model: nn.Module) -> torch.device:
    """The one GPU that the model is on."""
    devices = {parameter.device for parameter in model.parameters()}
    device = next(iter(devices))
    if len(devices) == 1 and device.type == "cuda":
        return device
    where = " and ".join(sorted(map(str, devices)))
    if not torch.cuda.is_available():
        raise UsageError(
            f"the batch size is tried on a CUDA device, and torch sees none (the model is on "
            f"{where})",
            hint="for an estimate, name the memory of your GPU in GB",
            fix={"gpu_memory": 8},
        )
    raise UsageError(
        f"the batch size is tried on the one CUDA device that the model is on, and it is on "
        f"{where}",
        hint="move it with model.cuda(), or, for an estimate, name the memory of your GPU in GB",
        fix={"gpu_memory": 8},
    )
