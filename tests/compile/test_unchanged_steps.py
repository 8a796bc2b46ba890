"""Steps that run unchanged after fused ones: their input and their random numbers."""

import pickle
import random
import re
from itertools import takewhile

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

import feedline
from feedline.errors import SampleError
from feedline.images.compile import supported_transforms
from feedline.images.compile.fused_transform import TransformTail
from feedline.images.compile.library_steps import step_text
from feedline.images.compile.pipeline import STEPS
from feedline.order.batch_spec import Field, Item
from feedline.order.seeds import extend
from feedline.randomness import seeded
from torchvision_folder import TENSOR_LEVELS, compiled_folder, item_row, pixel_error

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
FLOATS = [v1.ToTensor(), v1.Normalize(MEAN, STD)]
CROP = [v1.Resize(40), v1.CenterCrop(32)]


@pytest.fixture(autouse=True)
def _steps_run_themselves(monkeypatch):
    """Unchanged steps, including those that `supported_transforms` would replace."""
    monkeypatch.setattr(supported_transforms, "photometric", None)


TO_FLOATS = v1.ConvertImageDtype(torch.float32)
V2_FLOATS = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.2])]
POINTWISE = {"ToTensor", "Normalize", "ToDtype", "PILToTensor", "ConvertImageDtype"}


class Seen:
    """Records its input and returns a tensor."""

    def __init__(self):
        self.values = []

    def __call__(self, value):
        self.values.append(value)
        return torch.zeros(3, 32, 32)


def own_function(image):
    return image + torch.rand(()) + random.random() + float(np.random.rand())


JITTER, BLUR, POLICY = v1.ColorJitter(0.4), v1.GaussianBlur(3), v1.TrivialAugmentWide()
V2_BYTES = v2.ToImage()
# The steps, and the number of fused ones before the first unchanged one.
AS_THEY_ARE = {
    "v1 erasing": (4, [*CROP, *FLOATS, v1.RandomErasing(1.0)]),
    "v1 erasing by noise": (4, [*CROP, *FLOATS, v1.RandomErasing(1.0, value="random")]),
    "v1 erasing by colours": (4, [*CROP, *FLOATS, v1.RandomErasing(0.5, value=(1, 2, 3))]),
    "v1 colours": (2, [*CROP, v1.ColorJitter(0.4, 0.4, 0.4, 0.1), *FLOATS]),
    "v1 in any order": (2, [*CROP, v1.RandomOrder([JITTER, BLUR]), *FLOATS]),
    "v1 augmented": (2, [*CROP, v1.RandAugment(), *FLOATS]),
    "v1 augmented bytes": (3, [v1.PILToTensor(), *CROP, POLICY, TO_FLOATS]),
    "v2 augmented, then bytes": (2, [*CROP, v2.TrivialAugmentWide(), v2.PILToTensor()]),
    "v1 bytes": (3, [*CROP, v1.PILToTensor(), v1.RandomInvert(0.5)]),
    "v2 erasing": (3, [V2_BYTES, *CROP, v2.RandomErasing(1.0, value="random")]),
    "v2 perhaps": (3, [V2_BYTES, *CROP, v2.RandomApply([v2.ColorJitter(0.5)]), V2_FLOATS[0]]),
    "a function of all generators": (4, [*CROP, *FLOATS, own_function]),
}
if hasattr(v2, "GaussianNoise"):  # torchvision 0.20
    AS_THEY_ARE["v2 noise"] = (4, [*CROP, V2_BYTES, V2_FLOATS[0], v2.GaussianNoise()])


def as_sample(pipeline, sample, seed=1, size=None):
    return pipeline.sample(Item(sample, size, seed, 1.0))[0]


