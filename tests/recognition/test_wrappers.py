"""Classes of users' that call transforms with an image, and what is read of them."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
import torch
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import feedline
from feedline.recognition import method_source
from feedline.recognition.recognise import recognise
from feedline.recognition.view_form import Wrapped, arranged, in_words
from feedline.recognition.wrappers import wrapped_in
from image_inputs import random_pipeline, write_pictures
from torchvision_folder import write_images


class QueryAndKey:
    """As MoCo has it."""

    def __init__(self, base_transform):
        self.base_transform = base_transform

    def __call__(self, x):
        """Two crops,
        of one image."""
        q = self.base_transform(x)
        k = self.base_transform(x)
        return [q, k]


class Generator:
    """As SimCLR's ports and solo-learn have it."""

    def __init__(self, transform, n_views=2):
        self.transform = transform
        self.n_views = n_views

    def __call__(self, x):
        return [self.transform(x) for _ in range(self.n_views)]


class MultiCrop:
    """As DINO has it."""

    def __init__(self, first, second, small, local_crops_number):
        self.global_transfo1 = first
        self.global_transfo2 = second
        self.local_transfo = small
        self.local_crops_number = local_crops_number

    def __call__(self, image):
        crops = []
        crops.append(self.global_transfo1(image))
        crops.append(self.global_transfo2(image))
        for _ in range(self.local_crops_number):
            crops.append(self.local_transfo(image))
        return crops


class OfEach:
    """As lightly's MultiViewTransform."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        return [transform(image) for transform in self.transforms]


class Joined(OfEach):
    """As solo-learn's FullTransformPipeline."""

    def __call__(self, x):
        out = []
        for transform in self.transforms:
            out.extend(transform(x))
        return out


class Alone:
    """As lightly's transforms of a view."""

    def __init__(self, transform):
        self.transform = transform

    def __call__(self, image):
        transformed: torch.Tensor = self.transform(image)
        return transformed


class Nested:
    own = v1.ToTensor()

    def __init__(self, views, *rest):
        self.views, self.rest = views, rest

    def __call__(self, image):
        views = self.views(image)
        pair = [self.own(image), self.rest[-1](image)]
        return views, pair + [self.rest[0](image)], views  # noqa: RUF005


FIRST, SECOND, SMALL = (random_pipeline(size) for size in (32, 24, 12))

UNDERSTOOD = {
    "query and key": (QueryAndKey(FIRST), (FIRST, FIRST), "[0, 1]"),
    "generator": (Generator(FIRST, 3), (FIRST,) * 3, "[0, 1, 2]"),
    "multi-crop": (
        MultiCrop(FIRST, SECOND, SMALL, 2),
        (FIRST, SECOND, SMALL, SMALL),
        "[0, 1, 2, 3]",
    ),
    "of each": (OfEach([FIRST, SECOND]), (FIRST, SECOND), "[0, 1]"),
    "of a tuple": (OfEach((SMALL,)), (SMALL,), "[0]"),
    "joined": (
        Joined([Generator(FIRST), Generator(SMALL, 1)]),
        (FIRST, FIRST, SMALL),
        "[0, 1, 2]",
    ),
    "alone": (Alone(FIRST), (FIRST,), "0"),
    "of views alone": (OfEach([Alone(FIRST), Alone(SMALL)]), (FIRST, SMALL), "[0, 1]"),
    "nested": (
        Nested(QueryAndKey(FIRST), SECOND, SMALL),
        (FIRST, FIRST, Nested.own, SMALL, SECOND),
        "([0, 1], [2, 3, 4], [0, 1])",
    ),
}


@pytest.mark.parametrize("case", UNDERSTOOD)
def test_a_wrapper_is_read_as_its_calls(case):
    wrapper, transforms, form = UNDERSTOOD[case]
    found = wrapped_in(wrapper)
    assert isinstance(found, Wrapped), found
    assert found.transforms == transforms
    assert in_words(found.form) == form
    # What the class itself hands out of the same views, in the same order of calls.
    assert arranged(found.form, [each(None) for each in counted(transforms)]) == followed(wrapper)


