"""feedline's sources, whole and in part, with torchvision's transforms and in both loaders."""

import gc
import shutil
import sys
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.utils.data
from PIL import Image
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder as Torchvisions

import feedline
from feedline import DataLoader, EvalCrop, ImageFolder, TrainCrop
from feedline.errors import DatasetError, ImageError, StateError, UsageError
from own_sources import (
    PIPELINES,
    SOURCES,
    a_folder,
    array,
    assert_same,
    colours,
    csv,
    epochs,
    flat,
    lmdb,
    paths,
    shards,
    zipped,
)
from slow import slow

CHOSEN = [7, 2, 2, -1, 0, 11, 5]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("pipeline", ["colours", "views"])
def test_batches_equal_those_of_torchvision_folder_whole_and_in_part(
    source, pipeline, jpeg_folder, tmp_path
):
    transform = PIPELINES[pipeline]()
    ours = source(jpeg_folder, tmp_path, transform)
    assert ours.transform is transform
    theirs = Torchvisions(jpeg_folder, transform)
    assert_same(epochs(ours), epochs(theirs))
    assert_same(epochs(Subset(ours, CHOSEN)), epochs(Subset(theirs, CHOSEN)))
    with DataLoader(Subset(ours, CHOSEN), 5) as loader:
        assert "\nfused " in loader.explain()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not list memory maps")
@pytest.mark.parametrize("transform", [EvalCrop(), v1.Compose([v1.Resize((8, 8)), v1.ToTensor()])])
@pytest.mark.parametrize("source", [zipped, shards, lmdb, "webdataset", "lmdb"])
def test_files_are_closed_at_the_end_of_each_epoch_without_workers(
    source, transform, jpeg_folder, tmp_path
):
    if isinstance(source, str):
        feedline.build_cache(jpeg_folder, tmp_path / "cache", [32], format=source, workers=0)
        data = ImageFolder(tmp_path / "cache", transform)
    else:
        data = source(jpeg_folder, tmp_path, transform)
    gc.collect()
    own = psutil.Process()

    def open_files():
        # A memory map counts, too: it keeps the file on the disk after it is deleted.
        paths = {each.path for each in (*own.open_files(), *own.memory_maps())}
        return [path for path in paths if str(tmp_path) in path and "index" not in path]

    options = {"image_size": 8} if isinstance(transform, EvalCrop) else {}
    loader = DataLoader(data, 4, **options)
    assert not open_files()
    for _ in range(2):
        batches = iter(loader)
        next(batches)
        assert open_files()
        assert len(list(batches)) == 2
        assert not open_files()
    for _ in loader:
        break
    assert not open_files()


@pytest.mark.parametrize(
    "pipeline", ["policy", "views", *slow("colours", "evaluation", "compiled", "wrapper")]
)
def test_batches_of_each_pipeline_come_from_workers_too(pipeline, jpeg_folder, tmp_path):
    transform = PIPELINES[pipeline]()
    ours, theirs = csv(jpeg_folder, tmp_path, transform), Torchvisions(jpeg_folder, transform)
    with DataLoader(ours, 5, num_workers=2) as loader, DataLoader(theirs, 5) as other:
        said, expected = loader.explain().splitlines(), other.explain().splitlines()
    # Pipelines within a wrapper are fused only for torchvision's folders.
    fused = () if pipeline == "wrapper" else ("fused", "unchanged")
    about = ("because", "engine", *fused)
    assert [s for s in said if s.startswith(about)] == [s for s in expected if s.startswith(about)]
    assert_same(epochs(ours, num_workers=2), epochs(theirs, num_workers=2))
    assert_same(
        epochs(ours, num_workers=1, start_method="forkserver"), epochs(theirs, num_workers=0)
    )


