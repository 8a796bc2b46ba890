"""torch's Subset of feedline sources: selected samples equal those of the source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, random_split
from torchvision.datasets import ImageFolder as Torchvisions

import feedline
from feedline import DataLoader, EvalCrop, ImageFolder, TrainCrop
from feedline.errors import DatasetError, StateError, UsageError
from own_sources import (
    PIPELINES,
    SOURCES,
    a_folder,
    array,
    assert_same,
    colours,
    csv,
    epochs,
    files,
    zipped,
)

CHOSEN = [7, 2, 2, -1, 0, 11, 5]


class Reversing(Subset[Any]):
    """A user-defined subset with unknown behaviour."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return super().__getitems__([len(self) - 1 - index for index in indices])


@pytest.mark.parametrize("pipeline", ["colours", "views"])
@pytest.mark.parametrize("source", SOURCES)
def test_batches_equal_those_of_torchvision_subset(
    source: Any, pipeline: str, jpeg_folder: Path, tmp_path: Path
) -> None:
    transform = PIPELINES[pipeline]()
    ours = Subset(source(jpeg_folder, tmp_path, transform), CHOSEN)
    theirs = Subset(Torchvisions(jpeg_folder, transform), CHOSEN)
    assert_same(epochs(ours), epochs(theirs))
    with DataLoader(ours, 5) as loader:
        assert "\nfused " in loader.explain()


def test_subset_batches_come_from_workers(jpeg_folder: Path, tmp_path: Path) -> None:
    transform = colours()
    ours = Subset(zipped(jpeg_folder, tmp_path, transform), CHOSEN)
    theirs = epochs(Subset(Torchvisions(jpeg_folder, transform), CHOSEN))
    assert_same(epochs(ours, num_workers=2), theirs)


@pytest.mark.parametrize("source", [a_folder, csv, zipped, array])
def test_rows_of_a_crop_are_the_sources(source: Any, jpeg_folder: Path, tmp_path: Path) -> None:
    whole = source(jpeg_folder, tmp_path, None).with_transform(EvalCrop())
    wanted = epochs(whole, shuffle=False, image_size=24)
    images = torch.cat([images for images, _ in wanted])[: len(whole)]
    labels = torch.cat([labels for _, labels in wanted])[: len(whole)]
    numbers = [k % len(whole) for k in CHOSEN]
    for workers in (0, 2):
        part = Subset(Subset(whole, range(len(whole))), CHOSEN)
        made = epochs(part, shuffle=False, image_size=24, num_workers=workers)
        assert torch.equal(torch.cat([each for each, _ in made])[: len(part)], images[numbers])
        assert torch.equal(torch.cat([each for _, each in made])[: len(part)], labels[numbers])


def test_a_random_split_is_a_schedules_two_halves(jpeg_folder: Path) -> None:
    source = ImageFolder(jpeg_folder, TrainCrop())
    halves = random_split(source, [0.5, 0.5], torch.Generator().manual_seed(0))
    seen: list[str] = []
    for half in halves:
        with DataLoader(half, 2, schedule="16x1,24x1", seed=1, num_workers=0) as loader:
            sizes = [images.shape[-1] for _ in range(2) for images, _ in loader]
            assert sizes == [16] * 3 + [24] * 3
            assert loader.batch is not None
            assert loader.explain().splitlines()[0].startswith("samples     6 from ImageFolder(")
            decision = loader._runtime.stream.choice()
            assert decision.makes_rows
            seen += [decision.source.name(sample) for sample in range(6)]
    assert sorted(seen) == [str(path) for path in files(jpeg_folder)]


