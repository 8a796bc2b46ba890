"""The model, from timm: with random weights or others, and what of it stays as it is.

timm is an extra and takes seconds to import, so it is imported only when a model is made.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from feedline.errors import UsageError
from feedline.train.pretrained import load_pretrained

__all__ = ["create_model", "freeze"]

_NEAR_PX = 225
"""How far sizes that a model takes lie apart: four patches of 8 px, 7 times, say, are 224 px."""


def create_model(
    name: str,
    *,
    classes: int,
    sizes: Sequence[int],
    pretrained: str = "",
    dropout: float = 0.0,
    drop_path: float = 0.0,
) -> nn.Module:
    """Make a model in channels_last layout, on the CPU.

    Args:
        name: as timm.list_models() says it.
        classes: outputs of its head.
        sizes: sides of the square images it must take, in pixels; each is tried on one image.
        pretrained: "" for random weights, "hub" for timm's, or the path of a file of weights.
        dropout, drop_path: with which it is built.

    Raises:
        UsageError: no such model, it does not take one of the sizes or has no stochastic depth, or
            the weights cannot be had or are another model's.
    """
    try:
        import timm
    except ModuleNotFoundError as error:
        if error.name != "timm":
            raise
        raise UsageError(
            "training needs timm, which is not installed; run: pip install timm"
        ) from None
    if not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(), n=4, cutoff=0.5)
        hint = f"close ones: {', '.join(close)}" if close else "timm.list_models() lists them"
        raise UsageError(f"timm {timm.__version__} has no model {name!r}; {hint}")
    options: dict[str, Any] = {"num_classes": classes}
    options |= {"drop_rate": dropout} if dropout else {}
    options |= {"drop_path_rate": drop_path} if drop_path else {}
    model = _built(name, options, hub=pretrained == "hub")
    if pretrained not in ("", "hub"):
        load_pretrained(model, pretrained)
    model.to(memory_format=torch.channels_last)
    _try_sizes(model, name, sizes)
    return model


def _built(name: str, options: dict[str, Any], *, hub: bool) -> nn.Module:
    import timm

    try:
        try:
            # Vision transformers take images of one size only, unless told so.
            model = timm.create_model(name, pretrained=hub, dynamic_img_size=True, **options)
        except TypeError:
            model = timm.create_model(name, pretrained=hub, **options)
    except TypeError as error:
        raise UsageError(
            f"model {name!r} cannot be built with {options} ({error}); leave dropout or drop_path "
            "at 0, or take a model that has them"
        ) from error
    except Exception as error:
        if not hub:
            raise
        said = str(error).strip().rstrip(".")
        raise UsageError(
            f"timm's weights of {name!r} cannot be had: {type(error).__name__}: {said}. Where no "
            "hub can be reached, download the file elsewhere and name it with --pretrained FILE"
        ) from error
    assert isinstance(model, nn.Module)
    return model


def _try_sizes(model: nn.Module, name: str, sizes: Sequence[int]) -> None:
    """Find out that a model takes all sizes: shapes alone are worked out, on torch's meta device.

    So the largest sizes take no memory, and running statistics stay as they are.
    """
    shapes = copy.deepcopy(model).to("meta").eval()
    with torch.no_grad():
        for size in sizes:
            error = _refusal(shapes, size)
            if isinstance(error, NotImplementedError):
                return  # an operation has no shapes to be worked out: the first step tells
            if error is not None:
                near = [f"{each} px" for each in _nearest(shapes, size)]
                suit = (
                    f"the nearest that it takes: {' and '.join(near)}" if near else "choose others"
                )
                raise UsageError(
                    f"model {name!r} does not take images of {size} px ({error}); {suit}, or "
                    "choose a convolutional model, which takes nearly any"
                ) from error


def _refusal(shapes: nn.Module, size: int) -> Exception | None:
    """What a model on the meta device says against images of a size; None: nothing."""
    try:
        shapes(torch.empty(1, 3, size, size, device="meta"))
    except (NotImplementedError, RuntimeError, AssertionError, ValueError) as error:
        return error
    return None


def _nearest(shapes: nn.Module, size: int) -> list[int]:
    """The nearest sizes below and above, in pixels, that a model takes, if there are such near."""
    beside = (range(size - 1, max(0, size - _NEAR_PX), -1), range(size + 1, size + _NEAR_PX))
    found = (next((px for px in sizes if _refusal(shapes, px) is None), None) for sizes in beside)
    return [px for px in found if px is not None]


def freeze(model: nn.Module, beginnings: Sequence[str]) -> int:
    """Keep the parameters whose names begin with one of these as they are.

    Returns:
        how many parameters' values stay.

    Raises:
        UsageError: one of these begins no name.
    """
    frozen = 0
    for beginning in beginnings:
        found = [value for name, value in model.named_parameters() if name.startswith(beginning)]
        if not found:
            parts = dict.fromkeys(name.split(".")[0] for name, _ in model.named_parameters())
            raise UsageError(
                f"freeze: no parameter's name begins with {beginning!r}; they begin with "
                f"{', '.join(parts)}"
            )
        for value in found:
            frozen += value.numel() if value.requires_grad else 0
            value.requires_grad_(False)
    return frozen
