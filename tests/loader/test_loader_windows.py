"""A loader whose samples are shuffled in windows, for disks that seek badly."""

import json
from itertools import chain

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler

from feedline.loader import DataLoader
from feedline.order.sample_order import BLOCK_SIZE
from loader_reading import planned_epoch, read
from row_sources import Rows

SAMPLES = 4 * BLOCK_SIZE + 76
WINDOW = "window:512"


def loader(workers=0, batch_size=128, **options):
    chosen = {"shuffle": WINDOW, "image_size": 4, "seed": 5, "num_workers": workers, **options}
    return DataLoader(Rows(SAMPLES), batch_size, **chosen)


def labels(made):
    return [batch[1].tolist() for batch in made]


def flat(batches):
    return list(chain.from_iterable(batches))


def blocks(samples):
    return {sample // BLOCK_SIZE for sample in samples}


def test_a_batch_is_of_its_windows_blocks_and_an_epoch_of_all():
    with loader(2) as made:
        first, second = labels(made), labels(made)
    assert sorted(flat(first)) == list(range(SAMPLES))
    assert first != second
    windows = [blocks(flat(first[k : k + 4])) for k in (0, 4, 8)]
    assert len(windows[0]) in (2, 3)  # three with the short block at the end
    assert all(blocks(batch) <= windows[k // 4] for k, batch in enumerate(first))


@pytest.mark.parametrize("name", [WINDOW, np.str_(WINDOW)])
def test_a_schedule_brings_the_seed_that_an_order_in_windows_needs(name):
    made = DataLoader(Rows(SAMPLES), 128, name, schedule="4x1,8x1", num_workers=0)
    state = json.loads(json.dumps(made.state_dict()))
    assert (state["sample_order"], state["seed"]) == (WINDOW, 0)
    next(iter(made))
    made.load_state_dict(state)
    assert read(made) == planned_epoch(made, 0)


def test_any_dataset_can_be_read_in_windows():
    data = torch.arange(SAMPLES)
    with DataLoader(data, 128, WINDOW, seed=5, num_workers=1) as made:
        assert [batch.tolist() for batch in made] == labels(loader())


def test_frameworks_see_a_sampler_that_shares_out_and_shuffles():
    sampler = loader().sampler
    assert isinstance(sampler, DistributedSampler)
    assert sampler.shuffle is True
    assert list(sampler) == flat(labels(loader()))
