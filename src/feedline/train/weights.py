"""Trained weights: loaded as a model, exported as safetensors.

Guarantees: nothing in a file is executed; a file of another kind is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from feedline.errors import StateError, UsageError
from feedline.system import unwritten
from feedline.train.checkpoint import BEST_NAME, WEIGHTS, load_checkpoint
from feedline.train.model import create_model

__all__ = ["Weights", "export_safetensors", "load_weights"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """A trained model.

    Args:
        path: file of the weights.
        name: name of timm's model.
        model: in evaluation mode, on the device.
        device: device of the model.
        classes: names, in the order of its outputs.
        image_size: side of the validation images, in pixels.
        epoch: epoch after which it was kept.
        top1: validation accuracy of that epoch, 0 to 1; None without validation.
    """

    path: Path
    name: str
    model: nn.Module
    device: torch.device
    classes: list[str]
    image_size: int
    epoch: int
    top1: float | None


def load_weights(path: Path, device: torch.device) -> Weights:
    """Load the weights of a run.

    Args:
        path: the folder of a run, for its best weights, or a file of weights.
        device: device for the model.

    Raises:
        StateError: the file is missing, damaged, or something else.
        UsageError: the installed timm has no such model, or another one of its name.
    """
    file = path / BEST_NAME if path.is_dir() else path
    content = load_checkpoint(file, kind=WEIGHTS)
    classes, size = list(content["classes"]), int(content["val_image_size"])
    model = create_model(content["model"], classes=len(classes), sizes=(size,))
    try:
        model.load_state_dict(content["weights"])
    except RuntimeError as error:
        raise UsageError(
            f"{file}: the weights do not fit the model {content['model']!r} of the installed timm "
            f"({str(error).strip().splitlines()[0]})",
            hint="install the version of timm it was trained with",
        ) from error
    return Weights(
        path=file,
        name=str(content["model"]),
        model=model.to(device).eval(),
        device=device,
        classes=classes,
        image_size=size,
        epoch=int(content["epoch"]),
        top1=content["top1"],
    )


def export_safetensors(weights: Weights, file: Path) -> None:
    """Write weights as safetensors, with model, classes and image size as metadata.

    Args:
        weights: a trained model.
        file: its name ends in ".safetensors".

    Raises:
        UsageError: the name has another suffix, or safetensors is not installed.
        StateError: the file cannot be written.
    """
    if file.is_dir() or file.suffix != ".safetensors":
        folder = file.is_dir()
        name = file / "model.safetensors" if folder else file.with_suffix(".safetensors")
        what = (
            "it is a folder" if folder else f"expected the suffix .safetensors, got {file.suffix!r}"
        )
        raise UsageError(f"cannot export to {file}: {what}", hint=f"name a file such as {name}")
    try:
        from safetensors.torch import save_file
    except ModuleNotFoundError:
        raise UsageError("safetensors is not installed", hint="pip install safetensors") from None
    tensors: dict[str, Any] = {
        name: value.detach().cpu().contiguous()
        for name, value in weights.model.state_dict().items()
    }
    metadata = {
        "model": weights.name,
        "classes": json.dumps(weights.classes),
        "image_size": str(weights.image_size),
    }
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, partial, metadata=metadata)
        os.replace(partial, file)
    except Exception as error:  # the library has errors of its own
        needed = sum(each.nbytes for each in tensors.values())
        raise StateError(f"{file} cannot be written: {unwritten(file, needed, error)}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
