"""Accelerate on two processes: the batches, syncs and gathered rows that torch's class gives."""

import pytest

from packages import needs
from ranks import said_by_ranks

pytestmark = needs("accelerate")

SCRIPT = """
import contextlib, json, sys, warnings

warnings.simplefilter("ignore")
import accelerate, torch
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader, IterableDataset

import feedline
from feedline.errors import UsageError
from feedline.integrations.accelerate import prepare


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


def workers(kind, dataset):
    # torch forks its workers beside gloo's threads: a lock that one of these holds at that moment
    # stays locked in a worker, which then hangs. A list's batches are the same without workers.
    return {"num_workers": 0 if kind is DataLoader and isinstance(dataset, list) else 2}


def between(kind, put, options):
    # Two epochs with validation in the middle of each, and then both loaders side by side.
    accelerate.utils.set_seed(3)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    train = put(accelerator, kind(list(range(18)), batch_size=3, shuffle=True, **options))
    valid = put(accelerator, kind(list(range(100, 111)), batch_size=4, **options))
    found = []
    for _ in range(2):
        for step, batch in enumerate(train):
            with accelerator.accumulate(model):
                found.append([batch.tolist(), accelerator.sync_gradients])
            if step == 1:
                found += [accelerator.gather_for_metrics(rows).tolist() for rows in valid]
    found += [[a.tolist(), b.tolist()] for a, b in zip(train, valid)]
    accelerator.free_memory()
    return found


def resumed(put, options):
    # An epoch, and one that stops in its middle and goes on in another Accelerator.
    config = DataLoaderConfiguration(use_seedable_sampler="seed" not in options)
    folder = sys.argv[1]

    def new():
        accelerate.utils.set_seed(3)
        accelerator = accelerate.Accelerator(
            cpu=True, gradient_accumulation_steps=3, dataloader_config=config
        )
        model = accelerator.prepare(torch.nn.Linear(1, 1))
        loader = feedline.DataLoader(list(range(38)), 4, shuffle=True, num_workers=1, **options)
        return accelerator, model, put(accelerator, loader)

    def take(accelerator, model, loader, steps):
        found = []
        for _, batch in zip(range(steps), loader):
            with accelerator.accumulate(model):
                found.append([batch.tolist(), accelerator.sync_gradients])
        return found

    accelerator, model, loader = new()
    whole = take(accelerator, model, loader, 99)
    accelerator.free_memory()
    accelerator, model, loader = new()
    parts = take(accelerator, model, loader, 2)
    accelerator.save_state(folder)
    accelerator.wait_for_everyone()
    accelerator.free_memory()
    accelerator, model, loader = new()
    accelerator.load_state(folder)
    parts += take(accelerator, model, accelerator.skip_first_batches(loader, 2), 99)
    accelerator.free_memory()
    return [whole, parts]


def skipped(kind, put):
    # The rest of an epoch on ranks that were seeded apart, as for augmentations.
    torch.manual_seed(100 + torch.distributed.get_rank())
    accelerator = accelerate.Accelerator(cpu=True)
    loader = put(accelerator, kind(list(range(24)), 3, shuffle=True))
    rest = accelerator.skip_first_batches(loader, 2)
    found = accelerator.gather(torch.cat(list(rest))).tolist()
    accelerator.free_memory()
    return found


def planned():
    accelerator = accelerate.Accelerator(cpu=True)
    loader = feedline.DataLoader(list(range(16)), 4, shuffle=True, seed=1, num_workers=2)
    assert prepare(accelerator, loader) is loader
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
    kinds = ((DataLoader, usual), (feedline.DataLoader, usual), (feedline.DataLoader, prepare))
    for name, (config, dataset, options) in cases.items():
        options = {"batch_size": 4, **options}
        found[name] = [
            run(kind, put, config, dataset, {**options, **workers(kind, dataset)})
            for kind, put in kinds
        ]
    found["validation in between"] = [between(*each, workers(each[0], numbers)) for each in kinds]
    found["skipped"] = [skipped(*each) for each in kinds]
    found["resumed"] = [resumed(prepare, {}), resumed(prepare, {"seed": 1})]
    print(json.dumps(found))
"""


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_two_processes_match_torch_dataloader_for_each_setting(tmp_path):
    for found in said_by_ranks(SCRIPT, 2, str(tmp_path)):
        samples, refused = found.pop("planned")
        assert samples == list(range(16))
        assert "distribute this rank's share again" in refused
        for whole, parts in found.pop("resumed"):
            assert len(whole) == 5
            assert parts == whole
        assert len(set(found["skipped"][0])) == 12
        for name, (theirs, ours, prepared) in found.items():
            assert theirs, name
            assert ours == theirs, name
            assert prepared == theirs, name
