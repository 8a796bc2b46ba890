"""Values laid out in memory are restored: structure, types, dtypes, shapes and content."""

from __future__ import annotations

import collections
import gc
import sys
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing._internal.two_tensor import TwoTensor

from feedline.engine.batch_layout import empty_in, read_batch, write_batch
from feedline.engine.buffers import BatchAllocator
from sets import plain

DTYPES = [
    dtype
    for name in sorted(dir(torch))
    if isinstance(dtype := getattr(torch, name), torch.dtype)
    and not name.startswith(("bit", "quint", "qint", "uint", "int"))
] + [
    getattr(torch, name)
    for name in ("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32")
    if hasattr(torch, name)  # torch 2.2 has no uint16
]


def through(value, memory_bytes=0):
    """Lay a value out in memory of a given size, and load it from there."""
    memory = np.empty(memory_bytes, np.uint8)
    space = BatchAllocator(memory)
    shell = write_batch(value, space)
    if not space.fits:
        memory = space.copy_to_larger(lambda nbytes: np.full(nbytes, 99, np.uint8))
    return read_batch(memory[: space.used].copy(), shell)


@st.composite
def tensors(draw):
    """Tensors of any numeric dtype, cut, turned and repeated in every way."""
    dtype = draw(st.sampled_from([torch.uint8, torch.int64, torch.float32, torch.bfloat16]))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    count = int(np.prod(shape))
    tensor = torch.arange(count).remainder(251).to(dtype).reshape(shape)
    if shape:
        tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
    for axis in range(tensor.dim()):
        step = draw(st.integers(1, 2))
        tensor = tensor[(slice(None),) * axis + (slice(draw(st.integers(0, 1)), None, step),)]
    if draw(st.booleans()):
        tensor = tensor.unsqueeze(0).expand(draw(st.integers(1, 3)), *tensor.shape)
    return tensor


ARRAYS = st.builds(
    lambda dtype, shape: np.arange(int(np.prod(shape))).astype(dtype).reshape(shape),
    st.sampled_from(["u1", "<i8", "f2", "?", "c16", "U3", "S5", "M8[s]"]),
    st.lists(st.integers(0, 30), max_size=3),
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=2000),
    tensors(),
    ARRAYS,
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=12,
)


@given(VALUES, st.sampled_from([0, 100, 1 << 20]))
def test_any_value_round_trips(value, memory_bytes):
    assert _loose(through(value, memory_bytes)) == _loose(value)


