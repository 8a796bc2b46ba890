"""A batch without a sample that could be loaded is left out: nothing else depends on it."""

import functools
import os
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler
from torchvision import datasets
from torchvision.transforms import v2

from comparisons import same_everywhere
from feedline import DataLoader, ImageFolder
from feedline.engine.buffers import BatchBuffers
from feedline.engine.messages import Failure
from feedline.engine.tasks import InFlightBatch
from feedline.errors import SampleError
from feedline.loader.start_engine import samples_to_skip
from feedline.order.batch_spec import BatchSpec
from feedline.order.schedule import Phase
from feedline.train.data import without_padding
from ranks import said_by_ranks
from row_sources import Breaking, Rows
from sets import Made, plain
from slow import slow

ENDS = [11]  # the last batch of one
SINGLE = [0, 3, 4, 5, 11]  # batches of one, several running
WORKERS = [0, 2]


def numbered(index, broken=()):
    if index in broken:
        raise OSError("torn")
    return torch.tensor(index)


def own(broken):
    return Made(12, functools.partial(numbered, broken=broken))


@pytest.fixture(scope="module")
def photos(jpeg_folder, tmp_path_factory):
    def broken(numbers):
        folder = tmp_path_factory.mktemp("broken") / "photos"
        shutil.copytree(jpeg_folder, folder)
        for number, path in enumerate(sorted(folder.rglob("*.jpg"))):
            if number in numbers:
                path.write_bytes(b"torn")
        return folder

    return broken


def labelled(images):
    """A torchvision folder, whose labels are the numbers of its samples."""
    images.samples = [(path, number) for number, (path, _) in enumerate(images.samples)]
    images.targets = list(range(len(images.samples)))
    return images


def seen(batch):
    values = batch[1] if isinstance(batch, (list, tuple)) else batch
    return torch.atleast_1d(torch.as_tensor(values)).tolist()


def as_list(samples):
    return torch.tensor([label for _, label in samples])


def makers(photos, broken):
    """Datasets of 12 samples, and options, by the engine that makes their batches."""
    steps = v2.Compose([v2.Resize(32), v2.CenterCrop(32), v2.ToImage()])
    return {
        "rows": (Breaking(12, broken), {"image_size": 4, "seed": 0}),
        "source": (ImageFolder(photos(broken)), {"image_size": 32, "seed": 0}),
        "fused": (labelled(datasets.ImageFolder(photos(broken), steps)), {}),
        "samples": (
            labelled(datasets.ImageFolder(photos(broken), steps)),
            {"collate_fn": as_list},
        ),
        "dataset": (own(broken), {}),
    }


