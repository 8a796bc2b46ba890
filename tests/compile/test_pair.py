"""`feedline.pair`: results of v2 pipelines for an image and its mask with the same seed.

Draws are those of the pipeline, so results of equal seeds are compared instead of distributions.
"""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2

import feedline
from image_inputs import seeded
from pair_inputs import FILL, preset, usual, values
from torchvision_folder import TENSOR_LEVELS

BICUBIC = InterpolationMode.BICUBIC
NEAREST, EXACT = InterpolationMode.NEAREST, InterpolationMode.NEAREST_EXACT


def needed(size, fill=None):
    return v2.RandomCrop(size, pad_if_needed=True, fill=FILL if fill is None else fill)


GEOMETRY = {
    "the preset": lambda: [v2.RandomResize(24, 96), v2.RandomHorizontalFlip(), needed(48)],
    "a crop of random size": lambda: [v2.RandomResizedCrop(32), v2.RandomHorizontalFlip()],
    "a rectangle": lambda: [v2.RandomResizedCrop((24, 40)), v2.RandomVerticalFlip()],
    "the centre": lambda: [v2.Resize(50), v2.CenterCrop(48)],
    "a padded centre": lambda: [v2.Resize(40, max_size=52), v2.CenterCrop((47, 60))],
    "a square": lambda: [v2.Resize((40, 40)), v2.RandomVerticalFlip()],
    "a jittered scale": lambda: [v2.ScaleJitter((48, 48)), needed(48), v2.RandomHorizontalFlip()],
    "a shortest size": lambda: [v2.RandomShortestSize([30, 40, 50], max_size=70)],
    "mirrored before": lambda: [
        *(v2.RandomHorizontalFlip(), v2.RandomVerticalFlip(), v2.RandomResize(20, 120)),
        v2.RandomCrop(20),
    ],
    "cropped before, padded behind": lambda: [
        *(v2.RandomCrop(28), v2.RandomHorizontalFlip(), v2.Resize((61, 43))),
        *(v2.Pad((3, 5), fill=7), v2.RandomCrop(50, padding=4, fill=7)),
    ],
    "little but padding": lambda: [v2.Resize(20), v2.RandomCrop(16, padding=30, fill=9)],
    "a colour": lambda: [
        v2.Resize(20),
        needed(40, {tv_tensors.Mask: 3, tv_tensors.Image: (9, 8, 7), Image.Image: (9, 8, 7)}),
    ],
    "bicubic": lambda: [v2.RandomResize(24, 96, interpolation=BICUBIC), v2.RandomCrop(24)],
    "nearest": lambda: [
        *(v2.RandomHorizontalFlip(), v2.RandomResize(24, 96, interpolation=NEAREST)),
        *(v2.RandomHorizontalFlip(), v2.RandomCrop(24)),
    ],
    "nothing": lambda: [v2.Identity()],
}
OF_PILLOW = {
    "a tensor in between": lambda: [
        *(v2.RandomResize(24, 96), v2.ToImage(), v2.RandomHorizontalFlip(), needed(48))
    ],
    "nearest, exact": lambda: [v2.RandomResize(24, 96, interpolation=EXACT), v2.RandomCrop(24)],
}


def assert_same(pipeline, pairs, levels=0):
    """The pair's results are the pipeline's: masks and draws to the bit, images within levels."""
    joint, deviation = feedline.pair(pipeline), torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    assert joint.explain().startswith("fused ")
    for path, mask in pairs:
        for seed in range(6):
            theirs, their_mask = seeded(seed, usual, pipeline, path, mask)
            state = torch.get_rng_state()
            ours, our_mask = seeded(seed, joint, path, mask)
            assert torch.equal(state, torch.get_rng_state())
            assert (type(ours), type(our_mask)) == (type(theirs), type(their_mask))
            assert our_mask.dtype == their_mask.dtype
            assert torch.equal(our_mask, their_mask)
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
            apart = (ours - theirs).abs() * deviation * 255
            assert apart.max() <= max(levels, TENSOR_LEVELS) + 1e-3


@pytest.mark.parametrize(
    ("name", "first"),
    [
        *((name, []) for name in (*GEOMETRY, *OF_PILLOW)),
        *((name, [v2.ToImage()]) for name in GEOMETRY),
    ],
)
def test_pillow_images_and_tensors_match_exactly(name, first, pairs):
    pipeline = v2.Compose([*first, *(GEOMETRY | OF_PILLOW)[name](), *values()])
    assert "unchanged" not in feedline.pair(pipeline).explain()
    assert_same(pipeline, pairs[:4])


