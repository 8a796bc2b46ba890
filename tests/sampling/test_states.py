"""A state resumes with exactly the remaining batches, including draws, or is rejected."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import checkpoint
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from feedline.errors import StateError, UsageError
from feedline.loader import DataLoader
from sets import Drawing, Drawn, Made, Sized, Stateful, Unrepeatable, plain, through_json
from slow import slow

DATA = Drawing(23)


def generator(seed):
    return torch.Generator().manual_seed(seed)


class Batches:
    def __init__(self, length, draw):
        self.length, self.draw = length, draw

    def __len__(self):
        return self.length

    def __iter__(self):
        return self.draw()


def at_once():
    """Draw the whole order when a pass begins, not with the first batch."""
    return iter(torch.randperm(23)[:20].reshape(5, 4).tolist())


def late():
    """Draw from the second batch on only."""
    yield [0, 1]
    for _ in range(3):
        yield torch.randint(23, (2,)).tolist()


def batch_by_batch(samples=23):
    for _ in range(4):
        yield torch.randint(samples, (4,)).tolist()


class ShuffledBatches(BatchSampler):
    def __iter__(self):
        batches = list(super().__iter__())
        return (batches[k] for k in torch.randperm(len(batches)).tolist())


def distributed(seed):
    return {"sampler": DistributedSampler(DATA, num_replicas=2, rank=1, seed=5)}


# Arguments that define a loader's order; a state must override `seed`.
ORDERS = {
    "sequential": lambda seed: {},
    "shuffle": lambda seed: {"shuffle": True},
    "generator": lambda seed: {"shuffle": True, "generator": generator(seed)},
    "replacement": lambda seed: {"sampler": RandomSampler(DATA, True, 30)},
    "replacement by generator": lambda seed: {
        "sampler": RandomSampler(DATA, True, 30, generator(seed))
    },
    "weighted": lambda seed: {"sampler": WeightedRandomSampler(torch.arange(1, 24.0), 30)},
    "subset": lambda seed: {"sampler": SubsetRandomSampler(range(3, 20))},
    "distributed": distributed,
    "distributed with a generator": lambda seed: {
        **distributed(seed),
        "generator": generator(seed),
    },
    "batches": lambda seed: {"batch_sampler": BatchSampler(RandomSampler(DATA), 4, True)},
    "drawn late": lambda seed: {"batch_sampler": Batches(4, late)},
    "drawn at once": lambda seed: {"batch_sampler": Batches(5, at_once)},
    "stateful": lambda seed: {"sampler": Stateful(23, 5)},
    "stateful by generator": lambda seed: {"sampler": Drawn(23, 5)},
    "tensor": lambda seed: {"sampler": torch.arange(22, -1, -1)},
    "no batches": lambda seed: {"shuffle": True, "batch_size": None},
    "seed": lambda seed: {"shuffle": True, "seed": 4},
    "persistent": lambda seed: {"shuffle": True, "persistent_workers": True},
    "persistent by generator": lambda seed: {
        "shuffle": True,
        "generator": generator(seed),
        "persistent_workers": True,
    },
}


ALL = {**ORDERS, "batch by batch": lambda seed: {"batch_sampler": Batches(4, batch_by_batch)}}


def loader(order, seed, **options):
    options = {"batch_size": 4, **ALL[order](seed), **options}
    if "batch_sampler" in options:
        del options["batch_size"]
    if not options.get("num_workers"):
        options.pop("persistent_workers", None)
    return DataLoader(DATA, **options)


def one_epoch(batches):
    if isinstance(batches.sampler, DistributedSampler):
        batches.sampler.set_epoch(batches.epoch)
    return [plain(batch) for batch in batches]


SLOW = ("sequential", "replacement", "subset", "batches", "tensor", "persistent", "stateful")
SLOW += ("replacement by generator", "weighted", "persistent by generator")


@pytest.mark.parametrize("order", [*(each for each in ORDERS if each not in SLOW), *slow(*SLOW)])
def test_every_state_of_two_epochs_resumes_with_exact_remainder(order):
    torch.manual_seed(3)
    states, seen = [], []
    with loader(order, 1, num_workers=2) as batches:
        states.append((0, 0, batches.state_dict()))
        for epoch in range(2):
            if isinstance(batches.sampler, DistributedSampler):
                batches.sampler.set_epoch(epoch)
            for batch in batches:
                seen.append(plain(batch))
                states.append((epoch, len(seen), batches.state_dict()))
            states.append((epoch + 1, len(seen), batches.state_dict()))
    ends = [len(seen) // 2, len(seen)]
    picked = states[::7] if order == "no batches" else states[: ends[0] + 3] + states[-2:]
    for number, (epoch, place, state) in enumerate(picked):
        if epoch == 2:
            continue
        torch.manual_seed(50 + number)
        random.seed(number)
        with loader(order, 60 + number, num_workers=(0, 1, 2)[number % 3]) as other:
            other.load_state_dict(through_json(state))
            assert one_epoch(other) == seen[place : ends[epoch]]
            if epoch == 0 and order == "distributed with a generator":
                assert one_epoch(other) == seen[ends[0] :]  # with the same random draws
            elif epoch == 0 and order in ("sequential", "distributed", "stateful", "seed"):
                assert [batch[1][0] for batch in one_epoch(other)] == [
                    batch[1][0] for batch in seen[ends[0] :]
                ]


@pytest.mark.skipif(not hasattr(torch, "uint16"), reason="torch 2.2 needs a process group here")
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.parametrize("order", [*ORDERS, "schedule"])
def test_distributed_checkpoint_loads_a_state_into_a_loader_at_any_position(order, tmp_path):
    """It reads the entries that the loader's present state has."""

    def new(seed):
        if order == "schedule":
            return DataLoader(Sized(), seed=3, schedule="8x2@4", shuffle=True, num_workers=0)
        return loader(order, seed)

    def at(seed, steps):
        batches = new(seed)
        if steps is not None:
            for _ in batches if steps > len(batches) else zip(range(steps), batches, strict=False):
                pass
        return batches

    positions = (None, 0, 2, 100)
    for steps in positions:
        torch.manual_seed(3)
        first = at(1, steps)
        folder = tmp_path / f"after {steps}"
        checkpoint.save({"loader": first}, checkpoint_id=folder, no_dist=True)
        expected = new(0)
        expected.load_state_dict(first.state_dict())
        rest = [plain(batch) for batch in expected]
        for other_steps in positions:
            torch.manual_seed(9)
            other = at(7, other_steps)
            checkpoint.load({"loader": other}, checkpoint_id=folder, no_dist=True)
            assert [plain(batch) for batch in other] == rest


