import json
from dataclasses import replace
from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from orders import batch_equals, every_rank, global_rows, orders

from feedline.loader.position import PlannedPosition
from feedline.loader.state import Position
from feedline.order.sample_order import Order
from feedline.order.schedule import Schedule

ORDER = Order(length=7, schedule=Schedule.parse("8x2@3,16x1@2"), batch_size=1)
STEPS = (3, 3, 4)  # of epochs 0 and 1, then of epoch 2 and all beyond
epochs = st.integers(0, 5)
sizes = st.none() | st.integers(1, 20)


def steps_in(epoch):
    return STEPS[min(epoch, 2)]


class PositionModel(RuleBasedStateMachine):
    """A position and a loader that follows it, against a model of every rule.

    `prefetched` is replaced only if the position reports that it is stale, so it is wrong if the
    position reports that too seldom.
    """

    @initialize(endless=st.booleans())
    def start(self, endless):
        self.position = PlannedPosition(ORDER, endless=endless)
        self.prefetched = self.position.upcoming()
        # The model: its position, and whether its epoch has started.
        self.epoch, self.step, self.size = 0, 0, None
        self.begun = False
        self.iterating = False

    def restart_prefetch(self):
        self.prefetched = self.position.upcoming()

    def model_is_at_end(self):
        return self.step == steps_in(self.epoch)

    @rule()
    def begin(self):
        if self.begun:
            self.epoch, self.step = self.epoch + 1, 0
        self.begun, self.iterating = False, True
        if self.position.begin():
            self.restart_prefetch()

    @precondition(lambda self: self.iterating and not self.model_is_at_end())
    @rule()
    def deliver(self):
        batch = next(self.prefetched)
        expected = ORDER.batch(self.epoch, self.step)
        if self.size is not None:
            expected = expected._replace(image_size=self.size)
        assert batch_equals(batch, expected)
        self.position.record_delivery(batch)
        self.step += 1
        self.begun = True

    @precondition(lambda self: self.iterating and self.model_is_at_end())
    @rule()
    def finish(self):
        self.position.finish()
        self.epoch, self.step = self.epoch + 1, 0
        self.begun = self.iterating = False

    @rule(epoch=epochs)
    def set_epoch(self, epoch):
        stays = epoch == self.epoch and not self.begun
        if not stays:
            self.epoch, self.step = epoch, 0
            self.begun = self.iterating = False
        changed = self.position.set_epoch(epoch)
        assert changed != stays
        if changed:
            self.restart_prefetch()

    @rule(size=sizes)
    def set_image_size(self, size):
        changed = self.position.set_image_size(size)
        assert changed == (size != self.size)
        self.size = size
        if changed:
            self.restart_prefetch()

    @rule(epoch=epochs, share=st.integers(0, 4), size=sizes)
    def restore(self, epoch, share, size):
        self.epoch, self.step, self.size = epoch, min(share, steps_in(epoch)), size
        self.begun = False
        self.position.restore(Position(epoch=epoch, step=self.step, image_size=size))
        self.restart_prefetch()

    @rule(count=st.integers(1, 12))
    def look_ahead(self, count):
        """Preview of later batches, which does not move the position."""
        seen = list(islice(self.position.upcoming(), count))
        self.restart_prefetch()
        places = [(batch.epoch, batch.step) for batch in seen]
        assert places == sorted(places)
        assert len(set(places)) == len(places)
        if not self.model_is_at_end():
            assert places[0] == (self.epoch, self.step)

    @invariant()
    def the_position_is_the_models(self):
        position = Position(epoch=self.epoch, step=self.step, image_size=self.size)
        assert self.position.current == position
        assert self.position.is_at_end() == self.model_is_at_end()


PositionModel.TestCase.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)
TestPosition = PositionModel.TestCase


def places(batches):
    return [(batch.epoch, batch.step) for batch in batches]


def test_lookahead_ends_with_the_schedule_or_never_and_after_it_with_the_epoch():
    expected = [(epoch, step) for epoch in range(3) for step in range(STEPS[epoch])]
    position = PlannedPosition(ORDER, endless=False)
    assert places(position.upcoming()) == expected
    endless = PlannedPosition(ORDER, endless=True).upcoming()
    assert places(islice(endless, 14)) == [*expected, *((3, step) for step in range(4))]
    position.restore(Position(epoch=7, step=1))
    assert places(position.upcoming()) == [(7, 1), (7, 2), (7, 3)]
    position.restore(Position(epoch=1, step=1))
    position.stops_after_epoch = True
    assert places(position.upcoming()) == [(1, 1), (1, 2)]


def test_start_beyond_prefetched_batches_raises():
    for endless in (False, True):
        position = PlannedPosition(ORDER, endless=endless)
        batches = position.upcoming()
        for batch in islice(batches, STEPS[0]):
            position.record_delivery(batch)
        for _ in range(2):
            assert not position.begin()
            position.finish()
        for _ in range(2):
            assert position.begin() != endless
            position.upcoming()
            position.finish()


def at_state(order, state):
    """Position of an order with the loader state `state`, as it is after JSON."""
    position = PlannedPosition(order, endless=False)
    position.load_state(json.loads(json.dumps(state, allow_nan=False)))
    return position


@given(st.data(), orders())
def test_resume_anywhere_gives_exact_remainder(data, order):
    order = replace(order, rank=data.draw(st.integers(0, order.world_size - 1)))
    position = PlannedPosition(order, endless=False)
    whole = list(position.upcoming())
    done = data.draw(st.integers(0, len(whole) - 1))
    position.begin()
    for batch in whole[:done]:
        position.record_delivery(batch)
    size = data.draw(st.none() | st.integers(1, 512))
    position.set_image_size(size)
    resumed = at_state(order, position.state())
    assert resumed.current == position.current
    for found, planned in zip(resumed.upcoming(), whole[done:], strict=True):
        sized = planned if size is None else planned._replace(image_size=size)
        assert batch_equals(found, sized)


@given(st.integers(32, 200), st.booleans(), st.data())
def test_a_state_resumes_on_other_ranks_at_the_same_global_batch(length, drop_last, data):
    schedule = Schedule.parse("8x1@8,16x2@4")
    four = Order(length=length, schedule=schedule, batch_size=8, drop_last=drop_last, world_size=4)
    two = replace(four, schedule=Schedule.parse("8x1@16,16x2@8"), world_size=2)
    assert four.identity("data") == two.identity("data")
    epoch = data.draw(st.integers(0, 2))
    step = data.draw(st.integers(0, four.steps(epoch)))
    before, after = every_rank(four), every_rank(two)
    positions = [PlannedPosition(order, endless=False) for order in before]
    for position in positions:
        position.restore(Position(epoch=epoch, step=step))
    states = [position.state() for position in positions]
    assert all(state == states[0] for state in states)
    found = [at_state(order, states[0]).current for order in after]
    assert found == [Position(epoch=epoch, step=step)] * 2
    delivered = [row for k in range(step) for row in global_rows(before, epoch, k).tolist()]
    rest = [
        row for k in range(step, two.steps(epoch)) for row in global_rows(after, epoch, k).tolist()
    ]
    dropped = length % four.global_batch_size(four.schedule.phase_at(epoch)) if drop_last else 0
    assert len(delivered + rest) == len(set(delivered + rest)) == length - dropped
