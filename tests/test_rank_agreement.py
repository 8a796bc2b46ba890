"""Ranks of one loader with different arguments: each rank gets an error, and none hangs."""

import pytest

from ranks import said_by_ranks

SCRIPT = """
import json, os, warnings
import torch.distributed as dist
import feedline
from feedline.errors import UsageError
from feedline.loader import ranks

dist.init_process_group("gloo")
rank = dist.get_rank()

def loader(length=20, **options):
    return feedline.DataLoader(list(range(length)), 4, **{"seed": 1, **options})

def outcome(loader):
    try:
        return len(list(loader))
    except UsageError as error:
        return str(error)

last = rank == 2
standing = loader()
if last:
    standing.set_step(1)
same = loader()
found = {
    "same": [outcome(same), outcome(same)],
    "length": outcome(loader(20 + last)),
    "seed": outcome(loader(seed=1 + last)),
    "batch size": outcome(loader(schedule=f"ownx2@{4 + last}")),
    "shuffle": outcome(loader(shuffle=not last)),
    "weights": outcome(loader(weights=[1.0 + last] * 20)),
    "position": outcome(standing),
    "its own": outcome(loader(20 + last, rank=0, world_size=1)),
    "without a seed": outcome(loader(20 + last, seed=None)),
}
dist.barrier()
restored = loader()
list(restored)
restored.load_state_dict({**restored.state_dict(), "epoch": int(last)})
found["state"] = outcome(restored)
samples = list(range(20))
grown = feedline.DataLoader(samples, 4, seed=1)
list(grown)
dist.barrier()
if rank == 0:
    samples.append(20)
    ranks.PATIENCE_S = 1.0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found["alone"] = outcome(grown)
    found["warned"] = [str(warning.message) for warning in caught]
found["after that"] = outcome(loader())
dist.barrier()
print(json.dumps(found))
"""


@pytest.mark.timeout(300)
def test_differences_are_named_on_every_rank_without_hanging():
    everyone = said_by_ranks(SCRIPT, 3)
    first = everyone[0]
    assert first.pop("alone") == 2
    (warning,) = first.pop("warned")
    assert "rank 0 waited 1 s for ranks 1, 2" in warning
    assert "rank=0, world_size=1" in warning
    for found in everyone:
        assert found["same"] == [2, 2]
        assert found["after that"] == 2
        assert found["its own"] == found["without a seed"] == 5 + (found is everyone[2])
        for name, words in {
            "length": "length is 20 on ranks 0, 1, 21 on rank 2",
            "seed": "seed is 1 on ranks 0, 1, 2 on rank 2",
            "batch size": 'schedule is "ownx2@4" on ranks 0, 1, "ownx2@5" on rank 2',
            "state": "epoch is 0 on ranks 0, 1, 1 on rank 2",
            "shuffle": 'shuffle is "shuffled" on ranks 0, 1, "sequential" on rank 2',
            "weights": "weights is",
            "position": "step is 0 on ranks 0, 1, 1 on rank 2",
        }.items():
            assert words in found[name], name
            assert "same dataset, arguments and state" in found[name]
