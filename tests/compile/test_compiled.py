"""`feedline.compile`: results for paths, bytes and images."""

from __future__ import annotations

import copy
import os
import pickle
import random

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from torch import nn
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

import feedline
from feedline.errors import ImageError, UsageError
from feedline.images.compile.compile_pipeline import compile_transform
from feedline.order.batch_spec import Item
from feedline.order.seeds import extend
from image_inputs import (
    drawn,
    opened,
    own_step,
    random_pipeline,
    usual_pipeline,
)
from torchvision_folder import image, pixel_error

NAMES = (
    *("plain.jpg", "wide.jpg", "progressive.jpg", "grey.jpg", "cmyk.jpg", "turned.jpg"),
    *("frames.mpo", "plain.png", "palette.png", "see-through.png", "frames.gif"),
    *("plain.webp", "JPEG named.png"),
    # 16-bit: torchvision needs torch 2.3 for it.
    *(["deep.png"] if hasattr(torch, "uint16") else []),
)


def boxes_of(compiled, picture, seed):
    """The placement that a call after `torch.manual_seed(seed)` draws."""
    recognised = compile_transform(compiled.transform)
    torch.manual_seed(seed)
    seed = int(torch.empty((), dtype=torch.int64).random_())
    item = Item(0, recognised.image_size, extend(seed, 0), 1.0)
    return recognised.crop.place(picture.height, picture.width, item)


@pytest.mark.parametrize("name", NAMES)
def test_file_gives_same_result_in_every_form(pictures, name):
    path, pipeline = pictures[name], usual_pipeline()
    compiled = feedline.compile(pipeline)
    theirs = pipeline(opened(path))
    data = path.read_bytes()
    forms = [str(path), path, data, bytearray(data), memoryview(data), opened(path)]
    for given in forms:
        state = torch.get_rng_state()
        ours = compiled(given)
        assert (type(ours), ours.dtype, ours.shape) == (type(theirs), theirs.dtype, theirs.shape)
        assert pixel_error(ours, theirs) == 0
        assert torch.equal(torch.get_rng_state(), state), "nothing is drawn here"


@pytest.mark.parametrize("name", NAMES)
def test_lazily_opened_image_matches_pipeline(pictures, name):
    pipeline = v1.Compose([v1.Resize(40), v1.CenterCrop(32), v1.PILToTensor()])
    compiled = feedline.compile(pipeline)
    with Image.open(pictures[name]) as one, Image.open(pictures[name]) as other:
        assert one.mode == other.mode
        theirs, ours = pipeline(one), compiled(other)
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        if one.mode == "RGB":
            assert pixel_error(ours, theirs) == 0
        else:
            assert torch.equal(ours, theirs), "the pipeline itself ran"


def test_random_crops_match_torchvision_for_same_draws(pictures):
    pipeline = random_pipeline()
    compiled = feedline.compile(pipeline)
    flips = set()
    for name in ("plain.jpg", "wide.jpg", "palette.png", "grey.jpg"):
        path = pictures[name]
        picture = opened(path)
        for seed in range(6):
            box = boxes_of(compiled, picture, seed)
            flips.add(box.flip)
            results = []
            with Image.open(path) as lazy:
                forms = [path, path.read_bytes(), picture]
                for given in forms + [lazy] * (lazy.mode == "RGB"):
                    torch.manual_seed(seed)
                    results.append(compiled(given))
            with drawn(box):
                theirs = pipeline(picture)
            for ours in results:
                assert type(ours) is type(theirs)
                assert torch.equal(ours, results[0]), "the form of what is given changes nothing"
            assert pixel_error(results[0], theirs) == 0
    assert flips == {False, True}


def test_random_steps_follow_user_seeds(pictures):
    pipeline = random_pipeline(32, own_step, v2.ColorJitter(0.4, 0.4, 0.4, 0.1))
    compiled = feedline.compile(pipeline)

    def made(seed):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        return [compiled(pictures["plain.jpg"]) for _ in range(4)]

    first = made(3)
    assert all(map(torch.equal, first, made(3)))
    assert not any(map(torch.equal, first, made(4)))
    assert not torch.equal(first[0], first[1])
    np.random.seed(1)
    torch.manual_seed(3)
    assert not torch.equal(first[0], compiled(pictures["plain.jpg"])), "the step draws from numpy"


