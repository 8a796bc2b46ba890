"""A loader's state, saved at any moment, resumes with exactly the remaining batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from feedline.errors import StateError, UsageError
from feedline.loader import DataLoader
from loader_reading import Seen, planned, planned_epoch, read, seen
from row_sources import Rows
from sets import Drawing, Sized

SCHEDULE = "8x1@5,12x1@7,6x1"
EPOCHS = 3


def loader(workers: int = 0, **options: Any) -> DataLoader:
    chosen = {"schedule": SCHEDULE, "seed": 5, "num_workers": workers, "prefetch": 4, **options}
    return DataLoader(Rows(23), 4, **chosen)


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> Iterator[None]:
    """A loader that keeps the fork server, so that the others start in no time."""
    with loader(1):
        yield


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(state)
    assert len(text) < 1000
    restored: dict[str, Any] = json.loads(text)
    return restored


def rest_of_three_epochs(made: DataLoader) -> list[Seen]:
    """From the loader's position to the end, like a training script."""
    return [batch for _ in range(made.epoch, EPOCHS) for batch in read(made)]


def test_state_saved_at_any_step_gives_remainder_with_any_number_of_workers() -> None:
    whole: list[Seen] = []
    states: list[tuple[int, dict[str, Any]]] = []
    with loader(2) as first:
        for _ in range(EPOCHS):
            states.append((len(whole), through_json(first.state_dict())))
            for batch in first:
                whole.append(seen(batch))
                states.append((len(whole), through_json(first.state_dict())))
        states.append((len(whole), through_json(first.state_dict())))
        assert whole == [batch for epoch in range(EPOCHS) for batch in planned_epoch(first, epoch)]
    for number, (done, state) in enumerate(states):
        with loader((0, 2, 3, 1)[number % 4]) as fresh:
            fresh.load_state_dict(state)
            assert fresh.state_dict() == state
            assert rest_of_three_epochs(fresh) == whole[done:]


