"""Rows in memory: code that only looks them up is told from any other, by what it does."""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from collections.abc import Iterator
from copy import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from sets import plain
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate
from torch.utils.data._utils.collate import collate_str_fn, default_collate_fn_map

import feedline
from feedline.dataset.gather import gatherer
from feedline.dataset.lookup import looked_up

ROWS = 40
calls: list[Any] = []
flag = 0


class Tables:
    """No Dataset of torch's by class, which none needs to be."""

    scale = 1

    def __init__(self) -> None:
        self.images = torch.arange(ROWS * 12, dtype=torch.uint8).view(ROWS, 3, 2, 2)
        self.labels = torch.arange(ROWS) * 7
        self.half = torch.randn(ROWS, 5).bfloat16()
        self.array = np.random.default_rng(0).random((ROWS, 2, 3))
        self.numbers = np.arange(ROWS, dtype=np.int16)
        self.ints, self.floats = list(range(ROWS)), [k / 3 for k in range(ROWS)]
        self.truths = [k % 3 == 0 for k in range(ROWS)]
        self.names = [str(k) for k in range(ROWS)]
        self.transform: Any = None
        self.train = True
        self.key = "image"

    def __len__(self) -> int:
        return ROWS


class Pair(Tables):
    def __getitem__(self, index):
        return self.images[index], self.labels[index]


class Inherits(Pair):
    pass


class OfTorch(Tables, Dataset):
    def __getitem__(self, index):
        """With a docstring."""
        return self.images[index]


class Single(Tables):
    def __getitem__(self, index: int) -> Any:
        return self.half[index]


class Nested(Tables):
    def __getitem__(self, index):
        return {self.key: self.images[index], "rest": [self.array[index], (self.numbers[index],)]}


class Numbers(Tables):
    def __getitem__(self, i):
        return self.ints[i], self.floats[i], self.numbers[i], i


class Decides(Tables):
    def __getitem__(self, index):
        image, label = self.images[index], self.labels[index]
        if self.transform is not None:
            image = self.transform(image)
        if self.train and self.scale == 1:
            return image, image, label
        return image


class OnlyIndex(Tables):
    def __getitem__(self, index):
        return index


class Columns(Tables):
    def __init__(self):
        super().__init__()
        self.table = torch.arange(ROWS * 3.0).view(ROWS, 3)
        self.x, self.y = self.table[:, 1:], self.table[:, 0]
        self.turned = np.arange(ROWS * 2).reshape(2, ROWS).T
        self.of_torch = self.table.numpy()

    def __getitem__(self, index):
        return self.x[index], self.y[index], self.turned[index], self.of_torch[index]


class SameTable(Tables):
    def __init__(self):
        super().__init__()
        self.targets = self.images

    def __getitem__(self, i):
        return self.images[i] if self.targets is self.images else (self.images[i], self.targets[i])


LOOK_UP = [OnlyIndex, Columns, Pair, Inherits, OfTorch, Single, Nested, Numbers, Decides]


def with_transform() -> Tables:
    data = Decides()
    data.transform = torch.neg
    return data


class Draws(Tables):
    def __getitem__(self, index):
        if random.random() < 0.5:
            return self.images[index], 1
        return self.images[index], 0


class Computes(Tables):
    def __getitem__(self, index):
        return self.images[index] / 255


class OtherRow(Tables):
    def __getitem__(self, index):
        return self.images[index - 1]


class AllOfIt(Tables):
    def __getitem__(self, index):
        return self.images[index], self.labels


class Fixed(Tables):
    def __getitem__(self, index):
        return self.images[index], self.images[0]


class Constant(Tables):
    def __getitem__(self, index):
        return self.images[index], 1


class First(Tables):
    def __getitem__(self, index):
        first = index is self.scale
        return (self.images[index], self.ints[index]) if first else (self.images[index],) * 2


