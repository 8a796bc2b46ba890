"""Loaders that Accelerate prepares, saves and restores."""

import gc
import pickle
import warnings
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler, Sampler, SequentialSampler

import feedline
from feedline import DataLoader
from feedline.errors import UsageError
from feedline.integrations.accelerate import prepare, unpadded_rows
from feedline.integrations.transformers import Stepwise
from packages import needs
from row_sources import Rows
from sets import Counting, Made
from slow import slow

pytestmark = [
    needs("accelerate"),
    pytest.mark.filterwarnings("ignore"),  # Accelerate's and torch's own
]
accelerate: Any


NUMBERS = list(range(12))


@pytest.fixture(autouse=True)
def _accelerate():
    """Import Accelerate for these tests alone, see `needs`, and forget unfinished iterations."""
    global accelerate
    import accelerate

    accelerate.state.GradientState._reset_state()
    yield
    accelerate.state.GradientState._reset_state()


def accelerator_of(steps=1, **config):
    return accelerate.Accelerator(
        cpu=True,
        gradient_accumulation_steps=steps,
        dataloader_config=accelerate.utils.DataLoaderConfiguration(**config),
    )


@pytest.fixture
def accelerator():
    return accelerator_of()


def rows(batches):
    return [batch.tolist() for batch in batches]


def usual(accelerator, loader):
    return accelerator.prepare(loader)


def made(length=20, *, world_size=1, drop_last=False):
    return DataLoader(range(length), 8, seed=0, drop_last=drop_last, rank=0, world_size=world_size)


def test_prepared_loader_is_same_object_and_end_is_detected(accelerator):
    loader = made()
    assert prepare(accelerator, loader) is loader
    assert accelerator.prepare(loader) is loader
    for _ in range(2):
        ends, rows = [], []
        for batch in loader:
            ends.append(accelerator.gradient_state.end_of_dataloader)
            rows += accelerator.gather_for_metrics(batch).tolist()
        assert ends == [False, False, True]
        assert rows == list(range(20))
        assert not accelerator.gradient_state.in_dataloader


def test_loop_left_early_ends_for_accelerate(accelerator):
    loader = prepare(accelerator, made())
    batches = iter(loader)
    next(batches)
    assert accelerator.gradient_state.active_dataloader is loader
    del batches
    assert not accelerator.gradient_state.in_dataloader


@pytest.mark.parametrize("config", [{}, {"split_batches": True}])
@pytest.mark.parametrize("saved", [True, *slow(False)])
def test_first_batches_are_skipped_once_and_the_end_is_detected(config, saved, tmp_path):
    accelerator = accelerator_of(**config)
    loader = prepare(accelerator, DataLoader(list(range(20)), 3, num_workers=1))
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    if saved:
        accelerator.save_state(str(tmp_path))
    accelerator.free_memory()
    again = prepare(accelerator, DataLoader(list(range(20)), 3, num_workers=1))
    if saved:
        accelerator.load_state(str(tmp_path))
    ends, rows = [], []
    for batch in accelerator.skip_first_batches(again, 2):
        ends.append(accelerator.gradient_state.end_of_dataloader)
        rows += accelerator.gather_for_metrics(batch).tolist()
    assert (ends, rows) == ([False] * 4 + [True], list(range(6, 20)))
    assert [row for batch in again for row in batch.tolist()] == list(range(20))
    accelerator.free_memory()


def test_skip_first_batches_uses_torch_workers(accelerator):
    loader = prepare(accelerator, DataLoader(list(range(20)), 3))
    rest = accelerate.skip_first_batches(loader, 5)
    assert [batch.tolist() for batch in rest] == [[15, 16, 17], [18, 19]]
    with pytest.warns(RuntimeWarning, match="feedline's engine is not used"):
        list(accelerate.skip_first_batches(prepare(accelerator, made()), 1))


def test_accelerator_pickles_and_skips_other_loaders_as_usual(accelerator):
    prepare(accelerator, made())
    again = pickle.loads(pickle.dumps(accelerator))
    stock = again.prepare(TorchDataLoader(list(range(6)), 2))
    assert [batch.tolist() for batch in again.skip_first_batches(stock, 1)] == [[2, 3], [4, 5]]


@pytest.mark.parametrize("config", [{}, {"split_batches": True}])
def test_prepared_loader_and_accelerator_are_garbage_collected(config):
    accelerator = accelerator_of(**config)
    loader = prepare(accelerator, DataLoader(list(range(6)), 2))
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1]
    gone = [weakref.ref(thing) for thing in (accelerator, loader)]
    gc.disable()  # a circle of references would wait for it
    try:
        del accelerator, loader, batches
        assert [thing() for thing in gone] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("length", "world_size", "remainder"), [(20, 1, 4), (16, 1, 0), (21, 2, 5), (37, 4, 0)]
)
def test_repeated_rows_are_removed_at_the_end(length, world_size, remainder):
    assert unpadded_rows(made(length, world_size=world_size)) == remainder
    assert unpadded_rows(made(length, world_size=world_size, drop_last=True)) == 0


