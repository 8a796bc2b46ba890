"""Records of workers of feedline's loaders, for each engine."""

import pytest
import torch
from torch.utils.data import TensorDataset
from torchvision import datasets
from torchvision.transforms import v2

import feedline
from feedline.loader import recording
from feedline.loader.recording import Recording
from feedline.timing import RECORD_SWITCH
from sets import Counting, Drawing, as_it_is

EPOCHS = 3  # of 12 batches: each worker comes to a task that is timed


def step_of_mine(image):
    return image + 1


def folder_of(path, *more):
    steps = [v2.RandomResizedCrop(16), v2.PILToTensor(), *more]
    return datasets.ImageFolder(str(path), v2.Compose(steps))


def native(path, workers):
    folder = feedline.ImageFolder(str(path), transform=feedline.TrainCrop())
    return feedline.DataLoader(folder, 1, num_workers=workers, image_size=16)


def rows(path, workers):
    return feedline.DataLoader(folder_of(path), 1, num_workers=workers)


def samples(path, workers):
    folder = folder_of(path, step_of_mine)
    return feedline.DataLoader(folder, 1, num_workers=workers, collate_fn=as_it_is)


def dataset(path, workers):
    class Mine(datasets.ImageFolder):
        def __getitem__(self, index):
            return super().__getitem__(index)

    steps = [v2.RandomResizedCrop(16), v2.PILToTensor()]
    return feedline.DataLoader(Mine(str(path), v2.Compose(steps)), 1, num_workers=workers)


def iterable(path, workers):
    return feedline.DataLoader(Counting(24), 2, num_workers=workers)


STAGES = {
    native: ("image rows", {"read", "decode", "resize"}),
    rows: ("image rows", {"read", "decode", "resize"}),
    samples: ("samples", {"read", "decode", "resize", "transform: function", "collate"}),
    dataset: ("dataset", {"dataset", "collate"}),
    iterable: ("iterable", {"dataset", "collate"}),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", STAGES)
def test_each_kind_of_batches_has_its_stages(kind, workers, jpeg_folder):
    said, stages = STAGES[kind]
    with kind(jpeg_folder, workers) as loader:
        batches = [sum(1 for _ in loader) for _ in range(EPOCHS)]
        run = loader.run
    assert run.loaders[0].made_by == said
    assert [entry.batches for entry in run.passes] == batches
    size = None if kind in (samples, iterable) else 16
    assert {entry.image_size for entry in run.passes} == {size}
    assert [entry.epoch for entry in run.passes] == [*range(EPOCHS)]
    assert all(entry.wait.count == entry.batches - 1 for entry in run.passes)
    found = {stage.name for stage in run.stages}
    assert stages <= found
    if kind is dataset and workers:
        assert {"decode", "resize"} <= found  # the pipeline within it is fused
    assert run.timed > 0
    assert run.timed_ms >= sum(stage.total_ms for stage in run.stages) * 0.999
    if kind is not iterable:
        names = {slow.name for slow in run.slowest}
        files = {str(path) for path in jpeg_folder.glob("*/*")}
        assert names <= files or names <= {f"sample {k}" for k in range(12)}
        if kind in (native, rows, samples):  # which files depends on how long they took
            assert names
            assert names <= files


def test_tiny_batches_are_counted_and_some_are_timed(monkeypatch):
    rested = []
    note_batch = Recording.note_batch

    def note_and_count(self, batch, asked_ns, asked_cpu_ns):
        note_batch(self, batch, asked_ns, asked_cpu_ns)
        rested.append(self.unrecorded_batches)

    monkeypatch.setattr(Recording, "note_batch", note_and_count)
    monkeypatch.setattr(recording, "QUICK_NS", 1 << 60)  # on any machine
    data = TensorDataset(torch.zeros(40_000, 2))
    with feedline.DataLoader(data, 4) as loader:
        for _ in range(2):
            assert sum(1 for _ in loader) == 10_000
        batches = iter(loader)
        for _ in range(1000):
            next(batches)
        del batches
        run = loader.run
    assert [entry.batches for entry in run.passes] == [10_000, 10_000, 1000]
    assert [entry.samples for entry in run.passes] == [40_000, 40_000, 4000]
    assert loader.timing.totals().steps == 2 * 9999 + 999
    assert any(rested)
    assert len(rested) < 21_000


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_are_counted_whatever_the_batch_has_of_each(workers):
    def views(rows):
        return {"views": torch.cat([torch.stack(rows)] * 3)}

    images = torch.zeros(10, 3, 8, 8)
    data = TensorDataset(images)
    made = feedline.DataLoader(data, None, sampler=[[0, 1], [2]], num_workers=workers)
    for loader, samples, size in (
        (feedline.DataLoader(images, 4, collate_fn=views, num_workers=workers), 10, 4),
        (feedline.DataLoader(data, batch_sampler=[[1], [2, 3]], num_workers=workers), 3, 2),
        (made, 3, 2),
    ):
        with loader:
            for _ in loader:
                pass
            (entry,) = loader.run.passes
        assert (entry.samples, entry.batch_size) == (samples, size)


def test_recording_can_be_switched_off(monkeypatch, jpeg_folder, tmp_path):
    bare = [labels.tolist() for _, labels in native(jpeg_folder, 0)]
    monkeypatch.setenv(RECORD_SWITCH, "0")
    for kind in (native, dataset, iterable):
        for workers in (0, 1):
            with kind(jpeg_folder, workers) as loader:
                seen = list(loader)
                run = loader.run
            assert (run.passes, run.tasks, run.stages) == ([], 0, [])
            if kind is native:
                assert [labels.tolist() for _, labels in seen] == bare
    told = []
    with feedline.DataLoader(Drawing(), 4) as loader:
        for each in (loader, [1, 2]):
            watched = feedline.watch(each, run=tmp_path / "run", metrics=told.append, name="off")
            assert list(watched)
            assert watched.run.passes == []
    assert (told, list(tmp_path.iterdir())) == ([], [])


def test_work_is_counted_once_after_loader_changes(jpeg_folder):
    with rows(jpeg_folder, 1) as loader:
        for workers in (1, 2, 1):
            loader.num_workers = workers
            for _ in loader:
                pass
        run = loader.run
    assert len(run.loaders) == 2
    assert sum(entry.batches for entry in run.passes) == run.tasks == 36


def test_a_slow_sample_keeps_its_name_when_the_dataset_is_another(jpeg_folder):
    data = folder_of(jpeg_folder)
    with feedline.DataLoader(data, 1, num_workers=0) as loader:
        for _ in loader:
            pass
        names = {slow.name for slow in loader.run.slowest}
        data.samples = data.imgs = data.samples[:2]
        data.targets = data.targets[:2]
        for _ in loader:
            pass
        assert {slow.name for slow in loader.run.slowest} == names
    assert all(name.endswith(".jpg") for name in names)


def test_a_dataset_that_refuses_to_say_its_length_is_recorded():
    class Endless(Counting):
        def __len__(self):
            raise NotImplementedError("unknown length")

    with feedline.DataLoader(Endless(24), 2) as loader:
        assert sum(1 for _ in loader) == 12
        run = loader.run
    assert run.notes == []
    assert (run.loaders[0].samples, run.passes[0].batches) == (None, 12)
