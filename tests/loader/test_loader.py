"""Batches of a loader with real workers."""

import gc
import json

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DistributedSampler

from feedline.errors import ClosedError, ImageError, SampleError, UsageError
from feedline.images.folder import ImageFolder
from feedline.loader import DataLoader
from feedline.order.schedule import Phase
from loader_reading import planned, planned_epoch, read, seen
from processes import all_workers, eventually, gone
from row_sources import Breaking, Rows

SCHEDULE = "8x1@5,12x1@7,6x1"


def shuffled(source, batch_size, workers=0, **options):
    """A loader of shuffled rows, by default at 8 px."""
    options = {"image_size": 8, "seed": 0, **options}
    return DataLoader(source, batch_size, shuffle=True, num_workers=workers, **options)


# Order and pixels


@pytest.mark.parametrize("prefetch", [1, 2, 5])
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_batches_match_plan_for_any_workers_and_prefetch(workers, prefetch):
    with DataLoader(
        Rows(23), 4, schedule=SCHEDULE, num_workers=workers, prefetch=prefetch, seed=3
    ) as loader:
        for epoch in range(4):
            assert read(loader) == planned_epoch(loader, epoch)


def test_the_strength_of_a_phase_reaches_the_source():
    weak = Phase(image_size=4, epochs=1, strength=0.25)
    strong = Phase(image_size=4, epochs=1)
    with DataLoader(Rows(6), 6, schedule=[weak, strong], num_workers=1, shuffle=False) as loader:
        assert read(loader) == planned_epoch(loader, 0)
        assert read(loader) == planned_epoch(loader, 1)
    full = DataLoader(Rows(6), 6, schedule="4x2", num_workers=0, shuffle=False)
    assert planned_epoch(full, 0) != planned_epoch(loader, 0)
    assert planned_epoch(full, 1) == planned_epoch(loader, 1)


ORDERS = {
    "shuffled": {"shuffle": True},
    "windows": {"shuffle": "window:300"},
    "weights": {"weights": np.arange(701) % 4 + 0.5},
    "weights, each once": {"weights": np.arange(701) % 4 + 0.5, "replacement": False},
}


