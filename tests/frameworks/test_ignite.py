"""Ignite: engines run with feedline's loaders like with torch's, and resume."""

import random
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, WeightedRandomSampler

import feedline
from packages import needs
from slow import slow

pytestmark = needs("ignite")

KINDS = (DataLoader, feedline.DataLoader)
NUMBERS = list(range(22))


@pytest.fixture(scope="module", autouse=True)
def _ignite():
    """Import Ignite for these tests alone; see `needs`."""
    global Checkpoint, Events, engines
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ignite.engine as engines
        from ignite.engine import Events
        from ignite.handlers import Checkpoint


def engine(kind="Engine"):
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    seen = []
    made = getattr(engines, kind)
    return made(lambda it, batch: seen.append([it.state.epoch, batch.tolist()])), seen


@pytest.mark.parametrize(("epoch_length", "workers"), [(None, 0), (9, 2), *slow((4, 0), (9, 1))])
@pytest.mark.parametrize("kind", ["Engine", "DeterministicEngine"])
def test_an_epoch_of_any_length(kind, epoch_length, workers):
    def run(loader):
        trainer, seen = engine(kind)
        options = {"num_workers": workers, "persistent_workers": workers == 2}
        data = loader(NUMBERS, 4, shuffle=True, **options)
        trainer.run(data, max_epochs=3, epoch_length=epoch_length)
        return seen

    theirs, ours = map(run, KINDS)
    assert theirs
    assert ours == theirs


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
