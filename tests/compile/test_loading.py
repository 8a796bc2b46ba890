"""Compiled transforms, views and pairs in datasets, under torch's loader and feedline's."""

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import feedline
from feedline.errors import ImageError, UsageError
from feedline.order.requested_size import SampleRequest
from image_inputs import Pictures, own_step, random_pipeline, usual_pipeline
from pair_inputs import Scenes, preset, usual
from sets import plain
from slow import slow

GLOBAL, LOCAL = random_pipeline(32), random_pipeline(12)


@pytest.fixture(scope="module")
def paths(root):
    return [path for path, _ in ImageFolder(str(root)).samples]


def batches(loader, seed=3):
    torch.manual_seed(seed)
    return list(loader)


def equal(one, other):
    return bool(plain(one) == plain(other))


@pytest.mark.parametrize("again", ["fork", *slow("spawn")])
@pytest.mark.parametrize("views", [False, True])
def test_torch_workers_draw_independently_per_sample(paths, views, again):
    pipeline = random_pipeline(32, own_step)
    transform = feedline.views(pipeline, LOCAL) if views else feedline.compile(pipeline)
    data = Pictures([paths[0]] * 8, transform)

    def loader(method="fork"):
        return TorchDataLoader(data, 2, num_workers=2, multiprocessing_context=method)

    first = batches(loader())
    assert all(map(equal, first, batches(loader(again))))
    assert not any(map(equal, first, batches(loader(), 4)))
    images = torch.cat([batch[0] if views else batch for batch in first])
    assert images.shape == (8, 3, 32, 32)
    assert len({image.numpy().tobytes() for image in images}) == 8, "all draws differ"
    if views:
        assert [batch[1].shape for batch in first] == 4 * [(2, 3, 12, 12)]


def test_requested_image_size_is_used(root, paths):
    data = Pictures(paths, feedline.compile(random_pipeline(32)))
    views = feedline.views(GLOBAL, LOCAL)
    with feedline.DataLoader(data, 2, schedule="16x1,24x1", num_workers=1) as loader:
        assert [{batch.shape[2:] for batch in loader} for _ in range(2)] == [{(16, 16)}, {(24, 24)}]
    for data in Pictures(paths, views), ImageFolder(str(root), views):
        with feedline.DataLoader(data, 2, schedule="16x1,64x1", num_workers=1) as loader:
            for sides in ((16, 6), (64, 24)):
                for batch in loader:
                    made = batch[0] if isinstance(data, ImageFolder) else batch
                    assert tuple(view.shape[-1] for view in made) == sides
    with feedline.DataLoader(Pictures(paths, feedline.compile(GLOBAL)), 2, num_workers=0) as loader:
        assert next(iter(loader)).shape[2:] == (32, 32)


@pytest.mark.parametrize("with_masks", [False, True])
def test_a_strength_is_followed_by_random_crops_and_an_error_elsewhere(paths, pairs, with_masks):
    crop = v2.Compose([v2.RandomResizedCrop(16, ratio=(1, 1)), v2.ToImage()])
    data = Pictures([paths[0]] * 4, feedline.compile(crop))
    if with_masks:
        data = Scenes([pairs[3]] * 4, feedline.pair(crop))  # a square
    for strength, differ in ((0.0, 1), (1.0, 4)):
        schedule = [feedline.Phase(epochs=1, image_size=16, strength=strength)]
        with feedline.DataLoader(data, 4, schedule=schedule, num_workers=0) as loader:
            (batch,) = loader
        # Without augmentation it is the largest square in the middle.
        assert len({row.numpy().tobytes() for row in (batch[0] if with_masks else batch)}) == differ
    fixed = Pictures(paths, feedline.compile(usual_pipeline()))
    schedule = [feedline.Phase(epochs=1, image_size=32, strength=0.5)]
    with (
        feedline.DataLoader(fixed, 4, schedule=schedule, num_workers=0) as loader,
        pytest.raises(UsageError, match="nothing in Pictures asked for it"),
    ):
        list(loader)


