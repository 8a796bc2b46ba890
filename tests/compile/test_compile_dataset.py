"""Recognised pipelines against torchvision's own, on files."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from torchvision.transforms.functional import InterpolationMode

import feedline
from feedline.images.compile.compile_dataset import compile_dataset
from feedline.images.crops import TrainCrop, WindowCrop
from feedline.order.batch_spec import Item
from image_inputs import drawn
from torchvision_folder import IMAGES, TENSOR_LEVELS, compiled_folder, item_row, pixel_error

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
V1_FLOATS = [v1.ToTensor(), v1.Normalize(MEAN, STD)]
V2_FLOATS = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]


BY_KIND = {torch.Tensor: None, "others": torch.float32}
SIZE, SCALED = (32, 32), V2_FLOATS[0]
V1_BYTES, V2_BYTES = v1.PILToTensor(), v2.ToImage()
TO_FLOATS = [v1.ConvertImageDtype(torch.float32), v1.Normalize(MEAN, STD)]
FIXED = {
    "v1 usual": [v1.Resize(40), v1.CenterCrop(32), *V1_FLOATS],
    "v1 odd corner": [v1.Resize(41), v1.CenterCrop(32), *V1_FLOATS],
    "v1 square": [v1.Resize(SIZE), v1.ToTensor()],
    "v1 whole short side": [v1.Resize([32]), v1.CenterCrop([32]), v1.ToTensor()],
    "v1 floats before the crop": [v1.Resize(40), v1.ToTensor(), v1.CenterCrop(32)],
    "v1 bytes": [v1.Resize(40), v1.CenterCrop(32), V1_BYTES],
    "v1 bytes, then floats": [V1_BYTES, v1.Resize(40), v1.CenterCrop(32), *TO_FLOATS],
    "Sequential": [nn.Sequential(v1.Resize(40), nn.Sequential(v1.CenterCrop(32))), v1.ToTensor()],
    **{
        f"v1 {mode.value}": [v1.Resize(40, mode), v1.CenterCrop(32), *V1_FLOATS]
        for mode in InterpolationMode
    },
    "v2 bicubic bytes": [V2_BYTES, v2.Resize(SIZE, 3), SCALED],
    "v1 bytes first, larger": [V1_BYTES, v1.Resize((64, 64))],
    "v1 bicubic bytes": [V1_BYTES, v1.Resize(SIZE, 3)],
    "v2 nearest bytes": [V2_BYTES, v2.Resize(SIZE, 0)],
    "v1 oblong": [v1.Resize((32, 20)), *V1_FLOATS],
    "v1 oblong centre": [v1.Resize([24, 40]), v1.CenterCrop((18, 32)), v1.ToTensor()],
    "v2 usual": [v2.Resize(40), v2.CenterCrop(32), V2_BYTES, *V2_FLOATS],
    "v2 image first": [V2_BYTES, v2.Resize(40, antialias=True), v2.CenterCrop(32), *V2_FLOATS],
    "v2 nested": [v2.Compose([V2_BYTES, v2.Compose([v2.Resize(SIZE)])]), v2.Compose(V2_FLOATS)],
    "v2 names": [v2.Resize(SIZE, interpolation="bilinear"), v2.PILToTensor()],
    "v2 pure": [V2_BYTES, v2.Resize(SIZE), SCALED, v2.ToPureTensor(), v2.Identity()],
    "v2 unscaled": [v2.Resize(SIZE), V2_BYTES, v2.ToDtype(torch.float32)],
    **{
        f"v2 {dtype}": [v2.Resize(SIZE), V2_BYTES, v2.ToDtype(dtype, scale=True)]
        for dtype in (torch.float64, torch.float16, torch.int16)
    },
    "v2 by kind": [v2.Resize(SIZE), V2_BYTES, v2.ToDtype(BY_KIND, scale=True)],
    "both": [v2.Resize(40), v1.CenterCrop(32), v1.ToTensor(), v2.Normalize(MEAN, STD)],
    "one mean for all": [v1.Resize(SIZE), v1.ToTensor(), v1.Normalize([0.5], [0.25], inplace=True)],
}
if TENSOR_LEVELS:  # torchvision 0.17 has no interpolation by name
    del FIXED["v2 names"]

CROP1, CROP2, FLIP1, FLIP2 = (
    *(library.RandomResizedCrop(32) for library in (v1, v2)),
    *(library.RandomHorizontalFlip() for library in (v1, v2)),
)
RANDOM = {
    "v1 usual": [CROP1, FLIP1, *V1_FLOATS],
    "v2 lanczos": [v2.RandomResizedCrop(32, interpolation=1), FLIP2, V2_BYTES, *V2_FLOATS],
    "v1 oblong": [v1.RandomResizedCrop((32, 20)), FLIP1, *V1_FLOATS],
    "v1 flip first": [FLIP1, CROP1, *V1_FLOATS],
    "v1 floats flipped": [CROP1, *V1_FLOATS, FLIP1],
    "v1 own shares": [v1.RandomResizedCrop(32, (0.5, 0.8), (1, 1.2)), FLIP1, *V1_FLOATS],
    "v1 bytes first": [V1_BYTES, CROP1, FLIP1, *TO_FLOATS],
    "v2 usual": [CROP2, FLIP2, V2_BYTES, *V2_FLOATS],
    "v2 image first": [V2_BYTES, v2.RandomResizedCrop(32, antialias=True), FLIP2, *V2_FLOATS],
    "v2 flip before": [FLIP2, v2.PILToTensor(), v2.RandomResizedCrop([32, 32]), *V2_FLOATS],
}


def check_sample(source, number, theirs, label, seed=1):
    """A sample is torchvision's, and has the pixels of the row. Return both."""
    ours, ours_label = source.sample(Item(number, None, seed, 1.0))
    assert (type(ours), type(ours_label)) == (type(theirs), type(label))
    assert (ours.dtype, ours.shape, ours_label) == (theirs.dtype, theirs.shape, label)
    row, row_label = item_row(source, number, seed=seed)
    assert (row.dtype, row.shape, row_label) == (theirs.numpy().dtype, theirs.shape, label)
    assert ours.contiguous().numpy().tobytes() == row.tobytes()
    assert pixel_error(row, theirs) <= TENSOR_LEVELS
    return ours, row


