"""Times of the ranks of a training, exchanged without a common folder."""

import pytest

from ranks import said_by_ranks

SCRIPT = """
import json, sys, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler
import feedline
from feedline.timing.run_file import read_run

class Samples(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, key):
        time.sleep(0.02 * dist.get_rank())
        return torch.tensor(float(key))

dist.init_process_group("gloo")
rank, samples = dist.get_rank(), Samples()
kind = feedline.DataLoader if sys.argv[1] == "feedline" else DataLoader
loader = kind(samples, 3, sampler=DistributedSampler(samples))
folder = f"rank{rank}"
watched = feedline.watch(loader, run=folder, panel=False)
for _ in range(2):
    for batch in watched:
        dist.all_reduce(batch.sum())
dist.barrier()
shown = watched.run
watched.save()
dist.barrier()
dist.destroy_process_group()
read = read_run(folder, rank)
print(json.dumps([[[each.rank, each.wait.count, each.samples, each.wait.mean_ms]
                   for each in run.ranks] for run in (shown, read, watched.run)]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["feedline", "torch"])
def test_each_rank_knows_the_times_of_all_without_a_common_folder(kind, tmp_path_factory):
    said = said_by_ranks(SCRIPT, 2, kind, cwd=tmp_path_factory.mktemp("ranks"))
    for runs in said:
        for ranks in runs:
            assert [each[:3] for each in ranks] == [[0, 6, 24], [1, 6, 24]]
            quick_ms, slow_ms = (each[3] for each in ranks)
            assert slow_ms > quick_ms
