"""The types that CUDA's autocast would compute in, for tensors that are not on a GPU.

torch's autocast goes by the device of the tensors: on the CPU it computes convolutions and products
of matrices in the lower type, as on CUDA, but leaves normalisations and softmax in the type that
comes, where CUDA takes float32. What autograd keeps is then half of what it keeps on a GPU.

Relies on: the list "CUDA Ops that can autocast to float32" of torch's documentation of torch.amp,
of which the operations of vision models are taken over here. Those that another function of
`torch.nn.functional` calls within itself are not reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

__all__ = ["cuda_autocast"]

_NAMES = (
    *("cdist", "cosine_similarity", "cumsum", "exp", "group_norm", "interpolate", "layer_norm"),
    *("log", "log_softmax", "logsumexp", "norm", "pow", "prod", "rsqrt", "softmax", "softplus"),
    "sum",
)
_IN_FLOAT32 = {
    function
    for home in (torch, torch.Tensor, functional)
    for name in (*_NAMES, "__pow__")
    if (function := getattr(home, name, None)) is not None
}


class _InFloat32(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _IN_FLOAT32 and _is_on():
            args, kwargs = tree_map(_raised, (args, dict(kwargs or {})))
        return func(*args, **(kwargs or {}))


def _raised(value: Any) -> Any:
    lower = isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if lower else value


def _is_on() -> bool:
    if hasattr(torch, "get_autocast_dtype"):  # from torch 2.4 on
        return torch.is_autocast_enabled("cpu")
    return torch.is_autocast_cpu_enabled()


@contextmanager
def cuda_autocast(precision: torch.dtype) -> Iterator[None]:
    """Within a `with`: tensors of the CPU get the types that autocast gives those of a GPU.

    Args:
        precision: bfloat16 or float16, which take the same memory; float32 changes nothing.
    """
    if precision is torch.float32:
        yield
        return
    with torch.autocast("cpu", dtype=precision), _InFloat32():
        yield