@pytest.mark.parametrize("case", FIXED)
def test_deterministic_pipeline_has_torchvision_values(root, case):
    dataset, recognition = compiled_folder(root, *FIXED[case])
    source = recognition.pipeline
    assert recognition.unchanged == ()
    assert recognition.reasons == ()
    assert len(source) == len(dataset) == len(IMAGES)
    kept = [check_sample(source, sample, *theirs) for sample, theirs in enumerate(dataset)]
    assert all(np.array_equal(ours.numpy(), row) for ours, row in kept)


@pytest.mark.parametrize(
    ("usual", "size", "other"),
    [
        (((40, 24), (32, 20)), 16, ((20, 12), (16, 10))),  # the length of the longer side
        ((40, 32), 16, (20, 16)),
        ((40, 32), 48, (60, 48)),
    ],
)
def test_all_numbers_follow_another_image_size(root, usual, size, other):
    data, resized = (
        ImageFolder(str(root), v1.Compose([v1.Resize(resize), v1.CenterCrop(crop), *V1_FLOATS]))
        for resize, crop in (usual, other)
    )
    with feedline.DataLoader(data, batch_size=7, num_workers=1) as loader:
        assert f"{usual[1]}" in str(loader.explain())
        for dataset in (data, resized):
            images = torch.stack([image for image, _ in dataset])
            assert pixel_error(next(iter(loader))[0], images) <= TENSOR_LEVELS
            loader.set_image_size(size)


@pytest.mark.parametrize("case", RANDOM)
def test_random_pipeline_matches_torchvision_for_same_draws(root, case):
    dataset, recognition = compiled_folder(root, *RANDOM[case])
    source = recognition.pipeline
    assert recognition.unchanged == ()
    flips = set()
    first = "flip first" in case or "before" in case
    for sample, (path, _) in enumerate(dataset.samples):
        with Image.open(path) as opened:
            width, height = opened.size
        for seed in range(6):
            box = source.fused.crop.place(height, width, Item(sample, 32, seed, 1.0))
            # To flip before the crop is to crop on the other side.
            left = width - box.left - box.width if box.flip and first else box.left
            flips.add(box.flip)
            with drawn(box._replace(left=left)):
                theirs, label = dataset[sample]
            check_sample(source, sample, theirs, label, seed)
    assert flips == {False, True}


def test_scales_ratios_and_probabilities_are_those_of_pipeline(root):
    crop = v1.RandomResizedCrop(48, scale=[0.3, 0.9], ratio=(0.5, 2))
    _, recognition = compiled_folder(root, crop, v1.RandomHorizontalFlip(0.25), v1.ToTensor())
    assert recognition.pipeline.fused.crop == TrainCrop((0.3, 0.9), (0.5, 2), 0.25)
    assert recognition.pipeline.image_size == 48
    _, recognition = compiled_folder(root, crop, v1.ToTensor())
    assert recognition.pipeline.fused.crop == TrainCrop((0.3, 0.9), (0.5, 2), 0.0)
    steps = [v2.Resize(40), v2.RandomHorizontalFlip(0.1), v2.RandomCrop(32), v2.PILToTensor()]
    _, recognition = compiled_folder(root, *steps)
    assert recognition.pipeline.fused.crop == WindowCrop(40, (32, 32), True, 0.1, True)
    steps = [v1.Resize(40), v1.CenterCrop(32), v1.RandomHorizontalFlip(0.1), v1.ToTensor()]
    _, recognition = compiled_folder(root, *steps)
    assert recognition.pipeline.fused.crop == WindowCrop(40, (32, 32), False, 0.1, False)


def test_another_default_dtype_of_torch_is_named_in_a_refusal(root):
    torch.set_default_dtype(torch.float64)
    try:
        refused = compile_dataset(
            ImageFolder(str(root), v1.Compose([v1.RandomResizedCrop(9), v1.ToTensor(), np.sin]))
        )
    finally:
        torch.set_default_dtype(torch.float32)
    assert refused.pipeline is None
    assert "torch's default dtype is torch.float64" in refused.reasons[0]