@pytest.mark.parametrize("rank", range(4))
def test_any_state_of_four_ranks_resumes_on_two(rank):
    data = Drawing(48)

    def of(rank, ranks, rows):
        sampler = DistributedSampler(data, num_replicas=ranks, rank=rank, seed=5)
        sampler.set_epoch(3)
        return DataLoader(data, rows, sampler=sampler)

    four = [of(each, 4, 2) for each in range(4)]
    seen = []
    for each in four:
        batches = iter(each)
        seen += next(batches)[0].tolist() + next(batches)[0].tolist()
    state = through_json(four[rank].state_dict())
    for each in range(2):
        half = of(each, 2, 4)
        half.load_state_dict(state)
        seen += [number for batch in half for number in batch[0].tolist()]
    assert sorted(seen) == list(range(48))


def of(data=DATA, rows=4, **options):
    return lambda: DataLoader(data, rows, **options)


def second_rank(seed):
    return DistributedSampler(DATA, num_replicas=2, rank=1, seed=seed)


SHUFFLED, PLANNED = of(shuffle=True), of(shuffle=True, seed=4)
DIVIDED, DRAWN = of(rows=1, batch_sampler=[[0, 1], [2, 3, 4], [5]]), of(sampler=RandomSampler(DATA))


@pytest.mark.parametrize(
    ("saved", "loading", "said"),
    [
        (SHUFFLED, of(Drawing(24), shuffle=True), "length"),
        (SHUFFLED, of(Made(23, int), shuffle=True), "dataset"),
        (SHUFFLED, of(), "sampler"),
        (SHUFFLED, of(rows=8, shuffle=True), "global_batch_size"),
        (SHUFFLED, of(shuffle=True, drop_last=True), "drop_last"),
        (SHUFFLED, of(shuffle=True, image_size=8), "schedule"),
        (SHUFFLED, PLANNED, "seed"),
        (PLANNED, SHUFFLED, "seed"),
        (PLANNED, of(shuffle=True, seed=5), "seed was 4, is 5"),
        (of(sampler=[3, 1, 2, 0, 5], seed=6), of(sampler=[3, 1, 2, 0, 5], seed=5), "seed was 6"),
        (of(sampler=range(8), schedule="ownx2"), of(sampler=range(8)), "schedule was"),
        (of(sampler=second_rank(5)), of(sampler=second_rank(6)), "seed"),
        (of(sampler=Unrepeatable(23)), of(sampler=Unrepeatable(23)), "gives other samples"),
        (DIVIDED, of(rows=1, batch_sampler=[[0, 1, 2], [3, 4], [5]]), "gives other samples"),
        (DRAWN, of(sampler=RandomSampler(DATA, True, 23)), "sampler was"),
        (of(sampler=RandomSampler(DATA, True, 23)), DRAWN, "sampler was"),
    ],
)
def test_state_of_another_loader_is_rejected_by_name(saved, loading, said):
    first = saved()
    epoch = iter(first)
    next(epoch), next(epoch)
    with pytest.raises(StateError, match=said):
        loading().load_state_dict(first.state_dict())


