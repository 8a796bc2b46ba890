"""Steps that run as they are, after the fast ones: what they get, and whence their luck."""

from __future__ import annotations

import pickle
import random
import threading

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from feedline.errors import SampleError
from feedline.plan.row import Field
from feedline.randomness import seeded
from feedline.recognition.recognise import recognise
from feedline.recognition.steps import well_behaved
from feedline.recognition.transform_tail import TransformTail
from torchvision_folder import item_row, pixel_error, write_images

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
FLOATS = [v1.ToTensor(), v1.Normalize(MEAN, STD)]
CROP = [v1.Resize(40), v1.CenterCrop(32)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_images(tmp_path_factory.mktemp("images")))


def recognised(root, *steps):
    dataset = ImageFolder(root, v1.Compose(list(steps)))
    recognition = recognise(dataset)
    assert recognition.source is not None, recognition.refused
    return dataset, recognition


class Seen:
    """Notes what it gets and gives a tensor."""

    def __init__(self):
        self.values = []

    def __call__(self, value):
        self.values.append(value)
        return torch.zeros(3, 32, 32)


def torchs_luck(image):
    return image + torch.rand(())


def pythons_luck(image):
    return image + random.random()


def numpys_luck(image):
    return image + float(np.random.rand())


# The steps, and how many of them are fast.
AS_THEY_ARE = {
    "v1 erasing": (4, [*CROP, *FLOATS, v1.RandomErasing(1.0)]),
    "v1 erasing by noise": (4, [*CROP, *FLOATS, v1.RandomErasing(1.0, value="random")]),
    "v1 erasing in place": (4, [*CROP, *FLOATS, v1.RandomErasing(1.0, value=2, inplace=True)]),
    "v1 erasing by colours": (4, [*CROP, *FLOATS, v1.RandomErasing(0.5, value=(1, 2, 3))]),
    "v1 colours": (2, [*CROP, v1.ColorJitter(0.4, 0.4, 0.4, 0.1), *FLOATS]),
    "v1 colours, then a flip": (
        2,
        [*CROP, v1.ColorJitter(0.4), v1.RandomHorizontalFlip(), *FLOATS],
    ),
    "v1 grey": (2, [*CROP, v1.RandomGrayscale(0.5), *FLOATS]),
    "v1 in any order": (
        2,
        [*CROP, v1.RandomOrder([v1.ColorJitter(0.4), v1.GaussianBlur(3)]), *FLOATS],
    ),
    "v1 one of them": (
        2,
        [*CROP, v1.RandomChoice([v1.ColorJitter(0.4), v1.GaussianBlur(3)]), *FLOATS],
    ),
    "v1 augmented": (2, [*CROP, v1.RandAugment(), *FLOATS]),
    "v1 bytes": (3, [*CROP, v1.PILToTensor(), v1.RandomInvert(0.5)]),
    "v2 noise": (
        4,
        [*CROP, v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.GaussianNoise()],
    ),
    "v2 erasing": (3, [v2.ToImage(), *CROP, v2.RandomErasing(1.0, value="random")]),
    "v2 perhaps": (
        3,
        [v2.ToImage(), *CROP, v2.RandomApply([v2.ColorJitter(0.5)]), v2.ToDtype(torch.float32)],
    ),
    "a function of torch's luck": (4, [*CROP, *FLOATS, torchs_luck]),
    "a function of Python's luck": (4, [*CROP, *FLOATS, pythons_luck]),
    "a function of numpy's luck": (4, [*CROP, *FLOATS, numpys_luck]),
}


@pytest.mark.parametrize("case", AS_THEY_ARE)
def test_a_row_is_what_the_steps_make_of_the_fast_ones_pixels(root, case):
    fast, steps = AS_THEY_ARE[case]
    _, recognition = recognised(root, *steps)
    source = recognition.source
    assert (len(recognition.fast), len(recognition.as_is)) == (fast, len(steps) - fast)
    assert recognition.as_is[-1].partition("(")[0] in recognition.refused[-1]
    assert "runs unchanged, after the fast steps." in recognition.refused[-1]
    # The same without the rest, as the step would get it, with the same luck.
    given = Seen()
    _, before = recognised(root, *steps[:fast], given)
    given.values.clear()
    for sample in range(4):
        item_row(before.source, sample, seed=sample)
        value = given.values[-1]
        only_torch = source.recipe.finish._well_behaved
        assert only_torch == (
            not any(word in case for word in ("any", "one of", "perhaps", "func"))
        )
        with seeded(_seed_of(source, sample)):
            for step in steps[fast:]:
                value = step(value)
        ours, _ = item_row(source, sample, seed=sample)
        assert ours.tobytes() == value.contiguous().numpy().tobytes()