class Ignored(Tables):
    def __getitem__(self, index):
        if self.ints[index] is self.scale:
            return -self.ints[index]
        return self.ints[index]


class Mirrored(Tables):
    def __getitem__(self, index):
        return self.turned[index]

    def __init__(self):
        super().__init__()
        self.turned = np.arange(ROWS * 2).reshape(ROWS, 2)[:, ::-1]


class Fields(Mirrored):
    def __init__(self):
        super().__init__()
        self.turned = np.zeros((ROWS, 3), [("a", "i1"), ("x", "f4")])["x"]


class FillsWhenAsked(Tables):
    def __init__(self):
        super().__init__()
        self.made = [None] * ROWS

    def __getitem__(self, index):
        if self.made[index] is None:
            self.array[index] = index
            self.made[index] = True
        return self.array[index]


class Unlabelled(Tables):
    def __init__(self):
        super().__init__()
        self.found = [3, None] * (ROWS // 2)

    def __getitem__(self, index):
        if self.found[index] is None:
            return self.images[index], self.numbers[index]
        return self.images[index], self.ints[index]


class Truths(Tables):
    def __getitem__(self, index):
        if self.truths[index] is True:
            return self.images[index], self.truths[index]
        return -self.images[index], self.truths[index]


class Asserts(Tables):
    def __init__(self):
        super().__init__()
        self.found = [3, None] * (ROWS // 2)

    def __getitem__(self, index):
        assert self.found[index] is not None
        return self.images[index]


class TooShort(Tables):
    def __getitem__(self, index):
        self.short[index]
        return self.images[index]

    def __init__(self):
        super().__init__()
        self.short = [0] * 5


class Waits(Tables):
    def __getitem__(self, index):
        while self.truths[index] is None:
            pass
        return self.images[index]


class Goes(Tables):
    def __getitem__(self, index):
        image = self.images[index]
        for _ in (0, 1, 2):
            image = self.images[index]
        return image


class Climbs(Tables):
    def __getitem__(self, index):
        ().__class__.__base__.__subclasses__()
        return self.images[index]


class DeletesGlobal(Tables):
    def __getitem__(self, index):
        global flag
        flag = 1
        del flag
        return self.images[index]


class Static(Tables):
    @staticmethod
    def __getitem__(self, index):
        return self.images[index]


class OtherAttributes(Tables):
    @property
    def __dict__(self):
        calls.append("asked for the attributes")
        return {"images": torch.zeros(ROWS)}

    def __getitem__(self, index):
        return self.images[index]


class OfMeta(type):
    def __getattribute__(cls, name):
        if name == "__getitem__":
            raise RuntimeError("not for you")
        return super().__getattribute__(name)


class Meta(Tables, metaclass=OfMeta):
    def __getitem__(self, index):
        return self.images[index] + 1


class ManyDims(Pair):
    def __init__(self):
        super().__init__()
        self.images = torch.arange(ROWS).view(ROWS, *[1] * 70)


class Freed(Pair):
    def __init__(self):
        super().__init__()
        self.images = torch.ones(ROWS, 100)
        self.images.untyped_storage().resize_(0)


class LooksAtRow(Tables):
    def __getitem__(self, index):
        return self.images[index] if self.labels[index] else self.images[index] * 2


class Compares(Tables):
    def __getitem__(self, index):
        return self.images[index] if index == 3 else self.labels[index].expand(3, 2, 2)


class Counts(Tables):
    count = 0

    def __getitem__(self, index):
        self.count += 1
        return self.images[index]


class Appends(Tables):
    def __getitem__(self, index):
        calls.append(index)
        return self.images[index]


class AppendsToItsOwn(Tables):
    def __getitem__(self, index):
        self.ints.append(0)
        return self.images[index]


class SetsGlobal(Tables):
    def __getitem__(self, index):
        global flag
        flag = 1
        return self.images[index]


class Catches(Tables):
    def __getitem__(self, index):
        try:
            return self.images[index].nothing
        except Exception:
            return self.images[index]


class CatchesAll(Tables):
    def __getitem__(self, index):
        try:
            if self.images[index]:
                return self.labels[index]
        except:  # noqa: E722
            pass
        return self.images[index, 0]


class Formats(Tables):
    def __getitem__(self, index):
        return {f"{index}"[:0]: self.images[index]}


class Matches(Tables):
    def __getitem__(self, index):
        match self.images[index]:
            case [_, _, _]:
                return self.labels[index]
            case _:
                return self.images[index]


class Computed(Tables):
    @property
    def shown(self):
        return self.images + 1

    def __getitem__(self, index):
        return self.shown[index]


class Behind(Tables):
    def __getattr__(self, name):
        if name == "hidden":
            return self.images
        raise AttributeError(name)

    def __getitem__(self, index):
        return self.hidden[index]


class Watches(Pair):
    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        return value * 2 if name == "images" else value


class Together(Pair):
    def __getitems__(self, indices):
        return [self[index] for index in reversed(indices)]


class Texts(Tables):
    def __getitem__(self, index):
        return self.images[index], self.names[index]


class Gradient(Pair):
    def __init__(self):
        super().__init__()
        self.images = torch.ones(ROWS, 2, requires_grad=True)


class FreedColumn(Pair):
    def __init__(self):
        super().__init__()
        self.images = torch.ones(ROWS, 100)[:, 1:]
        self.images.untyped_storage().resize_(0)


class Strided(Pair):
    def __init__(self):
        super().__init__()
        self.images = torch.arange(ROWS * 4).view(4, ROWS, 1).transpose(0, 1)


class StridedHalf(Pair):
    def __init__(self):
        super().__init__()
        self.images = self.half.T.contiguous().T


class Sliced(Tables):
    def __init__(self):
        super().__init__()
        self.array = self.array[:, :, ::2]

    def __getitem__(self, index):
        return self.array[index]


class Slots:
    __slots__ = ("images",)

    def __init__(self):
        self.images = torch.arange(ROWS)

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return self.images[index]


class Nothing(Tables):
    def __getitem__(self, index):
        return ()


class Closure(Tables):
    def __getitem__(self, index):
        return [row[index] for row in (self.images, self.labels)][0]  # noqa: RUF015


class Decorated(Tables):
    __getitem__ = (lambda inner: lambda self, index: -inner(self, index))(
        lambda self, index: self.images[index]
    )


REFUSED = [
    with_transform,
    Draws,
    Computes,
    OtherRow,
    AllOfIt,
    Fixed,
    Constant,
    SameTable,
    First,
    Ignored,
    Mirrored,
    Fields,
    FillsWhenAsked,
    Unlabelled,
    Truths,
    Asserts,
    TooShort,
    Waits,
    Goes,
    Climbs,
    DeletesGlobal,
    Static,
    OtherAttributes,
    Meta,
    ManyDims,
    Freed,
    FreedColumn,
    LooksAtRow,
    Compares,
    Counts,
    Appends,
    AppendsToItsOwn,
    SetsGlobal,
    Catches,
    CatchesAll,
    Matches,
    Computed,
    Behind,
    Watches,
    Together,
    Gradient,
    Strided,
    StridedHalf,
    Sliced,
    Texts,
    Formats,
    Slots,
    Nothing,
    Closure,
    Decorated,
]


def both(make: Any, **given: Any) -> tuple[list[Any], list[Any]]:
    """What torch and feedline give of a dataset, or what they raise."""
    found: list[list[Any]] = []
    given = {"batch_size": 7, "shuffle": True} | given
    for kind in (TorchDataLoader, feedline.DataLoader):
        torch.manual_seed(5)
        try:
            found.append([plain(batch) for batch in kind(make(), **given)])
        except Exception as error:
            found.append([type(error)])
    return found[0], found[1]


@pytest.mark.parametrize("make", LOOK_UP)
@pytest.mark.parametrize("workers", [0, 2])
def test_rows_that_are_looked_up_are_taken_at_once_and_are_torchs(make: Any, workers: int) -> None:
    data = make()
    theirs, ours = both(partial(copy, data), num_workers=workers)
    assert ours == theirs
    with feedline.DataLoader(data, num_workers=workers) as loader:
        next(iter(loader))
        assert not loader.worker_pids
        assert "rows in memory" in loader.explain()


@pytest.mark.parametrize("make", REFUSED)
def test_what_does_more_runs_as_it_is(make: Any) -> None:
    assert gatherer(make(), default_collate) is None
    if make is not Draws:  # without workers torch leaves its draws where training draws
        theirs, ours = both(make)
        assert ours == theirs


def test_asking_leaves_no_trace() -> None:
    global flag
    calls.clear()
    flag = 0
    counts, appends = Counts(), AppendsToItsOwn()
    for data in (counts, appends, Appends(), SetsGlobal()):
        assert looked_up(data) is None
    assert counts.count == 0
    assert len(appends.ints) == ROWS
    assert (calls, flag) == ([], 0)


def test_neither_generators_nor_coroutines_are_run() -> None:
    class Yields(Tables):
        def __getitem__(self, index: int) -> Iterator[Any]:
            yield self.images[index]

    class Awaits(Tables):
        async def __getitem__(self, index: int) -> Any:
            await asyncio.sleep(0)
            return self.images[index]

    assert looked_up(Yields()) is None
    assert looked_up(Awaits()) is None  # and no warning that it was never awaited


def test_what_is_mapped_from_a_file_is_left_to_workers(tmp_path: Any) -> None:
    data = Pair()
    np.save(tmp_path / "rows.npy", np.zeros((ROWS, 3)))
    mapped: Any = np.load(tmp_path / "rows.npy", mmap_mode="r")
    for array in (mapped, np.asarray(mapped), np.asarray(mapped)[1:]):
        data.images = array
        assert gatherer(data, default_collate) is None
    data.images = np.frombuffer(bytes(ROWS), np.uint8)  # type: ignore[assignment]
    assert gatherer(data, default_collate) is not None


@pytest.mark.filterwarnings("ignore:Sparse")
def test_arrays_that_torch_cannot_take_are_left_to_its_errors() -> None:
    data = Pair()
    for array in (
        np.array(["a"] * ROWS),
        np.array([None] * ROWS),
        np.zeros(ROWS, ">i4"),
        np.zeros((ROWS, 2), ">i4"),
        np.zeros((0, 2)),
        np.zeros(()),
        torch.zeros(()),
        torch.zeros(0, 3),
        torch.zeros(ROWS, 3).to_sparse(),
        torch.zeros(ROWS, 3).to_sparse_csr(),
        torch.zeros(ROWS, 3, dtype=torch.complex64).conj(),
        torch.zeros(ROWS, 3, device="meta"),
        [],
        [object()] * ROWS,
        torch.nn.Parameter(torch.zeros(ROWS)),
    ):
        data.images = array  # type: ignore[assignment]
        assert gatherer(data, default_collate) is None


def test_subsets_are_looked_through() -> None:
    data = Pair()
    parts = [
        Subset(Subset(data, list(range(5, 30))), [-1, 3, 7, 7]),
        Subset(data, np.arange(3, 20)),  # type: ignore[arg-type]
        Subset(data, torch.arange(3, 20)),  # type: ignore[arg-type]
        Subset(data, range(3, 20, 2)),
        Subset(Numbers(), range(3, 20, 2)),
    ]
    for part in parts:
        assert gatherer(part, default_collate) is not None
        theirs, ours = both(partial(copy, part))
        assert ours == theirs


def test_what_is_no_row_number_is_left_to_the_dataset() -> None:
    """A truth, or a list of one, adds a dimension to a tensor's row."""
    mask = torch.arange(20) % 3 == 0
    for indices in ([True, False], mask, torch.nonzero(mask), mask.to(torch.uint8), [[1], [2]]):
        data: Any = Subset(Pair(), indices)  # type: ignore[arg-type]
        theirs, ours = both(partial(copy, data))
        assert ours == theirs


def test_indices_of_another_class_are_asked_once_and_for_what_is_needed() -> None:
    class Endless:
        asked = 0

        def __len__(self) -> int:
            return 4

        def __getitem__(self, k: int) -> int:
            self.asked += 1
            return k + int(torch.randint(2, ()))

    indices = Endless()
    loader = feedline.DataLoader(Subset(Pair(), indices), batch_size=4)  # type: ignore[arg-type]
    assert len(next(iter(loader))[0]) == 4
    assert indices.asked == 4


def test_keys_that_are_not_numbers_are_asked_for() -> None:
    data = Pair()
    for keys in (
        [slice(0, 2), slice(2, 4)],
        [torch.tensor([1, 2])],
        [torch.tensor([1]), torch.tensor([3])],
        [torch.tensor(True), torch.tensor(False)],
        [torch.tensor(3, dtype=torch.uint8)],
        [torch.tensor(3), np.int64(4), -1],
        [np.int16(3), np.uint8(4)],
        [np.bool_(True)],
        (1, 2),
        range(3),
        torch.arange(3),
        np.arange(3),
        {1, 2},
        [],
    ):
        for made in (data, Numbers()):
            theirs, ours = both(
                partial(copy, made), batch_size=1, shuffle=False, batch_sampler=[keys]
            )
            assert ours == theirs


def test_keys_that_can_be_gone_through_once_are_there_for_the_samples() -> None:
    for data in (Pair(), Subset(Pair(), range(ROWS)), Subset(Pair(), np.arange(ROWS, dtype="i4"))):  # type: ignore[arg-type]
        loader = feedline.DataLoader(data, batch_sampler=[iter([1, 2]), map(int, "34")])  # type: ignore[list-item]
        assert [batch[1].tolist() for batch in loader] == [[7, 14], [21, 28]]


@pytest.mark.parametrize("data", [Subset(Pair(), range(9)), TensorDataset(torch.arange(9))])
def test_a_way_to_ask_for_many_that_is_one_datasets_own_is_taken(data: Any) -> None:
    data.__getitems__ = lambda keys: [torch.tensor(-key) for key in keys]
    assert next(iter(feedline.DataLoader(data, batch_size=3))).tolist() == [0, -1, -2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batches_can_be_changed_in_place_where_gradients_are_kept(dtype: torch.dtype) -> None:
    data = TensorDataset(torch.ones(ROWS, 2, dtype=dtype))
    weights = torch.ones(2, dtype=dtype, requires_grad=True)
    with torch.no_grad():
        (batch,) = next(iter(feedline.DataLoader(data, batch_size=4)))
    batch.mul_(weights)
    batch.sum().backward()
    assert weights.grad is not None
    assert weights.grad.tolist() == [4, 4]


def test_a_row_that_is_missing_is_named_and_can_be_left_out() -> None:
    data = Pair()
    keys = [[0, 1], [2, ROWS + 5], [3, 4]]
    with pytest.raises(IndexError) as caught:
        list(feedline.DataLoader(data, batch_sampler=keys))
    assert f"index {ROWS + 5} of Pair" in "\n".join(caught.value.__notes__)
    with feedline.DataLoader(data, batch_sampler=keys, on_error="skip", num_workers=2) as loader:
        assert [batch[1].tolist() for batch in loader] == [[0, 7], [14], [21, 28]]
        assert [name for name, _ in loader.skipped] == [str(ROWS + 5)]


@pytest.mark.parametrize("workers", [0, 2])
def test_changes_are_followed_at_once(workers: int) -> None:
    data = Decides()
    with feedline.DataLoader(data, batch_size=4, num_workers=workers) as loader:
        batches = iter(loader)
        assert next(batches)[2].tolist() == [0, 7, 14, 21]
        data.labels = torch.arange(ROWS)
        assert next(batches)[2].tolist() == [4, 5, 6, 7]
        data.train = False
        assert next(batches).shape == (4, 3, 2, 2)
        data.transform = lambda image: image.float() + 0.5
        assert next(batches).dtype == torch.float32
        data.transform = None
        assert next(batches).dtype == torch.uint8


def test_tensors_of_a_tensor_dataset_are_those_of_now() -> None:
    data = TensorDataset(torch.arange(ROWS))
    batches = iter(feedline.DataLoader(data, batch_size=2))
    assert next(batches)[0].tolist() == [0, 1]
    data.tensors = (torch.arange(ROWS) * 2, torch.arange(ROWS))
    assert [part.tolist() for part in next(batches)] == [[4, 6], [2, 3]]


def test_another_method_of_the_class_is_followed() -> None:
    class Mine(Pair):
        pass

    batches = iter(feedline.DataLoader(Mine(), batch_size=2))
    assert len(next(batches)) == 2
    Mine.__getitem__ = lambda self, index: index  # type: ignore[assignment]
    assert next(batches).tolist() == [2, 3]


def test_a_list_of_more_than_numbers_is_left_to_the_dataset() -> None:
    data = Numbers()
    data.ints = [1, "b", "c", "d", 5, *range(5, ROWS)]  # type: ignore[list-item]
    theirs, ours = both(partial(copy, data), batch_size=2, shuffle=False)
    assert ours == theirs


def test_tensors_can_still_be_resized() -> None:
    data = Pair()
    data.images = torch.zeros(ROWS, 3)
    data.labels = torch.zeros(ROWS, 3, dtype=torch.bfloat16)
    next(iter(feedline.DataLoader(data, batch_size=2)))
    data.images.resize_(ROWS + 10, 3)
    data.labels.resize_(ROWS + 10, 3)


def test_on_another_default_device_samples_are_asked_for() -> None:
    with torch.device("meta"):
        assert gatherer(Numbers(), default_collate) is None
        assert gatherer(OnlyIndex(), default_collate) is None
        assert gatherer(Nested(), default_collate) is None


def test_a_debugger_finds_the_dataset_itself() -> None:
    seen = []

    def trace(frame: Any, event: str, _: object) -> Any:
        if frame.f_code is Pair.__getitem__.__code__:
            seen.append(type(frame.f_locals["self"]))

    batches = iter(feedline.DataLoader(Pair(), batch_size=2))
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert next(batches)[1].tolist() == [0, 7]
    finally:
        sys.settrace(before)
    assert seen == [Pair, Pair]


def test_a_tensor_collate_of_torchs_own_but_not_for_tensors_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, collate_str_fn)
    theirs, ours = both(Pair)
    assert ours == theirs


@pytest.mark.parametrize("kind", [tuple, dict, int, torch.Tensor])
def test_a_collate_that_users_have_registered_is_asked(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(default_collate_fn_map, kind, lambda batch, *, collate_fn_map: "mine")
    for data in (Pair(), Nested(), Numbers()):
        assert gatherer(data, default_collate) is None
        theirs, ours = both(partial(copy, data))
        assert ours == theirs


def test_a_worker_init_fn_gets_its_workers() -> None:
    with feedline.DataLoader(Pair(), num_workers=1, worker_init_fn=print) as loader:
        next(iter(loader))
        assert loader.worker_pids


def test_batches_are_the_users_own() -> None:
    data = Pair()
    for batch in itertools.islice(feedline.DataLoader(data, batch_size=4), 2):
        batch[0].zero_()
    assert data.images[1:].any()
    assert not (data.images[4:] == 0).all()