def test_a_state_is_of_the_samples_that_are_chosen(jpeg_folder: Path) -> None:
    source = ImageFolder(jpeg_folder, TrainCrop())
    options: dict[str, Any] = {"image_size": 16, "seed": 0, "shuffle": True}
    with DataLoader(Subset(source, CHOSEN), 2, **options) as loader:
        batches = iter(loader)
        next(batches)
        state, rest = loader.state_dict(), list(batches)
    with DataLoader(Subset(ImageFolder(jpeg_folder, TrainCrop()), CHOSEN), 2, **options) as again:
        again.load_state_dict(state)
        assert_same(list(again), rest)
    with (
        DataLoader(Subset(source, CHOSEN[::-1]), 2, **options) as other,
        pytest.raises(StateError, match="dataset"),
    ):
        other.load_state_dict(state)


@pytest.mark.parametrize("kind", ["files", "cache"])
def test_copies_of_a_cache_are_read(kind: str, jpeg_folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    feedline.build_cache(jpeg_folder, root, sizes=[32], workers=0)
    wanted: dict[str, Any] = {"schedule": "16x1,24x1", "shuffle": False, "num_workers": 0}
    transform = PIPELINES["evaluation"]()
    theirs = epochs(Subset(Torchvisions(jpeg_folder, transform), CHOSEN), cache=root, **wanted)
    if kind == "files":
        part, cache = Subset(ImageFolder(jpeg_folder, transform), CHOSEN), {"cache": root}
    else:
        part, cache = Subset(ImageFolder(root, transform), CHOSEN), {}
    assert_same(epochs(part, **cache, **wanted), theirs)
    with DataLoader(part, 4, **cache) as loader:
        assert "copies" in loader.explain()


def test_a_cache_is_filled_with_all_images(jpeg_folder: Path, tmp_path: Path) -> None:
    part = Subset(ImageFolder(jpeg_folder, TrainCrop()), CHOSEN)
    with DataLoader(part, 4, schedule="24x3", cache=tmp_path / "filled", num_workers=0) as loader:
        filled = loader._runtime.stream.choice().cache_contents
        assert filled is not None
        assert len(filled.files) == 12
        assert filled.classes == ["cats", "dogs"]


@pytest.mark.parametrize("workers", [0, 2])
def test_attributes_set_on_source_are_used(workers: int, jpeg_folder: Path) -> None:
    options: dict[str, Any] = {"seed": 0, "shuffle": False, "num_workers": workers}
    source = ImageFolder(jpeg_folder, EvalCrop(fraction=1.0))
    other = EvalCrop(fraction=0.5)
    wanted = epochs(Subset(source.with_transform(other), CHOSEN), image_size=16, **options)
    with DataLoader(Subset(source, CHOSEN), 5, image_size=16, **options) as loader:
        before = list(loader)
        source.transform = other
        after = list(loader)
        assert_same(after, wanted[: len(after)])
        assert not torch.equal(before[0][0], after[0][0])
        source.transform = PIPELINES["evaluation"]()
        with pytest.raises(UsageError, match="now a transform of another library"):
            iter(loader)


class Given:
    """A `worker_init_fn` that records its input, and sets another transform."""

    def __call__(self, worker: int) -> None:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        dataset: Any = info.dataset
        assert type(dataset) is Subset
        assert dataset.dataset.classes == ["cats", "dogs"]
        dataset.dataset.transform = EvalCrop(fraction=0.5)


def test_a_worker_init_fn_sees_the_subset(jpeg_folder: Path) -> None:
    options: dict[str, Any] = {"seed": 0, "shuffle": False, "num_workers": 1, "image_size": 16}
    source = ImageFolder(jpeg_folder, EvalCrop(fraction=1.0))
    made = epochs(Subset(source, CHOSEN), worker_init_fn=Given(), **options)
    other = source.with_transform(EvalCrop(fraction=0.5))
    assert_same(made, epochs(Subset(other, CHOSEN), **options))


class Named(ImageFolder):
    """A user-defined source with unknown behaviour."""

    def name(self, sample: int) -> str:
        return f"mine {super().name(sample)}"


def test_source_with_own_methods_is_not_unwrapped(jpeg_folder: Path) -> None:
    with pytest.raises(UsageError, match=r"Named overrides name.*a sampler"):
        DataLoader(Subset(Named(jpeg_folder, TrainCrop()), CHOSEN), 2, image_size=16)
    with DataLoader(Subset(Named(jpeg_folder, colours()), CHOSEN), 2) as loader:
        assert "Named overrides name" in loader.explain()
        assert len(list(loader)) == 4


class Wrapping:
    """A user-defined source that is not derived from feedline's."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __getattr__(self, name: str) -> Any:
        if name == "source":
            raise AttributeError(name)
        return getattr(self.source, name)

    def __len__(self) -> int:
        return len(self.source)


def test_source_of_unknown_class_is_not_unwrapped(jpeg_folder: Path) -> None:
    part: Any = Subset(Wrapping(ImageFolder(jpeg_folder, TrainCrop())), CHOSEN)  # type: ignore[arg-type]
    with DataLoader(part, 2, image_size=16) as loader, pytest.raises(TypeError, match="Wrapping"):
        next(iter(loader))


def test_images_at_urls_may_be_chosen_and_cached(jpeg_folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    feedline.build_cache(jpeg_folder, root, sizes=[32], workers=0)
    far = ImageFolder(f"file://{jpeg_folder}", EvalCrop(), local_dir=tmp_path / "kept")
    near = ImageFolder(jpeg_folder, EvalCrop())
    for options in ({}, {"cache": root}):
        wanted: dict[str, Any] = {"shuffle": False, "image_size": 16, **options}
        assert_same(epochs(Subset(far, CHOSEN), **wanted), epochs(Subset(near, CHOSEN), **wanted))
    with pytest.raises(UsageError, match=r"is not a cache, .*URLs"):
        DataLoader(Subset(far, CHOSEN), 2, image_size=16, cache=tmp_path / "none")


def test_indices_that_choose_nothing_known_are_rejected(jpeg_folder: Path) -> None:
    source = ImageFolder(jpeg_folder, TrainCrop())
    for indices, kind, said in (
        ([0.5, 1.0], UsageError, "not a list of whole numbers"),
        ([0, 12], UsageError, "exceed its 12 samples"),
        ([], DatasetError, "This Subset of ImageFolder.* has no samples"),
    ):
        with pytest.raises(kind, match=said):
            DataLoader(Subset(source, indices), 2, image_size=16)  # type: ignore[arg-type]


def test_subset_with_own_selection_runs_unchanged(jpeg_folder: Path) -> None:
    source = ImageFolder(jpeg_folder, PIPELINES["evaluation"]())
    numbers = list(range(12))
    with DataLoader(Reversing(source, numbers), 12) as loader:
        (batch,) = loader
        assert "\nfused " not in loader.explain()
    with DataLoader(source, 12) as loader:
        (wanted,) = loader
    assert torch.equal(batch[1], wanted[1].flip(0))
    assert (batch[0].float() - wanted[0].flip(0).float()).abs().mean() < 1  # Pillow's pixels
    crops = ImageFolder(jpeg_folder, TrainCrop())
    with (
        DataLoader(Reversing(crops, numbers), 12, image_size=16) as loader,
        pytest.raises(TypeError, match=r"has no single samples.*a torch Subset"),
    ):
        list(loader)


def test_joined_sources_with_crops_raise_when_the_loader_is_built(jpeg_folder: Path) -> None:
    crops = ImageFolder(jpeg_folder, TrainCrop())
    pipelines = ImageFolder(jpeg_folder, PIPELINES["evaluation"]())
    for parts in ([crops, crops], [pipelines, Subset(crops, [1, 2])]):
        for data in (ConcatDataset(parts), Subset(ConcatDataset(parts), [0, 13])):
            with pytest.raises(UsageError, match="ConcatDataset that contains ImageFolder"):
                DataLoader(data, 2, image_size=16)
    with DataLoader(ConcatDataset([pipelines, pipelines]), 12) as loader:
        assert len(list(loader)) == 2
