"""Ignite: engines run with feedline's loaders like with torch's, and resume."""

import random
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, WeightedRandomSampler

import feedline
from packages import needs
from slow import slow

pytestmark = needs("ignite")

KINDS = (DataLoader, feedline.DataLoader)
NUMBERS = list(range(22))


@pytest.fixture(scope="module", autouse=True)
def _ignite():
    """Import Ignite for these tests alone; see `needs`."""
    global BatchSizeScheduler, Checkpoint, Events, auto, engines
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ignite.engine as engines
        from ignite.distributed import auto
        from ignite.engine import Events
        from ignite.handlers import Checkpoint
        from ignite.handlers.param_scheduler import BatchSizeScheduler


def engine(kind="Engine"):
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    seen = []
    made = getattr(engines, kind)
    return made(lambda it, batch: seen.append([it.state.epoch, batch.tolist()])), seen


def assert_same(run):
    """Assert that a run sees with feedline's class what it sees with torch's. Return it."""
    theirs, ours = map(run, KINDS)
    assert theirs
    assert ours == theirs
    return theirs


@pytest.mark.parametrize(("epoch_length", "workers"), [(None, 0), (9, 2), *slow((4, 0), (9, 1))])
@pytest.mark.parametrize("kind", ["Engine", "DeterministicEngine"])
def test_an_epoch_of_any_length(kind, epoch_length, workers):
    def run(loader):
        trainer, seen = engine(kind)
        options = {"num_workers": workers, "persistent_workers": workers == 2}
        data = loader(NUMBERS, 4, shuffle=True, **options)
        trainer.run(data, max_epochs=3, epoch_length=epoch_length)
        return seen

    assert_same(run)


@pytest.mark.parametrize(
    ("weighted", "place"),
    [
        (False, {"iteration": 15}),
        *slow((False, {"epoch": 2}), (True, {"iteration": 15}), (True, {"epoch": 2})),
    ],
)
def test_deterministic_engine_resumes(weighted, place):
    found = []
    for loader in KINDS:
        sampler = WeightedRandomSampler(torch.arange(1.0, 23.0), 22) if weighted else None
        for resumed in (False, True):
            trainer, seen = engine("DeterministicEngine")
            data = loader(NUMBERS, 4, shuffle=not weighted, sampler=sampler, num_workers=2)
            if resumed:
                state = {"max_epochs": 4, "epoch_length": len(data), "rng_states": None}
                trainer.load_state_dict({**place, **state})
            trainer.run(data, max_epochs=4)
            found.append(seen)
    whole, rest = found[:2]
    assert rest == whole[-len(rest) :]
    assert found[2:] == [whole, rest]


@pytest.mark.parametrize("options", [{}, {"seed": 1}], ids=["torch's order", "feedline's order"])
def test_a_checkpoint_holds_the_loaders_place(options):
    trainer, whole = engine()
    data = feedline.DataLoader(NUMBERS, 4, shuffle=True, num_workers=2, **options)
    kept = []
    keep = Checkpoint({"trainer": trainer, "loader": data}, lambda saved, *_: kept.append(saved))
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=9), keep)
    trainer.run(data, max_epochs=2)
    trainer, rest = engine()
    data = feedline.DataLoader(NUMBERS, 4, shuffle=True, num_workers=1, **options)
    Checkpoint.load_objects({"trainer": trainer, "loader": data}, kept[0])
    trainer.run(data)
    assert rest == whole[9:]


@pytest.mark.slow
def test_a_batch_size_that_changes_with_the_epochs():
    def run(loader):
        trainer, seen = engine()
        data = loader(NUMBERS, 2, num_workers=2)
        BatchSizeScheduler(data, lambda epoch: 2 + 3 * epoch).attach(trainer)
        trainer.run(data, max_epochs=3)
        return [[epoch, len(rows)] for epoch, rows in seen]

    assert len({size for _, size in assert_same(run)}) > 2


RANKED = {
    "shuffled": lambda: {"batch_size": 6, "shuffle": True, "num_workers": 2},
    "full batches": lambda: {"batch_size": 6, "drop_last": True},
    "weighted": lambda: {"batch_size": 6, "sampler": WeightedRandomSampler(torch.ones(22), 22)},
}


@pytest.mark.parametrize("kind", ["Engine", *slow("DeterministicEngine")])
@pytest.mark.parametrize("case", RANKED)
def test_auto_dataloader_on_two_ranks(case, kind, monkeypatch):
    monkeypatch.setattr(auto.idist, "get_world_size", lambda: 2)

    def run(loader):
        found = []
        monkeypatch.setattr(auto, "DataLoader", loader)
        for rank in range(2):
            monkeypatch.setattr(auto.idist, "get_rank", lambda rank=rank: rank)
            trainer, seen = engine(kind)
            data = auto.auto_dataloader(NUMBERS, **RANKED[case]())
            assert type(data) is loader
            assert isinstance(data.sampler, DistributedSampler)
            trainer.on(Events.EPOCH_STARTED)(
                lambda it, data=data: data.sampler.set_epoch(it.state.epoch)
            )
            trainer.run(data, max_epochs=2)
            found += seen
        return found

    assert_same(run)
