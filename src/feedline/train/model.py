"""The model: made by timm, with random or pretrained weights, some of them frozen.

Guarantees: nothing in a file of weights is executed (torch's weights-only unpickler, safetensors).
timm takes seconds to import, so it is imported when a model is made.
"""

from __future__ import annotations

import copy
import difflib
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from feedline.errors import UsageError

__all__ = ["create_model", "freeze", "load_pretrained"]

_SEARCH_PX = 225
"""Largest distance between sizes that a model accepts: seven windows of four 8 px patches."""
_STATE_DICTS = ("weights", "state_dict_ema", "model_ema", "state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.")


def create_model(
    name: str,
    *,
    classes: int,
    sizes: Sequence[int],
    pretrained: str = "",
    drop: float = 0.0,
    drop_path: float = 0.0,
) -> nn.Module:
    """Make a model in channels_last layout, on the CPU.

    Args:
        name: as in timm.list_models().
        classes: number of outputs.
        sizes: sides of the square images it must accept, in pixels; each is tried.
        pretrained: "" for random weights, "hub" for timm's, or a file of weights.
        drop, drop_path: dropout and stochastic depth; 0 for the model's own.

    Raises:
        UsageError: the model is unknown, does not accept a size or has no stochastic depth, or the
            weights are missing or do not fit.
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
    model = _build(name, options, hub=pretrained == "hub")
    if pretrained not in ("", "hub"):
        load_pretrained(model, pretrained)
    model.to(memory_format=torch.channels_last)
    _try_sizes(model, name, sizes)
    return model


def _build(name: str, options: dict[str, Any], *, hub: bool) -> nn.Module:
    import timm

    try:
        try:
            # Vision transformers accept one image size only, unless told so.
            model = timm.create_model(name, pretrained=hub, dynamic_img_size=True, **options)
        except TypeError:
            model = timm.create_model(name, pretrained=hub, **options)
    except TypeError as error:
        raise UsageError(
            f"model {name!r} cannot be built with {options} ({error})",
            hint="leave drop and drop_path at 0, or choose a model that has them",
        ) from error
    except Exception as error:
        if not hub:
            raise
        text = str(error).strip().rstrip(".")
        raise UsageError(
            f"cannot download timm's weights of {name!r}: {type(error).__name__}: {text}",
            hint="download the file on another machine and name it with --pretrained FILE",
        ) from error
    assert isinstance(model, nn.Module)
    return model


def _try_sizes(model: nn.Module, name: str, sizes: Sequence[int]) -> None:
    """Check that a model accepts all sizes, by shapes on the meta device: it costs no memory."""
    shapes = copy.deepcopy(model).to("meta").eval()
    with torch.no_grad():
        for size in sizes:
            error = _refusal(shapes, size)
            if isinstance(error, NotImplementedError):
                return  # an operation without a meta kernel: the first step will tell
            if error is not None:
                near = [f"{each} px" for each in _nearest(shapes, size)]
                accepted = f"the nearest it accepts: {' and '.join(near)}; or " if near else ""
                raise UsageError(
                    f"model {name!r} does not accept images of {size} px ({error})",
                    hint=f"{accepted}choose a convolutional model, which accepts nearly any size",
                ) from error


def _refusal(shapes: nn.Module, size: int) -> Exception | None:
    """The error of a model on the meta device for images of a size; None if it accepts them."""
    try:
        shapes(torch.empty(1, 3, size, size, device="meta"))
    except (NotImplementedError, RuntimeError, AssertionError, ValueError) as error:
        return error
    return None


def _nearest(shapes: nn.Module, size: int) -> list[int]:
    """The nearest accepted sizes below and above, in pixels, if there are any near."""
    ranges = (range(size - 1, max(0, size - _SEARCH_PX), -1), range(size + 1, size + _SEARCH_PX))
    found = (next((px for px in sizes if _refusal(shapes, px) is None), None) for sizes in ranges)
    return [px for px in found if px is not None]


def freeze(model: nn.Module, prefixes: Sequence[str]) -> int:
    """Stop training the parameters whose names begin with one of these.

    Returns:
        Number of frozen values.

    Raises:
        UsageError: no parameter's name begins with a prefix.
    """
    frozen = 0
    for prefix in prefixes:
        found = [value for name, value in model.named_parameters() if name.startswith(prefix)]
        if not found:
            parts = dict.fromkeys(name.split(".")[0] for name, _ in model.named_parameters())
            raise UsageError(
                f"freeze: no parameter's name begins with {prefix!r}",
                hint=f"they begin with {', '.join(parts)}",
            )
        for value in found:
            frozen += value.numel() if value.requires_grad else 0
            value.requires_grad_(False)
    return frozen


def load_pretrained(model: nn.Module, path: str) -> list[str]:
    """Load weights from a file. A head with another number of classes keeps its random weights.

    Args:
        model: receives the weights.
        path: best.pt of a run, a state_dict, a checkpoint with one under a common name, or
            safetensors.

    Returns:
        Names of the parameters that were not loaded.

    Raises:
        UsageError: the file cannot be read, or belongs to another model.
    """
    given = {_plain(name): value for name, value in _read(Path(path)).items()}
    own = model.state_dict()
    unlike = [name for name in own if name in given and given[name].shape != own[name].shape]
    missing = sorted(set(own) - set(given) - {name for name in own if own[name].ndim == 0})
    unknown = sorted(set(given) - set(own))
    heads = _head_names(model)
    skipped = [name for name in unlike if name in heads]
    wrong = [name for name in unlike if name not in heads] + missing + unknown
    if wrong:
        raise UsageError(
            f"{path} has weights of another model: {len(wrong)} of its {len(given)} do not fit, "
            f"such as {', '.join(wrong[:3])}",
            hint="name the model they belong to, with --model",
        )
    model.load_state_dict(
        {name: given[name] for name in given if name not in skipped}, strict=False
    )
    return skipped


def _head_names(model: nn.Module) -> set[str]:
    """Names of the classifier's parameters, by timm's configuration."""
    configured: Any = getattr(model, "default_cfg", {}) or {}
    named = configured.get("classifier", ())
    layers = (named,) if isinstance(named, str) else tuple(named)
    return {
        name
        for name, _ in model.named_parameters()
        if any(name == layer or name.startswith(f"{layer}.") for layer in layers)
    }


def _plain(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _read(path: Path) -> dict[str, torch.Tensor]:
    if not path.is_file():
        raise UsageError(f"pretrained: no such file {str(path)!r}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except ModuleNotFoundError:
        raise UsageError(
            f"reading {path} needs safetensors", hint="pip install safetensors"
        ) from None
    except (
        *(RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, KeyError),
    ) as error:
        first = str(error).strip().partition("\n")[0]
        # For random bytes the unpickler raises any error, with a text that says nothing.
        why = f" ({first})" if isinstance(error, RuntimeError | OSError) and first else ""
        raise UsageError(f"{path} is not a readable file of weights{why}") from error
    for name in _STATE_DICTS:
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
            break
    tensors = isinstance(content, dict) and all(
        isinstance(value, torch.Tensor) for value in content.values()
    )
    if not tensors or not content:
        raise UsageError(f"{path} has no weights: expected tensors by parameter name")
    return dict(content)