def test_a_state_after_the_last_batch_has_an_empty_remainder_and_then_the_next_epoch() -> None:
    first = loader()
    iteration = iter(first)
    for _ in range(len(first)):
        next(iteration)
    fresh = loader()
    fresh.load_state_dict(through_json(first.state_dict()))
    assert (fresh.epoch, fresh.epoch_finished) == (0, True)
    assert read(fresh) == []
    assert not fresh.epoch_finished
    assert read(fresh) == planned_epoch(fresh, 1)


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"schedule": "2x1@4,2x1@3"}])
def test_an_epoch_is_finished_after_its_last_batch(options: dict[str, Any]) -> None:
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


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_can_be_loaded_after_iter_and_in_the_middle_of_an_iteration(workers: int) -> None:
    saved = loader()
    saved.set_epoch(1)
    for _ in zip(range(2), saved, strict=False):
        pass
    with loader(workers) as made:
        rest = planned_epoch(made, 1)[saved.state_dict()["step"] :]
        assert 0 < len(rest) < len(planned_epoch(made, 1))
        iteration = iter(made)
        made.load_state_dict(saved.state_dict())
        assert read(iteration) == rest
        iteration = iter(made)
        next(iteration)
        made.load_state_dict(saved.state_dict())
        assert read(iteration) == rest
        next(iter(made))
        made.load_state_dict(saved.state_dict())
        assert read(made) == rest
        assert read(made) == planned_epoch(made, 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_set_epoch_of_the_restored_epoch_keeps_its_remainder(workers: int) -> None:
    with loader(workers) as made:
        state = {**made.state_dict(), "epoch": 1, "step": 2}
        for epoch, done in ((1, 2), (0, 0), (2, 0)):
            made.load_state_dict(state)
            made.set_epoch(epoch)
            assert read(made) == planned_epoch(made, epoch)[done:]


def test_a_size_that_was_set_is_part_of_the_state() -> None:
    with loader(2) as first:
        iteration = iter(first)
        next(iteration)
        first.set_image_size(7)
        state = through_json(first.state_dict())
        expected = [planned(first.order, 0, step, 7) for step in range(1, len(first))]
        assert read(iteration) == expected
    with loader(1) as fresh:
        fresh.load_state_dict(state)
        assert read(fresh) == expected
        assert {batch.side for batch in read(fresh)} == {7}
        fresh.set_image_size(None)
        assert read(fresh) == planned_epoch(fresh, 2)


def test_size_without_memory_is_rejected_and_changes_nothing() -> None:
    large = loader(max_image_size=40)
    large.set_image_size(40)
    small = loader(max_image_size=12)
    with pytest.raises(UsageError, match=r"image size 40 .*max_image_size=12"):
        small.load_state_dict(large.state_dict())
    assert read(small) == planned_epoch(small, 0)


def test_state_of_four_ranks_resumes_on_two_with_same_global_batch() -> None:
    options: dict[str, Any] = {"image_size": 4, "num_workers": 0, "shuffle": True, "seed": 0}

    def ranks(world: int, batch: int) -> list[DataLoader]:
        return [
            DataLoader(Rows(40), batch, rank=k, world_size=world, **options) for k in range(world)
        ]

    def step_of(iterations: list[Iterator[Any]]) -> list[int]:
        return sorted(label for each in iterations for label in next(each)[1].tolist())

    alone = DataLoader(Rows(40), 16, **options)
    expected = [sorted(labels.tolist()) for _, labels in alone]
    four, two = ranks(4, 4), ranks(2, 8)
    iterations: list[Iterator[Any]] = [iter(each) for each in four]
    assert step_of(iterations) == expected[0]
    assert len({json.dumps(each.state_dict()) for each in four}) == 1
    for each in two:
        each.load_state_dict(four[3].state_dict())
    iterations = [iter(each) for each in two]
    assert [step_of(iterations), step_of(iterations)] == expected[1:]
    assert [next(each, None) for each in iterations] == [None, None]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 6}, "seed was 6, is 5"),
        ({"shuffle": False}, "order was 'sequential', is 'shuffled'"),
        ({"drop_last": True}, "drop_last was True, is False"),
        ({"schedule": "8x1@5,12x1@7"}, "schedule was"),
        ({"schedule": None, "image_size": 8}, "schedule was"),
    ],
)
def test_state_of_another_run_is_rejected_and_nothing_changes(
    change: dict[str, Any], said: str
) -> None:
    made = loader()
    next(iter(made))
    before = made.state_dict()
    with pytest.raises(StateError, match=said):
        made.load_state_dict(loader(**change).state_dict())
    assert made.state_dict() == before
    other = DataLoader(Rows(22), 4, schedule=SCHEDULE, seed=5, num_workers=0)
    with pytest.raises(StateError, match="dataset was 'rows-22', is 'rows-23'; length was 22"):
        made.load_state_dict(other.state_dict())


