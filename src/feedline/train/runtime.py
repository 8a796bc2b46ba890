"""Process-wide state of a training: device, precision, random states, compilation, warm-up.

The one place of feedline that changes global state, called by the training process only:
`prepare_process` seeds torch (initial weights, dropout) and lets cuDNN choose the fastest kernels
for each shape; `compile_model` raises torch.compile's limit of recompilations.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from feedline.engine.devices import resolve_device, synchronize
from feedline.errors import UsageError
from feedline.train.recipe import Recipe
from feedline.train.train_state import TrainState
from feedline.tuning.training_step import autocast, is_out_of_memory, preserve_state

_SMALLER = "use a smaller --batch-size, or --grad-accum-steps"
_WARMUP_STEPS = 3  # cuDNN chooses kernels in the first; the allocator settles in the second


def choose_device(name: str) -> torch.device:
    """The device of this process; "auto" is CUDA (or ROCm) if available, otherwise the CPU.

    Each process of a machine gets a GPU of its own. A device that is missing is a UsageError.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and torch.cuda.is_available():
        name = f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % torch.cuda.device_count()}"
    return resolve_device(name)


def choose_precision(
    device: torch.device, amp: bool | None = None, dtype: str | None = None
) -> torch.dtype:
    """The dtype of a step, by the settings `amp` and `amp_dtype` of a recipe.

    float16 on a CPU, where it gains nothing, and a dtype with amp=False are a UsageError.
    """
    on_cuda = device.type == "cuda"
    if dtype is not None and amp is False:
        text = "needs mixed precision, which is disabled"
        raise UsageError(text, argument="amp_dtype", fix={"amp": True})
    if dtype == "float16" and not on_cuda:
        raise UsageError(
            f"float16 needs a CUDA device, got {device.type}",
            argument="amp_dtype",
            fix={"amp_dtype": "bfloat16"},
        )
    if not (on_cuda or dtype is not None if amp is None else amp):
        return torch.float32
    # is_bf16_supported() also counts emulation; tensor cores have bfloat16 from compute 8.0 on.
    native = not on_cuda or torch.cuda.get_device_capability(device) >= (8, 0)
    return torch.bfloat16 if dtype == "bfloat16" or (dtype is None and native) else torch.float16


def prepare_process(*, seed: int, device: torch.device) -> None:
    """Seed torch's global generators and configure cuDNN; call once, before making the model."""
    torch.manual_seed(seed)
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True


def random_state(device: torch.device) -> dict[str, Any]:
    """torch's random state, from which dropout draws, for a checkpoint."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        state[device.type] = getattr(torch, device.type).get_rng_state(*_numbered(device))
    return state


def restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore what `random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if device.type in state and device.type != "cpu":
        getattr(torch, device.type).set_rng_state(state[device.type], *_numbered(device))


def _numbered(device: torch.device) -> tuple[torch.device, ...]:
    """The device as an argument of its own module; torch.mps has one device only."""
    return () if device.type == "mps" else (device,)


@contextmanager
def preserved_random_state(device: torch.device) -> Iterator[None]:
    """Restore torch's random state, and cuDNN's choice of kernels, at the end."""
    states, benchmark = random_state(device), torch.backends.cudnn.benchmark
    try:
        yield
    finally:
        restore_random_state(states, device)
        torch.backends.cudnn.benchmark = benchmark


@contextmanager
def memory_error(what: str, hint: str = _SMALLER) -> Iterator[None]:
    """Turn torch's out-of-memory errors into a UsageError that names the batch."""
    try:
        yield
    except RuntimeError as error:  # torch's own derive from it
        if not is_out_of_memory(error):
            raise
        first = str(error).strip().partition("\n")[0].rstrip(".")
        raise UsageError(f"{what} does not fit the device's memory: {first}", hint=hint) from error


def compile_model(state: TrainState, recipe: Recipe, note: Callable[[str], object]) -> None:
    """Compile the model's forward pass, if the recipe asks for it, for every batch shape."""
    if not recipe.compile:
        return
    import torch._dynamo

    config: Any = torch._dynamo.config
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    shapes = len(recipe.shapes)
    if getattr(config, name) < shapes:
        note(f"torch._dynamo.config.{name} raised to {shapes}, one for each batch shape")
        setattr(config, name, shapes)
    state.forward = torch.compile(state.forward)


def warm_up(
    state: TrainState,
    shapes: Iterable[tuple[int, int]],
    *,
    classes: int,
    note: Callable[[str], object] = lambda text: None,
) -> None:
    """Run a few steps on zeros at each batch shape (images, side in pixels), before training.

    A first step at a shape takes longer: cuDNN times its kernels, torch.compile compiles, the
    allocator requests memory. Weights, running statistics, optimizer, gradients and random states
    are unchanged afterwards, to the bit. `note` is called with the time of each shape.
    """
    device = state.device
    with preserve_state([state.model], device):
        state.model.train()
        for rows, size in shapes:
            began_s = time.perf_counter()
            what = f"a batch of {rows} images at {size} px"
            with memory_error(what), preserved_random_state(device):
                images = torch.zeros(rows, 3, size, size, device=device)
                images = images.contiguous(memory_format=torch.channels_last)
                targets = torch.zeros(rows, classes, device=device)
                for _ in range(_WARMUP_STEPS):
                    with autocast(device, state.precision):
                        logits = state.forward(images)
                        loss = torch.nn.functional.cross_entropy(logits.float(), targets)
                    loss.backward()
                    state.model.zero_grad(set_to_none=True)
                synchronize(device)
            note(f"warmed up {rows} images at {size} px in {time.perf_counter() - began_s:.1f} s")
