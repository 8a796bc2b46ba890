"""The state of a training: model, optimizer, weight average and loss scaler, stepped as one.

Guarantees: a step does not wait for the device; a change of phase changes no weights, optimizer
state or random state. The learning rate is one curve over the samples of the whole schedule: a new
image size does not restart it, and phases have the part of it that their images are.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from feedline.errors import UsageError
from feedline.train.recipe import Recipe, TrainPhase
from feedline.tuning.training_step import autocast

_FIRST, _LAST = 1 / 25, 1 / 25 / 10_000  # of the peak: the defaults of OneCycleLR


def lr_factor(seen: float, *, sched: str, warmup: float) -> float:
    """The learning rate as a share of its peak, after a share of all samples was seen.

    "onecycle": up along half a cosine from 1/25, then down along one to 1/250,000 (Smith and Topin,
    "Super-convergence", 2018, as in torch's OneCycleLR); "cosine": up linearly from 1/25, then down
    along half a cosine to the same end (Loshchilov and Hutter, "SGDR", 2016, without restarts);
    "linear": up and down linearly; "constant": up linearly, then constant.
    """
    seen = min(1.0, max(0.0, seen))
    if seen < warmup:
        part, begin, end, curved = seen / warmup, _FIRST, 1.0, sched == "onecycle"
    else:
        part, begin = (seen - warmup) / (1.0 - warmup), 1.0
        end, curved = 1.0 if sched == "constant" else _LAST, sched != "linear"
    if curved:
        return end + (begin - end) * (1 + math.cos(math.pi * part)) / 2
    return begin + (end - begin) * part


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCounter:
    """Optimizer steps of a run: which batches make one, and how many there are."""

    recipe: Recipe
    batches_in: Callable[[int], int]
    """Number of batches of an epoch (from 0)."""

    def parts(self, epoch: int, batch: int) -> tuple[int, int]:
        """(number of this batch within its step, batches of the step)."""
        most = self.recipe.grad_accum_steps
        part = batch % most
        return part, min(most, self.batches_in(epoch) - (batch - part))

    def steps_in(self, epoch: int) -> int:
        """Optimizer steps of an epoch."""
        return -(-self.batches_in(epoch) // self.recipe.grad_accum_steps)

    @property
    def total(self) -> int:
        """Optimizer steps of all epochs."""
        return sum(map(self.steps_in, range(self.recipe.epochs)))

    def progress(self, epoch: int, batch: int) -> float:
        """Share of all samples seen before a step; 1 for the last step.

        Each epoch has the same samples, so they are counted in epochs, whatever the batch sizes.
        """
        last = self.recipe.epochs - 1
        batches = self.batches_in(last)
        _, parts = self.parts(last, batches - 1)
        end = last + (batches - parts) / batches
        return (epoch + batch / self.batches_in(epoch)) / end if end else 0.0


def create_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Make timm's optimizer for a model on its device (UsageError if it cannot be used).

    Weight decay applies to weights of two or more dimensions only (He et al., "Bag of tricks",
    2018, section 3.1), except those that the model excludes.
    """
    from timm import optim  # an extra, seconds to import

    try:
        optimizer: torch.optim.Optimizer = optim.create_optimizer_v2(
            model, opt=recipe.opt, lr=recipe.peak_lr, weight_decay=recipe.weight_decay or 0.0
        )
    except (ImportError, RuntimeError, AssertionError, TypeError, ValueError) as error:
        close = difflib.get_close_matches(recipe.opt, optim.list_optimizers(), n=4, cutoff=0.4)
        raise UsageError(
            f"timm's optimizer {recipe.opt!r} cannot be used here: {error}",
            hint=f"close ones: {', '.join(close)}" if close else "",
        ) from error
    return optimizer


class TrainState:
    """A model in training, with its optimizer, weight average and loss scaler (for float16)."""

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        *,
        device: torch.device,
        precision: torch.dtype,
    ) -> None:
        from timm.utils import ModelEmaV3

        self.model = model.to(device=device)
        self.forward: Callable[[Tensor], Tensor] = self.model
        """Called by a step: the model, or its compiled or distributed form."""
        self.optimizer = create_optimizer(self.model, recipe)
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision is torch.float16)
        decay = recipe.model_ema_decay
        self.ema: Any = ModelEmaV3(self.model, decay, use_warmup=True) if decay else None
        self.precision = precision
        self.device = device
        self.clip_grad = recipe.clip_grad
        self.phase = recipe.phases[0]
        self.step = 0
        """Optimizer steps done."""
        self.has_gradients = False
        """True if batches were added up since the last optimizer step."""
        self._recipe = recipe
        self._rates = _module_rates(self.model)
        self.set_phase(self.phase)
        self.set_progress(0.0)

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def precision_name(self) -> str:
        """`precision` without "torch."."""
        return str(self.precision).removeprefix("torch.")

    @property
    def eval_model(self) -> nn.Module:
        """The model to validate and keep: the weight average, if there is one."""
        module: nn.Module = self.model if self.ema is None else self.ema.module
        return module

    def set_phase(self, phase: TrainPhase) -> None:
        """Set the regularisation of a phase."""
        self.phase = phase
        for module, attribute, kind, rate in self._rates:
            largest = max(getattr(each, kind) for each in self._recipe.phases)
            share = getattr(phase, kind) / largest if largest else 1.0  # the model's own
            setattr(module, attribute, rate * share)

    def set_progress(self, seen: float) -> None:
        """Set the learning rate by the share, 0 to 1, of all samples seen before a step."""
        recipe = self._recipe
        factor = lr_factor(seen, sched=recipe.sched, warmup=recipe.warmup)
        for group in self.optimizer.param_groups:
            scale = group.get("lr_scale", 1.0)  # set by timm optimizers
            group["lr"] = recipe.peak_lr * self.phase.lr * factor * scale

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint, without the random states and the position."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "ema": None if self.ema is None else self.ema.module.state_dict(),
            "step": self.step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scaler.is_enabled() and state["scaler"]:  # empty if it was disabled
            self.scaler.load_state_dict(state["scaler"])
        if self.ema is not None and state["ema"] is not None:
            self.ema.module.load_state_dict(state["ema"])
        self.step = int(state["step"])


