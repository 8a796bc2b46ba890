"""torch's default collate, stacking directly into the batch's memory.

Guarantees: returns what `default_collate` returns, including functions users have registered in
`default_collate_fn_map`; only plain tensors are stacked directly. If samples do not match, the
error is torch's, with the index of a sample that differs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data._utils import collate as torch_collate

from feedline.dataset.pack import empty_in, is_plain
from feedline.engine.space import Space

__all__ = ["collate_into", "odd_one_out"]


def collate_into(samples: Sequence[Any], space: Space) -> Any:
    """Collate samples like `torch.utils.data.default_collate`.

    Raises:
        RuntimeError, TypeError: the samples do not match.
    """

    def stack(tensors: Sequence[torch.Tensor], **options: Any) -> torch.Tensor:
        # Only the first is looked at, as by torch's workers: where another one does not go with
        # it, stacking into memory of the first one's kind is an error.
        first = tensors[0]
        if type(first) is not torch.Tensor or not is_plain(first):
            stacked: torch.Tensor = collate_tensors(tensors, **options)
            return stacked
        out = empty_in(space, (len(tensors), *first.shape), first.dtype)
        return torch.stack(list(tensors), 0, out=out)

    functions = dict(torch_collate.default_collate_fn_map)
    collate_tensors = functions[torch.Tensor]
    if collate_tensors is torch_collate.collate_tensor_fn:  # else it is a user's own
        functions[torch.Tensor] = stack
    return torch_collate.collate(samples, collate_fn_map=functions)


def odd_one_out(samples: Sequence[Any]) -> tuple[int, str] | None:
    """Find the first sample that differs from sample 0 in structure or shape.

    Returns:
        Its position and a description of the difference; None if all are alike.
    """
    with contextlib.suppress(Exception):  # a sample may be anything, and fail when looked at
        wanted = _outline(samples[0])
        for k, sample in enumerate(samples):
            found = _outline(sample)
            if found != wanted:
                return k, f"is {found}, but the first sample is {wanted}"
    return None


def _outline(value: Any, depth: int = 0) -> str:
    """Structure and shapes of a value as text, e.g. (float32 [3, 224, 224], int)."""
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} {list(shape)}"
    if depth < 3 and isinstance(value, dict):
        inner = ", ".join(f"{key!r}: {_outline(part, depth + 1)}" for key, part in value.items())
        return "{" + inner + "}"
    if depth < 3 and isinstance(value, (tuple, list)) and len(value) <= 16:
        return "(" + ", ".join(_outline(part, depth + 1) for part in value) + ")"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__
