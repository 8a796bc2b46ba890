"""The model: made by timm, with random, pretrained or trained weights; exported as safetensors.

Guarantees: nothing in a file of weights is executed (torch's weights-only unpickler, safetensors).
timm takes seconds to import, so it is imported when a model is made.
"""

from __future__ import annotations

import copy
import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from feedline.engine.normalise import IMAGENET_MEAN, IMAGENET_STD
from feedline.errors import StateError, UsageError
from feedline.images.crops import EvalCrop
from feedline.system import replacing, unwritten
from feedline.train.config import round_size
from feedline.train.run_folder import BEST_NAME, WEIGHTS, load_checkpoint

_EXPORT = ".safetensors"


def create_model(
    name: str,
    *,
    classes: int,
    sizes: Sequence[int],
    pretrained: bool = False,
    initial_checkpoint: str = "",
    drop: float = 0.0,
    drop_path: float = 0.0,
) -> nn.Module:
    """Make timm's model of a name in channels_last layout, on the CPU (UsageError).

    `sizes` are sides of images in pixels, and each is tried; 0 as `drop` or `drop_path` leaves the
    model's own.
    """
    try:
        import timm
    except ModuleNotFoundError as error:
        if error.name != "timm":
            raise
        raise UsageError("training needs timm", hint="pip install timm") from None
    if not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(), n=4, cutoff=0.5)
        hint = f"close ones: {', '.join(close)}" if close else "timm.list_models() lists them"
        raise UsageError(f"timm {timm.__version__} has no model {name!r}", hint=hint)
    options: dict[str, Any] = {"num_classes": classes}
    options |= {"drop_rate": drop} if drop else {}
    options |= {"drop_path_rate": drop_path} if drop_path else {}
    try:
        try:
            # Vision transformers accept one image size only, unless told so.
            model: nn.Module = timm.create_model(name, pretrained, dynamic_img_size=True, **options)
        except TypeError:
            model = timm.create_model(name, pretrained, **options)
    except TypeError as error:
        raise UsageError(
            f"model {name!r} cannot be built with {options} ({error})",
            hint="leave drop and drop_path at 0, or choose a model that has them",
        ) from error
    except Exception as error:
        if not pretrained:
            raise
        text = str(error).strip().rstrip(".")
        raise UsageError(
            f"cannot download timm's weights of {name!r}: {type(error).__name__}: {text}",
            hint="download the file on another machine",
            fix={"initial_checkpoint": "FILE"},
        ) from error
    if initial_checkpoint:
        load_pretrained(model, Path(initial_checkpoint))
    model.to(memory_format=torch.channels_last)
    _try_sizes(model, name, sizes)
    return model


def _try_sizes(model: nn.Module, name: str, sizes: Sequence[int]) -> None:
    """Check that a model accepts all sizes, by shapes on the meta device: it costs no memory."""
    shapes = copy.deepcopy(model).to("meta").eval()
    for size in sizes:
        try:
            with torch.no_grad():
                shapes(torch.empty(1, 3, size, size, device="meta"))
        except NotImplementedError:
            return  # an operation without a meta kernel: the first step will tell
        except (RuntimeError, AssertionError, ValueError) as error:
            raise UsageError(
                f"model {name!r} does not accept images of {size} px ({error})",
                hint=f"try a multiple of 32 px, such as {round_size(size)}, or a convolutional "
                "model, which accepts nearly any size",
            ) from error


