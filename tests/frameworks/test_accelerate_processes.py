"""Accelerate on two processes: the batches, syncs and gathered rows that torch's class gives."""

from __future__ import annotations

import pytest

from ranks import said_by_ranks

pytest.importorskip("accelerate")

SCRIPT = """
import contextlib, json, sys, warnings

warnings.simplefilter("ignore")
import accelerate, torch
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader, IterableDataset

import feedline
from feedline.errors import UsageError
from feedline.frameworks.accelerate import prepare


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(19))


def run(kind, put, config, dataset, options):
    accelerate.utils.set_seed(3)
    accelerator = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=3, dataloader_config=DataLoaderConfiguration(**config)
    )
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    even = config.get("even_batches", True)  # else ranks differ in length: nothing is gathered
    loader = put(accelerator, kind(dataset, **options))
    found = []
    for _ in range(2):
        for batch in loader:
            with accelerator.accumulate(model) if even else contextlib.nullcontext():
                gathered = accelerator.gather_for_metrics(batch).tolist() if even else None
                found.append([batch.tolist(), accelerator.sync_gradients, gathered])
    accelerator.free_memory()
    return found


def usual(accelerator, loader):
    return accelerator.prepare(loader)


def planned():
    accelerator = accelerate.Accelerator(cpu=True)
    loader = feedline.DataLoader(list(range(16)), 4, shuffle=True, seed=1, num_workers=2)
    assert accelerator.prepare(loader) is loader
    epoch = torch.cat([accelerator.gather_for_metrics(batch) for batch in loader])
    try:
        list(accelerate.data_loader.prepare_data_loader(loader))
    except UsageError as error:
        return [sorted(epoch.tolist()), str(error)]


if __name__ == "__main__":
    numbers = list(range(18))
    cases = {
        "plain": ({}, numbers, {"shuffle": True}),
        "split": ({"split_batches": True}, numbers, {}),
        "uneven": ({"even_batches": False}, numbers, {}),
        "dispatched": ({"dispatch_batches": True}, numbers, {}),
        "seedable": ({"use_seedable_sampler": True}, numbers, {"shuffle": True}),
        "iterable": ({}, Endless(), {}),
        "iterable, shared out": ({"dispatch_batches": False}, Endless(), {}),
        "sampler": ({}, numbers, {"sampler": [3, 1, 4, 1, 5, 0, 2, 6]}),
        "batch sampler": (
            {}, numbers, {"batch_sampler": [[0, 1], [2, 3], [4, 5], [6, 7]], "batch_size": 1}
        ),
    }
    found = {"planned": planned()}
    for name, (config, dataset, options) in cases.items():
        options = {"batch_size": 4, "num_workers": 2, **options}
        found[name] = [
            run(kind, put, config, dataset, options)
            for kind, put in (
                (DataLoader, usual), (feedline.DataLoader, usual), (feedline.DataLoader, prepare)
            )
        ]
    print(json.dumps(found))
"""


@pytest.mark.timeout(300)
def test_two_processes_get_what_torchs_class_gives_for_each_setting() -> None:
    for found in said_by_ranks(SCRIPT):
        samples, refused = found.pop("planned")
        assert samples == list(range(16))
        assert "share this rank's out once more" in refused
        for name, (theirs, ours, prepared) in found.items():
            assert theirs, name
            assert ours == theirs, name
            assert prepared == theirs, name
