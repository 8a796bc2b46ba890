"""The model, from timm, with random weights.

timm is an extra and takes seconds to import, so it is imported only when a model is made.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import torch
from torch import nn

from feedline.errors import UsageError

__all__ = ["create_model"]


def create_model(name: str, *, classes: int, sizes: Sequence[int]) -> nn.Module:
    """Make a model with random weights, in channels_last layout, on the CPU.

    Args:
        name: as timm.list_models() says it.
        classes: outputs of its head.
        sizes: sides of the square images it must take, in pixels; each is tried on one image.

    Raises:
        UsageError: no such model, or it does not take one of the sizes.
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
    try:
        # Vision transformers take images of one size only, unless told so.
        model = timm.create_model(
            name, pretrained=False, num_classes=classes, dynamic_img_size=True
        )
    except TypeError:
        model = timm.create_model(name, pretrained=False, num_classes=classes)
    assert isinstance(model, nn.Module)
    model.to(memory_format=torch.channels_last)
    model.eval()  # a try leaves no trace in the running statistics
    with torch.no_grad():
        for size in sizes:
            try:
                model(torch.zeros(1, 3, size, size))
            except (RuntimeError, AssertionError, ValueError) as error:
                raise UsageError(
                    f"model {name!r} does not take images of {size} px ({error}); choose sizes "
                    "that suit it, or a convolutional model, which takes nearly any"
                ) from error
    model.train()
    return model