@pytest.mark.parametrize("order", ORDERS)
def test_ranks_share_each_batch_out_and_resume_as_another_number_of_ranks(order):
    def ranks(world_size, state=None):
        options = {"image_size": 4, "seed": 0, "world_size": world_size, **ORDERS[order]}
        made = [
            DataLoader(Rows(701), 60 // world_size, rank=rank, num_workers=rank % 2, **options)
            for rank in range(world_size)
        ]
        for loader in made if state else ():
            loader.load_state_dict(state)
        return made

    def dealt(loaders):
        """All rows in the order that they were dealt out in."""
        rows = []
        for batches in zip(*loaders, strict=True):
            parts = zip(*batches, strict=True)
            images, labels = (torch.stack(part, 1).flatten(0, 1) for part in parts)
            count = len(labels) - sum(loader.batch.padding for loader in loaders if loader.batch)
            both = zip(images[:count], labels[:count], strict=True)
            rows += [b"%d " % label + image.contiguous().numpy().tobytes() for image, label in both]
        for loader in loaders:
            loader.close()
        return rows

    (alone,) = ranks(1)
    whole = dealt([alone])
    assert len(set(whole)) == 701  # a sample that comes twice is cropped twice
    assert dealt(ranks(2)) == whole
    four = ranks(4)
    for loader in four:
        batches = iter(loader)
        next(batches), next(batches)
    states = [json.dumps(loader.state_dict()) for loader in four]
    assert len(set(states)) == 1
    for world_size in (1, 2):
        assert dealt(ranks(world_size, json.loads(states[0]))) == whole[120:]
    for loader in four:
        loader.close()


WINDOW = "window:512"


@pytest.mark.parametrize("name", [WINDOW, np.str_(WINDOW)])
def test_a_schedule_brings_the_seed_that_an_order_in_windows_needs(name):
    made = DataLoader(Rows(1100), 128, name, schedule="4x1,8x1", num_workers=0)
    state = json.loads(json.dumps(made.state_dict()))
    assert (state["sample_order"], state["seed"]) == (WINDOW, 0)
    next(iter(made))
    made.load_state_dict(state)
    assert read(made) == planned_epoch(made, 0)


def test_any_dataset_can_be_read_in_windows_and_frameworks_see_a_sampler_that_shuffles():
    options = {"shuffle": WINDOW, "seed": 5}
    rows = DataLoader(Rows(1100), 128, image_size=4, num_workers=0, **options)
    sampler = rows.sampler
    assert isinstance(sampler, DistributedSampler)
    assert sampler.shuffle is True
    order, labels = list(sampler), [labels.tolist() for _, labels in rows]
    assert order == [label for part in labels for label in part]
    with DataLoader(torch.arange(1100), 128, num_workers=1, **options) as made:
        assert [batch.tolist() for batch in made] == labels


# Sizes


@pytest.mark.parametrize("schedule", ["16x1@30,64x1@4", "64x1@4,16x1@30"])
@pytest.mark.parametrize("largest", [None, 64, 70])
def test_every_size_that_may_be_set_fits_in_every_phase(schedule, largest):
    with DataLoader(
        Rows(31), 3, schedule=schedule, num_workers=1, max_image_size=largest
    ) as loader:
        size = loader.max_image_size
        assert size == largest
        if size is not None:
            with pytest.raises(UsageError, match=f"max_image_size={size + 1}"):
                loader.set_image_size(size + 1)
        size = size or 80
        loader.set_image_size(size)
        for epoch in range(2):
            steps = range(loader.steps_in(epoch))
            assert read(loader) == [planned(loader.order, epoch, step, size) for step in steps]


def test_memory_is_known_before_the_first_batch_and_grows_with_the_most_that_may_come():
    def memory(**options):
        return DataLoader(Rows(64), 32, num_workers=0, **options).memory_bytes

    slot = memory(image_size=64, prefetch=3) // 4
    assert 32 * (64 * 64 * 3 + 8) <= slot < 32 * (64 * 64 * 3 + 8) + 8192
    assert memory(image_size=64, prefetch=7) == 8 * slot
    assert memory(image_size=8, max_image_size=64, prefetch=3) == 4 * slot
    assert memory(schedule="8x1,64x1,16x1", prefetch=3) == 4 * slot


# Epochs


@pytest.mark.parametrize("way", ["is read", "is dropped", "loader is closed"])
def test_workers_of_an_earlier_iteration_end_with_it(way):
    with DataLoader(Rows(12), 4, image_size=8, seed=0, num_workers=1) as loader:
        first = iter(loader)
        next(first)
        second = iter(loader)
        assert [next(first)[1].tolist(), next(second)[1].tolist()] == [[4, 5, 6, 7], [0, 1, 2, 3]]
        ending, staying = (
            [psutil.Process(w.pid) for w in each._workers] for each in (first, second)
        )
        assert (len(ending), len(staying)) == (1, 1)
        if way == "is read":
            assert [labels.tolist() for _, labels in first] == [[8, 9, 10, 11]]
        elif way == "is dropped":
            del first
            gc.collect()
        else:
            loader.close()
            ending += staying
        assert eventually(lambda: gone(ending))
        if way == "loader is closed":
            for iteration in (first, second):
                with pytest.raises(ClosedError):
                    next(iteration)
        else:
            assert [labels.tolist() for _, labels in second] == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_len_is_of_the_epoch_under_way_and_then_of_the_next():
    loader = DataLoader(Rows(10), 4, schedule="8x1,6x1@5", num_workers=0)
    lengths = [len(loader)]
    for _ in loader:
        lengths.append(len(loader))
    assert lengths == [3, 3, 3, 3]
    assert (loader.epochs, len(loader)) == (2, 2)
    assert [loader.steps_in(epoch) for epoch in range(4)] == [3, 2, 2, 2]
    assert loader.total_steps == 5
    assert len(shuffled(Rows(10), 4, drop_last=True)) == 2


def test_batch_spec_is_available_with_batch():
    loader = DataLoader(Rows(10), 4, schedule="8x1,6x1@5", num_workers=0)
    assert loader.batch is None
    assert loader.phase.image_size == 8
    for epoch in range(2):
        for step, (images, labels) in enumerate(loader):
            assert loader.batch is not None
            assert (loader.batch.epoch, loader.batch.step) == (epoch, step)
            assert loader.batch.samples.tolist() == labels.tolist()
            assert loader.phase.image_size == loader.batch.image_size == images.shape[-1]


# Workers


def test_no_process_starts_or_stops_for_an_epoch_phase_or_size():
    with DataLoader(Rows(10), 4, schedule=SCHEDULE, num_workers=2, seed=1) as loader:
        pids = all_workers(loader, 2)
        for epoch in range(4):
            loader.set_epoch(epoch)
            for step, _ in enumerate(loader):
                loader.set_image_size([None, 3, 5][step % 3])
                assert loader.worker_pids == pids
        assert not loader.worker_deaths


# Life


@pytest.mark.parametrize("workers", [0, 1])
def test_closed_loader_raises_on_any_use(workers):
    with shuffled(Rows(10), 4, workers) as loader:
        state = loader.state_dict()
        iteration = iter(loader)
        next(iteration)
    for use in (
        lambda: iter(loader),
        lambda: next(iteration),
        lambda: loader.set_epoch(1),
        lambda: loader.set_image_size(2),
        lambda: loader.load_state_dict(state),
        lambda: setattr(loader, "num_workers", 2),
        lambda: setattr(loader, "task_ms", 5),
    ):
        with pytest.raises(ClosedError, match="closed; build a new one"):
            use()


def test_an_exception_in_the_loop_closes_a_loader_used_as_a_context():
    loader = DataLoader(Rows(10), 4, num_workers=1, image_size=8)
    with pytest.raises(ZeroDivisionError), loader:
        raise ZeroDivisionError(next(iter(loader)))
    with pytest.raises(ClosedError):
        iter(loader)


# Normalised on the CPU


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("statistics", [{}, {"mean": (0.5, 0.25, 0.0), "std": (0.5, 1.0, 0.1)}])
def test_on_a_device_images_are_normalised_bit_for_bit(dtype, statistics):
    def loader(**options):
        return DataLoader(Rows(10), 4, image_size=6, num_workers=0, seed=0, **options)

    mean = np.array(statistics.get("mean", (0.485, 0.456, 0.406)))
    std = np.array(statistics.get("std", (0.229, 0.224, 0.225)))
    made = loader(device="cpu", dtype=dtype, **statistics)
    for (images, labels), (pixels, same_labels) in zip(made, loader(), strict=True):
        raw = pixels.permute(0, 2, 3, 1).numpy()
        scale, shift = (1 / (255 * std)).astype(np.float32), (-mean / std).astype(np.float32)
        exact = torch.from_numpy(raw.astype(np.float32) * scale + shift).to(dtype)
        assert images.dtype == dtype
        assert torch.equal(images.permute(0, 2, 3, 1), exact)
        assert images.is_contiguous(memory_format=torch.channels_last)
        formula = torch.from_numpy((raw / 255 - mean) / std)
        tolerance = {torch.bfloat16: 2**-8, torch.float16: 2**-10}.get(dtype, 2**-20)
        assert torch.allclose(images.permute(0, 2, 3, 1).double(), formula, tolerance, tolerance)
        assert torch.equal(labels, same_labels)


# Samples that fail


@pytest.mark.parametrize("workers", [0, 2])
def test_failing_sample_is_named_with_worker_traceback(workers):
    with DataLoader(
        Breaking(12, {7}), 3, image_size=4, num_workers=workers, shuffle=False, seed=0
    ) as loader:
        iteration = iter(loader)
        before = [seen(next(iteration)) for _ in range(2)]
        assert before == planned_epoch(loader, 0)[:2]
        state = loader.state_dict()
        for _ in range(3):
            with pytest.raises(SampleError, match=r"(?s)sample 7,.*\(epoch 1, step 3\)") as caught:
                next(iteration)
            said = str(caught.value)
            assert "row-7: sample 7 is broken on purpose" in said
            assert 'on_error="skip"' in said
            assert "in load" in said
            assert 'raise ValueError(f"sample {item.sample} is broken on purpose")' in said
            assert loader.state_dict() == state
        assert next(iter(loader))[1].tolist() == [0, 1, 2]


def test_a_broken_image_is_an_image_error_that_names_its_file(jpeg_folder):
    with shuffled(ImageFolder(jpeg_folder), 12, 1) as loader:
        missing = jpeg_folder / "cats" / "3.jpg"
        missing.rename(missing.with_suffix(".gone"))
        try:
            # Some of the first epoch may have been made while the file was there.
            loader.set_image_size(7)
            with pytest.raises(ImageError, match="sample 3") as caught:
                read(loader)
        finally:
            missing.with_suffix(".gone").rename(missing)
        assert str(missing) in str(caught.value)