class Used(RuleBasedStateMachine):
    """A loader with workers, used in any order, compared with the expected order."""

    made: DataLoader

    @initialize()
    def start(self) -> None:
        self.made.load_state_dict({**self.made.state_dict(), "epoch": 0, "step": 0})
        self.made.set_image_size(None)
        self.stand(0)
        self.given = False  # the latest iteration has given something
        self.size: int | None = None
        self.iteration: Iterator[Any] | None = None
        # Earlier iterations, and the epoch, step and size that each stands at; None: at none yet.
        self.earlier: list[tuple[Iterator[Any], tuple[int, int, int | None] | None]] = []
        self.state = self.made.state_dict()
        self.saved: tuple[int, int, int | None] = (0, 0, None)
        self.kept: list[tuple[Any, Seen]] = []

    def stand(self, epoch: int, step: int = 0) -> None:
        """Nothing was handed out since this place was come to."""
        self.epoch, self.step, self.begun = epoch, step, False
        self.restored_step, self.step_that_was_set = step, 0

    def leave_iteration(self) -> None:
        if self.iteration is not None:
            place = (self.epoch, self.step, self.size) if self.begun else None
            self.earlier.append((self.iteration, place))
        self.iteration = None

    @rule()
    def begin(self) -> None:
        self.begin_with(lambda: iter(self.made))

    def begin_with(self, begun: Callable[[], Iterator[Any]]) -> None:
        self.leave_iteration()
        if self.begun:
            self.stand(self.epoch + 1)
        self.given = False
        self.iteration = begun()

    @precondition(lambda self: self.iteration is not None)
    @rule(count=st.integers(1, 4), keep=st.booleans())
    def read_on(self, count: int, keep: bool) -> None:
        assert self.iteration is not None
        self.given = True
        for _ in range(count):
            if self.step == self.made.steps_in(self.epoch):
                assert next(self.iteration, None) is None
                self.stand(self.epoch + 1)
                self.iteration = None
                return
            batch = next(self.iteration)
            expected = planned(self.made.order, self.epoch, self.step, self.size)
            assert seen(batch) == expected
            self.stand(self.epoch, self.step + 1)
            self.begun = True
            if keep:
                self.kept.append((batch, expected))

    @rule()
    def look_at_what_was_kept(self) -> None:
        assert all(seen(batch) == expected for batch, expected in self.kept)
        self.kept.clear()

    @precondition(lambda self: self.earlier)
    @rule()
    def go_on_with_an_earlier_iteration(self) -> None:
        iteration, place = self.earlier.pop()
        if place is None:
            self.begin_with(lambda: iteration)
            self.read_on(1, False)
            return
        epoch, step, size = place
        if step == self.made.steps_in(epoch):
            assert next(iteration, None) is None
        else:
            assert seen(next(iteration)) == planned(self.made.order, epoch, step, size)

    @rule(epoch=st.integers(0, 5))
    def set_epoch(self, epoch: int) -> None:
        if self.begun or epoch != self.epoch:
            if self.given and self.begun:  # else it is the new epoch's
                self.leave_iteration()
            step = 0 if self.begun else self.step_that_was_set
            self.stand(epoch)
            self.step, self.step_that_was_set = min(step, self.made.order.steps(epoch)), step
        self.made.set_epoch(epoch)

    @rule(step=st.integers(0, 7))
    def set_step(self, step: int) -> None:
        if self.begun:
            if self.given:
                self.leave_iteration()
            self.stand(self.epoch + 1)
        elif step < self.restored_step:
            if self.restored_step < self.made.order.steps(self.epoch):
                with pytest.raises(UsageError, match="cannot begin at step"):
                    self.made.set_step(step)
                return
            self.stand(self.epoch + 1)
        self.step, self.step_that_was_set = min(step, self.made.order.steps(self.epoch)), step
        self.made.set_step(step)

    @rule(size=st.none() | st.integers(1, 16))
    def set_image_size(self, size: int | None) -> None:
        self.made.set_image_size(size)
        self.size = size

    @rule(workers=st.integers(1, 3))
    def set_workers(self, workers: int) -> None:
        self.made.num_workers = workers

    @rule()
    def save(self) -> None:
        self.state = through_json(self.made.state_dict())
        self.saved = self.epoch, self.step, self.size

    @rule()
    def restore(self) -> None:
        self.made.load_state_dict(self.state)
        epoch, step, self.size = self.saved
        self.stand(epoch, step)


def test_a_loader_used_in_any_order_follows_its_plan() -> None:
    with DataLoader(
        Rows(23), 4, schedule=SCHEDULE, num_workers=2, prefetch=4, max_image_size=16
    ) as made:
        run_state_machine_as_test(
            type("UsesOne", (Used,), {"made": made}),
            settings=settings(max_examples=40, stateful_step_count=30, deadline=None),
        )
        assert not made.worker_deaths