def _loose(value):
    """Like `plain` without strides, because gaps of a tensor are not preserved."""
    if isinstance(value, torch.Tensor):
        kind, dtype, shape, _, *rest = plain(value)
        return kind, dtype, shape, rest
    if isinstance(value, dict):
        return [(key, _loose(part)) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [_loose(part) for part in value]
    return plain(value)


@given(tensors(), st.integers(0, 300))
def test_tensor_is_writable_and_keeps_its_memory(tensor, memory_bytes):
    first, second = through((tensor, tensor.clone()), memory_bytes)
    if first.numel() and 0 not in first.stride():
        first.fill_(1)
    assert torch.equal(second, tensor)


@pytest.mark.filterwarnings("ignore:.*support is experimental:UserWarning")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_round_trips(dtype):
    value = torch.arange(96, dtype=torch.uint8).remainder(2).view(dtype)
    assert plain(through(value)) == plain(value)


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass
class Sample:
    pixels: torch.Tensor
    name: str


class Tagged(torch.Tensor):
    """A subclass of which each tensor may have attributes."""


class Own(torch.Tensor):
    """A subclass with its own pickling of state."""

    def __getstate__(self):
        return {"of": "own"}

    def __setstate__(self, state):
        self.back = state


def tagged(**tags):
    tensor = torch.arange(4.0).as_subclass(Tagged)
    vars(tensor).update(tags)
    return tensor


CHANNELS_LAST = torch.arange(48.0).view(1, 3, 4, 4).to(memory_format=torch.channels_last)
STRANGE = {
    "named tuple": Point(torch.ones(2), "y"),
    "ordered": collections.OrderedDict(b=torch.ones(1), a=2),
    "deque": [collections.deque([1, 2])],
    "size": torch.Size([1, 2]),
    "channels_last": CHANNELS_LAST,
    "transposed": torch.arange(12.0).view(3, 4).t(),
    "expanded": torch.arange(3.0).view(3, 1).expand(3, 1000),
    "leaf": torch.ones(3, requires_grad=True),
    "empty": torch.empty(0, 3, 0),
    "conjugate": torch.ones(3, dtype=torch.complex64).conj(),
    "negated": torch.ones(3, dtype=torch.complex64).conj().imag,
    "no tag": tagged(),
    "one tag": tagged(a=1),
    "two tags": tagged(a=1, b="x"),
    "three tags": tagged(a=1, b="x", c=None),
    "tagged leaf": tagged(a=1).detach().as_subclass(Tagged).requires_grad_(),
    "parameter": torch.nn.Parameter(torch.ones(3)),
    "masked": np.ma.masked_array(np.ones(1000), mask=False),
    "fortran": np.asfortranarray(np.arange(900.0).reshape(30, 30)),
    "gaps": np.arange(3600.0).reshape(60, 60)[::2, ::3],
    "records": np.ones(100, dtype=[("a", "f8"), ("b", "i4")]),
    "objects": np.array([{"a": 1}, None], dtype=object),
    "read only": np.frombuffer(b"x" * 1000, np.uint8),
}


@pytest.mark.parametrize("name", STRANGE)
def test_unusual_values_round_trip(name):
    assert plain(through(STRANGE[name])) == plain(STRANGE[name])


LAYOUTS = {
    "csr": lambda t: t.to_sparse_csr(),
    "bsc": lambda t: t.to_sparse_bsc((2, 2)),
    "uncoalesced": lambda t: torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], t.shape),
    "hybrid": lambda t: t.to_sparse(1),
    "leaf": lambda t: t.to_sparse().requires_grad_(),
}


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("name", LAYOUTS)
def test_sparse_tensors_round_trip_without_leak(name):
    sparse = LAYOUTS[name](torch.diag(torch.arange(1.0, 5)))
    back = through(sparse)
    assert (back.layout, back.shape, back.dtype) == (sparse.layout, sparse.shape, sparse.dtype)
    assert back.requires_grad == sparse.requires_grad
    assert torch.equal(back.detach().to_dense(), sparse.detach().to_dense())
    if back.layout is torch.sparse_coo:
        assert back.is_coalesced() == sparse.is_coalesced()
    gone = weakref.ref(back)
    del back
    gc.collect()
    assert gone() is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_tensor_subclasses_of_torch_round_trip():
    two = through(TwoTensor(torch.ones(3), torch.arange(3.0)))
    assert type(two) is TwoTensor
    assert (two.a.tolist(), two.b.tolist()) == ([1, 1, 1], [0, 1, 2])
    own = through(torch.ones(3).as_subclass(Own))
    assert own.back == {"of": "own"}
    rows = [torch.ones(2), torch.zeros(3)]
    nested = through(torch.nested.as_nested_tensor(rows, layout=torch.jagged))
    assert [row.tolist() for row in nested.unbind()] == [[1, 1], [0, 0, 0]]
    sample = through(Sample(torch.ones(2), "a"))
    assert (sample.pixels.tolist(), sample.name) == ([1, 1], "a")


def test_repeated_objects_and_rows_are_laid_out_once():
    tensor = torch.arange(10_000.0)
    space = BatchAllocator(np.empty(0, np.uint8))
    write_batch([tensor] * 50, space)
    write_batch(torch.ones(3, 1).expand(3, 1_000_000), space)
    assert space.used < 2 * tensor.nbytes
    first, second = through((tensor, tensor))
    assert first is second


def test_numbers_and_text_are_pickled_without_a_call_each():
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    words = [[number, f"word {number}", float(number)] for number in range(1000)]
    sys.setprofile(count)
    try:
        write_batch({"words": words, "tensor": torch.ones(3)}, BatchAllocator(np.empty(0, "u1")))
    finally:
        sys.setprofile(None)
    assert calls < 100


def test_view_of_shared_memory_is_not_copied():
    memory = np.empty(1 << 16, np.uint8)
    space = BatchAllocator(memory)
    whole = empty_in(space, (100, 10), torch.float32)
    whole.copy_(torch.arange(1000.0).view(100, 10))
    before = space.used
    shell = write_batch({"tail": whole[90:].t(), "whole": whole}, space)
    assert space.used - shell - before < 64  # nothing but the gap to the next line
    back = read_batch(memory[: space.used].copy(), shell)
    assert plain(back["tail"]) == plain(whole[90:].t())
    assert torch.equal(back["whole"], whole)


def test_laid_out_values_are_freed_without_garbage_collection():
    tensor, array = torch.ones(1000), np.ones(1000)
    gone = weakref.ref(tensor), weakref.ref(array)
    gc.disable()
    try:
        write_batch([tensor, array], BatchAllocator(np.empty(0, np.uint8)))
        del tensor, array
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("length", [9, 9000])
@pytest.mark.parametrize("shape", [(-1,), (3, -1)])
def test_read_only_arrays_become_writable(length, shape):
    array = np.asfortranarray(np.arange(length).reshape(shape))
    array.setflags(write=False)
    result, again = through([array, {"again": array}])
    assert result.flags.writeable
    assert result.flags.f_contiguous == array.flags.f_contiguous
    assert again["again"] is result
    assert np.array_equal(result, array)
    assert not array.flags.writeable
