"""`feedline.pair`: accepted inputs, other targets, and invalid pairs."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

import feedline
from feedline.errors import ImageError, UsageError
from image_inputs import encoded, seeded
from pair_inputs import mask_of, preset, usual, values
from torchvision_folder import image


def test_every_form_of_image_and_mask_gives_same_result(pairs):
    joint = feedline.pair(preset())
    path, mask = pairs[1]
    tensor = tv_tensors.Mask(Image.open(mask))
    images = [path, str(path), path.read_bytes(), Image.open(path), Image.open(path).copy()]
    masks = [mask, str(mask), mask.read_bytes(), Image.open(mask), Image.open(mask).copy(), tensor]
    first, first_mask = seeded(1, joint, path, mask)
    for each in images:
        assert torch.equal(seeded(1, joint, each, mask)[0], first)
    for each in masks:
        assert torch.equal(seeded(1, joint, path, each)[1], first_mask)


def test_single_image_returns_single_image(pairs):
    pipeline = preset()
    for transform in (pipeline, v2.Compose([v2.RandomCrop(20), torch.nn.Identity()])):
        joint = feedline.pair(transform)
        ours = seeded(1, joint, pairs[0][0])
        theirs = seeded(1, transform, Image.open(pairs[0][0]).convert("RGB"))
        assert type(ours) is type(theirs)
        assert np.abs(np.asarray(ours, float) - np.asarray(theirs, float)).max() < 0.02


def boxes_of(height, width, kind="XYXY"):
    corners = torch.tensor([[3.0, 5.0, 30.0, 44.0], [0.0, 0.0, width, height]])
    return tv_tensors.BoundingBoxes(corners, format=kind, canvas_size=(height, width))


def target_of(height, width):
    """Target of an image in a detection dataset."""
    rng = np.random.default_rng(0)
    masks = torch.from_numpy(rng.integers(0, 2, (2, height, width), np.uint8))
    target = {
        "boxes": boxes_of(height, width),
        "masks": tv_tensors.Mask(masks),
        "labels": torch.tensor([4, 7]),
        "name": "a.jpg",
        "more": ["0.png", None, b"\xff\xd8", 3.5],
    }
    if hasattr(tv_tensors, "KeyPoints"):
        points = torch.tensor([[3.0, 5.0], [40.0, 60.0]])
        target["points"] = tv_tensors.KeyPoints(points, canvas_size=(height, width))
    return target


def assert_equal(ours, theirs):
    """Assert that two structures are equal, including the types of tv_tensors."""
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_equal(ours[key], theirs[key])
    elif isinstance(ours, (list, tuple)):
        for one, other in zip(ours, theirs, strict=True):
            assert_equal(one, other)
    elif isinstance(ours, torch.Tensor):
        assert torch.equal(ours, theirs)
        for name in ("format", "canvas_size"):
            assert getattr(ours, name, None) == getattr(theirs, name, None)
    else:
        assert ours == theirs


@pytest.mark.parametrize("first", [[], [v2.ToImage()]])
def test_boxes_points_and_masks_move_like_in_torchvision(first, pairs):
    moves = [
        *(v2.RandomResize(40, 90), v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()),
        v2.RandomCrop(64, pad_if_needed=True),
    ]
    behind = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.SanitizeBoundingBoxes()]
    pipeline = v2.Compose([*first, *moves, *behind])
    joint = feedline.pair(pipeline)
    assert "SanitizeBoundingBoxes" in joint.explain().splitlines()[1], "it runs as it is"
    picture = Image.open(pairs[1][0]).convert("RGB")
    target = target_of(picture.height, picture.width)
    for seed in range(8):
        _, ours = seeded(seed, joint, pairs[1][0], target)
        _, theirs = seeded(seed, pipeline, picture, target)
        assert_equal(ours, theirs)
    pipeline = v2.Compose([*first, *moves])
    sample = (target["boxes"], [target["masks"]]), "mask.png", 5
    ours = seeded(1, feedline.pair(pipeline), pairs[1][0], *sample)
    assert_equal(ours[1:], seeded(1, pipeline, picture, *sample)[1:])


class Caption(tv_tensors.TVTensor):
    """A user-defined target without an image size."""


def test_tensor_subclass_of_user_passes_like_in_torchvision(pairs):
    caption = torch.arange(6).reshape(2, 3).as_subclass(Caption)
    pipeline = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.CenterCrop(20), v2.ToImage()])
    for given in (caption, {"caption": caption}):
        ours = feedline.pair(pipeline)(pairs[0][0], given)[1]
        assert_equal(ours, pipeline(Image.open(pairs[0][0]).convert("RGB"), given)[1])


def test_string_is_a_mask_only_as_second_argument(pairs):
    joint = feedline.pair(v2.Compose([v2.Resize((20, 20))]))
    path, mask = pairs[0]
    assert joint(path, {"mask": str(mask)})[1] == {"mask": str(mask)}
    assert joint(path, (str(mask), b"1"))[1] == (str(mask), b"1")
    assert joint(path, mask, "mask.png")[2] == "mask.png"
    assert joint(path, None)[1] is None


def test_a_second_image_or_one_of_another_mode_runs_original_pipeline(pairs):
    pipeline = v2.Compose([v2.RandomResizedCrop(20), v2.ToImage()])
    joint = feedline.pair(pipeline)
    path, picture = pairs[0][0], Image.open(pairs[0][0]).convert("RGB")
    depth = {"depth": picture.convert("L"), "array": np.zeros((4, 4, 3), np.uint8)}
    assert_equal(seeded(2, joint, path, depth), seeded(2, pipeline, picture, depth))
    grey, mask = image(1, 97, 131, "L"), pairs[1][1]
    theirs = seeded(2, pipeline, grey, tv_tensors.Mask(Image.open(mask)))
    assert_equal(seeded(2, joint, grey, mask), theirs)
    tensor = tv_tensors.Image(torch.zeros((3, 131, 97), dtype=torch.uint8))
    theirs = seeded(2, pipeline, tensor, tv_tensors.Mask(Image.open(mask)))
    assert_equal(seeded(2, joint, tensor, mask), theirs)


@pytest.mark.parametrize("fused", [True, False])
def test_mask_of_another_size_raises_with_both_sizes(fused, pairs, tmp_path):
    joint = feedline.pair(preset() if fused else v2.Compose([lambda *sample: sample]))
    path, other = pairs[0][0], pairs[1][1]
    with pytest.raises(ImageError) as raised:
        joint(path, other)
    said = str(raised.value)
    for part in (str(path), str(other), "97 x 131", "120 x 90"):
        assert part in said
    half = tmp_path / "half.png"
    mask_of(0, 60, 45).save(half)
    with pytest.raises(ImageError, match="one of them was resized"):
        joint(path, half)
    turned = tmp_path / "turned.png"
    mask_of(0, 90, 120).save(turned)
    with pytest.raises(ImageError, match="Exif orientation, which is applied to neither"):
        joint(path.read_bytes(), turned)
    with pytest.raises(ImageError, match=r"the mask in memory has 60 x 45 .* image"):
        joint(Image.open(path).copy(), mask_of(0, 60, 45))
    for wrong in (tv_tensors.Mask(torch.zeros(1, 45, 60)), {"boxes": boxes_of(45, 60)}):
        with pytest.raises(ImageError, match="has 60 x 45 pixels"):
            joint(path, wrong)


def test_tensor_or_array_of_another_size_than_mask_raises(pairs):
    joint = feedline.pair(v2.Compose([v2.ToImage(), v2.Resize((20, 20))]))
    for wrong in (torch.zeros(3, 91, 120, dtype=torch.uint8), np.zeros((91, 120, 3), np.uint8)):
        with pytest.raises(ImageError, match="120 x 91"):
            joint(wrong, pairs[0][1])
    image, _ = joint(np.zeros((90, 120, 3), np.uint8), pairs[0][1])
    assert image.shape == (3, 20, 20)
    # A user-defined function decides itself what counts as an image.
    assert feedline.pair(lambda *sample: sample)(wrong, pairs[0][1])[0] is wrong


def test_open_file_raises(pairs):
    joint = feedline.pair(preset())
    with pairs[0][0].open("rb") as image, pairs[0][1].open("rb") as mask:
        for sample in ((image, pairs[0][1]), (pairs[0][0], mask)):
            with pytest.raises(UsageError, match=r"pass file.read\(\)"):
                joint(*sample)


def test_coloured_mask_raises(pairs, tmp_path):
    for mode in ("RGB", "RGBA", "LA"):
        coloured = tmp_path / f"{mode}.png"
        image(1, 120, 90, mode).save(coloured)
        with pytest.raises(ImageError, match=f"{mode}.png.*mode '{mode}', but masks have one"):
            feedline.pair(preset())(pairs[0][0], coloured)


def test_resize_to_nothing_raises(tmp_path):
    path, mask = tmp_path / "a.jpg", tmp_path / "a.png"
    path.write_bytes(encoded(image(1, 100, 3)))
    mask_of(1, 100, 3).save(mask)
    for first in ([], [v2.ToImage()]):
        steps = v2.RandomShortestSize([40], max_size=20), v2.CenterCrop(8), v2.ToImage()
        with pytest.raises(ImageError, match="100 x 3 pixels to 20 x 0") as raised:
            feedline.pair(v2.Compose([*first, *steps]))(path, mask)
        assert str(path) in raised.value.__notes__[0]


class Narrower(v2.RandomCrop):
    """A user-defined crop."""

    def make_params(self, flat_inputs):
        return {**super().make_params(flat_inputs), "left": 0}


class Whole(v2.Compose):
    """A user-defined subclass of Compose with unknown behaviour."""


def own(image, mask):
    return image, mask


def explained(pipeline, pairs):
    """The explanation of a pair, whose results are those of the pipeline."""
    joint = feedline.pair(pipeline)
    for seed in range(4):
        theirs = seeded(seed, usual, pipeline, *pairs[0])
        assert_equal(tuple(seeded(seed, joint, *pairs[0])), tuple(theirs))
    return joint.explain()


def test_pipeline_with_unknown_first_step_runs_unchanged(pairs):
    crop = v2.RandomCrop(20)
    for first in (own, v2.RandomRotation(5), v2.ElasticTransform(), Narrower(20)):
        assert "cannot be fused" in explained(v2.Compose([first, crop]), pairs)
    for pipeline in (v2.Compose([own, crop]), Whole([crop]), own):
        assert explained(pipeline, pairs).startswith("unchanged   all: ")


def shifted(image, mask):
    shift = torch.randint(0, 9, ())
    return image + shift, mask + shift


UNFUSED = {
    "pure tensors": ([v2.ToImage(), v2.ToPureTensor(), v2.RandomCrop(20)], "move it before them"),
    "two resizes": ([v2.Resize(50), v2.Resize(20)], "resizes a second time"),
    "crops of a resize": ([v2.Resize(50), v2.RandomResizedCrop(20)], "resizes a second time"),
    "a resize of padding": (
        [v2.CenterCrop(110), v2.Resize(50)],
        "resizes a second time, or after padding",
    ),
    "mirrored padding": (
        [v2.Resize(50), v2.RandomCrop(40, 3, padding_mode="reflect")],
        "unchanged   RandomCrop",
    ),
    "padding that cuts": ([v2.Pad((3, -1))], "negative padding"),
    "a crop that cuts": ([v2.RandomCrop(20, padding=-3)], "negative padding"),
    "two colours": ([v2.Pad(2, fill=1), v2.Pad(2, fill=2)], "pads again, with another colour"),
    "a flip after colours": (
        [v2.RandomCrop(20), v2.ColorJitter(0.2), v2.RandomHorizontalFlip()],
        "unchanged   RandomHorizontalFlip",
    ),
    "perhaps a flip": (
        [v2.RandomCrop(20), v2.RandomApply([v2.RandomHorizontalFlip(1)])],
        "unchanged   RandomApply",
    ),
    "a turn": ([v2.RandomResizedCrop(32), v2.RandomRotation(20)], "unchanged   RandomRotation"),
    "a function": ([v2.ToImage(), v2.RandomCrop(20), shifted], "unchanged   shifted"),
}


@pytest.mark.parametrize("case", UNFUSED)
def test_steps_that_cannot_be_fused_match_the_pipeline(pairs, case):
    steps, said = UNFUSED[case]
    assert said in explained(v2.Compose([*steps, *values()]), pairs)


def test_pipeline_without_mask_support_raises(pairs):
    for pipeline in (
        v1.Compose([v1.RandomCrop(20)]),
        nn.Sequential(v2.RandomCrop(20)),
        v2.Compose([v2.Compose([nn.Identity()])]),
    ):
        joint = feedline.pair(pipeline)
        with pytest.raises(TypeError):
            joint(*pairs[0])
