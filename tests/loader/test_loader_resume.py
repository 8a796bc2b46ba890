"""A loader's state, saved at any moment, resumes with exactly the remaining batches."""

import math
import re
import reprlib
from dataclasses import replace

import numpy as np
import pytest

from feedline.errors import StateError
from feedline.loader import DataLoader
from feedline.order.schedule import MAX_IMAGE_SIZE, Schedule
from loader_machine import assert_follows_its_plan
from loader_reading import planned, read, seen
from row_sources import Rows
from sets import Drawing, Sized, through_json

SCHEDULE = "8x1@5,12x1@7,6x1"
EPOCHS = 3


def loader(workers=0, **options):
    chosen = {"schedule": SCHEDULE, "seed": 5, "num_workers": workers, "prefetch": 4, **options}
    return DataLoader(chosen.pop("dataset", Rows(23)), 4, **chosen)


WINDOWS = {"schedule": "4x1@128,6x2@100", "shuffle": "window:512", "dataset": Rows(1100)}


@pytest.mark.parametrize(
    ("options", "size"),
    [({}, None), ({}, 7), (WINDOWS, None)],
    ids=["shuffled", "of a size that is set", "windows"],
)
def test_state_saved_at_any_step_gives_remainder_with_any_number_of_workers(options, size):
    whole = []
    states = []
    with loader(2, **options) as first:
        first.set_image_size(size)
        for _ in range(EPOCHS):
            states.append((len(whole), through_json(first.state_dict())))
            for batch in first:
                whole.append(seen(batch))
                states.append((len(whole), through_json(first.state_dict())))
        states.append((len(whole), through_json(first.state_dict())))
        steps = [(epoch, step) for epoch in range(EPOCHS) for step in range(first.steps_in(epoch))]
        assert whole == [planned(first.order, epoch, step, size) for epoch, step in steps]
    for number, (done, state) in enumerate(states):
        with loader((0, 2, 3, 1)[number % 4], **options) as fresh:
            fresh.load_state_dict(state)
            assert fresh.state_dict() == state
            rest = [batch for _ in range(fresh.epoch, EPOCHS) for batch in read(fresh)]
            assert rest == whole[done:]


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"schedule": "2x1@4,2x1@3"}])
def test_an_epoch_is_finished_after_its_last_batch(options):
    data = Sized(12) if "schedule" in options else Drawing(12)
    made = DataLoader(data, 4, **options)
    for _ in range(2):
        assert not made.epoch_finished
        steps = len(made)
        for step, _ in enumerate(made, 1):
            assert made.epoch_finished == (step == steps)
            other = DataLoader(data, 4, **options)
            other.load_state_dict(made.state_dict())
            assert other.epoch_finished == (step == steps)
        assert not made.epoch_finished


PHASES = Schedule.parse(SCHEDULE).phases
WEAK = [replace(PHASES[0], strength=0.5), *PHASES[1:]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 6}, "seed was 6, is 5"),
        ({"shuffle": False}, "order was 'sequential', is 'shuffled'"),
        ({"shuffle": "window:8"}, "order was 'window:8', is 'shuffled'"),
        ({"drop_last": True}, "drop_last was True, is False"),
        ({"schedule": "8x1@5,12x1@7"}, "schedule was"),
        ({"schedule": None, "image_size": 8}, "schedule was"),
        ({"schedule": "8x1@5,12x2@7,6x1"}, "'epochs': 2.* is .*'epochs': 1"),
        ({"schedule": "9x1@5,12x1@7,6x1"}, "'image_size': 9.* is .*'image_size': 8"),
        ({"schedule": "8x1@6,12x1@7,6x1"}, "'global_batch_size': 6.*'global_batch_size': 5"),
        ({"schedule": WEAK}, r"'strength': 0\.5.*'strength': 1\.0"),
        ({"rank": 0, "world_size": 2}, "'global_batch_size': 10.*'global_batch_size': 5"),
        ({"dataset": Rows(22)}, "dataset was 'rows-22', is 'rows-23'; length was 22"),
    ],
)
def test_state_of_another_run_is_rejected_and_nothing_changes(change, said):
    made = loader()
    next(iter(made))
    before = made.state_dict()
    with pytest.raises(StateError, match=said):
        made.load_state_dict(loader(**change).state_dict())
    assert made.state_dict() == before