@pytest.mark.parametrize("pipeline", ["colours", "policy", "views"])
def test_image_sizes_are_used(pipeline, jpeg_folder, tmp_path):
    transform = PIPELINES[pipeline]()
    ours, theirs = zipped(jpeg_folder, tmp_path, transform), Torchvisions(jpeg_folder, transform)
    made = [epochs(data, schedule="16x1,32x1", seed=2) for data in (ours, theirs)]
    assert_same(*made)
    with DataLoader(ours, 4, max_image_size=32, image_size=24) as loader:
        loader.set_image_size(16)
        images = next(iter(loader))[0]
        assert next(flat([images])).shape == (4, 3, 16, 16)


@pytest.mark.parametrize("pipeline", ["colours", "views"])
def test_undecodable_image_is_named_or_skipped(pipeline, jpeg_folder, tmp_path):
    shutil.copytree(jpeg_folder, tmp_path / "images")
    (tmp_path / "images/cats/2.jpg").write_bytes(b"no image")
    data = paths(tmp_path / "images", tmp_path, PIPELINES[pipeline]())
    with (
        DataLoader(data, 12) as loader,
        pytest.raises(ImageError, match=r"cats/2\.jpg"),
    ):
        list(loader)
    with DataLoader(data, 12, on_error="skip") as loader:
        ((_, labels),) = loader
        assert labels.tolist() == [0] * 5 + [1] * 6


def test_arrays_accept_pipelines(jpeg_folder, tmp_path):
    data = array(jpeg_folder, tmp_path, None).with_transform(PIPELINES["evaluation"]())
    for (image, _), pixels in zip(data, data.images, strict=True):
        assert torch.equal(image, data.transform(Image.fromarray(pixels)))
    images = torch.cat([images for images, _ in epochs(data, shuffle=False)])
    apart = [
        abs(ours.float() - theirs.float()).mean()
        for ours, (theirs, _) in zip(images, [*data, *data], strict=True)
    ]
    assert max(apart) < 0.01


def test_decoding_follows_settings_of_the_source(tmp_path):
    (tmp_path / "a").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)
    large = Image.fromarray(pixels).resize((400, 300), Image.Resampling.BICUBIC)
    large.save(tmp_path / "a/1.jpg", exif=exif)
    whole = v1.Compose([v1.Resize(24), v1.CenterCrop(24), v1.PILToTensor()])
    for transform in (whole, feedline.views(whole, whole)):
        made = {}
        for decode in ("exact", "scaled"):
            for turned in (False, True):
                data = ImageFolder(tmp_path, transform, decode=decode, exif=turned)
                ((images, _),) = epochs(data)[:1]
                made[decode, turned] = next(flat([images]))[0].float()
        assert abs(made["exact", True] - made["exact", False].rot90(-1, (1, 2))).mean() < 1
        assert 0 < abs(made["exact", False] - made["scaled", False]).mean() < 4
    with pytest.raises(ImageError, match="400 x 300"):
        epochs(ImageFolder(tmp_path, whole, max_pixels=1000))


def steps_before():
    return v1.Compose([v1.ColorJitter(0.4), v1.RandomCrop(24), v1.ToTensor()])


@pytest.mark.parametrize("source", [a_folder, zipped, shards, lmdb])
def test_unknown_transform_runs_unchanged(source, jpeg_folder, tmp_path):
    data = source(jpeg_folder, tmp_path, steps_before())
    with DataLoader(data, 4, num_workers=1) as loader:
        assert "ColorJitter" in loader.explain().partition("because")[2]
    theirs = epochs(Torchvisions(jpeg_folder, steps_before()), num_workers=1)
    assert_same(epochs(data, num_workers=1), theirs)
    with (
        DataLoader(data, 4, image_size=16) as loader,
        pytest.raises(UsageError, match="asked for the size"),
    ):
        list(loader)


@pytest.mark.parametrize("pipeline", ["colours", "views"])
@pytest.mark.parametrize("source", [csv, zipped, lmdb])
def test_samples_also_work_in_torch_dataloader(source, pipeline, jpeg_folder, tmp_path):
    transform = PIPELINES[pipeline]()
    made = []
    for data in (source(jpeg_folder, tmp_path, transform), Torchvisions(jpeg_folder, transform)):
        torch.manual_seed(5)
        made.append(list(torch.utils.data.DataLoader(data, 4, shuffle=True, num_workers=1)))
    assert_same(*made)