def counted(transforms):
    return [lambda image, number=number: number for number in range(len(transforms))]


def followed(wrapper):
    """What a wrapper gives of transforms that give the numbers of their calls."""
    calls = []

    def call(image):
        calls.append(image)
        return len(calls) - 1

    def replaced(thing):
        if any(thing is each for each in (FIRST, SECOND, SMALL)):
            return call
        if isinstance(thing, list | tuple):
            return type(thing)(map(replaced, thing))
        if type(thing).__module__ == __name__:
            other = object.__new__(type(thing))
            vars(other).update({name: replaced(each) for name, each in vars(thing).items()})
            return other
        return thing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Nested, "own", staticmethod(call))
        return replaced(wrapper)("image")


class Counts(QueryAndKey):
    seen = 0

    def __call__(self, x):
        self.seen += 1
        return [self.base_transform(x), self.base_transform(x)]


class Draws(QueryAndKey):
    def __call__(self, x):
        if random.random() < 0.5:
            return [self.base_transform(x)]
        return [self.base_transform(x)] * 2


class Turns(QueryAndKey):
    def __call__(self, x):
        x = x.convert("L")
        return [self.base_transform(x)]


class Keeps(QueryAndKey):
    def __init__(self, base_transform):
        super().__init__(base_transform)
        self.kept = []

    def __call__(self, x):
        kept = self.kept
        kept.append(self.base_transform(x))
        return [self.base_transform(x)]


class Grows(QueryAndKey):
    def __call__(self, x):
        out = [self.base_transform(x)]
        for _ in out:
            out.append(self.base_transform(x))
        return out


class GivesImage(QueryAndKey):
    def __call__(self, x):
        return [x, self.base_transform(x)]


class GivesNothing(QueryAndKey):
    def __call__(self, x):
        self.base_transform(x)


class Property(QueryAndKey):
    @property
    def other(self):
        return random.choice([FIRST, SECOND])

    def __call__(self, x):
        return [self.base_transform(x), self.other(x)]


class LooksUp(QueryAndKey):
    def __getattr__(self, name):
        return FIRST

    def __call__(self, x):
        return [self.base_transform(x), self.anything(x)]


class RenamesItself(QueryAndKey):
    inner = Alone(SECOND)

    def __call__(self, x):
        self = self.inner
        return [self.base_transform(x)]


class GoesThroughItselves(OfEach):
    def __call__(self, x):
        return [self.transforms(x) for self in self.transforms]


class GrowsInside(QueryAndKey):
    def __call__(self, x):
        inner = [self.base_transform(x)]
        outer = [inner]
        for _ in outer[0]:
            inner.append(self.base_transform(x))
        return outer


class Other:
    """A descriptor that comes before what an object has under its name."""

    def __get__(self, instance, owner):
        return SECOND

    def __delete__(self, instance):
        raise AttributeError


class Described(QueryAndKey):
    base_transform = Other()

    def __init__(self, base_transform):
        vars(self)["base_transform"] = base_transform


class OfAnotherDict(QueryAndKey):
    @property
    def __dict__(self):
        return {"base_transform": SECOND}


class OfTwo(QueryAndKey):
    def __call__(self, x, more=None):
        return [self.base_transform(x)]


class Slotted:
    __slots__ = ("transform",)

    def __call__(self, x):
        return [self.transform(x)]


class Endless(QueryAndKey):
    def __call__(self, x):
        return [self.base_transform(x) for _ in range(10**9)]


class HoldsItself(QueryAndKey):
    def __call__(self, x):
        out = [self.base_transform(x)]
        out.append(out)
        return out


class Doubles(QueryAndKey):
    def __call__(self, x):
        out = [self.base_transform(x)]
        for _ in range(100):
            out.extend(out)
        return out


class DoublesAnew(QueryAndKey):
    def __call__(self, x):
        out = [self.base_transform(x)]
        for _ in range(100):
            out = out + out
        return out


class Branches(QueryAndKey):
    def __call__(self, x):
        out = [self.base_transform(x)]
        for _ in range(100):
            out = [out, out]
        return out


def slotted():
    made = Slotted()
    made.transform = FIRST
    return made