def test_unfused_steps_use_existing_random_states(pictures):
    rest = [own_step, v1.ColorJitter(0.4, 0.4, 0.4, 0.1), v1.RandomGrayscale(0.5), v1.ToTensor()]
    crop = [v1.RandomResizedCrop(32), v1.RandomHorizontalFlip()]
    whole, first = feedline.compile(v1.Compose(crop + rest)), feedline.compile(v1.Compose(crop))
    for seed in range(5):
        torch.manual_seed(seed)
        np.random.seed(seed)
        ours, after = whole(pictures["plain.jpg"]), torch.get_rng_state()
        torch.manual_seed(seed)
        np.random.seed(seed)
        value = first(pictures["plain.jpg"])
        assert type(value) is Image.Image
        for step in rest:
            value = step(value)
        assert torch.equal(ours, value)
        assert torch.equal(after, torch.get_rng_state())


@pytest.mark.parametrize("name", ["plain.jpg", "wide.jpg", "progressive.jpg"])
def test_an_opened_jpeg_is_not_loaded_and_stays_usable(pictures, name):
    compiled = feedline.compile(random_pipeline())
    lazy = Image.open(pictures[name])
    file = lazy.fp
    results = []
    for _ in range(2):
        torch.manual_seed(7)
        results.append(compiled(lazy))
        assert lazy.tile, "it was not loaded"
    assert torch.equal(*results)
    assert file.closed, "as where Pillow loads it"
    assert np.array_equal(np.asarray(lazy), np.asarray(Image.open(pictures[name]).copy()))


def test_user_file_stays_open_at_its_position(pictures):
    compiled = feedline.compile(usual_pipeline())
    with pictures["plain.jpg"].open("rb") as file:
        lazy = Image.open(file)
        place = file.tell()
        ours = compiled(lazy)
        assert (file.closed, file.tell()) == (False, place)
        assert lazy.tile
    assert torch.equal(ours, compiled(pictures["plain.jpg"]))


class Derived(Image.Image):
    """A subclass, whose methods may do anything."""


def pasted(lazy):
    lazy.paste((255, 0, 0), (0, 0, 60, 90))
    return lazy


def drafted(lazy):
    lazy.draft("RGB", (40, 40))
    return lazy


def drafted_to_grey(lazy):
    lazy.draft("L", None)
    return lazy


def shrunk(lazy):
    lazy.thumbnail((50, 50))
    return lazy


def loaded(lazy):
    lazy.load()
    return lazy


def with_a_method(lazy):
    original = lazy.load
    lazy.load = lambda: original()
    return lazy


def derived(lazy):
    other = Derived()
    other.__dict__.update(lazy.convert("RGB").__dict__)
    return other


CHANGES = [pasted, drafted, drafted_to_grey, shrunk, loaded, with_a_method, derived]


@pytest.mark.parametrize("change", CHANGES)
def test_modified_image_is_used_with_its_changes(pictures, change):
    pipeline = v1.Compose([v1.Resize(40), v1.CenterCrop(32), v1.PILToTensor()])
    compiled = feedline.compile(pipeline)
    one, other = (change(Image.open(pictures["plain.jpg"])) for _ in range(2))
    theirs, ours = pipeline(one), compiled(other)
    assert ours.shape == theirs.shape
    assert pixel_error(ours, theirs) == 0
    plain = compiled(pictures["plain.jpg"])
    if change not in (loaded, with_a_method, derived):
        assert ours.shape != plain.shape or pixel_error(ours, plain) > 0.3