def test_plain_tensors_match(pairs):
    floats = v2.ToDtype({torch.Tensor: torch.float32, "others": None}, scale=True)
    crop = [v2.PILToTensor(), v2.ToDtype(torch.uint8), v2.RandomResize(24, 60), v2.RandomCrop(24)]
    assert_same(v2.Compose([*crop, floats, v2.Normalize([0.5] * 3, [0.5] * 3)]), pairs[:4])


def test_every_size_of_mask_is_resized_as_torch_does():
    resize = v2.Compose([v2.RandomResize(1, 300)])
    joint = feedline.pair(resize)
    rng = np.random.default_rng(0)
    for seed in range(100):
        height, width = rng.integers(1, 260, 2).tolist()
        picture = Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
        mask = tv_tensors.Mask(torch.from_numpy(rng.integers(0, 256, (height, width), np.uint8)))
        if max(height, width) > 20 * min(height, width):
            continue  # too large
        assert torch.equal(*(seeded(seed, each, picture, mask)[1] for each in (joint, resize)))


@pytest.mark.parametrize("kind", [np.uint8, np.bool_, np.uint16, np.int32, np.float32])
def test_masks_of_every_kind_keep_their_values(kind, pairs, tmp_path):
    if not hasattr(torch, np.dtype(kind).name):
        pytest.skip("torch 2.2 has no such dtype")
    path = pairs[0][0]
    stored = np.random.default_rng(0).integers(0, 60_000, (90, 120)).astype(kind)
    Image.fromarray(stored).save(tmp_path / "mask.tiff")
    pipeline = v2.Compose([v2.RandomResize(24, 96), v2.RandomHorizontalFlip(), needed(48, 1)])
    joint = feedline.pair(pipeline)
    for seed in range(6):
        _, ours = seeded(seed, joint, path, tmp_path / "mask.tiff")
        if kind == np.uint16:  # torch itself cannot mirror them
            opened = tv_tensors.Mask(torch.from_numpy(stored.astype(np.int32))[None])
            _, theirs = seeded(seed, pipeline, Image.open(path).convert("RGB"), opened)
            assert ours.dtype == torch.uint16
            assert torch.equal(ours.to(torch.int32), theirs)
        else:
            _, theirs = seeded(seed, usual, pipeline, path, tmp_path / "mask.tiff")
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs)
        assert type(ours) is tv_tensors.Mask


def test_fill_value_unsupported_by_mask_is_left_to_torchvision(pairs):
    half, large = (
        v2.Compose([v2.Resize(20), needed(40, {tv_tensors.Mask: value, "others": 0})])
        for value in (2.5, 300)
    )
    _, theirs = seeded(0, usual, half, *pairs[0])
    _, ours = seeded(0, feedline.pair(half), *pairs[0])
    assert torch.equal(ours, theirs)
    with pytest.raises(RuntimeError, match="cannot be converted to type uint8_t"):
        feedline.pair(large)(*pairs[0])
    picture = Image.open(pairs[0][0]).convert("RGB")
    mask = tv_tensors.Mask(torch.full((1, picture.height, picture.width), 500))
    _, theirs = seeded(0, large, picture, mask)
    _, ours = seeded(0, feedline.pair(large), picture, mask)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1)])
def test_images_of_one_row_or_column_are_mirrored(size):
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8))
    mask = tv_tensors.Mask(torch.from_numpy(rng.integers(0, 256, (1, *size), np.uint8)))
    for first in ((), (v2.ToImage(),)):
        flips = v2.RandomHorizontalFlip(1.0), v2.RandomVerticalFlip(1.0)
        pipeline = v2.Compose([*first, *flips, v2.ToImage()])
        made = feedline.pair(pipeline)(picture, mask)
        assert all(map(torch.equal, made, pipeline(picture, mask)))


def test_colour_steps_only_change_the_image(pairs):
    colours = (
        *(v2.ColorJitter(0.4, 0.4, 0.4), v2.RandomApply([v2.GaussianBlur(5)])),
        v2.RandomChoice([v2.RandomSolarize(128), v2.Compose([v2.RandomInvert()])]),
    )
    pipeline = preset(48, *colours, v2.RandomGrayscale(0.3))
    assert "unchanged" not in feedline.pair(pipeline).explain()
    # Contrast and saturation may turn a difference of one level into two or three.
    assert_same(pipeline, pairs[:2], 4)


def test_only_pixels_of_crop_are_decoded(pairs, decoded_parts):
    joint = feedline.pair(v2.Compose([v2.Resize(180), v2.RandomCrop(30), *values()]))
    joint(*pairs[0])
    ((_, _, height, width),) = decoded_parts
    assert height <= 15 + 6
    assert width <= 15 + 6