class Lending(Stateful):
    """Returns its internal state without a copy, and then changes it."""

    def __init__(self, length, seed):
        self.kept, self.counts = {}, []
        super().__init__(length, seed)

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name in ("given", "passes"):
            self.kept[name] = value
        if name == "given":
            self.counts.append(value)

    def state_dict(self):
        return self.kept


@pytest.mark.parametrize("workers", [0, 2])
def test_sampler_may_return_its_internal_state(workers):
    with DataLoader(DATA, 4, sampler=Lending(23, 5), num_workers=workers) as first:
        epoch = iter(first)
        next(epoch)
        state = first.state_dict()
        said = through_json(state)
        rest = [plain(batch) for batch in epoch]
    assert through_json(state) == said
    other = DataLoader(DATA, 4, sampler=Lending(23, 5))
    other.load_state_dict(said)
    assert said["sampler_state"][0]["given"] == 4
    assert said["start"]["sampler"][0]["given"] == 0
    assert 1 not in other.sampler.counts  # the delivered samples are not drawn again
    assert one_epoch(other) == rest


def places(state, path=()):
    """All keys of a state, those within its mappings included."""
    found = []
    for key, value in state.items():
        found.append((*path, key))
        if isinstance(value, dict):
            found += places(value, (*path, key))
    return found


def with_entry(state, path, value):
    """Copy of a state with another value at a path, or without the entry if it is "missing"."""
    name, *rest = path
    if not rest and value == "missing":
        return {key: each for key, each in state.items() if key != name}
    return {**state, name: with_entry(state[name], rest, value) if rest else value}


DAMAGES = [None, "x", -1, 3.5, [], {}, True, 10**30, [1], b"x"]


# Another value of the pixel identity is not damage.
@pytest.mark.filterwarnings("ignore:the state's batches were made")
@pytest.mark.parametrize(
    "order",
    ["shuffle", "stateful by generator", "seed", *slow("generator", "distributed", "stateful")],
)
def test_damaged_states_are_rejected_without_side_effects(order):
    whole = loader(order, 1)
    epoch = iter(whole)
    next(epoch)
    next(epoch)
    state = whole.state_dict()
    refused = 0
    for path in places(state):
        for damage in ["missing", *DAMAGES]:
            other = loader(order, 1)
            try:
                other.load_state_dict(with_entry(state, path, damage))
            except UsageError:
                refused += 1
            else:
                assert sum(1 for _ in other) <= 6
    assert refused > 30
    for damage in DAMAGES:
        with pytest.raises(StateError):
            loader(order, 1).load_state_dict(damage)