def test_selected_frame_is_decoded(pictures):
    pipeline = v1.Compose([v1.Resize((32, 32)), v1.PILToTensor()])
    compiled = feedline.compile(pipeline)
    with Image.open(pictures["frames.mpo"]) as one, Image.open(pictures["frames.mpo"]) as other:
        one.seek(1)
        other.seek(1)
        theirs = pipeline(one)
        assert pixel_error(compiled(other), theirs) == 0
    assert pixel_error(compiled(pictures["frames.mpo"]), theirs) > 10


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "I;16", "1", "F"])
def test_images_of_other_modes_go_to_the_pipeline_itself(mode):
    pipeline = v1.Compose([v1.Resize(40), v1.CenterCrop(32), v1.ToTensor()])
    grey = image(1, 60, 50, "L")
    if mode == "I;16":
        picture = Image.fromarray(np.asarray(grey).astype(np.uint16) * 200)
    else:
        picture = (grey if mode in "L1F" else image(1, 60, 50)).convert(mode)
    assert picture.mode == mode
    before = picture.tobytes()
    assert torch.equal(feedline.compile(pipeline)(picture), pipeline(picture))
    assert picture.tobytes() == before
    pipeline = v1.Compose([v1.RandomResizedCrop(16), v1.ToTensor()])
    made = []
    for each in (pipeline, feedline.compile(pipeline)):
        torch.manual_seed(3)
        made.append(each(picture))
    assert torch.equal(*made), "the draws are its own, too"


def test_closed_image_raises_pillow_error(pictures):
    compiled = feedline.compile(usual_pipeline())
    with Image.open(pictures["plain.jpg"]) as closed:
        pass
    with pytest.raises((ValueError, AttributeError, AssertionError, OSError)):
        compiled(closed)
    with Image.open(pictures["plain.jpg"]) as broken:
        broken.tile = [broken.tile[0]._replace(extents=(0, 0, 60, 45))]
        with pytest.raises(OSError, match="broken data"):
            compiled(broken)
    closed = opened(pictures["plain.jpg"])
    closed.close()
    with pytest.raises(ValueError, match="closed"):
        compiled(closed)


def test_unreadable_file_is_named_in_error(pictures, tmp_path):
    compiled = feedline.compile(usual_pipeline())
    with pytest.raises(ImageError, match=r"'nowhere/a\.jpg' cannot be loaded: .*No such file"):
        compiled("nowhere/a.jpg")
    with pytest.raises(ImageError, match="cannot be loaded: it is a folder"):
        compiled(tmp_path)
    with pytest.raises(ImageError, match="embedded null"):
        compiled("a\0b")
    bad = {
        "empty.jpg": (b"", "the file is empty"),
        "text.jpg": (b"<html>not found</html>", "a web page"),
        "noise.jpg": (
            b"\xff\xd8\xff" + bytes(range(200)),
            "Pillow (raised|does not know the format)",
        ),
        "cut.jpg": (pictures["plain.jpg"].read_bytes()[:900], "truncated|ends before"),
        "cut.png": (
            pictures["plain.png"].read_bytes()[:900],
            "Pillow (raised|does not know the format)",
        ),
    }
    for name, (data, why) in bad.items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(ImageError, match=why) as raised:
            compiled(path)
        assert str(path) in str(raised.value)
        with pytest.raises(ImageError, match=f"an image of {len(data)} bytes"):
            compiled(data)
    with pytest.raises(ImageError):
        feedline.compile(own_step)(tmp_path / "cut.png")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ImageError, match="it is a named pipe"):
        compiled(tmp_path / "pipe")


def test_pillow_settings_apply_at_call_time(pictures, monkeypatch):
    compiled = feedline.compile(usual_pipeline())
    data = pictures["plain.jpg"].read_bytes()
    cut = data[: len(data) * 3 // 4]
    with pytest.raises(ImageError):
        compiled(cut)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert compiled(cut).shape == (3, 32, 32)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ImageError, match="DecompressionBombError"):
        compiled(data)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert compiled(data).shape == (3, 32, 32)


def brightest(picture, times=1):
    return float(np.asarray(picture).max()) * times


def test_function_is_not_fused(pictures):
    compiled = feedline.compile(brightest)
    for name in NAMES:
        expected = brightest(opened(pictures[name]))
        assert compiled(pictures[name]) == expected
        assert compiled(pictures[name].read_bytes()) == expected
    grey = image(1, 30, 20, "L")
    assert compiled(grey) == brightest(grey)
    assert compiled(grey, 2) == 2 * brightest(grey)
    assert compiled(picture=np.full((2, 2), 7)) == 7
    assert compiled(pictures["plain.jpg"], times=3) == 3 * brightest(opened(pictures["plain.jpg"]))
    said = compiled.explain()
    assert said.startswith("unchanged   all: brightest, called with Image.open(file)")
    assert "because     brightest is not a transform that feedline can compile" in said
    assert repr(compiled) == "feedline.compile(unchanged: brightest)"


