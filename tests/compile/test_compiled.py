"""`feedline.compile`: results for paths, bytes and images."""

import copy
import pickle

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile, JpegImagePlugin
from torch import nn
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

import feedline
from feedline.errors import ImageError, UsageError
from image_inputs import opened, own_step, random_pipeline, seeded, usual_pipeline
from pair_inputs import preset
from sets import plain
from torchvision_folder import image, pixel_error

NAMES = (
    *("plain.jpg", "wide.jpg", "progressive.jpg", "grey.jpg", "cmyk.jpg", "turned.jpg"),
    *("frames.mpo", "plain.png", "palette.png", "see-through.png", "frames.gif"),
    *("plain.webp", "JPEG named.png"),
    # 16-bit: torchvision needs torch 2.3 for it.
    *(["deep.png"] if hasattr(torch, "uint16") else []),
)


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


class Derived(JpegImagePlugin.JpegImageFile):
    """A subclass, whose methods may do anything."""


CHANGES = {
    "pasted": lambda lazy: lazy.paste((255, 0, 0), (0, 0, 60, 90)),
    "drafted": lambda lazy: lazy.draft("RGB", (40, 40)),
    "drafted to grey": lambda lazy: lazy.draft("L", None),
    "loaded": lambda lazy: lazy.load(),
    "own method": lambda lazy: setattr(lazy, "load", lambda load=lazy.load: load()),
    "derived": lambda lazy: setattr(lazy, "__class__", Derived),
}


@pytest.mark.parametrize("change", CHANGES)
def test_modified_image_is_used_with_its_changes(pictures, change):
    pipeline = v1.Compose([v1.Resize(40), v1.CenterCrop(32), v1.PILToTensor()])
    compiled = feedline.compile(pipeline)
    one, other = (Image.open(pictures["plain.jpg"]) for _ in range(2))
    for each in (one, other):
        CHANGES[change](each)
    theirs, ours = pipeline(one), compiled(other)
    assert ours.shape == theirs.shape
    assert pixel_error(ours, theirs) == 0
    plain = compiled(pictures["plain.jpg"])
    if change not in ("loaded", "own method", "derived"):
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
    made = [seeded(3, each, picture) for each in (pipeline, feedline.compile(pipeline))]
    assert torch.equal(*made), "the draws are its own, too"


def test_closed_image_raises_pillow_error(pictures):
    compiled = feedline.compile(usual_pipeline())
    with Image.open(pictures["plain.jpg"]) as broken:
        broken.tile = [broken.tile[0]._replace(extents=(0, 0, 60, 45))]
        with pytest.raises(OSError, match="broken data"):
            compiled(broken)
    closed = opened(pictures["plain.jpg"])
    closed.close()
    with pytest.raises(ValueError, match="closed"):
        compiled(closed)


READERS = {
    "fused": lambda pair: feedline.compile(usual_pipeline()),
    "unchanged": lambda pair: feedline.compile(own_step),
    "views": lambda pair: feedline.views(random_pipeline(), usual_pipeline()),
    "unchanged view": lambda pair: feedline.views(own_step),
    "pair": lambda pair: lambda file: feedline.pair(preset())(file, pair[1]),
    "unchanged pair": lambda pair: lambda file: feedline.pair(lambda *them: them)(file, pair[1]),
    "mask": lambda pair: lambda file: feedline.pair(preset())(pair[0], file),
    "unchanged mask": lambda pair: lambda file: feedline.pair(lambda *them: them)(pair[0], file),
}


@pytest.mark.parametrize("reader", READERS)
def test_unreadable_file_is_named_in_error(reader, pictures, pairs, tmp_path):
    read = READERS[reader](pairs[0])
    bad = {
        "missing.jpg": (None, "No such file"),
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
        if data is not None:
            path.write_bytes(data)
        with pytest.raises(ImageError, match=why if reader == "fused" else None) as raised:
            read(path)
        assert str(path) in str(raised.value)
        if data and "pair" not in reader and "mask" not in reader:
            with pytest.raises(ImageError, match=f"an image of {len(data)} bytes"):
                read(data)


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
    assert compiled(grey, 2) == 2 * brightest(grey)
    assert compiled(picture=np.full((2, 2), 7)) == 7
    assert compiled.explain().startswith("unchanged   all: brightest, called with Image.open(file)")
    assert repr(compiled) == "feedline.compile(unchanged: brightest)"


class Blurry(v2.GaussianBlur):
    """A subclass may do anything."""


@pytest.mark.parametrize(
    "pipeline",
    [
        v1.Compose([v1.ColorJitter(0.4), v1.RandomResizedCrop(32), v1.ToTensor()]),
        v1.Compose([v1.RandomCrop(32, padding=4), v1.ToTensor()]),
        v2.Compose([Blurry(3), v2.RandomResizedCrop(32)]),
        v1.Compose([v1.ToTensor()]),
        nn.Sequential(v2.RandomRotation(10), v2.CenterCrop(32)),
    ],
)
def test_unknown_pipeline_runs_unchanged(pictures, pipeline):
    compiled = feedline.compile(pipeline)
    for seed in range(3):
        ours = seeded(seed, compiled, pictures["plain.jpg"])
        theirs = seeded(seed, pipeline, opened(pictures["plain.jpg"]))
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
    path = pictures["plain.jpg"]
    ours, theirs = compiled(path, boxes), pipeline(opened(path), boxes)
    assert np.array_equal(np.asarray(ours[0]), np.asarray(theirs[0]))
    assert torch.equal(ours[1], theirs[1])
    with path.open("rb") as file:
        with pytest.raises(UsageError, match=r"pass file\.read\(\) or Image\.open\(file\)"):
            compiled(file)
        assert feedline.compile(id)(file) == id(file), "no pipeline of images"
    for given in ((None,), ()):
        with pytest.raises(TypeError):
            feedline.compile(usual_pipeline())(*given)


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


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_of_compiled_transforms_views_and_pairs_behave_equally(pictures, pairs, copied):
    compiled = feedline.compile(random_pipeline(32, own_step))
    pair = feedline.pair(preset(48, v2.ColorJitter(0.3)))
    path = pictures["plain.jpg"]
    for made, given in ((compiled, [path]), (feedline.views(compiled), [path]), (pair, pairs[0])):
        result = seeded(2, made, *given)
        other = copied(made)
        assert plain(seeded(2, other, *given)) == plain(result)
        assert other.explain() == made.explain()


@pytest.mark.parametrize("wrong", [None, [v1.ToTensor()], v1.ToTensor])
@pytest.mark.parametrize("compiler", [feedline.compile, feedline.views, feedline.pair])
def test_non_callable_is_rejected(compiler, wrong):
    with pytest.raises(UsageError, match=rf"feedline\.{compiler.__name__}\(.*expects a function"):
        compiler(wrong)


def test_nested_compiled_transform_is_unwrapped(pictures):
    pipeline = random_pipeline()
    assert feedline.compile(feedline.compile(pipeline)).transform is pipeline
    views = feedline.views(pipeline)
    assert feedline.compile(views) is views
    pair = feedline.pair(preset())
    assert feedline.pair(pair).transforms is pair.transforms