def test_samples_are_counted_as_in_a_list(jpeg_folder):
    data = ImageFolder(jpeg_folder, PIPELINES["evaluation"]())
    image, label = data[-1]
    assert label == 1
    assert torch.equal(image, data[11][0])
    with pytest.raises(IndexError):
        data[12]
    with pytest.raises(TypeError, match="rows are made for"):
        data.with_transform(TrainCrop())[0]


def test_an_error_of_the_transform_names_the_image(jpeg_folder):
    def broken(image):
        raise ArithmeticError("no")

    with pytest.raises(ArithmeticError) as caught:
        ImageFolder(jpeg_folder, broken)[3]
    assert "3.jpg" in caught.value.__notes__[0]


def test_source_with_own_items_runs_unchanged(jpeg_folder):
    class Doubled(ImageFolder):
        def __getitem__(self, sample):
            image, label = super().__getitem__(sample)
            return image, 2 * label

    with DataLoader(Doubled(jpeg_folder, colours()), 12) as loader:
        assert "overrides __getitem__" in loader.explain()
        ((_, labels),) = loader
        assert labels.tolist() == [0] * 6 + [2] * 6


def test_a_loader_keeps_the_kind_of_its_transform(jpeg_folder):
    data = ImageFolder(jpeg_folder, colours())
    with DataLoader(data, 4) as loader:
        list(loader)
        data.transform = colours(16)
        assert next(iter(loader))[0].shape == (4, 3, 16, 16)
        data.transform = EvalCrop()
        with pytest.raises(UsageError, match="Build a new loader"):
            iter(loader)
    with DataLoader(data, 4, image_size=16) as loader:
        data.transform = colours()
        with pytest.raises(UsageError, match="Build a new loader"):
            iter(loader)


def test_normalisation_of_the_loader_is_for_crops(jpeg_folder):
    with pytest.raises(UsageError, match="TrainCrop or EvalCrop"):
        DataLoader(ImageFolder(jpeg_folder, colours()), 4, device="cpu", mean=(0.5, 0.5, 0.5))


# Parts of sources


class Reversing(Subset[Any]):
    """A user-defined subset with unknown behaviour."""

    def __getitems__(self, indices):
        return super().__getitems__([len(self) - 1 - index for index in indices])


@pytest.mark.parametrize("source", [a_folder, csv, zipped, array])
def test_rows_of_a_crop_are_the_sources(source, jpeg_folder, tmp_path):
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


def test_a_state_is_of_the_samples_that_are_chosen(jpeg_folder):
    source = ImageFolder(jpeg_folder, TrainCrop())
    options = {"image_size": 16, "seed": 0, "shuffle": True}
    with DataLoader(Subset(source, CHOSEN), 2, **options) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with (
        DataLoader(Subset(source, CHOSEN[::-1]), 2, **options) as other,
        pytest.raises(StateError, match="dataset"),
    ):
        other.load_state_dict(state)


@pytest.mark.parametrize("kind", ["files", "list", "cache"])
def test_copies_of_a_cache_are_read(kind, jpeg_folder, tmp_path):
    root = tmp_path / "cache"
    feedline.build_cache(jpeg_folder, root, sizes=[32], workers=0)
    transform = PIPELINES["evaluation"]()
    data = ImageFolder(root if kind == "cache" else jpeg_folder, transform)
    if kind == "list":
        data = csv(jpeg_folder, tmp_path, transform)
    cache = {} if kind == "cache" else {"cache": root}
    theirs = Torchvisions(jpeg_folder, transform)
    for ours, expected in (data, theirs), (Subset(data, CHOSEN), Subset(theirs, CHOSEN)):
        wanted = {"schedule": "16x1,24x1", "shuffle": False, "num_workers": 0}
        assert_same(epochs(ours, **cache, **wanted), epochs(expected, cache=root, **wanted))
        with DataLoader(ours, 4, **cache) as loader:
            assert "copies" in loader.explain()