def load_pretrained(model: nn.Module, path: Path) -> list[str]:
    """Load weights: best.pt of a run, a state_dict, safetensors, or a checkpoint that timm reads.

    A head with another number of classes keeps its random weights. Return the names of its
    parameters.
    """
    from timm.models import load_state_dict

    if not path.is_file():
        raise UsageError(f"must be a file, no such file: {path}", argument="initial_checkpoint")
    try:
        found = load_state_dict(str(path), weights_only=True)
    except Exception as error:  # for random bytes the unpickler raises any
        hint = "name a state_dict saved by torch.save, or safetensors (pip install safetensors)"
        raise UsageError(f"{path} is not a readable file of weights", hint=hint) from error
    own = model.state_dict()
    config: Any = getattr(model, "default_cfg", {}) or {}
    named = config.get("classifier", ())
    layers = (named,) if isinstance(named, str) else tuple(named)
    heads = [name for name in own if name.startswith(tuple(f"{layer}." for layer in layers))]
    shapes = {name: getattr(value, "shape", None) for name, value in found.items()}
    skipped = [name for name in heads if name in found and shapes[name] != own[name].shape]
    try:
        model.load_state_dict(found | {name: own[name] for name in skipped})
    except RuntimeError as error:
        details = " ".join(line.strip() for line in str(error).splitlines()[1:3])
        raise UsageError(
            f"{path} has no weights of this model: {details[:200]}",
            hint="name the model they belong to, with --model",
        ) from error
    return skipped


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A trained model in evaluation mode, on its device."""

    path: Path  # of the weights
    name: str
    model: nn.Module
    device: torch.device
    classes: list[str]  # in the order of its outputs
    image_size: int  # of the validation images
    top1: float | None


def load_trained(path: Path, device: torch.device) -> TrainedModel:
    """Load the best weights of a run, by its folder or file, or an export (StateError)."""
    file = path / BEST_NAME if path.is_dir() else path
    exported = file.suffix == _EXPORT and file.is_file()
    content = _load_export(file) if exported else load_checkpoint(file, kind=WEIGHTS)
    classes, size = list(content["classes"]), int(content["val_image_size"])
    model = create_model(content["model"], classes=len(classes), sizes=(size,))
    try:
        model.load_state_dict(content["state_dict"])
    except RuntimeError as error:
        raise UsageError(
            f"{file}: the weights do not fit the model {content['model']!r} of the installed timm",
            hint="install the version of timm it was trained with",
        ) from error
    model = model.to(device).eval()
    return TrainedModel(file, content["model"], model, device, classes, size, content["top1"])


def _load_export(file: Path) -> dict[str, Any]:
    """Read a file of `export_safetensors` as the content of a file of weights."""
    from safetensors import safe_open

    try:
        with safe_open(file, "pt") as opened:
            about = opened.metadata() or {}
            state = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        size, classes = json.loads(about["image_size"]), json.loads(about["classes"])
    except Exception as error:  # the library has errors of its own
        raise StateError(
            f"{file}: damaged, or not written by feedline export",
            hint="export the run again",
        ) from error
    known = {"model": about["model"], "classes": classes, "val_image_size": size, "top1": None}
    return known | {"state_dict": state}


def export_safetensors(trained: TrainedModel, file: Path) -> None:
    """Write weights as safetensors.

    Metadata, as text: `model`, and as JSON `classes`, `image_size` and `pretrained_cfg`, which
    timm reads: number of classes, input size, mean, standard deviation, crop and interpolation.
    """
    if file.suffix != _EXPORT:
        hint = f"name a file such as model{_EXPORT}"
        raise UsageError(f"cannot export to {file}: expected the suffix {_EXPORT}", hint=hint)
    from safetensors.torch import save_file

    state = trained.model.state_dict()
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    crop = EvalCrop()
    pretrained_cfg = {
        "num_classes": len(trained.classes),
        "input_size": (3, trained.image_size, trained.image_size),
        "mean": IMAGENET_MEAN,
        "std": IMAGENET_STD,
        "crop_pct": crop.fraction,
        "interpolation": crop.filter,
    }
    metadata = {
        "model": trained.name,
        "classes": json.dumps(trained.classes),
        "image_size": json.dumps(trained.image_size),
        "pretrained_cfg": json.dumps(pretrained_cfg),
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as partial:
            save_file(tensors, partial, metadata=metadata)
    except Exception as error:  # the library has errors of its own
        needed = sum(each.nbytes for each in tensors.values())
        raise StateError(f"{file} cannot be written: {unwritten(file, needed, error)}") from error
