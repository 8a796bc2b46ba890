"""`weights=`: states of other weights, and warnings of samplers that draw on each rank."""

import warnings

import numpy as np
import pytest
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Subset,
    WeightedRandomSampler,
)

from feedline import DataLoader
from feedline.errors import StateError

ROWS = 22
WEIGHTS = np.arange(ROWS) % 4 + 0.5
NUMBERS = list(range(ROWS))


def weighted(**options):
    return DataLoader(NUMBERS, 4, **{"weights": WEIGHTS, "seed": 3, **options})


def test_state_of_other_weights_is_rejected_by_name():
    state = weighted().state_dict()
    for options, named in (
        ({"weights": WEIGHTS + 1}, "weights was"),
        ({"replacement": False}, "order was 'weighted'"),
        ({"weights": None}, "order was 'weighted'"),
    ):
        with pytest.raises(StateError, match=named):
            weighted(**options).load_state_dict(state)


SAMPLERS = {
    "weighted": ({"sampler": WeightedRandomSampler(WEIGHTS.tolist(), ROWS)}, "weights="),
    "weighted with a seed": (
        {"sampler": WeightedRandomSampler(WEIGHTS.tolist(), ROWS), "seed": 0},
        "weights=",
    ),
    "shuffle": ({"shuffle": True}, "DistributedSampler"),
    "batches": (
        {"batch_sampler": BatchSampler(RandomSampler(NUMBERS), 2, False), "batch_size": 1},
        "DistributedSampler",
    ),
    "distributed": ({"sampler": DistributedSampler(NUMBERS, num_replicas=2, rank=1)}, None),
    "sequential": ({}, None),
    "planned": ({"seed": 0, "shuffle": True}, None),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_ranks_that_draw_each_for_itself_are_warned_once(name, monkeypatch):
    options, named = SAMPLERS[name]
    loader = DataLoader(Subset(NUMBERS, NUMBERS), **{"batch_size": 2, **options})
    list(loader)  # with its own world size
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            list(loader)
    said = [str(warning.message) for warning in caught]
    assert len(said) == (named is not None)
    for text in said:
        assert named is not None
        assert named in text
    assert all(warning.filename == __file__ for warning in caught)