def _seed_of(source, seed):
    from feedline.plan.seeds import extend
    from feedline.recognition.pipeline import _STEPS

    return extend(seed, _STEPS)


@pytest.mark.parametrize("case", AS_THEY_ARE)
def test_a_row_follows_from_its_item_alone(root, case):
    _, recognition = recognised(root, *AS_THEY_ARE[case][1])
    source = recognition.source
    other = pickle.loads(pickle.dumps(source, protocol=5))
    rows = []
    for seed in range(12):
        torch.rand(3), random.random(), np.random.rand(2)
        row = item_row(source, 0, seed=seed)[0]
        item_row(source, 1, seed=seed + 1)
        assert np.array_equal(row, item_row(other, 0, seed=seed)[0])
        assert np.array_equal(row, item_row(source, 0, seed=seed)[0])
        rows.append(row.tobytes())
    assert len(set(rows)) > 1


@pytest.mark.parametrize("case", AS_THEY_ARE)
def test_the_users_luck_is_not_touched(root, case):
    def states():
        torchs = torch.get_rng_state().numpy().tobytes()
        return torchs, random.getstate(), repr(np.random.get_state(legacy=False))

    torch.manual_seed(3), random.seed(4), np.random.seed(5)
    torch.randn(3), random.gauss(0, 1), np.random.randn(2)  # of numpy's normal deviates, a pair
    before = states()
    _, recognition = recognised(root, *AS_THEY_ARE[case][1])
    assert states() == before
    item_row(recognition.source, 0)
    assert states() == before


def test_the_users_luck_is_not_touched_by_a_step_that_fails(root):
    class Moody:
        calls = 0

        def __call__(self, image):
            torch.rand(1), random.random(), np.random.rand()
            self.calls += 1
            if self.calls > 1:
                raise KeyError("not today")
            return image

    _, recognition = recognised(root, *CROP, *FLOATS, Moody())
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    with pytest.raises(KeyError, match="not today"):
        item_row(recognition.source, 0)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert np.array_equal(before[2], np.random.get_state()[1])


def test_steps_are_well_behaved_only_where_that_is_sure():
    sure = [v1.RandomErasing(), v1.ColorJitter(), v2.RandAugment(), v1.ToTensor()]
    assert well_behaved(sure)
    for step in (v1.RandomChoice([]), v2.RandomApply([len]), v2.Lambda(len), print, Seen()):
        assert not well_behaved([*sure, step])