def unsourced():
    made = {}
    exec("class Views(Base):\n    def __call__(self, x): return [self.base_transform(x)]",
         {"Base": QueryAndKey}, made)  # fmt: skip
    return made["Views"](FIRST)


def decorated():
    def twice(function):
        return lambda self, x: function(self, x) * 2

    class Views(QueryAndKey):
        @twice
        def __call__(self, x):
            return [self.base_transform(x)]

    return Views(FIRST)


NOT_UNDERSTOOD = {
    "counts": (Counts(FIRST), "does more than call transforms: self.seen \\+= 1"),
    "draws": (Draws(FIRST), "does more than call transforms: if random.random"),
    "turns": (Turns(FIRST), r"does more than call transforms: x.convert\('L'\)"),
    "keeps": (Keeps(FIRST), r"does more .*: kept.append\(self.base_transform\(x\)\)"),
    "grows": (Grows(FIRST), "does more .*: for _ in out"),
    "grows inside": (GrowsInside(FIRST), r"does more .*: for _ in outer\[0\]"),
    "renames itself": (RenamesItself(FIRST), r"does more .*: self.base_transform"),
    "goes through itselves": (GoesThroughItselves([FIRST]), r"does more .*: self.transforms"),
    "descriptor": (Described(FIRST), "has no plain attribute base_transform"),
    "another __dict__": (OfAnotherDict(FIRST), "overrides attribute access"),
    "gives the image": (GivesImage(FIRST), "returns something else"),
    "gives nothing": (GivesNothing(FIRST), "does more than|does not end with a return"),
    "property": (Property(FIRST), "has no plain attribute other"),
    "looks up": (LooksUp(FIRST), "overrides attribute access"),
    "of two": (OfTwo(FIRST), "takes more than an image"),
    "slots": (slotted(), "has no plain attribute transform"),
    "endless": (Endless(FIRST), "does more|too many steps"),
    "holds itself": (HoldsItself(FIRST), "more than 200 views and lists"),
    "doubles": (Doubles(FIRST), "too many steps"),
    "doubles anew": (DoublesAnew(FIRST), "too many steps"),
    "branches": (Branches(FIRST), "more than 200 views and lists"),
    "without source": (unsourced(), "source of .* cannot be found"),
    "decorated": (decorated(), "takes more than|is not the code that runs|not a plain method"),
    "no list": (OfEach(5), "does more than call transforms: self.transforms"),
    "not to be called": (OfEach([3]), r"does more .*: transform\(image\)"),
    "a class": (OfEach([QueryAndKey]), r"does more .*: transform\(image\)"),
}


@pytest.mark.parametrize("case", NOT_UNDERSTOOD)
def test_what_does_more_runs_as_it_is_and_the_line_is_shown(case):
    wrapper, why = NOT_UNDERSTOOD[case]
    found = wrapped_in(wrapper)
    assert isinstance(found, str)
    assert found.endswith(".")
    assert "runs unchanged: " in found
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(found)
    said = feedline.compile(wrapper).explain()
    assert found in said


def test_another_range_is_not_pythons(monkeypatch):
    monkeypatch.setitem(globals(), "range", lambda count: [1])
    assert "does more than call transforms: range" in wrapped_in(Generator(FIRST))


def test_libraries_own_and_functions_are_no_wrappers():
    for each in (FIRST, v1.ToTensor(), len, lambda image: image, 5, None, torch.nn.Identity()):
        assert wrapped_in(each) == ""


def test_source_that_is_not_what_runs_is_not_believed(monkeypatch):
    other = "    def __call__(self, x):\n        return [self.base_transform(x)]\n"
    monkeypatch.setattr(method_source.inspect, "getsource", lambda _: other)
    assert "the source of QueryAndKey.__call__ is not the code that runs" in wrapped_in(
        QueryAndKey(FIRST)
    )


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return write_pictures(tmp_path_factory.mktemp("pictures"))


def seeded(make):
    torch.manual_seed(3)
    np.random.seed(3)
    return make()


def flat(made):
    return (
        [each for part in made for each in flat(part)] if isinstance(made, list | tuple) else [made]
    )


