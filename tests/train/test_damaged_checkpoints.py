"""A checkpoint with an entry missing or impossible is named, and the one before is resumed.

Missing memory is no damage.
"""

import math
import re
import shutil

import pytest
import torch
from tiny_training import Recorder

from feedline.errors import StateError
from feedline.train.prepare import Assignment
from feedline.train.recipe import Recipe, RunSettings
from feedline.train.run import train_model

MISSING = object()
ERRORS = []
"""Raised when weights are loaded into a model of the runs."""


def feedline_test_full_in_loading(pretrained=False, **settings):
    import timm

    model = timm.create_model("test_resnet.r160_in1k", **settings)

    class Full(type(model)):
        def load_state_dict(self, *args, **options):
            if ERRORS:
                raise ERRORS[0]
            return super().load_state_dict(*args, **options)

    model.__class__ = Full
    return model


@pytest.fixture(scope="module")
def trained(tiny_set, tmp_path_factory):
    """A finished run of two epochs."""
    import timm

    timm.models.register_model(feedline_test_full_in_loading)
    out = tmp_path_factory.mktemp("damaged") / "run"
    recipe = Recipe(
        model="feedline_test_full_in_loading", schedule="32x2", batch_size=8, model_ema_decay=0.9
    )
    train_model(recipe, RunSettings(data=tiny_set, out=out, device="cpu", workers=0))
    for each in out.glob("*.pt"):  # hard links: damage to one would damage the other
        each.write_bytes(each.read_bytes())
    return out


@pytest.fixture
def own(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def places(content, above=()):
    """Keys of nested dicts, and of the first entry of lists."""
    entries = dict(enumerate(content[:1])) if isinstance(content, list) else content
    if isinstance(entries, dict):
        for key, value in entries.items():
            yield (*above, key)
            yield from places(value, (*above, key))


def damage(run, place, value):
    """Write another value, or none, to a place in the last checkpoint of a run."""
    content = torch.load(run / "last.pt", weights_only=True)
    entry = content
    for key in place[:-1]:
        entry = entry[key]
    if value is MISSING:
        del entry[place[-1]]
    else:
        entry[place[-1]] = value
    torch.save(content, run / "damaged.pt")
    (run / "damaged.pt").replace(run / "last.pt")


def resumed_from(run):
    resumed = Assignment.collect({}, RunSettings(resume=str(run))).resumed
    assert resumed is not None
    return resumed


def test_an_entry_that_is_missing_or_of_another_type_is_damage(own):
    for path in (own / "last.pt", own / "previous.pt"):
        content = torch.load(path, weights_only=True)
        content["state"] |= {"model": {}, "ema": {}}  # small, as it is written often
        content["state"]["optimizer"]["state"] = {}
        torch.save(content, path)
    undamaged = (own / "last.pt").read_bytes()
    tried = [
        (place, value)
        for place in places(content)
        for value in (MISSING, [[]])
        if value is not MISSING
        or not (isinstance(place[-1], int) or (len(place) > 1 and place[0] in ("run", "loader")))
        if place[:2] not in [("state", name) for name in ("optimizer", "model", "ema")]
    ]
    assert len(tried) > 100
    for place, value in tried:
        damage(own, place, value)
        resumed = resumed_from(own)
        assert resumed.path == own / "previous.pt", (place, value)
        assert f"{own / 'last.pt'}: " in resumed.note
        (own / "last.pt").write_bytes(undamaged)
    assert resumed_from(own).path == own / "last.pt"


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("history", "current", "epoch"), 7),
        (("history", "current", "loss_sum"), math.nan),
        (("random", 0, "cpu"), torch.zeros(3)),
        (("recipe", "lr"), None),
        (("state", "model", "fc.weight"), MISSING),
        (("state", "ema", "fc.weight"), torch.zeros(3)),
        (("state", "optimizer", "state", 0), {}),
        (("state", "optimizer", "state", 0, "exp_avg"), None),
        (("state", "optimizer", "state", 0, "exp_avg_sq"), torch.zeros(3)),
        (("state", "optimizer", "param_groups", 0, "betas"), MISSING),
        (("state", "optimizer", "param_groups", 0, "eps"), "small"),
        (("state", "optimizer", "param_groups", 0, "params"), [0]),
    ],
)
def test_the_checkpoint_before_is_resumed(own, place, value):
    damage(own, place, value)
    report = Recorder()
    result = train_model(run=RunSettings(resume=str(own)), report=report)
    assert [record.epoch for record in result.records] == [1, 2]
    (said,) = (text for text in report.notes if "resuming from" in text)
    assert f"{own / 'last.pt'}: damaged" in said
    assert said.endswith(str(own / "previous.pt"))


@pytest.mark.parametrize("place", [("history",), ("state", "model", "fc.weight")])
def test_a_damaged_checkpoint_without_another_one_is_named(own, place):
    (own / "previous.pt").unlink()
    damage(own, place, MISSING)
    with pytest.raises(StateError, match=re.escape(f"{own / 'last.pt'}: damaged")) as caught:
        train_model(run=RunSettings(resume=str(own)))
    assert "best.pt" in caught.value.hint


@pytest.mark.parametrize(
    "error",
    [MemoryError("no memory"), torch.cuda.OutOfMemoryError("CUDA out of memory.")],
    ids=type,
)
def test_missing_memory_is_no_damage(own, error):
    ERRORS.append(error)
    try:
        with pytest.raises(type(error)) as caught:
            train_model(run=RunSettings(resume=str(own)))
    finally:
        ERRORS.clear()
    assert caught.value is error
    assert resumed_from(own).path == own / "last.pt"
