"""Batches of rows that are larger than any before them: more rows, or larger images."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import CenterCrop, Compose, Resize, ToTensor

from feedline import DataLoader
from feedline.engine.buffers import batch_bytes
from feedline.errors import ResourceError, UsageError
from feedline.loader.engine_choice import slot_size
from loader_reading import read
from processes import all_workers, eventually, newcomers, own_family
from row_sources import Rows
from sets import Made
from slow import slow

SIZES = [2, 7, 1, 3, 30, 4, 31, 2]


class Uneven:
    """Batches of several sizes, with the reported batch size as given."""

    def __init__(self, length, sizes=SIZES, **attributes):
        self.length, self.sizes = length, sizes
        self.__dict__.update(attributes)

    def __iter__(self):
        start = 0
        for size in self.sizes:
            yield [number % self.length for number in range(start, start + size)]
            start += size

    def __len__(self):
        return len(self.sizes)


def folder(root):
    return ImageFolder(root, Compose([Resize(24), CenterCrop(24), ToTensor()]))


def labels(batches):
    return [torch.as_tensor(batch[1]).tolist() for batch in batches]


@pytest.mark.parametrize(
    "attributes", [{}, *({"batch_size": size} for size in (None, 2, np.int64(3), "many"))], ids=str
)
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_have_any_size_regardless_of_batch_sampler_attributes(
    attributes, workers, jpeg_folder
):
    data = folder(jpeg_folder)
    batches = Uneven(len(data), **attributes)
    expected = list(TorchDataLoader(data, batch_sampler=batches))
    with DataLoader(data, batch_sampler=batches, num_workers=workers) as loader:
        assert "engine      image-row engine" in loader.explain()
        for _ in range(2):
            found = list(loader)
            assert labels(found) == labels(expected)
            for mine, theirs in zip(found, expected, strict=True):
                assert (mine[0] - theirs[0]).abs().mean() < 0.5 / 255
        assert loader.worker_deaths == []
    with DataLoader(Rows(50), image_size=4, batch_sampler=batches, num_workers=workers) as loader:
        assert labels(loader) == list(batches)


@pytest.mark.parametrize("start", ["forkserver", *slow("fork", "spawn")])
def test_held_batches_and_states_survive_larger_slots(start):
    before = own_family()
    options = {"image_size": 4, "seed": 3, "num_workers": 1}
    largest = Uneven(50, batch_size=31)
    with DataLoader(Rows(50), batch_sampler=largest, **options) as ample:
        expected = read(ample)
    options["start_method"] = start
    with DataLoader(Rows(50), batch_sampler=Uneven(50), **options) as loader:
        batches = iter(loader)
        kept = [next(batches) for _ in range(5)]
        state = loader.state_dict()
        kept += list(batches)
        assert read(kept) == expected
    with DataLoader(Rows(50), batch_sampler=Uneven(50), **options) as loader:
        loader.load_state_dict(state)
        assert read(loader) == expected[5:]
    assert read(kept) == expected
    assert eventually(lambda: not newcomers(before))


@pytest.mark.parametrize("workers", [0, 1])
def test_any_image_size_can_be_set_and_the_memory_is_reported(workers):
    def memory_line(loader):
        return next(line for line in loader.explain().splitlines() if line.startswith("memory"))

    with DataLoader(Rows(24), 8, image_size=64, num_workers=workers) as loader:
        reported = [(loader.memory_bytes, memory_line(loader))]
        for size in (32, 64, 200, 400, 16):
            loader.set_image_size(size)
            assert {batch.side for batch in read(loader)} == {size}
            reported.append((loader.memory_bytes, memory_line(loader)))
        for nbytes, line in reported:
            assert f" {nbytes / 2**20:.0f} MiB in 4 batches" in line
        amounts = [nbytes for nbytes, _ in reported]
        assert amounts[0] == amounts[1] == amounts[2]
        assert amounts == sorted(amounts)
        most = 4 * 8 * (400 * 400 * 3 + 8)
        assert most <= amounts[-1] <= 1.3 * most
        assert loader.worker_deaths == []


def test_a_size_set_in_mid_epoch_comes_with_the_next_batch_and_with_the_same_settings():
    with DataLoader(Rows(32), 4, image_size=8, num_workers=1, prefetch=2) as loader:
        batches = iter(loader)
        assert next(batches)[0].shape[-1] == 8
        loader.num_workers, loader.prefetch = 2, 1
        loader.set_image_size(64)
        rest = read(batches)
        assert [batch.side for batch in rest] == [64] * 7
        assert [label for batch in rest for label in batch.labels] == list(range(4, 32))
        assert len(all_workers(loader, 2)) == 2
        assert (loader.num_workers, loader.prefetch) == (2, 1)


def test_size_without_memory_is_rejected_and_smaller_ones_continue():
    with DataLoader(Rows(60000), 30000, image_size=1, num_workers=0) as loader:
        loader.set_image_size(16384)  # terabytes
        batches = iter(loader)
        with pytest.raises(ResourceError):
            next(batches)
        loader.set_image_size(2)
        assert next(batches)[0].shape == (30000, 3, 2, 2)


@pytest.mark.parametrize("workers", [0, 1])
def test_true_and_false_are_the_indices_1_and_0(workers, jpeg_folder):
    batches = [[True, False], [3, True], [False, False, True]]
    data = folder(jpeg_folder)
    for dataset in (data, Made(10, lambda index: (0, range(10, 20)[index]))):
        options = {"batch_sampler": batches, "num_workers": workers}
        expected = labels(TorchDataLoader(dataset, batch_sampler=batches))
        with DataLoader(dataset, **options) as loader:
            assert labels(loader) == expected
    with DataLoader(Rows(8), image_size=4, **options) as loader:
        assert labels(loader) == [[1, 0], [3, 1], [0, 0, 1]]


def test_numpy_booleans_are_not_indices_like_in_torch(jpeg_folder):
    batches = [[np.bool_(True), np.bool_(False)]]
    data = folder(jpeg_folder)
    with pytest.raises(TypeError):
        list(TorchDataLoader(data, batch_sampler=batches))
    with DataLoader(data, batch_sampler=batches) as loader, pytest.raises(UsageError):
        list(loader)


SIZES_AND_ROWS = st.lists(st.tuples(st.integers(1, 64), st.integers(1, 12)), min_size=1, max_size=4)


@given(SIZES_AND_ROWS, st.none() | st.integers(1, 64))
def test_every_phase_fits_and_so_does_the_largest_size_that_may_be_set_in_any_phase(
    batches, max_image_size
):
    source = Rows(100)
    nbytes, largest = slot_size(source, batches, max_image_size)
    for size, rows in batches:
        assert batch_bytes(source.fields(size), rows) <= nbytes
    if max_image_size is None:
        assert largest is None
    else:
        assert largest is not None
        assert batch_bytes(source.fields(largest), max(rows for _, rows in batches)) <= nbytes
        assert largest == max(max_image_size, *(size for size, _ in batches))
