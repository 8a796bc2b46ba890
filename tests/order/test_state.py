import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from orders import batch_equals, every_rank, global_rows, orders, resume, snapshot

from feedline.errors import StateError
from feedline.loader.position import PlannedPosition
from feedline.loader.state import Position
from feedline.order.sample_order import Order
from feedline.order.schedule import MAX_IMAGE_SIZE, Phase, Schedule

ORDER = Order(length=20, schedule=Schedule.parse("8x2@4,16x1@5"), batch_size=3, seed=7)
WEAKER = Schedule(tuple(replace(phase, strength=0.5) for phase in ORDER.schedule.phases))


def state_at(epoch=0, step=0, size=None):
    return snapshot(ORDER, Position(epoch=epoch, step=step, image_size=size))


@given(st.data(), orders())
def test_resume_anywhere_gives_exact_remainder(data, order):
    order = replace(order, rank=data.draw(st.integers(0, order.world_size - 1)))
    whole = list(PlannedPosition(order, endless=False).upcoming())
    done = data.draw(st.integers(0, len(whole) - 1))
    position = PlannedPosition(order, endless=False)
    position.begin()
    for batch in whole[:done]:
        position.record_delivery(batch)
    size = data.draw(st.none() | st.integers(1, 512))
    position.set_image_size(size)
    state = json.loads(json.dumps({**position.state(), **order.identity("data")}, allow_nan=False))
    assert resume(state, order) == position.current
    fresh = PlannedPosition(replace(order), endless=False)
    fresh.load_state(state)
    for found, planned in zip(fresh.upcoming(), whole[done:], strict=True):
        sized = planned if size is None else planned._replace(image_size=size)
        assert batch_equals(found, sized)


@given(st.integers(32, 200), st.booleans(), st.data())
def test_a_state_resumes_on_other_ranks_at_the_same_global_batch(length, drop_last, data):
    four = Order(
        length=length,
        schedule=Schedule(
            (Phase(image_size=8, epochs=1), Phase(image_size=16, epochs=2, batch_size=4))
        ),
        batch_size=8,
        drop_last=drop_last,
        world_size=4,
    )
    two = replace(
        four,
        schedule=Schedule(
            (Phase(image_size=8, epochs=1), Phase(image_size=16, epochs=2, batch_size=8))
        ),
        batch_size=16,
        world_size=2,
    )
    epoch = data.draw(st.integers(0, 2))
    step = data.draw(st.integers(0, four.steps(epoch)))
    before = every_rank(four)
    delivered = [row for k in range(step) for row in global_rows(before, epoch, k).tolist()]
    states = [snapshot(order, Position(epoch=epoch, step=step)) for order in before]
    assert all(state == states[0] for state in states)
    after = every_rank(two)
    found = [resume(states[0], order) for order in after]
    assert found == [Position(epoch=epoch, step=step)] * 2
    rest = [
        row
        for k in range(found[0].step, two.steps(epoch))
        for row in global_rows(after, epoch, k).tolist()
    ]
    dropped = length % four.global_batch_size(four.schedule.phase_at(epoch)) if drop_last else 0
    assert len(delivered + rest) == len(set(delivered + rest)) == length - dropped


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"length": 21}, "length was 20, is 21"),
        ({"seed": 8}, "seed was 7, is 8"),
        ({"sample_order": "sequential"}, "sample_order was 'shuffled', is 'sequential'"),
        ({"sample_order": "window:8"}, "order was 'shuffled', is 'window:8'"),
        ({"drop_last": True}, "drop_last was False, is True"),
        (
            {"schedule": Schedule.parse("8x2@4,16x2@5")},
            "schedule was .*'epochs': 1.* is .*'epochs': 2",
        ),
        (
            {"schedule": Schedule.parse("8x2@4,17x1@5")},
            "schedule was .*'image_size': 16.* is .*'image_size': 17",
        ),
        (
            {"schedule": Schedule.parse("8x2@4,16x1@6")},
            "'global_batch_size': 5.*'global_batch_size': 6",
        ),
        ({"world_size": 2}, "'global_batch_size': 4.*'global_batch_size': 8"),
        ({"schedule": WEAKER}, r"'strength': 1\.0.*'strength': 0\.5"),
        ({"length": 21, "seed": 8}, "length was 20.*seed was 7"),
        ({"dataset": "other"}, "dataset was 'data', is 'other'"),
    ],
)
def test_state_of_another_run_is_rejected_with_difference(other, said):
    dataset = other.pop("dataset", "data")
    with pytest.raises(StateError, match=said):
        resume(state_at(), replace(ORDER, **other), dataset=dataset)


def test_default_batch_size_equals_explicit_one():
    unnamed = replace(ORDER, schedule=Schedule.parse("8x3"), batch_size=5)
    named = replace(ORDER, schedule=Schedule.parse("8x3@5"), batch_size=1)
    state = snapshot(unnamed, Position(epoch=1, step=2))
    assert resume(state, named) == Position(epoch=1, step=2)


VERSIONS = [2, 4, "2", None, True, math.nan]


@pytest.mark.parametrize(
    "garbage",
    [None, "state", [], {}, *({**state_at(), "version": version} for version in VERSIONS)],
)
def test_invalid_state_is_rejected(garbage):
    with pytest.raises(StateError, match="expected a loader state of version 3, got"):
        resume(garbage, ORDER)


@pytest.mark.parametrize("key", sorted(state_at()))
def test_state_without_required_key_is_rejected(key):
    state = state_at(1, 2)
    del state[key]
    if key == "image_size":
        assert resume(state, ORDER) == Position(epoch=1, step=2)
    else:
        with pytest.raises(StateError, match="cannot resume"):
            resume(state, ORDER)


WRONG_COUNTS = [-1, True, 1.0, math.nan, "1", [1], {}, np.int64(1)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, value) for key in ("epoch", "step", "image_size") for value in WRONG_COUNTS),
        *(("image_size", size) for size in (0, MAX_IMAGE_SIZE + 1, 10**30)),
    ],
    ids=repr,
)
def test_a_number_that_is_no_position_is_rejected_with_its_value(key, value):
    with pytest.raises(StateError, match=f"damaged: invalid '{key}'") as caught:
        resume({**state_at(), key: value}, ORDER)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("step", [6, 10**30])
def test_step_beyond_its_epoch_is_rejected_with_number_of_steps(step):
    assert resume(state_at(0, 5), ORDER).step == 5
    with pytest.raises(StateError, match=rf"step {step} .*5 steps"):
        resume({**state_at(), "step": step}, ORDER)


def test_an_epoch_far_beyond_the_schedule_resumes_in_its_last_phase():
    position = PlannedPosition(ORDER, endless=False)
    position.load_state({**state_at(), "epoch": 10**30})
    assert next(position.upcoming()).image_size == 16


def test_state_has_form_of_version_3():
    assert state_at(1, 2, 64) == {
        "version": 3,
        "epoch": 1,
        "step": 2,
        "image_size": 64,
        "dataset": "data",
        "length": 20,
        "seed": 7,
        "sample_order": "shuffled",
        "drop_last": False,
        "schedule": [
            {"image_size": 8, "epochs": 2, "global_batch_size": 4, "strength": 1.0},
            {"image_size": 16, "epochs": 1, "global_batch_size": 5, "strength": 1.0},
        ],
    }
