"""Ctrl-C at any line of feedline's code: which batches follow.

Python handles signals between calls. After the last call in `record_delivery`, an interrupt is like
one in the user's next line: the batch was delivered.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import RandomSampler

import feedline
from feedline import DataLoader
from feedline.errors import StateError
from feedline.loader.torch_samplers import draws_for_feedline
from feedline.order.requested_size import current_request
from feedline.randomness import fingerprint, seeded
from processes import newcomers, own_family
from row_sources import Rows
from sets import Made
from slow import slow

_HOME = str(Path(feedline.__file__).parent)
_HANDED_OUT = {"record_delivery", "__next__"}
_SLOW = [pytest.mark.slow, pytest.mark.timeout(600)]  # each interrupt costs a start of workers


class Numbers(Made):
    def __init__(self, length):
        super().__init__(length, int)


def interrupted(call, line):
    """Result of a call, or the function of feedline in whose line it was interrupted.

    The garbage of other tests is not collected meanwhile: its finalizers would be interrupted.
    """
    where, left = None, line

    def trace(frame, event, _):
        nonlocal where, left
        if not frame.f_code.co_filename.startswith(_HOME):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                where = frame.f_code.co_name
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    gc.disable()
    sys.settrace(trace)
    try:
        return call(), None
    except KeyboardInterrupt:
        assert not draws_for_feedline(), where
        return None, where
    finally:
        sys.settrace(before)
        gc.enable()


@pytest.mark.parametrize(
    ("workers", "stride", "shuffle"),
    [
        (0, 1, False),
        (0, 1, True),
        (2, 17, True),
        *slow((2, 17, False)),
        pytest.param(2, 1, False, marks=_SLOW),
        pytest.param(2, 1, True, marks=_SLOW),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_line_of_next_costs_no_batch(workers, stride, shuffle):
    options = {"shuffle": shuffle, "seed": 1} if shuffle else {}
    data = Numbers(4000)
    with DataLoader(data, 2, **options) as whole:
        expected = [batch.tolist() for batch in whole]
    with DataLoader(data, 2, num_workers=workers, **options) as loader:
        batches = iter(loader)
        at = counted = 0
        for line in itertools.count(1, stride):
            batch, where = interrupted(lambda: next(batches).tolist(), line)
            state = loader.state_dict()
            if where is not None:
                counted += state["step"] - at
                assert state["step"] == at or where in _HANDED_OUT, where
                at = state["step"]
                batch = next(batches).tolist()
            assert batch == expected[at]
            at += 1
            if where is None:
                break
        assert line > 100  # lines were interrupted
        assert counted <= 8  # those that `record_delivery` returns by
        assert [batch.tolist() for batch in batches] == expected[at:]
    gc.collect()  # sockets whose making was interrupted


@pytest.mark.parametrize(
    ("workers", "stride"),
    [
        (0, 13),
        pytest.param(2, 97, marks=_SLOW),
        pytest.param(0, 1, marks=pytest.mark.slow),
        pytest.param(2, 11, marks=_SLOW),
    ],
)
@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_line_of_the_end_begins_no_other_epoch(workers, stride, seed):
    for line in itertools.count(1, stride):
        with DataLoader(Numbers(4), 2, num_workers=workers, seed=seed) as loader:
            batches = iter(loader)
            assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
            _, where = interrupted(lambda: next(batches, None), line)  # noqa: B023
            assert next(batches, None) is None
            assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
        if where is None:
            break
    gc.collect()  # sockets whose making was interrupted
    assert line > 40
    with DataLoader(Numbers(64), 2, num_workers=workers) as loader:
        assert len(list(loader)) == 32
        assert loader.run.tasks > 0


@pytest.mark.parametrize("stride", [13, *slow(2)])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_close_continues_after_an_interrupted_close(stride):
    """No process and no descriptor is left, wherever the first `close` was interrupted."""
    before, fds = own_family(), psutil.Process().num_fds()
    for line in itertools.count(1, stride):
        loader = DataLoader(Numbers(40), 4, num_workers=1, seed=0, persistent_workers=True)
        next(iter(loader))
        _, where = interrupted(loader.close, line)
        loader.close()
        del loader
        gc.collect()
        assert newcomers(before) == [], where
        assert psutil.Process().num_fds() <= fds, where
        if where is None:
            break


class Interrupting(RandomSampler):
    """Is interrupted once, in the middle of a pass."""

    def __init__(self, data, at):
        super().__init__(data)
        self.at = at

    def __iter__(self):
        for place, index in enumerate(super().__iter__()):
            if place == self.at:
                self.at = -1
                raise KeyboardInterrupt
            yield index


@pytest.mark.parametrize(
    ("at", "workers"),
    [*itertools.product((0, 1, 5, 39), (0,)), (5, 2), (39, 2), *slow((0, 2), (1, 2))],
)
def test_interrupted_sampler_repeats_its_draws(workers, at):
    """Python ends a generator that an exception went through."""
    seen = []
    anew = False
    for place in -1, at:
        data = Numbers(40)
        torch.manual_seed(3)
        batches = []
        with DataLoader(data, 2, sampler=Interrupting(data, place), num_workers=workers) as loader:
            for epoch in 1, 2:
                try:
                    iteration = iter(loader)
                except KeyboardInterrupt:  # workers receive work here: no epoch has started
                    iteration, anew = iter(loader), True
                while len(batches) < 20 * epoch:
                    with contextlib.suppress(KeyboardInterrupt):
                        batches.append(next(iteration).tolist())
                assert next(iteration, None) is None
        seen.append(batches)
    for some in seen[1][:20], seen[1][20:]:
        assert sorted(index for batch in some for index in batch) == list(range(40))
    assert seen[1] == seen[0] or anew
    assert anew == (workers > 0 and at < 39)


class Drawing(Numbers):
    """Draws from every kind of random state there is."""

    def __init__(self, length):
        super().__init__(length)
        self.own = np.random.default_rng(0)

    def __getitem__(self, index):
        torch.rand(()), random.random(), np.random.rand(), self.own.random()
        return index


def test_an_interrupt_at_any_line_leaves_the_random_states_alone():
    """A saved numpy generator would otherwise never be restored.

    The batch request must also be cleared, because `feedline.image_size` would report it.
    """
    data = Drawing(4000)
    global_one = np.random.get_bit_generator()
    with DataLoader(data, 2, shuffle=True, seed=1) as loader:
        batches = iter(loader)
        next(batches)
        states = fingerprint(), data.own.bit_generator.state
        for line in itertools.count(1):
            _, where = interrupted(lambda: next(batches), line)
            assert np.random.get_bit_generator() is global_one, where
            assert (fingerprint(), data.own.bit_generator.state) == states, where
            assert current_request() is None, where
            with ThreadPoolExecutor(1) as another:  # it gets its turn
                another.submit(take_a_turn).result(10)
            if where is None:
                break
    assert line > 100


def take_a_turn():
    with seeded(0):
        pass


class Asking(RandomSampler):
    """Asks its loader for a state in the middle of a draw, as a signal handler may."""

    loader: DataLoader[Any] | None = None

    def __iter__(self):
        for index in super().__iter__():
            if self.loader is not None:
                with contextlib.suppress(ValueError):  # the sampler is at work
                    self.loader.state_dict()
            yield index


@pytest.mark.parametrize("workers", [0, 2])
def test_state_requested_during_a_draw_changes_nothing(workers):
    data = Numbers(200)
    torch.manual_seed(3)
    with DataLoader(data, 2, sampler=RandomSampler(data), num_workers=workers) as loader:
        expected = [batch.tolist() for batch in loader]
    torch.manual_seed(3)
    sampler = Asking(data)
    with DataLoader(data, 2, sampler=sampler, num_workers=workers) as loader:
        sampler.loader = loader
        assert [batch.tolist() for batch in loader] == expected


def test_step_set_on_interrupted_epoch_is_reached():
    found = []
    for place in -1, 0:
        data = Numbers(40)
        torch.manual_seed(3)
        with DataLoader(data, 2, sampler=Interrupting(data, place)) as loader:
            batches = iter(loader)
            if place == 0:
                with pytest.raises(KeyboardInterrupt):
                    next(batches)
            loader.set_step(3)
            found.append([batch.tolist() for batch in batches])
    assert len(found[0]) == 17
    assert found[1] == found[0]


class Unlike(RandomSampler):
    """Yields another order each time, regardless of torch's random state."""

    passes = 0

    def __iter__(self):
        Unlike.passes += 1
        for index in range(40):
            if Unlike.passes == 1 and index == 9:
                raise KeyboardInterrupt
            yield (index + Unlike.passes) % 40


def test_unrepeatable_interrupted_epoch_raises_on_next_batch_and_keeps_state():
    Unlike.passes = 0
    data = Numbers(40)
    with DataLoader(data, 2, sampler=Unlike(data)) as loader:
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        assert loader.state_dict()["step"] == 4
        with pytest.raises(StateError, match="gives other samples"):
            next(batches)
        assert len(list(loader)) == 20


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_interrupt_at_any_line_keeps_record_of_later_loaders():
    for line in itertools.count(1):
        with DataLoader(Rows(8), 8, image_size=4) as loader:
            batches = iter(loader)
            _, where = interrupted(lambda batches=batches: next(batches), line)
        if where is None:
            break
        if where not in ("begin_task", "record_stages", "end_task"):
            continue
        with DataLoader(Rows(8), 1, image_size=4) as other:
            assert len(list(other)) == 8
            assert other.run.timed > 0, (where, line)