# Settings of Accelerate's


def theirs_and_ours(make, dataset, **options):
    """Two epochs in Accelerate with torch's class, with feedline's, and with `prepare`."""
    found = []
    for kind, put in ((TorchDataLoader, usual), (DataLoader, usual), (DataLoader, prepare)):
        accelerate.utils.set_seed(3)
        accelerator = make()
        loader = put(accelerator, kind(dataset, **options))
        epochs = [
            [(batch.tolist(), accelerator.gradient_state.end_of_dataloader) for batch in loader]
            for _ in range(2)
        ]
        found.append([epochs, accelerator.gradient_state.remainder])
        accelerator.free_memory()
    return tuple(found)


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({}, {}),
        ({}, {"drop_last": True}),
        ({"split_batches": True}, {}),
        ({"even_batches": False}, {}),
        ({"dispatch_batches": True}, {}),
        ({"use_seedable_sampler": True}, {"shuffle": True}),
        ({"use_seedable_sampler": True, "data_seed": 7}, {"shuffle": True}),
        ({}, {"sampler": [3, 1, 4, 1, 5, 9, 2, 6]}),
        ({}, {"batch_sampler": [[0, 1], [2], [3, 4, 5]], "batch_size": 1}),
    ],
)
@pytest.mark.parametrize("workers", [0, *slow(2)])
def test_each_setting_gives_batches_of_torch_dataloader(config, options, workers):
    options = {"batch_size": 4, "num_workers": workers, **options}
    theirs, ours, prepared = theirs_and_ours(
        lambda: accelerator_of(**config), list(range(18)), **options
    )
    assert ours == prepared == theirs