@pytest.mark.parametrize(
    ("saved", "loading"),
    [
        ({"schedule": "8x3"}, {"schedule": "8x3@4"}),  # the default batch size
        ({"schedule": "8x1@4,12x1"}, {"schedule": "8x1@2,12x1@2", "rank": 1, "world_size": 2}),
    ],
)
def test_a_state_resumes_at_the_same_global_batch(saved, loading):
    made, other = (loader(drop_last=True, **options) for options in (saved, loading))
    batches = iter(made)
    next(batches), next(batches)
    other.load_state_dict(made.state_dict())
    rank, world_size = loading.get("rank", 0), loading.get("world_size", 1)
    expected = [batch.labels[rank::world_size] for batch in read(batches) + read(made)]
    found = [batch.labels for batch in read(other) + read(other)]
    assert [
        labels[: len(wanted)] for labels, wanted in zip(found, expected, strict=True)
    ] == expected


MISSING = object()
COUNTS = [-1, True, 1.0, math.nan, "1", [1], {}, np.int64(1), MISSING]
VERSIONS = [2, 4, "2", None, True, math.nan, MISSING]
IDENTITY = ("dataset", "length", "seed", "sample_order", "drop_last", "schedule")


@pytest.mark.parametrize(
    ("key", "values", "said"),
    [
        (None, [None, "state", [], {}], "expected a loader state of version 3, got"),
        ("version", VERSIONS, "expected a loader state of version 3, got"),
        ("epoch", COUNTS, "damaged: invalid 'epoch': {}"),
        ("step", COUNTS, "damaged: invalid 'step': {}"),
        ("step", [6, 10**30], r"step {} .*5 steps"),
        ("image_size", [*COUNTS[:-1], 0, MAX_IMAGE_SIZE + 1, 10**30], "invalid 'image_size': {}"),
        *((name, [MISSING], f"{name} was None") for name in IDENTITY),
    ],
)
def test_damaged_state_is_rejected_with_its_value(key, values, said):
    made = loader()
    state = {**made.state_dict(), "step": 5}
    del state["image_size"]
    made.load_state_dict(state)
    for value in values:
        damaged = value if key is None else {**state, key: value}
        if value is MISSING:
            del damaged[key]
        text = said.format("None" if value is MISSING else re.escape(reprlib.repr(value)))
        with pytest.raises(StateError, match=text):
            made.load_state_dict(damaged)
    assert made.state_dict()["step"] == 5


def test_an_epoch_far_beyond_the_schedule_resumes_in_its_last_phase():
    made = loader()
    made.load_state_dict({**made.state_dict(), "epoch": 10**30})
    assert next(iter(made))[0].shape[-1] == 6


def test_state_has_form_of_version_3():
    with loader(schedule="8x2@4,16x1@5") as made:
        made.set_image_size(16)
        next(iter(made))
        state = made.state_dict()
        del state["made_by"]
    assert state == {
        "version": 3,
        "epoch": 0,
        "step": 1,
        "image_size": 16,
        "dataset": "rows-23",
        "length": 23,
        "seed": 5,
        "sample_order": "shuffled",
        "drop_last": False,
        "schedule": [
            {"image_size": 8, "epochs": 2, "global_batch_size": 4, "strength": 1.0},
            {"image_size": 16, "epochs": 1, "global_batch_size": 5, "strength": 1.0},
        ],
    }


@pytest.mark.parametrize("workers", [2, 0])
def test_a_loader_used_in_any_order_follows_its_plan(workers):
    with loader(workers, max_image_size=16) as made:
        assert_follows_its_plan(made)
        assert not made.worker_deaths