@pytest.mark.parametrize("case", AS_THEY_ARE)
def test_sample_equals_steps_applied_to_fused_pixels(root, case):
    fast, steps = AS_THEY_ARE[case]
    _, recognition = compiled_folder(root, *steps)
    pipeline = recognition.pipeline
    between = tuple(
        map(step_text, takewhile(lambda step: type(step).__name__ not in POINTWISE, steps[fast:]))
    )
    place = "after" if len(between) == len(steps) - fast else "between"
    unchanged = f"So {', '.join(between)} runs unchanged, {place} the fused steps."
    assert recognition.unchanged == between
    assert len(recognition.fused) == len(steps) - len(between)
    assert unchanged in recognition.reasons
    assert pipeline.writes_rows == ("function" not in case)
    assert pipeline.fused.tail.well_behaved == (
        not any(word in case for word in ("any", "one of", "func"))
    )
    # The same without the rest: input of the first of them, with the same random numbers.
    _, before = compiled_folder(root, *steps[:fast])
    for sample in range(4):
        value = as_sample(before.pipeline, sample, sample)
        with seeded(extend(sample, STEPS)):
            for step in steps[fast:]:
                value = step(value)
        ours = as_sample(pipeline, sample, sample)
        assert type(ours) is type(value)
        assert ours.numpy().tobytes() == value.numpy().tobytes()
        if pipeline.writes_rows:
            row, _ = item_row(pipeline, sample, seed=sample)
            assert row.tobytes() == value.contiguous().numpy().tobytes()


def states():
    torchs = torch.get_rng_state().numpy().tobytes()
    return torchs, random.getstate(), repr(np.random.get_state(legacy=False))


@pytest.mark.parametrize("case", AS_THEY_ARE)
def test_a_sample_follows_from_its_item_alone_and_changes_no_random_state(root, case):
    torch.manual_seed(3), random.seed(4), np.random.seed(5)
    torch.randn(3), random.gauss(0, 1), np.random.randn(2)  # of numpy's normal deviates, a pair
    before = states()
    pipeline = compiled_folder(root, *AS_THEY_ARE[case][1])[1].pipeline
    assert states() == before
    other = pickle.loads(pickle.dumps(pipeline, protocol=5))
    made = []
    for seed in range(12):
        torch.rand(3), random.random(), np.random.rand(2)
        before = states()
        sample = as_sample(pipeline, 0, seed)
        as_sample(pipeline, 1, seed + 1)
        assert torch.equal(sample, as_sample(other, 0, seed))
        assert torch.equal(sample, as_sample(pipeline, 0, seed))
        made.append(sample.numpy().tobytes())
        assert states() == before
    assert len(set(made)) > 1


def test_the_users_random_states_are_not_changed_by_a_step_that_fails(root):
    def fails(image):
        torch.rand(1), random.random(), np.random.rand()
        raise KeyError("not today")

    _, recognition = compiled_folder(root, *CROP, *FLOATS, fails)
    before = states()
    with pytest.raises(KeyError, match="not today"):
        as_sample(recognition.pipeline, 0)
    assert states() == before


