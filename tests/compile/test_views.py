"""`feedline.views`: several pipelines for one image, which is decoded once."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

import feedline
from feedline.images.compile.compile_pipeline import compile_transform
from feedline.order.batch_spec import Item
from feedline.order.seeds import extend
from image_inputs import drawn, opened, own_step, random_pipeline, seeded, usual_pipeline
from torchvision_folder import image, pixel_error


@pytest.mark.parametrize("name", ["plain.jpg", "wide.jpg", "plain.png", "grey.jpg"])
def test_each_view_matches_its_pipeline_for_same_draws(pictures, name):
    pipelines = [random_pipeline(32), random_pipeline(32), random_pipeline(12)]
    views, picture = feedline.views(*pipelines), opened(pictures[name])
    crops = [compile_transform(pipeline) for pipeline in pipelines]
    for seed in range(5):
        made = seeded(seed, lambda: views(pictures[name]))
        first = seeded(seed, lambda: int(torch.empty((), dtype=torch.int64).random_()))
        assert type(made) is list
        for number, (pipeline, crop, ours) in enumerate(zip(pipelines, crops, made, strict=True)):
            item = Item(0, crop.image_size, extend(first, number), 1.0)
            box = crop.crop.place(picture.height, picture.width, item)
            with drawn(box):
                theirs = pipeline(picture)
            assert (type(ours), ours.shape) == (type(theirs), theirs.shape)
            assert pixel_error(ours, theirs) == 0


def test_all_forms_of_an_image_give_the_same(pictures):
    views = feedline.views(
        *2 * [feedline.compile(random_pipeline(32, own_step))], random_pipeline(12)
    )
    path = pictures["plain.jpg"]
    forms = [str(path), path.read_bytes(), Image.open(path), opened(path)]
    made = [seeded(5, views, given) for given in forms]
    for other in made[1:]:
        assert all(map(torch.equal, made[0], other))
    assert not torch.equal(made[0][0], made[0][1])


def test_an_image_is_decoded_once_and_no_more_than_is_shown(pictures, decoded_parts):
    small = v2.Compose([v2.RandomResizedCrop(8, scale=(0.01, 0.02)), v2.ToImage()])
    feedline.views(small, small)(pictures["wide.jpg"])
    ((_, _, height, width),) = decoded_parts
    assert height * width < 300 * 81
    decoded_parts.clear()
    feedline.views(small, usual_pipeline())(pictures["wide.jpg"])
    assert decoded_parts == [None], "a resize of the whole wants all of it"


def test_unfused_views_receive_image_in_order(pictures):
    unknown = v1.Compose([v1.RandomRotation(20), v1.RandomResizedCrop(16), v1.ToTensor()])
    path = pictures["plain.jpg"]
    for transforms in ((unknown, unknown), (usual_pipeline(), unknown), (unknown, np.asarray)):
        views = feedline.views(*transforms)
        picture = opened(path)
        ours = seeded(3, lambda views=views: views(path))
        theirs = seeded(3, lambda ts=transforms, p=picture: [transform(p) for transform in ts])
        for one, other in zip(ours, theirs, strict=True):
            assert pixel_error(one, other) <= 0.1
    mixed = feedline.views(random_pipeline(32), unknown)
    made = [seeded(4, mixed, given) for given in (path, opened(path), Image.open(path))]
    for other in made[1:]:
        assert all(map(torch.equal, made[0], other))
    grey = image(1, 60, 50, "L")
    fixed = v1.Compose([v1.Resize((16, 16)), v1.ToTensor()])
    ours = seeded(3, lambda: feedline.views(fixed, unknown)(grey))
    theirs = seeded(3, lambda: [fixed(grey), unknown(grey)])
    assert all(map(torch.equal, ours, theirs))


def test_a_step_that_has_another_image_decoded_disturbs_no_view(pictures):
    inner = feedline.compile(usual_pipeline(48))

    def nested(picture):
        inner(pictures["wide.jpg"])
        return picture

    plain, own = ([v2.RandomResizedCrop(32), *step, v2.ToImage()] for step in ([], [nested]))
    views = [feedline.views(*3 * [v2.Compose(steps)]) for steps in (plain, own)]
    both = [seeded(2, lambda each=each: each(pictures["plain.jpg"])) for each in views]
    # The resize draws nothing more, and `nested` neither.
    assert all(map(torch.equal, *both))
