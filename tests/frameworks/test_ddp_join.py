"""torch's DDP with even and uneven ranks on two processes: batches equal those of torch's class,
and with a seed each rank has the same number of batches and every sample occurs.
"""

from __future__ import annotations

import pytest

from ranks import said_by_ranks

SCRIPT = """
import contextlib, json, warnings

warnings.simplefilter("ignore")
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import feedline


class Numbers(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, number):
        return torch.tensor([float(number)]), number


class Uneven(DistributedSampler):
    def __iter__(self):
        return iter(range(self.rank, len(self.dataset), self.num_replicas))

    def __len__(self):
        return len(range(self.rank, len(self.dataset), self.num_replicas))


def train(loader, join=False):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 1)))
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    seen = []
    for epoch in range(2):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        seen.append([])
        with Join([model]) if join else contextlib.nullcontext():
            for inputs, numbers in loader:
                model(inputs).pow(2).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                seen[-1].append(numbers.tolist())
    return seen


def both(length, sampler=None, join=False, **options):
    found = []
    for kind in (DataLoader, feedline.DataLoader):
        torch.manual_seed(3)
        data = Numbers(length)
        if sampler is not None:
            options["sampler"] = sampler(data)
        found.append(train(kind(data, num_workers=1, **options), join))
    return found


def main():
    dist.init_process_group("gloo")
    planned = {}
    for length in (19, 16, 1):
        loader = feedline.DataLoader(Numbers(length), 4, shuffle=True, num_workers=1, seed=1)
        planned[length] = train(loader)
    whole = lambda data: DistributedSampler(data, drop_last=True)
    pairs = [[2 * step, 2 * step + 1] for step in range(4 if dist.get_rank() else 2)]
    same = {
        "even samplers": both(19, DistributedSampler, batch_size=4),
        "drop_last": both(19, whole, batch_size=4, drop_last=True),
        "uneven samplers": both(19, Uneven, join=True, batch_size=3),
        "uneven batch samplers": both(8, join=True, batch_sampler=pairs),
    }
    dist.destroy_process_group()
    print(json.dumps([same, planned]))


if __name__ == "__main__":
    main()
"""


@pytest.mark.timeout(180)
@pytest.mark.slow
def test_two_ranks_match_torch_dataloader_and_see_every_sample() -> None:
    found = said_by_ranks(SCRIPT, timeout_s=170)
    for same, _ in found:
        for case, (theirs, ours) in same.items():
            assert all(theirs), case
            assert ours == theirs, case
    lengths = [len(found[rank][0]["uneven batch samplers"][0][0]) for rank in range(2)]
    assert lengths == [2, 4]
    for text, first in found[0][1].items():
        length = int(text)
        for mine, other in zip(first, found[1][1][text], strict=True):
            assert [len(batch) for batch in mine] == [len(batch) for batch in other]
            rows = [row for batch in mine + other for row in batch]
            assert set(rows) == set(range(length))
            assert len(rows) == length + length % 2
        assert length == 1 or first[0] != first[1]