def test_threads_do_not_take_each_others_luck(root):
    _, recognition = recognised(root, *CROP, *FLOATS, v1.RandomErasing(1.0, value="random"))
    source = recognition.source
    expected = [item_row(source, seed % 3, seed=seed)[0].tobytes() for seed in range(12)]
    wrong = []

    def work(first):
        for turn in range(24):
            seed = (first + turn) % 12
            if item_row(source, seed % 3, seed=seed)[0].tobytes() != expected[seed]:
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def are_alike(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(ours, Image.Image):
        assert (ours.mode, ours.size) == (theirs.mode, theirs.size)
        assert pixel_error(ours, theirs) <= 0.06
    else:
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        scale = 1 if ours.dtype == torch.uint8 else 255
        assert pixel_error(ours, theirs) * scale <= 0.06


FORMS = {
    "pil": CROP,
    "tensor of bytes": [*CROP, v1.PILToTensor()],
    "tensor of bytes early": [v2.PILToTensor(), *(v2.Resize(40), v2.CenterCrop(32))],
    "image of bytes": [v2.ToImage(), v2.Resize(40), v2.CenterCrop(32)],
    "pure image": [v2.ToImage(), v2.Resize(40), v2.CenterCrop(32), v2.ToPureTensor()],
    "tensor of floats": [*CROP, v1.ToTensor()],
    "image of floats": [
        v2.Resize(40),
        v2.CenterCrop(32),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_a_step_gets_what_it_would_get_from_torchvision(root, form):
    seen = Seen()
    dataset, recognition = recognised(root, *FORMS[form], seen)
    for sample in range(len(dataset)):
        seen.values.clear()
        dataset[sample]
        item_row(recognition.source, sample)
        theirs, ours = seen.values
        are_alike(ours, theirs)
    assert isinstance(ours, tv_tensors.Image) == form.startswith("image")


def test_what_a_step_keeps_is_not_overwritten(root):
    for form in FORMS:
        seen = Seen()
        _, recognition = recognised(root, *FORMS[form], seen)
        item_row(recognition.source, 0)
        before = pixels(seen.values[-1]).copy()
        item_row(recognition.source, 3)
        assert before.any()
        assert np.array_equal(pixels(seen.values[-2]), before)


def pixels(value):
    return np.asarray(value) if isinstance(value, Image.Image) else value.numpy()


@pytest.mark.parametrize(
    ("step", "field"),
    [
        (v1.Grayscale(), Field("image", "float32", (1, 32, 32))),
        (v1.Lambda(lambda x: x.double()), Field("image", "float64", (3, 32, 32))),
        (v1.Lambda(lambda x: torch.cat([x, x[:1]])), Field("image", "float32", (4, 32, 32))),
        (v1.Lambda(lambda x: x.transpose(1, 2)), Field("image", "float32", (3, 32, 32))),
        (v1.Lambda(lambda x: x.flip(0)), Field("image", "float32", (3, 32, 32))),
        (v1.Lambda(lambda x: x[:1].expand(3, -1, -1)), Field("image", "float32", (3, 32, 32))),
    ],
)
def test_the_rows_dtype_and_shape_are_those_that_come_out(root, step, field):
    dataset, recognition = recognised(root, *CROP, v1.ToTensor(), step)
    assert recognition.source.fields(32)[0] == field
    for sample in range(3):
        ours, theirs = item_row(recognition.source, sample)[0], dataset[sample][0]
        assert ours.dtype == theirs.numpy().dtype
        assert pixel_error(ours, theirs) * 255 <= 0.06


@pytest.mark.parametrize(
    "second",
    [
        *(v1.RandomHorizontalFlip(), v1.CenterCrop(32), v1.RandomCrop(32), v1.Resize((32, 32))),
        v1.RandomResizedCrop(32),
    ],
)
def test_what_is_done_a_second_time_runs_as_it_is(root, second):
    steps = [v1.Resize(40), v1.RandomHorizontalFlip(), v1.CenterCrop(32)]
    _, recognition = recognised(root, *steps, second, v1.ToTensor())
    assert len(recognition.fast) == 3
    assert [step.partition("(")[0] for step in recognition.as_is] == [
        *(type(second).__name__, "ToTensor")
    ]


def test_a_view_of_the_row_is_copied_as_it_shows():
    finish = TransformTail(
        np.tile(np.arange(256.0), (3, 1)), "tensor", (lambda x: x.mT,), "float64", 3
    )
    object.__setattr__(finish, "_well_behaved", True)
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    row = np.zeros((3, 4, 4))
    finish.write(pixels, 1, row)
    assert np.array_equal(row, pixels.transpose(2, 1, 0))


class Fickle:
    """What it learns on an image of one size does not hold for others."""

    def __init__(self, other):
        self._other = other

    def __call__(self, image):
        return image if image.shape[-1] == 32 else self._other(image)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (lambda x: x[:, :32, :32], r"float32 of shape \(3, 32, 32\), and the batch holds .*48, 48"),
        (lambda x: x.double(), "float64 of shape .* and the batch holds float32"),
        (lambda x: x.tolist(), "gave list, which is no tensor"),
        (lambda x: x.clone().requires_grad_(), "requires a gradient"),
    ],
)
def test_what_does_not_fit_into_the_row_is_an_error_that_names_the_step(root, other, reason):
    _, recognition = recognised(root, *CROP, *FLOATS, Fickle(other))
    item_row(recognition.source, 0)
    with pytest.raises(SampleError, match=reason) as caught:
        item_row(recognition.source, 0, 48)
    assert "Fickle" in str(caught.value)


def test_repr_tells_what_runs_as_it_is(root):
    _, recognition = recognised(root, *CROP, v1.ColorJitter(0.1), v1.ToTensor())
    assert repr(recognition.source) == (
        f"ImagePipeline('{root}/', Resize, CenterCrop; as they are: ColorJitter, ToTensor): "
        "7 images to float32, 32 px"
    )
