"""Weights from a file, into a model whose head may be another.

Guarantees: nothing in the file is run (torch's weights-only unpickler, or safetensors); what does
not fit is an error, but for the head of another number of classes, which begins anew.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import nn

from feedline.errors import UsageError

__all__ = ["load_pretrained"]

_WITHIN = ("weights", "state_dict_ema", "model_ema", "state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.")


def load_pretrained(model: nn.Module, path: str) -> list[str]:
    """Load weights.

    Args:
        model: takes them.
        path: of a file: feedline's best.pt, a state_dict, or a checkpoint with one under a usual
            name; or safetensors.

    Returns:
        the names of the parameters that begin anew, as the head has another number of classes.

    Raises:
        UsageError: the file cannot be read, or is of another model.
    """
    given = {_plain(name): value for name, value in _read(Path(path)).items()}
    own = model.state_dict()
    unlike = [name for name in own if name in given and given[name].shape != own[name].shape]
    missing = sorted(set(own) - set(given) - {name for name in own if own[name].ndim == 0})
    unknown = sorted(set(given) - set(own))
    heads = _head_names(model)
    anew = [name for name in unlike if name in heads]
    wrong = [name for name in unlike if name not in heads] + missing + unknown
    if wrong:
        raise UsageError(
            f"{path} has weights of another model: {len(wrong)} of its {len(given)} do not fit, as "
            f"{', '.join(wrong[:3])}. Name the model that they are of"
        )
    model.load_state_dict({name: given[name] for name in given if name not in anew}, strict=False)
    return anew


def _head_names(model: nn.Module) -> set[str]:
    """The parameters of the classifier, by which layers of timm's models name it."""
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
        raise UsageError(f"pretrained: there is no file {str(path)!r}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except ModuleNotFoundError:
        raise UsageError(
            f"reading {path} needs safetensors, which is not installed; run: pip install "
            "safetensors"
        ) from None
    except (
        *(RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, KeyError),
    ) as error:
        first = str(error).strip().partition("\n")[0]
        # In bytes at random the unpickler meets any error, whose text says nothing.
        why = f" ({first})" if isinstance(error, RuntimeError | OSError) and first else ""
        raise UsageError(f"{path} is no file of weights that can be read{why}") from error
    for name in _WITHIN:
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
            break
    tensors = isinstance(content, dict) and all(
        isinstance(value, torch.Tensor) for value in content.values()
    )
    if not tensors or not content:
        raise UsageError(f"{path} has no weights: expected tensors by their parameters' names")
    return dict(content)