def test_a_cache_is_filled_with_all_images(jpeg_folder, tmp_path):
    part = Subset(ImageFolder(jpeg_folder, TrainCrop()), CHOSEN)
    with DataLoader(part, 4, schedule="24x3", cache=tmp_path / "filled", num_workers=0) as loader:
        filled = loader._runtime.stream.choice().cache_contents
        assert filled is not None
        assert len(filled.files) == 12
        assert filled.classes == ["cats", "dogs"]


@pytest.mark.parametrize("workers", [0, 2])
def test_attributes_set_on_source_are_used(workers, jpeg_folder):
    options = {"seed": 0, "shuffle": False, "num_workers": workers}
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


def set_transform(worker):
    dataset = torch.utils.data.get_worker_info().dataset
    assert type(dataset) is Subset
    assert dataset.dataset.classes == ["cats", "dogs"]
    dataset.dataset.transform = EvalCrop(fraction=0.5)


def test_a_worker_init_fn_sees_the_subset(jpeg_folder):
    options = {"seed": 0, "shuffle": False, "num_workers": 1, "image_size": 16}
    source = ImageFolder(jpeg_folder, EvalCrop(fraction=1.0))
    made = epochs(Subset(source, CHOSEN), worker_init_fn=set_transform, **options)
    other = source.with_transform(EvalCrop(fraction=0.5))
    assert_same(made, epochs(Subset(other, CHOSEN), **options))


class Named(ImageFolder):
    def name(self, sample):
        return f"mine {super().name(sample)}"


def test_source_with_own_methods_is_not_unwrapped(jpeg_folder):
    with pytest.raises(UsageError, match=r"Named overrides name.*a sampler"):
        DataLoader(Subset(Named(jpeg_folder, TrainCrop()), CHOSEN), 2, image_size=16)
    with DataLoader(Subset(Named(jpeg_folder, colours()), CHOSEN), 2) as loader:
        assert "Named overrides name" in loader.explain()
        assert len(list(loader)) == 4


def test_images_at_urls_may_be_chosen_and_cached(jpeg_folder, tmp_path):
    root = tmp_path / "cache"
    feedline.build_cache(jpeg_folder, root, sizes=[32], workers=0)
    far = ImageFolder(f"file://{jpeg_folder}", EvalCrop(), local_dir=tmp_path / "kept")
    near = ImageFolder(jpeg_folder, EvalCrop())
    for options in ({}, {"cache": root}):
        wanted = {"shuffle": False, "image_size": 16, **options}
        assert_same(epochs(Subset(far, CHOSEN), **wanted), epochs(Subset(near, CHOSEN), **wanted))
    with pytest.raises(UsageError, match=r"is not a cache, .*URLs"):
        DataLoader(Subset(far, CHOSEN), 2, image_size=16, cache=tmp_path / "none")


def test_indices_that_choose_nothing_known_are_rejected(jpeg_folder):
    source = ImageFolder(jpeg_folder, TrainCrop())
    for indices, kind, said in (
        ([0.5, 1.0], UsageError, "not a list of whole numbers"),
        ([0, 12], UsageError, "exceed its 12 samples"),
        ([], DatasetError, "This Subset of ImageFolder.* has no samples"),
    ):
        with pytest.raises(kind, match=said):
            DataLoader(Subset(source, indices), 2, image_size=16)


def test_subset_with_own_selection_runs_unchanged(jpeg_folder):
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


def test_joined_sources_with_crops_raise_when_the_loader_is_built(jpeg_folder):
    crops = ImageFolder(jpeg_folder, TrainCrop())
    pipelines = ImageFolder(jpeg_folder, PIPELINES["evaluation"]())
    for parts in ([crops, crops], [pipelines, Subset(crops, [1, 2])]):
        for data in (ConcatDataset(parts), Subset(ConcatDataset(parts), [0, 13])):
            with pytest.raises(UsageError, match="ConcatDataset that contains ImageFolder"):
                DataLoader(data, 2, image_size=16)
    with DataLoader(ConcatDataset([pipelines, pipelines]), 12) as loader:
        assert len(list(loader)) == 2
