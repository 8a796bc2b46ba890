"""Samples at the requested size and strength: rejected if unused, or made like rows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset, default_collate, get_worker_info
from torch.utils.data._utils import worker as torch_worker
from torchvision import transforms
from torchvision.datasets import ImageFolder

import feedline
from feedline.engine.batch_layout import read_batch
from feedline.engine.buffers import BatchAllocator, WholeBatchBuffers
from feedline.engine.dataset_fetch import DatasetFetcher, SampleMaker, WorkerInit
from feedline.engine.messages import BatchTask
from feedline.engine.tasks import BatchTasks, InFlightBatch
from feedline.engine.worker_errors import WorkerException
from feedline.errors import UsageError
from feedline.images.compile.compile_dataset import compile_dataset
from feedline.loader import DataLoader
from feedline.order.batch_spec import BatchSpec, Item
from feedline.order.schedule import Phase
from feedline.timing import RECORD_SWITCH
from sets import Drawing, Made, Sized
from torchvision_folder import write_images

WEAK = [Phase(image_size=8, epochs=1, strength=0.5)]


def collate_at_size(samples: list[Any]) -> Any:
    return feedline.image_size(), len(samples)


def collate_at_strength(samples: list[Any]) -> Any:
    return feedline.augmentation_strength()


class Weakened(Sized):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index), feedline.augmentation_strength()


# No request


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("options", [{"image_size": 8}, {"schedule": "8x2"}])
@pytest.mark.parametrize("data", [Drawing(), TensorDataset(torch.arange(23))])
def test_unused_size_raises(data: Any, workers: int, options: dict[str, Any]) -> None:
    said = f"nothing in {type(data).__name__} asked for the size: .* 8 px.*per_size"
    with DataLoader(data, 4, seed=1, num_workers=workers, **options) as loader:
        for _ in range(2):
            batches = iter(loader)
            for _ in range(2):
                with pytest.raises(UsageError, match=said) as caught:
                    next(batches)
                # What it says is all that its reader needs; where it was caught is its cause.
                assert "Traceback" not in str(caught.value)
                cause = str(caught.value.__cause__)
                assert not workers or "Original Traceback" in cause


def test_size_can_be_requested_by_sample_or_collate_fn() -> None:
    some = Made(8, lambda index: feedline.image_size() if index % 4 == 0 else 8)
    assert len(list(DataLoader(some, 4, image_size=8))) == 2
    made = DataLoader(Drawing(), 4, image_size=8, collate_fn=collate_at_size)
    assert next(iter(made)) == (8, 4)
    assert len(list(DataLoader(Drawing(), 4))) == 6


@pytest.mark.parametrize("workers", [0, 2])
def test_unused_strength_raises(workers: int) -> None:
    with DataLoader(Sized(), 4, seed=1, schedule=WEAK, num_workers=workers) as loader:
        batches = iter(loader)
        with pytest.raises(UsageError, match=r"strength 0\.5, but nothing in Sized asked"):
            next(batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_strength_reaches_the_dataset_and_collate_fn(workers: int) -> None:
    with DataLoader(Weakened(), 4, seed=1, schedule=WEAK, num_workers=workers) as loader:
        assert next(iter(loader))[1].tolist() == [0.5] * 4
    options: dict[str, Any] = {"schedule": WEAK, "collate_fn": collate_at_strength}
    with DataLoader(Sized(), 4, seed=1, num_workers=workers, **options) as loader:
        assert next(iter(loader)) == 0.5


# Made in place of the dataset


class Noting:
    """Passes samples on, and records requests."""

    def __init__(self, samples: SampleMaker) -> None:
        self._samples = samples
        self.items: list[Item] = []

    def sample(self, item: Item) -> Any:
        self.items.append(item)
        return self._samples.sample(item)


def fetcher(dataset: Any, collate_fn: Any = default_collate, **options: Any) -> DatasetFetcher:
    init = WorkerInit(dataset, options.pop("worker_init_fn", None), 1)
    options = {"batched": True, "samples": compile_dataset(dataset).pipeline, **options}
    return DatasetFetcher(init, collate_fn, **options)


@pytest.fixture
def folder(tmp_path: Path) -> ImageFolder:
    steps = [transforms.RandomResizedCrop(24), transforms.RandomHorizontalFlip()]
    transform = transforms.Compose([*steps, transforms.ToTensor()])
    return ImageFolder(write_images(tmp_path), transform)


@pytest.fixture
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore what a worker changes in its process."""
    monkeypatch.setenv(RECORD_SWITCH, "0")  # unmodified functions of libraries
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    yield
    torch_worker._worker_info = None
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