@pytest.mark.parametrize(
    "make",
    [lambda: Stateful(23, 5), lambda: Drawn(23, 5), lambda: second_rank(5), lambda: None],
    ids=["stateful", "stateful by generator", "of an epoch", "generator"],
)
def test_a_rejected_state_leaves_sampler_and_generator_unchanged(make):
    def began(passes):
        sampler, drawn_from = make(), generator(passes)
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(passes)
        elif isinstance(sampler, Stateful):
            sampler.passes = passes
        shuffle = {"shuffle": True, "generator": drawn_from} if sampler is None else {}
        return sampler, drawn_from, DataLoader(DATA, 4, sampler=sampler, **shuffle)

    _, _, first = began(7)
    epoch = iter(first)
    next(epoch), next(epoch)
    sampler, drawn_from, other = began(3)
    before = drawn_from.get_state()
    with pytest.raises(StateError, match="gives other samples"):
        other.load_state_dict({**first.state_dict(), "upcoming": 12345})
    assert torch.equal(drawn_from.get_state(), before)
    assert getattr(sampler, "epoch", 3) == getattr(sampler, "passes", 3) == 3
    _, _, fresh = began(3)
    assert [plain(batch[0]) for batch in other] == [plain(batch[0]) for batch in fresh]


class Turning(RandomSampler):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(torch.tensor(list(super().__iter__())).roll(self.epoch).tolist())


class Forwarding(BatchSampler):
    def set_epoch(self, epoch):
        self.sampler.set_epoch(epoch)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_that_is_set_before_the_first_batch_draws_as_if_set_before(workers):
    def seen(early):
        sampler, found = Forwarding(Turning(DATA, generator=generator(4)), 4, False), []
        with DataLoader(DATA, batch_sampler=sampler, num_workers=workers) as loader:
            for epoch in (3, 4):
                if early:
                    sampler.set_epoch(epoch)
                batches = iter(loader)
                sampler.set_epoch(epoch)
                found += [batch[0].tolist() for batch in batches]
        return found

    assert seen(early=False) == seen(early=True)


@pytest.mark.parametrize("workers", [0, 1])
def test_epoch_can_be_set_after_restoring_within_iteration(workers):
    first = DataLoader(DATA, 4, shuffle=True)
    next(iter(first))
    state = first.state_dict()
    with DataLoader(DATA, 4, shuffle=True, num_workers=workers) as loader:
        epoch = iter(loader)
        loader.load_state_dict(state)
        loader.set_epoch(5)
        assert sum(len(batch[0]) for batch in epoch) == 23
        assert loader.epoch == 6


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_goes_back_within_an_epoch_and_comes_to_its_end(workers):
    with DataLoader(DATA, 4, shuffle=True, num_workers=workers) as loader:
        epoch = iter(loader)
        start = loader.state_dict()
        seen = [plain(next(epoch)) for _ in range(3)]
        middle = loader.state_dict()
        loader.load_state_dict(middle)
        assert loader.state_dict() == middle
        iter(loader)  # given up before its first batch
        seen += [plain(batch) for batch in loader]
        loader.load_state_dict(start)
        assert [plain(batch) for batch in loader] == seen
        assert len(seen) == 6


def test_epochs_after_restored_one_are_unchanged():
    torch.manual_seed(4)
    whole = DataLoader(DATA, 4, shuffle=True)
    wanted = [plain(batch) for _ in range(4) for batch in whole]
    torch.manual_seed(4)
    first = DataLoader(DATA, 4, shuffle=True)
    seen = [plain(batch) for _ in range(2) for batch in first]
    second = DataLoader(DATA, 4, shuffle=True)
    second.load_state_dict(through_json(first.state_dict()))
    assert seen + [plain(batch) for _ in range(2) for batch in second] == wanted


def test_seeds_after_a_resume_are_those_of_persistent_workers():
    order = "persistent by generator"
    with loader(order, 1, num_workers=1) as first, loader(order, 2, num_workers=1) as second:
        batches = iter(first)
        next(batches)
        second.load_state_dict(first.state_dict())
        assert one_epoch(second) == [plain(batch) for batch in batches]
        assert one_epoch(second) == one_epoch(first)


