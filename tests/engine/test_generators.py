"""Transforms with their own random generators are seeded per batch, too."""

import functools
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset
from torchvision.transforms import Compose

import feedline
from comparisons import same_everywhere
from feedline.engine.generators import (
    describe_generators,
    find_generators,
    seed_generators,
)
from feedline.loader import DataLoader
from sets import plain

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

ROWS = 14
BATCH = 3


class Jitter:
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __call__(self, value):
        return value, self.rng.random()


class Slotted:
    __slots__ = ("draw", "unset")

    def __init__(self):
        self.draw = random.Random(0).random

    def __call__(self, value):
        return value, self.draw()


def from_torch(value, generator):
    return value, float(torch.rand((), generator=generator, dtype=torch.float64))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator()
        self.generator.manual_seed(0)

    def forward(self, value):
        return from_torch(value, self.generator)


def closed_over():
    state = np.random.RandomState(0)
    return lambda value: (value, state.rand())


def by_name():
    def draw(value, *, rng=random.Random(0)):  # noqa: B008
        return value, rng.random()

    return draw


class Photos(Dataset[Any]):
    """A sample is its index, transformed."""

    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return self.transform(index)


class Shared(Photos):
    """The generator is the class's."""

    state = np.random.RandomState(7)

    def __getitem__(self, index):
        return index, self.state.rand()


def all_kinds():
    table = {"rng": np.random.Generator(np.random.MT19937(0))}
    steps = [
        Jitter(),
        torch.nn.Sequential(Layer()),
        Slotted(),
        functools.partial(from_torch, generator=torch.Generator()),
        closed_over(),
        lambda value, table=table: (value, table["rng"].random()),
        lambda value: (value, np.random.rand()),  # the global state
    ]
    return Compose(steps)


GLOBAL_RNG = np.random.default_rng(0)
OTHER_RNG = random.Random(0)


def draw_from_globals(value):
    return value, GLOBAL_RNG.random(), draw_again()


def draw_again():
    return (lambda: OTHER_RNG.random())()


class UsesGlobals(Dataset[Any]):
    def __getitem__(self, index):
        return draw_from_globals(index)

    def __len__(self):
        return ROWS


class Flips(Dataset[Any]):
    """Returns which of two flips albumentations applied."""

    def __init__(self):
        albumentations = pytest.importorskip("albumentations")
        flips = [albumentations.HorizontalFlip(p=0.5), albumentations.VerticalFlip(p=0.5)]
        self.transform = albumentations.Compose([*flips, albumentations.OneOf(flips, p=0.5)])
        self.image = np.arange(4, dtype=np.uint8).reshape(2, 2, 1)

    def __len__(self):
        return 60

    def __getitem__(self, index):
        return self.transform(image=self.image)["image"]


DATASETS = {
    "class": lambda: Shared(Jitter()),
    "all": lambda: Photos(all_kinds()),
    "pickled": lambda: Photos(Compose([Jitter(), Layer()])),
    "global": lambda: Photos(draw_from_globals),
    "globals of a method": UsesGlobals,
    "compiled": lambda: Photos(feedline.compile(draw_from_globals)),
    "albumentations": Flips,
}
# torch 2.2 cannot pickle its generators.
PICKLED = ("pickled", "global") if hasattr(torch, "uint16") else ("global",)


def batches(make, **options):
    with DataLoader(make(), BATCH, shuffle=True, seed=3, **options) as loader:
        return [plain(batch) for _ in range(2) for batch in loader]


def draws(batch):
    """Every number that was drawn for a batch."""
    if isinstance(batch, torch.Tensor):
        return batch.tolist() if batch.is_floating_point() else []
    return [draw for part in batch for draw in draws(part)]


@pytest.mark.parametrize("seed", [{"seed": 3}, {}])
@pytest.mark.parametrize("kind", DATASETS)
def test_batches_are_the_same_on_any_number_of_workers_and_after_a_resume(kind, seed):
    def make(count):
        options = {"num_workers": count, **seed}
        if count == 2 and kind in PICKLED:
            options["start_method"] = "forkserver"
        return DataLoader(DATASETS[kind](), BATCH, shuffle=True, **options)

    same_everywhere(make, workers=(1, 2, 3), seed=bool(seed))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("seed", [{"seed": 3}, {}])
@pytest.mark.parametrize(
    ("kind", "count"), [("all", 7), ("global", 2), ("globals of a method", 2), ("compiled", 2)]
)
def test_no_two_samples_have_the_same_draw(kind, count, workers, seed):
    torch.manual_seed(0)
    seen = []
    with DataLoader(DATASETS[kind](), BATCH, num_workers=workers, **seed) as loader:
        for _ in range(2):
            for batch in loader:
                seen += draws(batch)
    assert len(seen) == 2 * ROWS * count
    assert len(set(seen)) == len(seen)