def are_alike(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(ours, Image.Image):
        assert (ours.mode, ours.size) == (theirs.mode, theirs.size)
        assert pixel_error(ours, theirs) <= 0.06
    else:
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        scale = 1 if theirs.max() > 1 else 255
        assert pixel_error(ours, theirs) * scale <= max(0.06, TENSOR_LEVELS)


V2_CROP = [v2.Resize(40), v2.CenterCrop(32)]
FORMS = {
    "image of unscaled floats": [*V2_CROP, V2_BYTES, v2.ToDtype(torch.float32)],
    "pil": CROP,
    "tensor of bytes": [*CROP, v1.PILToTensor()],
    "tensor of bytes early": [v2.PILToTensor(), *V2_CROP],
    "image of bytes": [V2_BYTES, *V2_CROP],
    "pure image": [V2_BYTES, *V2_CROP, v2.ToPureTensor()],
    "tensor of floats": [*CROP, v1.ToTensor()],
    "image of floats": [*V2_CROP, V2_BYTES, V2_FLOATS[0]],
}


@pytest.mark.parametrize("form", FORMS)
def test_step_receives_same_input_as_in_torchvision(root, form):
    seen, kept = Seen(), []
    dataset, recognition = compiled_folder(root, *FORMS[form], seen)
    for sample in range(len(dataset)):
        seen.values.clear()
        dataset[sample]
        as_sample(recognition.pipeline, sample)
        theirs, ours = seen.values
        are_alike(ours, theirs)
        kept.append((ours, np.asarray(ours).copy()))
    assert isinstance(ours, tv_tensors.Image) == form.startswith("image")
    assert all(np.array_equal(np.asarray(ours), before) for ours, before in kept), "overwritten"


@pytest.mark.parametrize(
    ("step", "field"),
    [
        (v1.Grayscale(), Field("values", "float32", (1, 32, 32))),
        (v2.ToDtype(torch.float64), Field("values", "float64", (3, 32, 32))),
        (v2.RandomChannelPermutation(), Field("values", "float32", (3, 32, 32))),
        (v1.RandomApply([v1.ColorJitter(0.1)]), Field("values", "float32", (3, 32, 32))),
    ],
)
def test_row_has_output_dtype_and_shape(root, step, field):
    erase = v1.RandomErasing(0.0)
    _, recognition = compiled_folder(root, *CROP, v1.ToTensor(), erase, step)
    assert recognition.pipeline.fields(32)[0] == field
    for sample in range(3):
        value = as_sample(recognition.pipeline, sample)
        assert np.array_equal(item_row(recognition.pipeline, sample)[0], value.numpy())


def forbidden(*_):
    raise AssertionError("code of a user's ran")


@pytest.mark.parametrize(
    "step",
    [
        *(v1.Lambda(len), len, v1.RandomApply([len])),
        v2.RandomChoice([v1.RandomApply([len])]),
        type("ColorJitter", (v1.ColorJitter,), {})(0.1),
        v2.SanitizeBoundingBoxes(labels_getter=forbidden),
        v1.RandomApply([v2.SanitizeBoundingBoxes(labels_getter=forbidden)]),
        Seen(),
    ],
)
def test_user_code_is_not_run_for_recognition(root, step, monkeypatch):
    seen = Seen()
    for steps in ([*CROP, step, seen], [*CROP, *FLOATS, seen, step], [*CROP, step]):
        _, recognition = compiled_folder(root, *steps)
        assert not recognition.pipeline.writes_rows
        assert seen.values == []
        assert "is known only to its own code. So samples are made" in recognition.reasons[-1]


# Pipelines that cannot write rows, with the reason and the result of `sample`.
NO_ROWS = {
    "PIL images": ([*CROP, v1.RandomHorizontalFlip()], "returns PIL images"),
    "another size": ([*CROP, *FLOATS, v1.Resize((16, 16))], r"shape \(3, 16, 16\)"),
    "another dtype": (
        [*CROP, v2.ToImage(), v1.RandomErasing(), v2.ToDtype(torch.bfloat16)],
        "bfloat16, which numpy",
    ),
    "bytes normalised": ([*CROP, v1.PILToTensor(), v1.Normalize([0], [1])], "cannot.*TypeError"),
    "two means": ([*CROP, *FLOATS, v1.Normalize([0, 0], [1, 1])], "cannot be run.*RuntimeError"),
    "five crops": ([*CROP, v1.FiveCrop(8)], "returns tuple, not a tensor"),
    "a dictionary": ([*CROP, lambda x: {"x": x}], "output of <lambda> is known only"),
    "a gradient": ([*CROP, v1.ToTensor(), lambda x: x.requires_grad_()], "<lambda>"),
}


@pytest.mark.parametrize("case", NO_ROWS)
def test_output_without_row_shape_is_collated_from_samples(root, case):
    steps, reason = NO_ROWS[case]
    dataset, recognition = compiled_folder(root, *steps)
    pipeline = recognition.pipeline
    assert not pipeline.writes_rows
    assert re.search(reason, recognition.reasons[-1])
    assert recognition.reasons[-1].endswith("So samples are made, and collated afterwards.")
    try:
        theirs, label = dataset[3]
    except Exception as error:
        with pytest.raises(type(error), match=re.escape(str(error))):
            pipeline.sample(Item(3, None, 1, 1.0))
    else:
        ours, ours_label = pipeline.sample(Item(3, None, 1, 1.0))
        assert (type(ours), ours_label) == (type(theirs), label)
        if isinstance(theirs, torch.Tensor):
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)