class CountingOn(RandomSampler):
    """Shuffles by its own epoch, which it increments after each pass."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.epoch)
        yield from torch.randperm(len(self), generator=generator).tolist()
        self.epoch += 1


@pytest.mark.parametrize("workers", [0, 2])
def test_sampler_with_own_epoch_counter_is_not_restarted(workers):
    with DataLoader(list(range(23)), 8, sampler=CountingOn(DATA), num_workers=workers) as loader:
        for epoch in range(3):
            wanted = torch.randperm(len(DATA), generator=torch.Generator().manual_seed(epoch))
            assert torch.cat(list(loader)).tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("order", "workers"),
    [
        *((order, 0) for order in ("shuffle", "weighted", "at once", "one generator for both")),
        ("batches", 0),
        ("one generator for both", 2),
        *slow(("shuffle", 2), ("weighted", 2), ("at once", 2)),
    ],
)
def test_states_are_unaffected_by_draws_between_iter_and_first_batch(order, workers):
    """Like another shuffled loader in a zip."""

    def two():
        shared, data = generator(9), list(range(23))
        options = {
            "shuffle": {"batch_size": 4, "shuffle": True},
            "weighted": {"batch_size": 4, "sampler": WeightedRandomSampler([1.0] * 23, 23)},
            "at once": {"batch_sampler": Batches(5, at_once)},
            "batches": {"batch_sampler": ShuffledBatches(SequentialSampler(data), 4, False)},
            "one generator for both": {"batch_size": 4, "shuffle": True, "generator": shared},
        }
        return [DataLoader(data, num_workers=workers, **options[order]) for _ in range(2)]

    torch.manual_seed(3)
    loaders = two()
    states, rests = [], []
    for step, batches in enumerate(zip(*loaders, strict=True)):
        if step == 1:
            states = [through_json(loader.state_dict()) for loader in loaders]
        if step > 1:
            rests.append([batch.tolist() for batch in batches])
    torch.manual_seed(77)
    for k, state in enumerate(states):
        with two()[k] as again:
            again.load_state_dict(state)
            assert [batch.tolist() for batch in again] == [batches[k] for batches in rests]


ASKED_SLOW = {*SLOW, "no batches", "replacement", "seed"} - {"stateful", "sequential"}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "order", [*(each for each in ALL if each not in ASKED_SLOW), *slow(*sorted(ASKED_SLOW))]
)
def test_asking_for_a_state_at_any_moment_changes_nothing(order, workers):
    def seen(ask):
        def draw():
            torch.rand(1)  # as the dropout of a model does
            if ask:
                state = through_json(read.state_dict())
                if order not in ("drawn late", "batch by batch"):  # others draw in between
                    batches.load_state_dict(state)

        torch.manual_seed(0)
        found = []
        with loader(order, 1, num_workers=workers) as read, loader(order, 1) as batches:
            for epoch in range(3):
                draw()
                iteration = iter(read)
                if isinstance(read.sampler, DistributedSampler):
                    read.sampler.set_epoch(epoch)
                draw()
                if ask and epoch == 0 and isinstance(read.sampler, Stateful) and not workers:
                    assert read.sampler.given == 0
                for batch in iteration:
                    found.append(plain(batch))
                    draw()
        return [found, torch.get_rng_state().tolist()]

    assert seen(ask=True) == seen(ask=False)


def test_sampler_is_read_lazily_without_workers(jpeg_folder):
    data = ImageFolder(jpeg_folder, v2.Compose([v2.Resize((8, 8)), v2.ToImage()]))

    def seen(kind, **options):
        torch.manual_seed(0)
        loader = kind(data, **options)
        found = []
        for _ in range(2):
            batches = iter(loader)
            found.append(torch.rand(1).item())
            for _, labels in itertools.islice(batches, 3):
                found += [labels.tolist(), torch.rand(1).item()]
        return found

    for options in (
        {"batch_size": 4, "shuffle": True},
        {"batch_sampler": Batches(4, lambda: batch_by_batch(12))},
    ):
        assert seen(DataLoader, **options) == seen(torch.utils.data.DataLoader, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_iterator_as_batch_sampler_continues_in_next_epoch(workers):
    def epochs(kind):
        batches = ([2 * k, 2 * k + 1] for k in itertools.count())
        data = list(range(100))
        loader = kind(data, batch_sampler=batches, num_workers=workers)
        read = [[batch.tolist() for batch in itertools.islice(loader, 3)] for _ in range(2)]
        return read if workers == 0 else list(map(len, read))  # workers prefetch

    assert epochs(DataLoader) == epochs(torch.utils.data.DataLoader)


class Split(Enum):
    TRAIN = 1


@dataclass
class Place:
    """Crop position of a sample."""

    box: Any
    note: Any = field(default=None, compare=False)


KEYS = {
    "tensor in a dictionary": lambda n: {"index": torch.tensor([n, 1]), "name": f"n{n}"},
    "number in a dictionary": lambda n: {"index": torch.tensor(n)},
    "array in a tuple": lambda n: (np.array([[n, 0.5]]), np.float32(n)),
    "array of texts": lambda n: [np.array(["a", f"{n}"])],
    "dataclass": lambda n: Place(torch.full((2, 2), n, dtype=torch.bfloat16), object()),
    "nested": lambda n: [{"where": [Place((n, None, True))]}, Path("a") / str(n), Split.TRAIN],
    "set": lambda n: {f"{n}", f"{n + 1}"},
    "equal texts": lambda n: [f"{n}", "".join(["t", "x"]), "".join(["t", "x"])],
    "number": lambda n: np.uint8(n),
}


class Keyed:
    """A sampler that makes its keys new in each pass."""

    def __init__(self, key):
        self.key = key

    def __len__(self):
        return 6

    def __iter__(self):
        return map(self.key, range(6))


class Tags(set):
    """A set of a class of its own."""


REORDERED = {
    "set": set,
    "set in a tuple": lambda numbers: (1, frozenset(numbers)),
    "sets in a set": lambda numbers: {frozenset(numbers), frozenset([5])},
    "dict": dict.fromkeys,
    "set in a dict": lambda numbers: {"tags": set(numbers)},
    "set in an object": lambda numbers: Place(set(numbers)),
    "set of a class": Tags,
}
# A sampler's keys, equal ones, and others.
EQUAL_KEYS = {
    **{form: (key, key, lambda n, key=key: key(n + 1)) for form, key in KEYS.items()},
    # 0 and 8 are in a set in the order in which they were added, as texts are by their hashes.
    **{
        f"{form} in another order": tuple(
            lambda _, form=form, numbers=numbers: REORDERED[form](numbers)
            for numbers in ([0, 8], [8, 0], [0, 8, 16])
        )
        for form in REORDERED
    },
}


@pytest.mark.parametrize("form", EQUAL_KEYS)
def test_keys_of_a_state_count_by_value_and_in_sets_in_any_order(form):
    first, same, other = (
        DataLoader(Made(6, repr), 1, sampler=Keyed(key), collate_fn=list)
        for key in EQUAL_KEYS[form]
    )
    assert "order" not in form or list(first) != list(same)
    batches = iter(first)
    next(batches), next(batches)
    state = through_json(first.state_dict())
    same.load_state_dict(state)
    assert len(list(same)) == 4
    with pytest.raises(StateError, match="Keyed"):
        other.load_state_dict(state)


def test_integer_keys_keep_their_digest():
    batches = [torch.tensor([5, 3, 0, 9]), torch.tensor([1, 2, 8])]
    for options in (
        {"batch_size": 4, "sampler": [5, 3, 0, 9, 1, 2, 8]},
        {"batch_sampler": batches},
        {"batch_sampler": [batch.numpy() for batch in batches]},
    ):
        loader = DataLoader(DATA, **options)
        next(iter(loader))
        assert loader.state_dict()["drawn"] == 2944524804


@pytest.mark.parametrize("own", [None, 4])
@pytest.mark.parametrize("workers", [0, 1])
def test_another_default_device_changes_no_seed_and_no_state(workers, own):
    def loader():
        data = Made(6, lambda index: (index, random.random(), float(np.random.rand())))
        drawn_from = None if own is None else generator(own)
        return DataLoader(data, 2, generator=drawn_from, collate_fn=list, num_workers=workers)

    torch.manual_seed(3)
    with loader() as made:
        expected = [list(made), list(made)]
    torch.manual_seed(3)
    with loader() as first, loader() as other:
        torch.set_default_device("meta")
        try:
            batches = iter(first)
            assert next(batches) == expected[0][0]
            other.load_state_dict(through_json(first.state_dict()))
            assert [next(batches), *batches] == expected[0][1:]
            assert list(first) == expected[1]
            assert list(other) == expected[0][1:]
        finally:
            torch.set_default_device(None)
