"""Weights that a run has kept, as a model that is ready to be used.

Guarantees: nothing in a file is run when it is read; what is no such file is refused by name.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from feedline.errors import StateError, UsageError
from feedline.system import unwritten
from feedline.train.checkpoint import WEIGHTS, load_checkpoint
from feedline.train.model import create_model
from feedline.train.run_folder import BEST_NAME

__all__ = ["Weights", "export_safetensors", "load_weights"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """A trained model.

    Args:
        path: where it is from.
        name: of timm's model.
        model: with its weights, in evaluation mode, on the device.
        classes: names, in the order of its outputs.
        size: side of the images that it was validated at, in pixels.
        epoch: after which it was kept.
        top1: its validation accuracy then, 0 to 1; None without validation.
    """

    path: Path
    name: str
    model: nn.Module
    classes: list[str]
    size: int
    epoch: int
    top1: float | None


def load_weights(path: Path, device: torch.device) -> Weights:
    """Read what a run has kept.

    Args:
        path: a run's folder, whose best weights are meant, or a file of weights.
        device: where the model is to be.

    Raises:
        StateError: there is none, it is damaged, or it is something else.
        UsageError: the installed timm has no such model, or another one of its name.
    """
    file = path / BEST_NAME if path.is_dir() else path
    content = load_checkpoint(file, kind=WEIGHTS)
    classes, size = list(content["classes"]), int(content["val_size"])
    model = create_model(content["model"], classes=len(classes), sizes=(size,))
    try:
        model.load_state_dict(content["weights"])
    except RuntimeError as error:
        raise UsageError(
            f"{file}: the weights do not fit the model {content['model']!r} of the timm that is "
            f"installed ({str(error).strip().splitlines()[0]}); install the one it was trained with"
        ) from error
    return Weights(
        path=file,
        name=str(content["model"]),
        model=model.to(device).eval(),
        classes=classes,
        size=size,
        epoch=int(content["epoch"]),
        top1=content["top1"],
    )


def export_safetensors(weights: Weights, file: Path) -> None:
    """Write weights as safetensors, with model, classes and size as its metadata.

    Args:
        weights: to be written.
        file: its name ends in ".safetensors", by which other programs know what it is.

    Raises:
        UsageError: it has another name, or safetensors is not installed.
        StateError: the file, or the folder that it is to be in, cannot be written.
    """
    if file.is_dir() or file.suffix != ".safetensors":
        wrong, name = "its name says another format", file.with_suffix(".safetensors")
        if file.is_dir():
            wrong, name = "it is a folder", file / "model.safetensors"
        raise UsageError(
            f"cannot export to {file}: {wrong}. Weights are written as safetensors; name a file "
            f"of that kind, as {name}"
        )
    try:
        from safetensors.torch import save_file
    except ModuleNotFoundError:
        raise UsageError("safetensors is not installed; run: pip install safetensors") from None
    import json

    tensors: dict[str, Any] = {
        name: value.detach().cpu().contiguous()
        for name, value in weights.model.state_dict().items()
    }
    about = {
        "model": weights.name,
        "classes": json.dumps(weights.classes),
        "size": str(weights.size),
    }
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, partial, metadata=about)
        os.replace(partial, file)
    except Exception as error:  # the library has errors of its own
        needed = sum(each.nbytes for each in tensors.values())
        raise StateError(
            f"{file} cannot be written: {unwritten(file, needed, error)}; name another file"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