def test_step_receives_size_and_strength_of_item(root):
    told = []

    def tell(image):
        told.append((feedline.image_size(7), feedline.augmentation_strength(), image.shape[-1]))
        return image

    pipeline = compiled_folder(root, *CROP, v1.ToTensor(), tell)[1].pipeline
    for size, strength in ((48, 0.5), (None, 0.25)):
        pipeline.sample(Item(0, size, 1, strength))
    assert told == [(48, 0.5, 48), (7, 0.25, 32)]
    assert feedline.image_size(9) == 9


@pytest.mark.parametrize(
    "second", [v1.RandomHorizontalFlip(), v1.CenterCrop(32), v1.Resize((32, 32))]
)
def test_repeated_step_runs_unchanged(root, second):
    steps = [v1.Resize(40), v1.RandomHorizontalFlip(), v1.CenterCrop(32)]
    _, recognition = compiled_folder(root, *steps, second, v1.ToTensor())
    assert [step.partition("(")[0] for step in recognition.fused] == [
        *("Resize", "RandomHorizontalFlip", "CenterCrop", "ToTensor")
    ]
    assert [step.partition("(")[0] for step in recognition.unchanged] == [type(second).__name__]


def test_view_of_the_row_is_copied_with_its_strides():
    table = np.tile(np.arange(256.0), (3, 1))
    turned = (lambda x: x.mT,)
    tail = TransformTail(
        table=table, form="tensor", after=turned, dtype="float64", channels=3, well_behaved=True
    )
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    row = np.zeros((3, 4, 4))
    tail.write(pixels, 1, row)
    assert np.array_equal(row, pixels.transpose(2, 1, 0))


def test_output_that_does_not_fit_row_names_step(root):
    turned = v1.RandomRotation((0, 0), expand=True)
    pipeline = compiled_folder(root, *CROP, turned, v1.ToTensor())[1].pipeline
    item_row(pipeline, 0)
    turned.degrees = 90.0, 90.0
    item_row(pipeline, 0)
    turned.degrees = 45.0, 45.0
    with pytest.raises(SampleError, match=r"RandomRotation.*float32 of shape .*3, 32, 32"):
        item_row(pipeline, 0)


def special(image):
    """An image of a class that feedline does not know."""
    other = type("Special", (Image.Image,), {})()
    other.im, other._mode, other._size = image.im, "RGB", image.size
    return other


OUTPUTS = {
    "alpha": lambda image: image.convert("RGBA"),
    "an array": lambda image: np.array(image)[:, ::2],
    "another image": special,
    "half": lambda image: image.resize((16, 20)),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_output_of_user_step_is_passed_to_later_steps(root, case):
    step = OUTPUTS[case]
    steps = [*CROP, step, v1.ToTensor()]
    if case in ("another image", "half"):
        steps.append(v1.Normalize(MEAN, STD))
    pipeline = compiled_folder(root, *steps)[1].pipeline
    before = compiled_folder(root, *CROP)[1].pipeline
    assert pipeline.fused.tail.table is not None
    for sample in range(3):
        value = step(as_sample(before, sample))
        for following in steps[3:]:
            value = following(value)
        assert torch.equal(as_sample(pipeline, sample), value)


def grow(image):
    return torch.nn.functional.pad(image, (0, 0, 4, 4))


def test_steps_after_unknown_function_run_unchanged(root):

    swapped = v1.Normalize([0.5], [0.5])
    _, recognition = compiled_folder(root, *CROP, v1.ColorJitter(0.4), v1.ToTensor(), grow, swapped)
    assert [step.partition("(")[0] for step in recognition.fused][2:] == ["ToTensor"]
    assert [step.partition("(")[0] for step in recognition.unchanged] == [
        *("ColorJitter", "grow", "Normalize")
    ]
    ours = as_sample(recognition.pipeline, 1)
    assert ours.shape == (3, 40, 32)
