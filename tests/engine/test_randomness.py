"""Draws of random transforms differ by batch, rank, epoch and position."""

from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from operator import ne
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, DistributedSampler, IterableDataset, get_worker_info

from comparisons import same_everywhere
from feedline.loader import DataLoader
from feedline.randomness import fingerprint, seeded
from sets import Drawing, Made


class Own(Drawing):
    """Also draws from its own generator."""

    def __init__(self):
        super().__init__(12)
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index):
        return *super().__getitem__(index), float(self.rng.random())


class Seeds(Dataset[Any]):
    """Returns the initial seeds of its worker minus the worker id."""

    began: tuple[int, int] = (0, 0)

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return self.began


class Streamed(IterableDataset[Any]):
    def __iter__(self):
        yield from ((float(np.random.rand()), random.random()) for _ in range(3))


def keep_seeds(worker):
    """Leave the worker's seeds on the dataset."""
    info = get_worker_info()
    info.dataset.began = torch.initial_seed() - worker, info.seed - worker


def seed_worker(worker):
    """As in PyTorch's notes on reproducibility."""
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def seed_as_lightning(worker):
    sequence = np.random.SeedSequence([torch.initial_seed() - worker, worker, 0])
    np.random.seed(sequence.generate_state(4))
    torch_sequence, python_sequence = sequence.spawn(2)
    torch.manual_seed(torch_sequence.generate_state(1, dtype=np.uint64)[0])
    high, low = python_sequence.generate_state(2, dtype=np.uint64).astype(object).tolist()
    random.seed((high << 64) + low)


def seed_numpy(worker):
    np.random.seed(40 + worker)


def make_generator(worker):
    """Give the dataset a generator of this worker's own."""
    info = get_worker_info()
    info.dataset.rng = np.random.default_rng(info.seed)


def plain(batches):
    return [[part.tolist() for part in batch] for batch in batches]


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize(
    ("init", "option"),
    [(seed_worker, "generator"), (seed_as_lightning, "seed"), (make_generator, "seed")],
)
def test_runs_are_reproducible_with_any_worker_init_fn(init, option):
    def loader(workers):
        options = {"seed": 5}
        if option == "generator":
            options = {"generator": torch.Generator().manual_seed(5)}
        return DataLoader(
            Own(), 2, shuffle=True, num_workers=workers, worker_init_fn=init, **options
        )

    whole = same_everywhere(loader, workers=(1, 2, 3))
    draws = {repr(draw) for epoch in whole for batch in epoch for draw in batch[1][3:]}
    assert len(draws) == 24


@pytest.mark.parametrize("options", [{}, {"seed": 5}, {"seed": 5, "shuffle": True}])
def test_draws_are_those_of_workers_in_any_batch_of_a_long_epoch(options):
    """The random states of some batches are computed together."""
    found = []
    for workers in (0, 1):
        torch.manual_seed(3)
        data = torch.utils.data.ConcatDataset([Drawing(12)] * 5)
        with DataLoader(data, 1, num_workers=workers, **options) as loader:
            batches = iter(loader)
            found.append(plain(next(batches) for _ in range(19)))
            state = loader.state_dict()
            found[-1] += plain(batches) + plain(loader)
            loader.load_state_dict(state)
            assert plain(loader) == found[-1][19:60]
    assert found[0] == found[1]
    assert len({batch[2][0] for batch in found[0]}) == 120


SEEDED = """
import itertools, json, random, sys
import numpy as np, torch
import feedline
from feedline.randomness import seeded
sys.path.insert(0, sys.argv[1])
from sets import Drawing


def draws(workers=0, seed_torch=True, numpy=None, python=None, **options):
    if seed_torch:
        torch.manual_seed(0)
    if numpy is not None:
        np.random.seed(numpy)
    if python is not None:
        random.seed(python)
    before = np.random.get_state()[1].tolist(), random.getstate()
    with feedline.DataLoader(Drawing(4), 2, num_workers=workers, **options) as loader:
        epochs = [[batch[1].tolist() for batch in loader] for _ in range(2)]
    assert before == (np.random.get_state()[1].tolist(), random.getstate())
    assert epochs[0] != epochs[1]
    return epochs


if __name__ == "__main__":
    found = {"unseeded": draws()}
    for _ in range(5000):
        random.random(), np.random.rand()
    found["drawn"] = draws()
    random.randbytes(10_000_000)
    found["drawn 2,500,000"] = draws()
    with seeded(1):  # a comparison of loaders, or a dataset that has a loader
        draws()
    found["after others"] = draws()
    for name, value in itertools.product(("numpy", "python"), (1, 2)):
        seeds = {"numpy": 1, name: value}
        found[f"{name} {value}"] = draws(**seeds)
        found[f"seed, {name} {value}"] = draws(**seeds, seed=3)
        drawn_from = torch.Generator().manual_seed(1)
        found[f"generator, {name} {value}"] = draws(**seeds, generator=drawn_from)
    found["again"] = draws(numpy=1, python=2)
    found["workers"] = draws(2, numpy=1, python=2)
    print(json.dumps(found))
"""


