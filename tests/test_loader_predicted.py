"""`explain(measure=True)`: what it predicts of which loader, and that it disturbs nothing."""

from __future__ import annotations

import gc
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from feedline import DataLoader, ImageArray, ImageFolder, build_cache, system
from feedline.order.batch_spec import Field, Item
from feedline.randomness import fingerprint
from processes import descriptors
from slow import slow

PREDICTED = re.compile(r"(?m)^predicted   (.*)$")


def said(loader: DataLoader[Any]) -> str:
    """What is predicted."""
    plain, measured = loader.explain(), loader.explain(measure=True)
    assert measured.startswith(plain)
    assert not PREDICTED.search(plain)
    (found,) = PREDICTED.findall(measured)
    return str(found)


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.loader.prediction.usable_cores", lambda: 2)


@pytest.mark.parametrize(("workers", "by"), [(0, "this process"), (1, "1 worker")])
def test_each_size_of_the_schedule_has_a_rate(
    jpeg_folder: Path, two_cores: None, workers: int, by: str
) -> None:
    with DataLoader(
        ImageFolder(jpeg_folder), 4, schedule="16x1,24x2,16x3", num_workers=workers
    ) as loader:
        pattern = (
            rf"16 px \d+ images/s, 24 px \d+ images/s with {by} on 2 cores \(from 12 images in "
        )
        assert re.match(pattern + r"this process, read from memory\)", said(loader))