@pytest.mark.parametrize("case", UNDERSTOOD)
def test_a_compiled_wrapper_gives_the_views_in_its_own_form(pictures, case):
    wrapper, transforms, _ = UNDERSTOOD[case]
    compiled = feedline.compile(wrapper)
    ours = seeded(lambda: compiled(pictures["plain.jpg"]))
    views = seeded(lambda: feedline.views(*transforms)(pictures["plain.jpg"]))
    assert all(map(torch.equal, flat(ours), flat(arranged(compiled.calls.form, views))))
    again = seeded(lambda: pickle.loads(pickle.dumps(compiled))(pictures["plain.jpg"]))
    assert all(map(torch.equal, flat(ours), flat(again)))
    theirs = wrapper(v1.ToPILImage()(torch.zeros(3, 60, 60)))
    assert type(ours) is type(theirs)
    assert [each.shape[0] for each in flat(ours)] == [each.shape[0] for each in flat(theirs)]


def test_views_of_wrappers_are_those_of_their_parts(pictures):
    views = feedline.views(QueryAndKey(FIRST), SMALL)
    assert in_words(views.calls.form) == "[[0, 1], 2]"
    (q, k), small = seeded(lambda: views(pictures["plain.jpg"]))
    flat_ones = seeded(lambda: feedline.views(FIRST, FIRST, SMALL)(pictures["plain.jpg"]))
    assert all(map(torch.equal, (q, k, small), flat_ones))


def test_a_folder_with_a_wrapper_is_recognised(tmp_path):
    root = write_images(tmp_path)
    wrapped = ImageFolder(str(root), QueryAndKey(FIRST))
    ours, theirs = (
        feedline.DataLoader(data, 7, num_workers=workers, seed=1)
        for data, workers in (
            (wrapped, 1),
            (ImageFolder(str(root), feedline.views(FIRST, FIRST)), 0),
        )
    )
    with ours, theirs:
        (images, labels), (expected, numbers) = next(iter(ours)), next(iter(theirs))
    assert labels.tolist() == numbers.tolist()
    assert all(map(torch.equal, images, expected))
    assert type(recognise(wrapped).pipeline).__name__ == "ViewsPipeline"
    kept = recognise(ImageFolder(str(root), Counts(FIRST)))
    assert kept.pipeline is None
    assert "self.seen += 1" in kept.refused[0]
    single = recognise(ImageFolder(str(root), Alone(FIRST)))
    assert single.fast == recognise(ImageFolder(str(root), FIRST)).fast


def test_what_is_set_on_a_wrapper_is_followed_from_the_next_iteration_on(tmp_path):
    data = ImageFolder(str(write_images(tmp_path)), Generator(FIRST))
    with feedline.DataLoader(data, 4, num_workers=0, seed=1) as loader:
        assert [tuple(view.shape) for view in next(iter(loader))[0]] == 2 * [(4, 3, 32, 32)]
        data.transform.n_views = 3
        assert len(next(iter(loader))[0]) == 3
        data.transform.transform = SMALL
        assert next(iter(loader))[0][0].shape == (4, 3, 12, 12)


def test_with_anything_but_an_image_the_wrapper_itself_is_called():
    image = v1.ToPILImage()(torch.zeros(3, 60, 60))
    compiled = feedline.compile(QueryAndKey(v1.ToTensor()))
    q, k = compiled(x=image)
    assert torch.equal(q, k)
    assert q.shape == (3, 60, 60)
    for wrong in ((), (image, image)):
        with pytest.raises(TypeError, match=r"__call__\(\)"):
            compiled(*wrong)


class Unpacked:
    def __init__(self, transform):
        self.t = transform

    def __call__(self, x):
        q, k = self.t(x), self.t(x)
        return [q, k]


class UnpackedWrong(Unpacked):
    def __call__(self, x):
        q, *k = self.t(x), self.t(x)
        return [q, k]


def test_views_that_are_unpacked_are_read():
    def augment(image):
        return image

    found = wrapped_in(Unpacked(augment))
    assert found == Wrapped((augment, augment), (list, (0, 1)))
    assert "q, *k" in str(wrapped_in(UnpackedWrong(augment)))