def in_worker(source: DatasetFetcher, batch: BatchSpec) -> Any:
    """A batch as a worker makes it, sent there and back."""
    tasks = BatchTasks(WholeBatchBuffers(1), max_user_batches=0)
    task = tasks.task(1, InFlightBatch(0, batch, 0), (0, batch.rows))
    assert isinstance(task, BatchTask)
    task = BatchTask.unpack(task.pack())
    space = BatchAllocator(np.empty(0, np.uint8))
    if get_worker_info() is None:
        source.open(0, 1)
    nbytes = source.fetch_into(task.keys, task, space, lambda place: None)
    memory = space.copy_to_larger(lambda nbytes: np.empty(nbytes, np.uint8))[: space.used]
    return read_batch(memory, nbytes)


@pytest.mark.usefixtures("_as_before")
@pytest.mark.parametrize("options", [{"seed": 3}, {"sampler": [5, 2, 2, -1, 5]}])
@pytest.mark.parametrize("size", [{}, {"image_size": 16}])
def test_samples_have_the_pixels_of_rows(
    folder: ImageFolder, options: dict[str, Any], size: dict[str, int]
) -> None:
    here, there = fetcher(folder), fetcher(folder)
    with DataLoader(folder, 5, **options, **size) as loader:
        assert "image-row engine" in loader.explain()
        for images, labels in loader:
            batch = loader.batch
            assert batch is not None
            for made in (here.fetch_in_process(batch), in_worker(there, batch)):
                assert torch.equal(made[0], images)
                assert torch.equal(made[1], labels)


def test_samples_get_strength_and_user_collate(folder: ImageFolder) -> None:
    pipeline = compile_dataset(folder).pipeline
    assert pipeline is not None
    samples = Noting(pipeline)
    labels = lambda samples: [label for _, label in samples]  # noqa: E731
    source = fetcher(folder, collate_fn=labels, samples=samples)
    loader = DataLoader(folder, 4, seed=1, shuffle=False, schedule=WEAK, collate_fn=list)
    batch = loader.order.batch(0, 0)
    assert source.fetch_in_process(batch) == folder.targets[:4]
    assert [(item.image_size, item.strength) for item in samples.items] == [(8, 0.5)] * 4
    assert [item.sample for item in samples.items] == [0, 1, 2, 3]
    assert len({item.seed for item in samples.items}) == 4


class Anything(Dataset[Any]):
    def __len__(self) -> int:
        return 9

    def __getitem__(self, key: Any) -> Any:
        return "own", key

    def __getitems__(self, keys: Any) -> Any:
        return [("many", key) for key in keys]


class Numbers:
    def sample(self, item: Item) -> Any:
        if item.sample == 7:
            raise ValueError("broken")
        return "made", item.sample


def drawn(keys: list[Any]) -> BatchSpec:
    loader = DataLoader(Anything(), batch_sampler=[keys], collate_fn=list)
    next(iter(loader))
    assert loader.batch is not None
    return loader.batch


def test_other_keys_than_whole_numbers_go_to_the_dataset() -> None:
    keys = [1, np.int16(2), torch.tensor(3), "four", True, 2.5, (6,), torch.tensor([1])]
    source = fetcher(Anything(), list, samples=Numbers())
    made = source.fetch_in_process(drawn(keys))
    assert made == [("made", k) for k in (1, 2, 3)] + [("own", key) for key in keys[3:]]
    source = fetcher(Anything(), list, samples=None)
    assert source.fetch_in_process(drawn(keys)) == [("many", key) for key in keys]
    alone = fetcher(Anything(), list, samples=Numbers(), batched=False)
    loader = DataLoader(Anything(), None, sampler=[4, "x"], collate_fn=list)  # type: ignore[arg-type]
    assert [alone.fetch_in_process(loader.batch) for _ in loader] == [["made", 4], ["own", "x"]]  # type: ignore[arg-type]


@pytest.mark.usefixtures("_as_before")
def test_failing_sample_is_named_or_skipped() -> None:
    batch = drawn([3, 7, 4])
    with pytest.raises(ValueError, match="broken") as caught:
        fetcher(Anything(), list, samples=Numbers()).fetch_in_process(batch)
    assert "index 7 of Anything" in "\n".join(caught.value.__notes__)
    options: dict[str, Any] = {"samples": Numbers(), "skip_errors": True}
    skipped = fetcher(Anything(), list, **options).fetch_in_process(batch)
    assert skipped.batch == [("made", 3), ("made", 4)]
    assert skipped.skipped == ((1, "7", "ValueError: broken", False),)
    found = in_worker(fetcher(Anything(), list, samples=Numbers()), batch)
    assert isinstance(found, WorkerException)
    assert "index 7 of Anything" in str(found.error())


@pytest.mark.usefixtures("_as_before")
def test_dataset_changed_by_worker_init_fn_uses_sample_engine() -> None:
    data = Made(9, lambda index: index)

    def change(worker: int) -> None:
        data.length = 5

    unchanged = fetcher(data, list, samples=Numbers(), worker_init_fn=lambda worker: None)
    assert in_worker(unchanged, drawn([1])) == [("made", 1)]
    torch_worker._worker_info = None
    changed = fetcher(data, list, samples=Numbers(), worker_init_fn=change)
    assert in_worker(changed, drawn([1])) == [1]