def test_workers_count_as_far_as_there_are_cores(
    jpeg_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedline.loader.prediction._cost", lambda pieces, make: (10, 0.1, ""))
    monkeypatch.setattr("feedline.loader.prediction.usable_cores", lambda: 4)
    for workers, rate in ((0, 100), (1, 100), (3, 300), (6, 400)):
        with DataLoader(ImageFolder(jpeg_folder), 4, image_size=8, num_workers=workers) as loader:
            assert said(loader).startswith(f"8 px {rate} images/s with ")


def test_of_many_images_a_hundred_are_made() -> None:
    pixels = np.zeros((1000, 8, 8, 3), np.uint8)
    loader: DataLoader[Any] = DataLoader(ImageArray(pixels, np.arange(1000)), 4, image_size=8)
    assert "from 100 images" in said(loader)


class Numbered:
    """A source of one's own that counts how often it is opened and asked."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.asked: list[Item] = []

    def __len__(self) -> int:
        return 1000

    def open(self, worker: int, workers: int) -> None:
        self.opened.append(f"open {worker} of {workers}")

    def close(self) -> None:
        self.opened.append("close")

    def fields(self, image_size: int | None) -> tuple[Field, ...]:
        return Field("image", "uint8", (8, 8, 3)), Field("label", "int64", ())

    def load(self, item: Item, row: tuple[Any, ...]) -> None:
        self.asked.append(item)
        if item.sample % 3 == 0:
            raise ValueError("it is a multiple of three")
        row[1][()] = item.sample

    def name(self, sample: int) -> str:
        return str(sample)

    def fingerprint(self) -> str:
        return "numbered"


def test_samples_are_spread_and_what_was_opened_is_closed() -> None:
    source = Numbered()
    loader: DataLoader[Any] = DataLoader(source, 4, image_size=8)  # type: ignore[arg-type]
    found = said(loader)
    assert source.opened == ["open 0 of 1", "close"]
    samples = {item.sample for item in source.asked}
    assert (len(samples), min(samples), max(samples)) == (100, 0, 999)
    broken = sum(sample % 3 == 0 for sample in samples)
    assert f"from {100 - broken} images" in found
    assert found.endswith("; some failed: ValueError: it is a multiple of three)")


def test_where_no_row_can_be_made_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "torn.jpg").write_bytes(b"\xff\xd8\xff torn")
    loader: DataLoader[Any] = DataLoader(ImageFolder(tmp_path), 4, image_size=8)
    found = said(loader)
    assert "ImageError: " in found
    assert "torn.jpg" in found


def test_what_feedline_does_not_make_is_not_predicted() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(range(4))

    for dataset in ([1, 2, 3], Stream(), TensorDataset(torch.zeros(4))):
        loader: DataLoader[Any] = DataLoader(dataset, 2)  # type: ignore[arg-type]
        assert said(loader).startswith(
            "nothing, because feedline does not make these samples itself; "
        )
        assert "`feedline bench` measures" in said(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iteration_under_way_goes_on_as_if_nothing_had_been(
    jpeg_folder: Path, workers: int
) -> None:
    options: dict[str, Any] = {"schedule": "16x1,24x1", "num_workers": workers}
    with DataLoader(ImageFolder(jpeg_folder), 3, **options) as loader:
        expected = [batch[0].clone() for _ in range(2) for batch in loader]
    found = []
    with DataLoader(ImageFolder(jpeg_folder), 3, **options) as loader:
        for _ in range(2):
            for images, _ in loader:
                found.append(images.clone())
                state, pids = loader.state_dict(), loader.worker_pids
                said(loader)
                assert (loader.state_dict(), loader.worker_pids) == (state, pids)
                assert torch.equal(images, found[-1])
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("format", ["webdataset", *slow("lmdb", "folder")])
def test_of_a_cache_it_says_whether_memory_holds_what_is_read(
    jpeg_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Any
) -> None:
    if format == "lmdb":
        pytest.importorskip("lmdb")
    root = tmp_path / "cache"
    manifest = build_cache(jpeg_folder, root, (16, 24, 32), format=format, workers=0)
    small, large = manifest.levels[0].bytes, manifest.levels[-1].bytes
    assert small < large
    memory = (small + large) // 2
    monkeypatch.setattr("feedline.loader.prediction.cacheable_memory_bytes", lambda: memory)
    line = (
        "page cache  16 px JPEG q95 0.00 GB fits: it is read once, 32 px JPEG q95 0.00 GB "
        "does not fit (0.00 GB of memory available)"
    )
    for data, cache in ((ImageFolder(root), None), (ImageFolder(jpeg_folder), root)):
        options: dict[str, Any] = {"schedule": "16x1,28x1", "num_workers": 0, "cache": cache}
        with DataLoader(data, 4, **options) as loader:
            batches = iter(loader)
            next(batches)
            gc.collect()
            held = descriptors()
            assert loader.explain(measure=True).endswith("\n" + line)
            gc.collect()
            assert not descriptors() - held
            assert len(list(batches)) == 2
    with DataLoader(ImageFolder(jpeg_folder), 4, image_size=8) as loader:
        assert "page cache" not in loader.explain(measure=True)


# Pipelines of torchvision's


class Counted:
    """A step that remembers how often it was called, and draws from all the random states."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return image + torch.rand(()) + random.random() + np.random.randn()


def pipeline(folder: Path, *steps: Callable[..., Any]) -> Any:
    transforms = pytest.importorskip("torchvision.transforms")
    datasets = pytest.importorskip("torchvision.datasets")
    crop = [transforms.RandomResizedCrop(16), transforms.ToTensor(), *steps]
    return datasets.ImageFolder(str(folder), transforms.Compose(crop))


def test_a_recognised_pipeline_is_predicted_at_its_own_size_and_at_others(
    jpeg_folder: Path, two_cores: None
) -> None:
    with DataLoader(pipeline(jpeg_folder), 4, num_workers=2) as loader:
        assert re.match(r"16 px \d+ images/s with 2 workers on 2 cores \(from 12 ", said(loader))
    with DataLoader(pipeline(jpeg_folder), 4, schedule="8x1,24x1", num_workers=1) as loader:
        assert re.match(r"8 px \d+ images/s, 24 px \d+ images/s with 1 worker ", said(loader))
    with DataLoader(pipeline(jpeg_folder), 4, collate_fn=list, num_workers=1) as loader:
        assert "sample engine" in loader.explain()
        assert re.match(
            r"16 px \d+ images/s with 1 worker on .*, before collate_fn\)$", said(loader)
        )


def test_random_states_and_the_steps_of_a_user_are_as_they_were(jpeg_folder: Path) -> None:
    step = Counted()
    loader = DataLoader(pipeline(jpeg_folder, step), 4)
    calls = step.calls  # by what recognises the pipeline
    np.random.seed(3)
    np.random.randn()  # the other one of two is in store
    states = fingerprint(), np.random.get_state()[3:], torch.get_num_threads()
    assert "images/s" in said(loader)
    assert (fingerprint(), np.random.get_state()[3:], torch.get_num_threads()) == states
    assert step.calls == calls


class Uncopied(Counted):
    def __deepcopy__(self, _: Any) -> Any:
        raise TypeError("it holds a lock")


def test_steps_that_cannot_be_copied_are_not_run(jpeg_folder: Path) -> None:
    step = Uncopied()
    loader = DataLoader(pipeline(jpeg_folder, step), 4)
    calls = step.calls
    assert said(loader) == (
        "nothing, because the source cannot be copied: TypeError: it holds a lock"
    )
    assert step.calls == calls


def test_four_fifths_of_the_memory_may_hold_files(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = system.MemoryLimits(machine=2000, limit=None, available=1000)
    monkeypatch.setattr(system, "memory_limits", lambda: limits)
    assert system.cacheable_memory_bytes() == 800