@pytest.mark.parametrize(
    "behind",
    [
        v2.Resize(16),
        v2.Pad(2),
        v2.RandomCrop(32, padding=4),
        v2.RandomApply([v2.RandomResizedCrop(8)]),
    ],
    ids=lambda step: type(step).__name__,
)
def test_later_step_with_fixed_size_rejects_other_sizes(root, paths, behind):
    pipeline = v2.Compose([v2.Resize((32, 32)), v2.Lambda(own_step), behind, v2.ToImage()])
    fused = feedline.compile(pipeline)
    assert "cannot follow the size of a schedule" in fused.explain()
    said = rf"(?s)48 px, but {type(behind).__name__}\(.* sets its own size"
    for data in (Pictures(paths, fused), ImageFolder(str(root), pipeline)):
        with feedline.DataLoader(data, 1, seed=1, num_workers=0) as loader:
            assert next(iter(loader)) is not None
        with (
            feedline.DataLoader(data, 1, schedule="48x1", num_workers=0) as loader,
            pytest.raises(UsageError, match=said),
        ):
            next(iter(loader))


def test_view_that_cannot_follow_a_size_raises(paths):
    unknown = v2.Compose([v2.RandomRotation(5), v2.Resize((8, 8)), v2.ToImage()])
    data = Pictures(paths, feedline.views(GLOBAL, unknown))
    with (
        feedline.DataLoader(data, 2, schedule="16x1", num_workers=0) as loader,
        pytest.raises(UsageError, match="ran unchanged on Image and did not ask for a size"),
    ):
        list(loader)
    follows = feedline.per_size(lambda size: v2.Compose([v2.Resize((size, size)), v2.ToImage()]))
    data = Pictures(paths, feedline.views(GLOBAL, follows))
    with feedline.DataLoader(data, 2, schedule="16x1", num_workers=0) as loader:
        assert {(a.shape, b.shape)[1][2:] for a, b in loader} == {(16, 16)}


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("reader", [None, str])
def test_a_folder_with_a_compiled_transform_is_that_with_the_transform(root, own, reader):
    pipeline = random_pipeline(32, *([own_step] if own else []))
    options = {"batch_size": 3, "num_workers": 1, "seed": 2}
    loaders = {} if reader is None else {"loader": reader}
    plain = ImageFolder(str(root), pipeline)
    compiled = ImageFolder(str(root), feedline.compile(pipeline), **loaders)
    with (
        feedline.DataLoader(plain, **options) as one,
        feedline.DataLoader(compiled, **options) as other,
    ):
        assert all(map(equal, list(one), list(other)))
        lines = [
            [line for line in loader.explain().splitlines() if "memory" not in line]
            for loader in (one, other)
        ]
        assert lines[0] == lines[1]


def test_views_of_a_folder_are_lists_of_batches(root):
    """The seeds make them the same on any number of workers; the kind is samples."""
    data = ImageFolder(str(root), feedline.views(GLOBAL, GLOBAL, LOCAL))
    found = []
    for workers in (0, 2):
        with feedline.DataLoader(data, 3, num_workers=workers, seed=4, shuffle=True) as loader:
            found.append(list(loader))
            said = loader.explain()
    assert "sample engine" in said
    assert "A sample has several views" in said
    assert "view 1: RandomResizedCrop(" in said
    assert "view 3: RandomResizedCrop(" in said
    assert all(map(equal, *found))
    views, labels = found[0][0]
    assert [type(view) for view in views] == 3 * [torch.Tensor]
    assert [view.shape for view in views] == [(3, 3, 32, 32), (3, 3, 32, 32), (3, 3, 12, 12)]
    assert labels.shape == (3,)
    assert not torch.equal(views[0], views[1])


def test_partly_recognised_views_run_in_dataset(root):
    unknown = v2.Compose([v2.RandomRotation(5), v2.Resize((8, 8)), v2.ToImage()])
    data = ImageFolder(str(root), feedline.views(GLOBAL, unknown))
    with feedline.DataLoader(data, 3, num_workers=1, seed=1) as loader:
        assert "View 2 runs unchanged: " in loader.explain()
        for (one, other), labels in loader:
            assert (one.shape[1:], other.shape[1:]) == ((3, 32, 32), (3, 8, 8))
            assert len(labels) == len(one)