def test_generator_is_unchanged_without_workers():
    data = DATASETS["all"]()
    found = find_generators(data)
    assert len(found) == 6

    def states():
        return [repr(plain(own.kind.state(own.generator))) for own in found]

    before = states()
    with DataLoader(data, BATCH, seed=3) as loader:
        for _ in loader:
            assert states() == before
        data.transform.transforms.append(lambda value: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            next(iter(loader))
    assert states() == before


def test_collate_fn_may_have_a_generator():
    def seen(workers):
        rng = np.random.default_rng(0)

        def mixed(samples):
            return samples, float(rng.random())

        return batches(lambda: Photos(lambda index: index), num_workers=workers, collate_fn=mixed)

    assert seen(0) == seen(2)
    assert len({repr(batch[1]) for batch in seen(0)}) == 10


def test_generators_are_described_by_path():
    data = Photos(all_kinds())
    steps = "dataset.dataset.transform.transforms"
    assert sorted(describe_generators(Subset(data, [0]))) == [
        f"{steps}[0].rng (numpy Generator)",
        f"{steps}[1]._modules['0'].generator (torch Generator)",
        f"{steps}[2].draw.__self__ (random.Random)",
        f"{steps}[3].keywords['generator'] (torch Generator)",
        f"{steps}[4].__closure__[state] (numpy RandomState)",
        f"{steps}[5].__defaults__[0]['rng'] (numpy Generator)",
    ]
    assert describe_generators(Photos(by_name())) == ["dataset.transform(rng=) (random.Random)"]
    assert describe_generators(Photos(abs)) == []
    said = DataLoader(Photos(Jitter()), 3, num_workers=1).explain()
    assert "torch, numpy, random, dataset.transform.rng (numpy Generator)" in said
    assert "2 batches per worker (prefetch_factor)" in said
    assert "dataset." not in DataLoader([1, 2]).explain()


def test_shared_generator_counts_once_and_global_one_not_at_all():
    rng = np.random.default_rng(0)
    same = np.random.Generator(rng.bit_generator)
    assert len(find_generators([rng, rng, same, rng.random, {"again": (rng,)}])) == 1
    others = np.random.RandomState(np.random.PCG64(0))  # not seeded so
    everybodys = [others, random, random.random, np.random, np.random.rand, torch.default_generator]
    assert find_generators([*everybodys, random.SystemRandom(), Photos(from_torch)]) == []


def test_search_for_generators_runs_no_user_code():
    class OfMeta(type):
        def __getattribute__(cls, name):
            raise AssertionError(name)

    class Watches(metaclass=OfMeta):
        __slots__ = ("__dict__", "slot")

        def __init__(self):
            object.__setattr__(self, "slot", random.Random(0))
            object.__setattr__(self, "inner", random.Random(1))

        def __getattribute__(self, name):
            raise AssertionError(name)

        def __eq__(self, other):
            raise AssertionError

        def __hash__(self):
            raise AssertionError

        def __len__(self):
            raise AssertionError

        @property
        def computed(self):
            raise AssertionError

    class Odd(list[Any]):
        def __iter__(self):
            raise AssertionError

        __len__ = __getitem__ = __iter__

        @property
        def __dict__(self):
            raise AssertionError

    watches = type.__call__(Watches)
    odd = Odd()
    list.extend(odd, [watches, odd, [random.Random(2)] * 1001])
    found = find_generators(odd)
    assert [own.path for own in found] == ["dataset[0].inner", "dataset[0].slot"]
    deep = random.Random(4)
    for _ in range(20):
        deep = [deep]
    assert find_generators(deep) == []
    many = [[deep, [random.Random(k) for k in range(1000)]] for _ in range(15)]
    assert len(find_generators(many)) < 10_001


def test_all_draws_are_determined_by_seed():
    state = np.random.RandomState(0)
    kinds = np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64
    generators = [state, *(np.random.Generator(kind(0)) for kind in kinds)]
    found = find_generators(generators)
    assert len(found) == len(generators)
    seen = []
    for _ in range(2):
        seed_generators(found, 1 << 63)
        assert not state.get_state(legacy=False)["has_gauss"]
        seen.append([float(own.standard_normal()) for own in generators])
    assert seen[0] == seen[1]


def test_albumentations_flips_are_independent_and_its_state_is_left_alone():
    data = Flips()
    assert describe_generators(data) == ["dataset.transform (albumentations)"]
    assert len({repr(batch) for batch in batches(lambda: data)}) > 10  # of 64 there can be
    first = {image.numpy().tobytes() for batch in DataLoader(data, 1, seed=3) for image in batch}
    assert len(first) == 4
    alone = Flips()
    for each in (data, alone):
        each.transform.set_random_seed(4)
    list(DataLoader(data, BATCH, seed=3))
    ours, theirs = ([plain(each[0]) for _ in range(30)] for each in (data, alone))
    assert ours == theirs