ENGINES = ["rows", "source", "fused", "samples", "dataset"]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("size", "broken"), [(1, SINGLE), (11, ENDS), (3, [3, 4, 5, 7])])
def test_batches_without_readable_samples_are_left_out(photos, engine, workers, size, broken):
    data, options = makers(photos, tuple(broken))[engine]
    with DataLoader(data, size, num_workers=workers, on_error="skip", **options) as loader:
        parts = (range(first, min(12, first + size)) for first in range(0, 12, size))
        rows = [[k for k in part if k not in broken] for part in parts]
        wanted = [batch for batch in rows if batch]
        for _ in range(2):
            found = [(seen(batch), loader.batch) for batch in loader]
            assert [spec.samples.tolist() for _, spec in found if spec] == wanted
            if engine == "source":  # its labels are the classes
                assert [len(batch) for batch, _ in found] == [len(batch) for batch in wanted]
            else:
                assert [batch for batch, _ in found] == wanted
                assert all(spec and spec.dataset_keys == batch for batch, spec in found)
        assert len(loader) == -(-12 // size)
        assert len(loader.skipped) == 2 * len(broken)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(("broken", "labels", "padding"), [(0, [1, 3], 0), (3, [1], 1)])
def test_padding_counts_rows_that_were_loaded(broken, labels, padding, workers):
    # The batch has the samples 1 and 3, and 0 as padding.
    options = {"image_size": 4, "seed": 0, "rank": 1, "world_size": 2}
    data = Breaking(5, {broken})
    with DataLoader(data, 3, num_workers=workers, on_error="skip", **options) as loader:
        assert [batch[1].tolist() for batch in without_padding(loader)] == [labels]
        assert loader.batch is not None
        assert loader.batch.padding == padding


@pytest.mark.parametrize("options", [{"seed": 3}, {}])
def test_state_between_left_out_batches_resumes_exactly(options):
    def make(workers):
        arguments = {"shuffle": True, "num_workers": workers, "on_error": "skip", **options}
        return DataLoader(own(tuple(SINGLE)), 1, **arguments)

    epochs = same_everywhere(make, seed=bool(options), every_state=True)
    kept = [plain(torch.tensor([k])) for k in range(12) if k not in SINGLE]
    assert all(sorted(epoch, key=str) == sorted(kept, key=str) for epoch in epochs)


@pytest.mark.parametrize("workers", WORKERS)
def test_keys_without_batches_are_left_out_one_by_one(workers):
    data = own((2, 11))
    with DataLoader(data, batch_size=None, num_workers=workers, on_error="skip") as loader:
        assert [int(value) for value in loader] == [k for k in range(12) if k not in (2, 11)]
        assert [name for name, _ in loader.skipped] == ["2", "11"]


def dying(index):
    if index in (1, 2):
        os._exit(3)
    return index


@pytest.mark.parametrize("size", [1, 2, None])
@pytest.mark.parametrize("method", ["fork", *slow("spawn")])
def test_batches_whose_samples_end_their_workers_are_left_out(method, size):
    options = {"on_error": "skip", "num_workers": 1, "start_method": method}
    with DataLoader(Made(4, dying), size, **options) as loader:
        assert [int(batch) for batch in loader] == [0, 3]
        assert [name for name, _ in loader.skipped] == ["1", "2"]
        assert "killed its worker 2 times" in loader.skipped[0][1]


@pytest.mark.parametrize("workers", WORKERS)
def test_an_iteration_without_any_batch_warns(workers):
    with DataLoader(own(tuple(range(12))), 5, num_workers=workers, on_error="skip") as loader:
        for epoch in (1, 2):
            with pytest.warns(match=rf"epoch {epoch} .*first: 0: OSError: torn") as warned:
                assert list(loader) == []
            assert [warning.filename for warning in warned] == [__file__]
        assert len(loader.skipped) == 24


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("makes_rows", [True, False])
def test_a_rank_of_several_names_the_batch_instead(makes_rows, workers):
    options = {"num_workers": workers, "on_error": "skip"}
    if makes_rows:
        data = Breaking(8, {1, 5, 6})
        options |= {"image_size": 4, "seed": 0, "rank": 1, "world_size": 2}
    else:
        data = Made(8, functools.partial(numbered, broken=(1, 5, 6)))
        options["sampler"] = DistributedSampler(data, num_replicas=2, rank=1, shuffle=False)
    with DataLoader(data, 1, **options) as loader:
        batches = iter(loader)
        rows = (seen(batch) for batch in batches)
        for step in (1, 3):
            with pytest.raises(SampleError, match=rf"step {step}\).*2 ranks"):
                next(rows)
            rows = (seen(batch) for batch in batches)
            assert next(rows) == [2 * step + 1]
        assert list(batches) == []
        assert len(loader.skipped) == 2


_OF_A_GROUP = """
import json, torch
from torch import distributed
from feedline import DataLoader
from feedline.errors import SampleError
distributed.init_process_group("gloo")
class Own:
    def __len__(self): return 3
    def __getitem__(self, index):
        if index == 1: raise OSError("torn")
        return index
def read(**options):
    try: return [int(batch) for batch in DataLoader(Own(), 1, on_error="skip", **options)]
    except SampleError as error: return str(error)[:16]
print(json.dumps([read(), read(seed=0, rank=0, world_size=1)]))
distributed.destroy_process_group()
"""


def test_a_loader_of_one_rank_alone_leaves_batches_out():
    for shared, alone in said_by_ranks(_OF_A_GROUP):
        assert shared == "none of the 1 sa"
        assert alone == [0, 2]


# The order of failures

BATCH = BatchSpec(
    epoch=1,
    step=2,
    phase=Phase(image_size=4, epochs=1),
    image_size=4,
    samples=np.array([30, 10, 50, 20, 40], np.int64),
    padding=0,
    epoch_seed=0,
)


def in_flight(rows, slot):
    """The batch, with failures as the workers' reports came."""
    failures = [Failure(row, "ValueError", f"row {row} is bad") for row in rows]
    return InFlightBatch(0, BATCH, slot, failures=failures)


@given(st.permutations(range(5)), st.integers(1, 5))
def test_skipped_samples_are_in_order_of_the_batch_and_the_first_is_raised(came, count):
    rows, slots = sorted(came[:count]), BatchBuffers(1)
    assert samples_to_skip(Rows(60), slots, "skip", in_flight(came[:count], 0)) == [
        (row, f"row-{BATCH.samples[row]}", f"ValueError: row {row} is bad", False) for row in rows
    ]
    slot = slots.acquire()
    named = rf"sample {BATCH.samples[rows[0]]}, .*row {rows[0]} is bad.*epoch 2, step 3"
    with pytest.raises(SampleError, match=named):
        samples_to_skip(Rows(60), slots, "raise", in_flight(came[:count], slot))
    assert slots.acquire() == slot  # it was released