def test_seeds_of_numpy_and_python_count_if_the_program_sets_them(tmp_path):
    script = tmp_path / "seeded.py"
    script.write_text(SEEDED)
    command = [sys.executable, str(script), str(Path(__file__).parent.parent)]
    programs = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    first, second = (json.loads(program.communicate()[0]) for program in programs)
    assert first == second
    assert first["unseeded"] == first["drawn"] == first["drawn 2,500,000"] == first["after others"]
    for name in ("numpy", "python"):
        assert first[f"{name} 1"] != first[f"{name} 2"]
        assert first[f"seed, {name} 1"] == first[f"seed, {name} 2"]
        assert first[f"generator, {name} 1"] == first[f"generator, {name} 2"]
    assert first["python 2"] == first["again"] == first["workers"]


@pytest.mark.parametrize("own_generator", [False, True])
def test_persistent_workers_change_no_draws(own_generator):
    def loader(workers):
        generator = torch.Generator().manual_seed(3) if own_generator else None
        return DataLoader(
            Own(), 2, generator=generator, num_workers=workers, persistent_workers=workers > 0
        )

    same_everywhere(loader, seed=False)


@pytest.mark.parametrize(("dataset", "init"), [(Seeds(), keep_seeds), (Streamed(), seed_worker)])
def test_worker_init_fn_finds_the_seeds_that_torch_gives_and_its_own_apply_to_streams(
    dataset, init
):
    seen = []
    for kind in (TorchDataLoader, DataLoader, DataLoader):
        options = {"num_workers": 2, "worker_init_fn": init}
        loader = kind(dataset, 1, generator=torch.Generator().manual_seed(0), **options)
        seen.append([plain(loader) for _ in range(2)])
    assert seen[0] == seen[1] == seen[2]


def test_explain_and_log_report_ignored_worker_init_seeds(tmp_path):
    """The log is that of a worker: its handlers came along with the fork."""
    log, handler = logging.getLogger("feedline"), logging.FileHandler(tmp_path / "log")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        for init in (seed_numpy, keep_seeds):
            options = {"start_method": "fork", "worker_init_fn": init}
            with DataLoader(Seeds(), 1, num_workers=1, **options) as loader:
                list(loader)
                assert "even if worker_init_fn seeds" in loader.explain()
            text = (tmp_path / "log").read_text()
            assert text.count("worker_init_fn") == 1
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        handler.close()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", [{"seed": 0}, {}, {"seed": 0, "sampler": "distributed"}])
def test_no_two_batches_have_the_same_draws_on_any_rank(options, workers):
    torch.manual_seed(0)
    seen = []
    for rank in range(2):
        chosen = dict(options)
        if "sampler" in chosen:
            chosen["sampler"] = DistributedSampler(Drawing(12), num_replicas=2, rank=rank)
        elif "seed" in chosen:
            chosen |= {"rank": rank, "world_size": 2}
        with DataLoader(Drawing(12), 2, num_workers=workers, **chosen) as loader:
            for _ in range(2):
                seen += [
                    x for _, *draws in loader for draw in draws for x in draw.flatten().tolist()
                ]
    assert len(set(seen)) == len(seen)


def test_nested_contexts_restore_state():
    before = fingerprint()
    with seeded(1):
        within = fingerprint()
        with seeded(2):
            assert all(map(ne, fingerprint(), within))
            with seeded(3):
                np.random.rand()
        assert fingerprint() == within
    assert fingerprint() == before


def test_datasets_in_two_threads_may_wait_for_each_other():
    def states():
        return random.getstate(), np.random.get_state()[1].tolist()

    barrier, before = threading.Barrier(2), states()

    def sample(index):
        barrier.wait(60)
        return index

    def load():
        return [int(index) for index in DataLoader(Made(4, sample), batch_size=None)]

    with pytest.warns(RuntimeWarning) as warned, ThreadPoolExecutor(2) as threads:
        loaded = [each.result() for each in [threads.submit(load) for _ in range(2)]]
    assert loaded == [[0, 1, 2, 3]] * 2
    assert len(warned) == 1
    assert states() == before