def test_replaced_stock_loader_warns_once_with_function_to_call():
    loader, accelerator = DataLoader(list(range(8)), 4), accelerator_of(split_batches=True)
    with pytest.warns(RuntimeWarning, match=r"integrations\.accelerate\.prepare"):
        assert accelerator.prepare(loader) is not loader
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        accelerator.prepare(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        accelerator.prepare(DataLoader(Counting(8), 4))  # an IterableDataset, as torch's is
        for config in ({}, {"split_batches": True}):
            prepared = prepare(accelerator_of(**config), DataLoader(list(range(8)), 4))
    assert isinstance(prepared.base_dataloader, DataLoader)


class Dated(torch.utils.data.Dataset[int]):
    """Samples tell the epoch."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return 100 * self.epoch + index


def test_dataset_with_set_epoch_is_followed_and_rejected_with_feedline_order():
    theirs, ours, prepared = theirs_and_ours(accelerator_of, Dated(), batch_size=4)
    assert ours == prepared == theirs
    with pytest.raises(UsageError, match="set_epoch"):
        prepare(accelerator_of(), DataLoader(Dated(), 2, seed=0))


@pytest.mark.parametrize(
    "loader",
    [
        lambda: DataLoader(list(range(8)), 4, schedule="ownx2@4"),
        lambda: DataLoader(Rows(8), 4, image_size=4),
        lambda: made(world_size=2),
    ],
    ids=["schedule", "rows", "ranks"],
)
def test_unsupported_stock_loader_raises(accelerator, loader):
    with loader() as built, pytest.raises(UsageError, match=r"integrations\.accelerate\.prepare"):
        accelerator.prepare(built)


def test_loader_with_own_order_rejects_unsupported_options_and_other_ranks():
    with pytest.raises(UsageError, match="over 2 ranks, but Accelerate runs 1"):
        prepare(accelerator_of(), made(world_size=2))
    for config in ({"split_batches": True}, {"dispatch_batches": True}, {"data_seed": 3}):
        with pytest.raises(UsageError, match=f"makes its own order.*{next(iter(config))}="):
            prepare(accelerator_of(**config), made())


def test_ranks_that_share_a_batch_are_left_to_accelerate():
    accelerator = accelerator_of()
    accelerator.state.device_mesh = SimpleNamespace(mesh_dim_names=("dp_shard", "tp"))
    try:
        with pytest.raises(UsageError, match="several ranks share one batch"):
            prepare(accelerator, made())
    finally:
        accelerator.state.device_mesh = None


class Says(Sampler[Any]):
    """Batches of two, of a number that may be wrong or missing (None)."""

    def __init__(self, said):
        self.said = said

    def __iter__(self):
        yield from ([0, 1], [2, 3], [4, 5])

    def __len__(self):
        return self.said


class Turning(Sampler[int]):
    """A sampler with an epoch attribute of another name."""

    turn = 0

    def set_epoch(self, epoch):
        self.turn = epoch

    def __len__(self):
        return 12

    def __iter__(self):
        return iter([(k + self.turn) % 12 for k in range(12)])


# The end of an epoch


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 2},
        {"batch_size": 2, "seed": 0, "shuffle": False},
        {"batch_size": 2, "num_workers": 1},
        {"batch_sampler": Says(3)},
        {"batch_sampler": Says(7)},
        {"batch_sampler": Says(1)},
        {"batch_sampler": Says(None)},
    ],
    ids=["plain", "seed", "worker", "right", "too many", "too few", "none"],
)
@pytest.mark.parametrize("look", [False, True])
def test_last_accumulation_steps_independently_of_other_queries(options, look):
    accelerator = accelerator_of(2)
    loader = prepare(accelerator, DataLoader(list(range(6)), **options))
    synchronised = []
    for step, _ in enumerate(loader):
        if look and step == 0:
            next(iter(loader))
        with accelerator.accumulate(torch.nn.Linear(1, 1)):
            synchronised.append(accelerator.sync_gradients)
    assert synchronised == [False, True, True]
    assert not accelerator.gradient_state.in_dataloader
    loader.close()


@pytest.mark.parametrize("schedule", [None, "ownx1@50,ownx1@64"])
def test_metrics_count_each_sample_once_at_any_batch_size(schedule):
    accelerator = accelerator_of()
    loader = prepare(accelerator, DataLoader(list(range(100)), 32, schedule=schedule))
    for _ in range(2):
        gathered = [accelerator.gather_for_metrics(batch) for batch in loader]
        assert sorted(torch.cat(gathered).tolist()) == list(range(100))


# The first batches of an epoch


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("sampler", ["distributed", "turning", "shuffle"])
def test_remaining_epoch_of_wrapper_belongs_to_next_epoch(sampler, before):
    def found(kind, put):
        options = {
            "distributed": {"sampler": DistributedSampler(NUMBERS, 1, 0)},
            "turning": {"sampler": Turning()},
            "shuffle": {"shuffle": True},
        }[sampler]
        torch.manual_seed(7)
        accelerator = accelerator_of(use_seedable_sampler=True, data_seed=3)
        loader = put(accelerator, kind(NUMBERS, 3, **options))
        seen = [rows(loader) for _ in range(before)]
        rest = accelerator.skip_first_batches(loader, 1)
        return [*seen, len(rest), rows(rest), rows(loader)]

    assert found(DataLoader, prepare) == found(TorchDataLoader, usual)


@pytest.mark.parametrize("options", [{}, {"seed": 0}])
def test_run_saved_at_last_batch_resumes_with_next_epoch(options, tmp_path):
    accelerator = accelerator_of()
    loader = prepare(accelerator, DataLoader(NUMBERS, 3, shuffle=True, **options))
    for step, _ in enumerate(loader):
        if step == 3:
            accelerator.save_state(str(tmp_path))
    accelerator.free_memory()
    again = prepare(accelerator, DataLoader(NUMBERS, 3, shuffle=True, **options))
    accelerator.load_state(str(tmp_path))
    # As in Accelerate's examples: whole epochs, and no batch of the next.
    first = rows(accelerator.skip_first_batches(again, 0))
    assert sorted(row for batch in first for row in batch) == NUMBERS
    assert len(rows(again)) == 4


# What would be lost


@pytest.mark.parametrize("given", [{"schedule": "8x1,12x1"}, {"seed": 0}])
def test_schedule_with_sampler_is_not_ignored(given):
    dataset = Made(4, lambda index: feedline.image_size(default=1))
    loader = DataLoader(dataset, 2, sampler=SequentialSampler(range(4)), **given)
    with pytest.raises(UsageError, match=rf"{next(iter(given))} and a sampler are set.*without"):
        prepare(accelerator_of(use_seedable_sampler=True), loader)
    if "schedule" in given:
        kept = prepare(accelerator_of(), loader)
        assert [rows(kept) for _ in range(2)] == [[[8, 8]] * 2, [[12, 12]] * 2]


def test_stepwise_batches_follow_feedline_order_on_all_ranks():
    with pytest.raises(UsageError, match="samplers define"):
        Stepwise(DataLoader(NUMBERS, 3))
    third = Stepwise(DataLoader(NUMBERS, 3, seed=0, rank=0, world_size=3))
    with pytest.raises(UsageError, match="over 3 ranks, but Accelerate runs 1"):
        accelerator_of().prepare(third)
    whole = accelerator_of().prepare(Stepwise(DataLoader(NUMBERS, 3, seed=0, shuffle=False)))
    assert rows(whole) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
