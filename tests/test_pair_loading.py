"""Images with masks in datasets, under torch's loader and feedline's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torchvision.datasets import VOCSegmentation
from torchvision.transforms import v2

import feedline
from feedline.errors import ImageError, UsageError
from feedline.order.requested_size import SampleRequest
from pair_inputs import Scenes, preset, usual, write_pairs

Pairs = list[tuple[Path, Path]]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    return write_pairs(tmp_path_factory.mktemp("pairs"))


class Usual(Scenes):
    """The same without feedline."""

    def __getitem__(self, index: int) -> Any:
        return usual(self.transforms, *self.pairs[index])


def batches(loader: Any, seed: int = 3) -> list[Any]:
    torch.manual_seed(seed)
    return [tuple(batch) for batch in loader]


def equal(one: Any, other: Any) -> bool:
    return all(map(torch.equal, one, other))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_torch_workers_match_pipeline(pairs: Pairs, method: str) -> None:
    def loader(data: Any) -> TorchDataLoader[Any]:
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


def test_feedline_workers_match_for_any_number(pairs: Pairs) -> None:
    found = []
    for workers in (0, 2):
        data = Scenes(pairs, feedline.pair(preset()))
        with feedline.DataLoader(data, 2, shuffle=True, seed=4, num_workers=workers) as loader:
            found.append(batches(loader))
    assert all(map(equal, *found))


def test_requested_size_is_used(pairs: Pairs) -> None:
    for make in (
        preset,
        lambda: v2.Compose([v2.RandomResizedCrop(48), v2.ToImage()]),
        lambda: v2.Compose([v2.Resize((48, 48)), v2.ToImage()]),
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


def test_all_numbers_keep_their_proportion(pairs: Pairs) -> None:
    """At half of the size it is the pipeline with all numbers halved."""

    def pipeline(by: int) -> v2.Compose:
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


def test_a_strength_weakens_crops_of_random_size(pairs: Pairs) -> None:
    crop = v2.Compose([v2.RandomResizedCrop(16, ratio=(1, 1)), v2.ToImage()])
    data = Scenes([pairs[3]] * 4, feedline.pair(crop))  # a square
    for strength, differ in ((0.0, 1), (1.0, 4)):
        schedule = feedline.Schedule((feedline.Phase(epochs=1, image_size=16, strength=strength),))
        with feedline.DataLoader(data, 4, schedule=schedule, num_workers=0) as loader:
            ((images, _),) = list(loader)
        assert len({image.numpy().tobytes() for image in images}) == differ


def test_unsupported_size_raises(pairs: Pairs) -> None:
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


def test_invalid_pairs_are_skipped_and_counted(pairs: Pairs) -> None:
    mixed = [pairs[0], (pairs[0][0], pairs[1][1]), pairs[1], pairs[2]]
    data = Scenes(mixed, feedline.pair(preset()))
    with feedline.DataLoader(data, 2, num_workers=0, on_error="skip") as loader:
        made = list(loader)
        assert sum(len(images) for images, _ in made) == 3
        ((_, said),) = loader.skipped
        assert "97 x 131" in said
    with (
        feedline.DataLoader(data, 2, num_workers=0) as loader,
        pytest.raises(ImageError, match="97 x 131"),
    ):
        list(loader)


def test_torchvision_dataset_accepts_pair(pairs: Pairs, tmp_path: Path) -> None:
    root = tmp_path / "VOCdevkit" / "VOC2012"
    for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (root / folder).mkdir(parents=True)
    for path, mask in pairs:
        (root / "JPEGImages" / path.name).write_bytes(path.read_bytes())
        (root / "SegmentationClass" / mask.name).write_bytes(mask.read_bytes())
    names = "\n".join(path.stem for path, _ in pairs)
    (root / "ImageSets/Segmentation/train.txt").write_text(names)
    joint = feedline.pair(preset())
    data = VOCSegmentation(str(tmp_path), image_set="train", transforms=joint)
    for index, (path, mask) in enumerate(pairs):
        torch.manual_seed(index)
        found = data[index]
        torch.manual_seed(index)
        assert equal(found, joint(path, mask))