@pytest.mark.parametrize(("with_masks", "said"), [(False, r"bad\.jpg"), (True, "97 x 131")])
def test_broken_files_and_pairs_that_do_not_fit_are_named_or_skipped(
    paths, pairs, with_masks, said, tmp_path
):
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"nothing")
    data = Pictures([*paths[:3], str(bad)], feedline.compile(usual_pipeline()))
    if with_masks:
        mixed = [pairs[0], (pairs[0][0], pairs[1][1]), pairs[1], pairs[2]]
        data = Scenes(mixed, feedline.pair(preset()))
    with (
        feedline.DataLoader(data, 2, num_workers=1) as loader,
        pytest.raises(ImageError, match=said),
    ):
        list(loader)
    with feedline.DataLoader(data, 2, num_workers=1, on_error="skip") as loader:
        assert sum(len(batch[0] if with_masks else batch) for batch in loader) == 3
        assert len(loader.skipped) == 1
        assert said.replace("\\", "") in str(loader.skipped)


# Images with masks


class Usual(Scenes):
    """The same without feedline."""

    def __getitem__(self, index):
        return usual(self.transforms, *self.pairs[index])


@pytest.mark.parametrize("method", ["fork", *slow("spawn")])
def test_torch_workers_match_the_pipeline_of_pairs(pairs, method):
    def loader(data):
        return TorchDataLoader(data, 2, num_workers=2, multiprocessing_context=method)

    ours = batches(loader(Scenes(pairs, feedline.pair(preset()))))
    assert ours[0][0].shape == (2, 3, 48, 48)
    assert ours[0][1].dtype == torch.int64
    again = batches(loader(Scenes(pairs, feedline.pair(preset()))))
    assert all(map(equal, ours, again))
    theirs = batches(loader(Usual(pairs, preset())))
    for (image, mask), (their_image, their_mask) in zip(ours, theirs, strict=True):
        assert torch.equal(mask, their_mask)
        assert (image - their_image).abs().max() < 1.01 / 255 / 0.224


def test_requested_size_of_pairs_is_used(pairs):
    for make in (
        preset,
        lambda: v2.Compose([v2.RandomResizedCrop(48), v2.ToImage()]),
        lambda: v2.Compose([v2.Resize(54), v2.CenterCrop(48), v2.ToImage()]),
        lambda: v2.Compose(
            [v2.ScaleJitter((48, 48)), v2.RandomCrop(48, pad_if_needed=True), v2.ToImage()]
        ),
    ):
        data = Scenes(pairs, feedline.pair(make()))
        with feedline.DataLoader(data, 2, schedule="16x1,40x1", num_workers=0) as loader:
            for size in (16, 40):
                for image, mask in loader:
                    assert image.shape[2:] == mask.shape[2:] == (size, size)
    wide = Scenes(pairs, feedline.pair(v2.Compose([v2.RandomResizedCrop((24, 48)), v2.ToImage()])))
    with feedline.DataLoader(wide, 2, schedule="24x1", num_workers=0) as loader:
        assert {image.shape[2:] for image, _ in loader} == {(12, 24)}


def test_all_numbers_of_pairs_keep_their_proportion(pairs):
    """At half of the size it is the pipeline with all numbers halved."""

    def pipeline(by):
        return v2.Compose(
            [
                *(v2.RandomCrop(28 // by), v2.ScaleJitter((120 // by, 80 // by))),
                *(v2.Pad([8 // by, 6 // by]), v2.RandomCrop(40 // by, 16 // by, True)),
            ]
        )

    joint, half = feedline.pair(pipeline(1)), feedline.pair(pipeline(2))
    for seed, (path, mask) in enumerate(pairs):
        torch.manual_seed(seed)
        with SampleRequest(20):
            image, ours = joint(path, mask)
        torch.manual_seed(seed)
        their_image, theirs = half(path, mask)
        assert image.size == their_image.size == (20, 20)
        assert image.tobytes() == their_image.tobytes()
        assert torch.equal(ours, theirs)


def test_unsupported_size_of_pairs_raises(pairs):
    various = feedline.pair(v2.Compose([v2.RandomResize(20, 30), v2.ToImage()]))
    assert various(*pairs[0])[0].shape[1] in range(20, 30)
    twice = feedline.pair(
        v2.Compose([v2.RandomResizedCrop(24), v2.ToImage(), v2.RandomErasing(), v2.Resize((9, 9))])
    )
    assert twice(*pairs[0])[0].shape[1:] == (9, 9)
    for joint in (various, twice):
        with (
            feedline.DataLoader(Scenes(pairs, joint), 1, schedule="16x1", num_workers=0) as loader,
            pytest.raises(UsageError, match="does not crop or resize all images to one size"),
        ):
            list(loader)