class Blurry(v2.GaussianBlur):
    """A subclass may do anything."""


@pytest.mark.parametrize(
    "pipeline",
    [
        v1.Compose([v1.ColorJitter(0.4), v1.RandomResizedCrop(32), v1.ToTensor()]),
        v1.Compose([v1.Pad(4), v1.RandomCrop(32), v1.ToTensor()]),
        v1.Compose([v1.RandomCrop(32, padding=4), v1.ToTensor()]),
        v2.Compose([Blurry(3), v2.RandomResizedCrop(32)]),
        v1.Compose([v1.ToTensor()]),
        nn.Sequential(v2.RandomRotation(10), v2.CenterCrop(32)),
    ],
)
def test_unknown_pipeline_runs_unchanged(pictures, pipeline):
    compiled = feedline.compile(pipeline)
    for seed in range(3):
        torch.manual_seed(seed)
        ours = compiled(pictures["plain.jpg"])
        torch.manual_seed(seed)
        theirs = pipeline(opened(pictures["plain.jpg"]))
        assert type(ours) is type(theirs)
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))
    assert compiled.explain().startswith("unchanged   all: ")
    assert "because     " in compiled.explain()


def test_non_image_input_goes_to_pipeline(pictures):
    pipeline = v2.Compose([v2.Resize(40), v2.CenterCrop(32)])
    compiled = feedline.compile(pipeline)
    tensor = torch.arange(3 * 50 * 60).reshape(3, 50, 60).to(torch.uint8)
    for given in (tensor, tv_tensors.Image(tensor)):
        ours, theirs = compiled(given), pipeline(given)
        assert type(ours) is type(theirs)
        assert torch.equal(ours, theirs)
    boxes = tv_tensors.BoundingBoxes([[5, 5, 30, 30]], format="XYXY", canvas_size=(90, 120))
    ours, ours_boxes = compiled(pictures["plain.jpg"], boxes)
    theirs, their_boxes = pipeline(opened(pictures["plain.jpg"]), boxes)
    assert np.array_equal(np.asarray(ours), np.asarray(theirs))
    assert torch.equal(ours_boxes, their_boxes)
    with pictures["plain.jpg"].open("rb") as file:
        for each in (compiled, feedline.compile(usual_pipeline())):
            with pytest.raises(UsageError, match=r"pass file\.read\(\) or Image\.open\(file\)"):
                each(file)
        assert feedline.compile(id)(file) == id(file), "no pipeline of images"
    with pytest.raises(TypeError):
        feedline.compile(usual_pipeline())(None)
    with pytest.raises(TypeError):
        feedline.compile(usual_pipeline())()


def fails(picture):
    raise KeyError("a step of the user's")


def test_exception_of_step_is_unchanged_with_a_note_of_the_path(pictures):
    for pipeline in (v1.Compose([v1.RandomResizedCrop(8), fails]), fails):
        compiled = feedline.compile(pipeline)
        with pytest.raises(KeyError, match="a step of the user's") as raised:
            compiled(pictures["plain.jpg"])
        assert str(pictures["plain.jpg"]) in raised.value.__notes__[0]
        with pytest.raises(KeyError, match="a step of the user's"):
            compiled(opened(pictures["plain.jpg"]))


@pytest.mark.parametrize("wrong", [None, 3, "Resize", [v1.ToTensor()], v1.ToTensor, ()])
def test_non_callable_is_rejected(wrong):
    with pytest.raises(UsageError, match=r"feedline\.compile\(transform\) expects a function"):
        feedline.compile(wrong)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copy_behaves_equally(pictures, copied):
    compiled = feedline.compile(random_pipeline(32, own_step))
    compiled(pictures["plain.jpg"])
    other = copied(compiled)
    results = []
    for each in (compiled, other):
        torch.manual_seed(2)
        np.random.seed(2)
        results.append(each(pictures["plain.jpg"]))
    assert torch.equal(*results)
    assert other.explain() == compiled.explain()


def test_nested_compiled_transform_is_unwrapped(pictures):
    pipeline = random_pipeline()
    assert feedline.compile(feedline.compile(pipeline)).transform is pipeline
    views = feedline.views(pipeline)
    assert feedline.compile(views) is views