def _module_rates(model: nn.Module) -> list[tuple[Any, str, str, float]]:
    """(module, attribute, "drop" or "drop_path", rate) of each dropout and stochastic depth."""
    found: list[tuple[Any, str, str, float]] = []
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            found.append((module, "p", "drop", module.p))
        for attribute, kind in (("drop_prob", "drop_path"), ("drop_rate", "drop")):
            if hasattr(module, attribute):
                rate: Any = getattr(module, attribute)
                found.append((module, attribute, kind, float(rate or 0.0)))
    return found


def train_step(
    state: TrainState, images: Tensor, targets: Tensor, *, part: int = 0, parts: int = 1
) -> Tensor:
    """Do forward and backward of one batch, and the optimizer step after the last of `parts`.

    Images are float, shape (N, 3, H, W), targets int64, (N,), or class probabilities, (N, classes).
    Return the mean loss before the step: float32, shape (), on the device, detached.
    """
    if not state.has_gradients:
        state.optimizer.zero_grad(set_to_none=True)
    last = part + 1 == parts
    no_sync: Any = getattr(state.forward, "no_sync", nullcontext)  # of DistributedDataParallel
    with nullcontext() if last else no_sync():
        with autocast(state.device, state.precision):
            logits = state.forward(images)
            smoothing = state.phase.smoothing or 0.0
            loss = functional.cross_entropy(logits.float(), targets, label_smoothing=smoothing)
        state.scaler.scale(loss / parts).backward()
    state.has_gradients = True
    if last:
        finish_step(state)
    return loss.detach()


def finish_step(state: TrainState) -> None:
    """Do the optimizer step of the batches so far, if there are any."""
    if not state.has_gradients:
        return
    if state.clip_grad:
        state.scaler.unscale_(state.optimizer)
        nn.utils.clip_grad_norm_(state.model.parameters(), state.clip_grad)
    state.scaler.step(state.optimizer)
    state.scaler.update()
    state.has_gradients = False
    state.step += 1
    if state.ema is not None:
        state.ema.update(state.model, step=state.step)
