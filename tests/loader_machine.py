"""A state machine that uses a loader of `Rows` in any order, and knows what it should deliver."""

from __future__ import annotations

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

from feedline.errors import UsageError
from feedline.loader import DataLoader
from loader_reading import Seen, planned, seen
from sets import through_json


def assert_follows_its_plan(made: DataLoader) -> None:
    """Use a loader in any order, and compare each batch with the plan. It has memory for 16 px."""
    run_state_machine_as_test(
        type("UsesOne", (_Used,), {"made": made}),
        settings=settings(max_examples=40, stateful_step_count=30, deadline=None),
    )


class _Used(RuleBasedStateMachine):
    """A loader used in any order, compared with the expected order."""

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
        assert iter(self.iteration) is self.iteration

    @precondition(lambda self: self.iteration is not None)
    @rule(count=st.integers(1, 4), keep=st.booleans())
    def read_on(self, count: int, keep: bool) -> None:
        assert self.iteration is not None
        self.given = True
        for _ in range(count):
            if self.step == self.made.steps_in(self.epoch):
                assert next(self.iteration, None) is None
                self.stand(self.epoch + 1)
                assert self.made.epoch == self.epoch
                assert next(self.iteration, None) is None, "it stays ended"
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
        assert self.made.epoch == epoch

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

    @precondition(lambda self: self.made.num_workers)
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
