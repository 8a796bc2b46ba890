"""The types of CUDA's autocast on the CPU, against torch's own autocast over fake CUDA tensors."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from feedline.train.model import create_model
from feedline.tuning.step_bytes import cuda_autocast
from slow import slow


def kept_bytes(
    model: nn.Module, device: str, autocast: AbstractContextManager[object]
) -> Counter[torch.dtype]:
    """Bytes saved by autograd in a forward pass, each storage once, by type."""
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(made) if is_parameter else made
    fake = copy.deepcopy(model, memo)
    seen: dict[int, torch.UntypedStorage] = {}
    taken: Counter[torch.dtype] = Counter()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if id(storage) not in seen:
            seen[id(storage)] = storage
            taken[tensor.dtype] += storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast:
        fake(torch.empty(8, 3, 64, 64, device=device))
    return taken


@contextmanager
def real_autocast() -> Iterator[None]:
    """torch.autocast("cuda"), which disables itself without a GPU."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", False)


def has_fake_cuda() -> bool:
    try:
        with warnings.catch_warnings(), FakeTensorMode():
            warnings.simplefilter("ignore")
            layer = torch.empty(8, 3, 16, 16, device="cuda", requires_grad=True)
            torch.nn.functional.batch_norm(layer, None, None, training=True)
    except (RuntimeError, AssertionError):
        return False
    return hasattr(torch, "get_autocast_dtype")


@pytest.mark.skipif(
    not has_fake_cuda(), reason="this torch has no CUDA tensors, not even fake ones"
)
@pytest.mark.parametrize(
    "name",
    ["resnet18", *slow("convnext_tiny", "efficientnet_b0", "mobilenetv3_large_100", "regnety_016")],
)
@pytest.mark.filterwarnings("ignore")  # autocast looks for GPUs
def test_autograd_saves_same_tensors_under_cuda_autocast(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name, classes=10, sizes=[])
    with FakeTensorMode(allow_non_fake_inputs=True):
        there = kept_bytes(model, "cuda", real_autocast())
        here = kept_bytes(model, "cpu", cuda_autocast(torch.bfloat16))
        plain = kept_bytes(model, "cpu", torch.autocast("cpu", dtype=torch.bfloat16))
    # But for the few numbers of a batch norm, which are kept in another type.
    assert here.total() == pytest.approx(there.total(), rel=5e-3)
    assert here[torch.bfloat16] == pytest.approx(there[torch.bfloat16], rel=5e-3)
    if name == "convnext_tiny":
        assert plain.total() < 0.98 * there.total()


def test_dtypes_match_cuda_autocast_and_are_restored() -> None:
    image = torch.randn(2, 3, 8, 8)
    layer = nn.Conv2d(3, 4, 3)
    with cuda_autocast(torch.bfloat16):
        lower = layer(image)
        assert lower.dtype is torch.bfloat16
        assert torch.nn.functional.layer_norm(lower, lower.shape[1:]).dtype is torch.float32
        assert lower.softmax(1).dtype is torch.float32
        assert (lower**2).dtype is torch.float32
        assert lower.relu().dtype is torch.bfloat16
        with torch.autocast("cpu", enabled=False):
            assert lower.softmax(1).dtype is torch.bfloat16
    assert lower.softmax(1).dtype is torch.bfloat16
    with cuda_autocast(torch.float32):
        assert layer(image).dtype is torch.float32
