"""IterableDataset on torch's engine: errors, and the position after them."""

import gc

import pytest
import torch
from torch.distributed import checkpoint
from torch.utils.data import IterableDataset

from feedline.errors import StateError
from feedline.loader import DataLoader
from processes import newcomers, own_family
from sets import through_json


class Faulty:
    """Numbers up to 12, of which some raise and are over then."""

    def __init__(self, bad):
        self.bad, self.next = bad, 0

    def __iter__(self):
        return self

    def __next__(self):
        self.next += 1
        if self.next > 12:
            raise StopIteration
        if self.next - 1 in self.bad:
            raise ValueError(f"not {self.next - 1}")
        return self.next - 1


class WithFaults(IterableDataset[int]):
    def __iter__(self):
        return Faulty((2, 7))


class FailsOnce(IterableDataset[int]):
    """A disk that fails once at a given number, after it was told to."""

    away = False

    def __init__(self, at):
        self.at = at

    def __iter__(self):
        for number in range(12):
            if self.away and number == self.at:
                self.away = False
                raise OSError("the disk is away")
            yield number


class Epochs(IterableDataset[int]):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(range(100 * self.epoch, 100 * self.epoch + 4))


def steps(batches):
    """Result of each step: a batch or an exception."""
    while True:
        try:
            yield next(batches).tolist()
        except StopIteration:
            return
        except ValueError:
            yield "raised"


EPOCH = [[0, 1], "raised", [3, 4], [5, 6], "raised", [8, 9], [10, 11]]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("done", range(len(EPOCH) + 1))
def test_state_resumes_after_any_number_of_errors(done, workers):
    with DataLoader(WithFaults(), 2, num_workers=workers) as loader:
        before = steps(iter(loader))
        assert [next(before) for _ in range(done)] == EPOCH[:done]
        state = through_json(loader.state_dict())
    assert state["step"] == done
    with DataLoader(WithFaults(), 2, num_workers=workers) as other:
        other.load_state_dict(state)
        assert through_json(other.state_dict()) == state
        after = iter(other)
        if done < len(EPOCH):
            assert next(steps(after)) == EPOCH[done]
            later = through_json(other.state_dict())
            assert [*steps(after)] == EPOCH[done + 1 :]
            other.load_state_dict(later)  # of a loader that continued by itself
            assert [*steps(iter(other))] == EPOCH[done + 1 :]
        else:
            assert [*steps(after)] == []
        assert other.epoch == 1
        assert [*steps(iter(other))] == EPOCH
        assert other.epoch == 2


class Counter:
    """Numbers up to 12, with a state whose keys change."""

    def __init__(self):
        self.passed = []

    def __iter__(self):
        return self

    def __next__(self):
        if len(self.passed) == 12:
            raise StopIteration
        self.passed.append(len(self.passed))
        return self.passed[-1]

    def state_dict(self):
        return {f"passed {number}": number for number in self.passed}

    def load_state_dict(self, state):
        self.passed = list(state.values())


class Resumable(IterableDataset[int]):
    def __iter__(self):
        return Counter()


class StateOfLoader(WithFaults):
    """A dataset whose state needs the position, from a loader of its own library."""

    def state_dict(self, num_samples, from_beginning):
        raise AssertionError("not for this loader")

    def load_state_dict(self, state):
        raise AssertionError("not for this loader")


def test_dataset_whose_state_needs_arguments_is_read_again():
    loader = DataLoader(StateOfLoader(), 2)
    before = steps(iter(loader))
    assert [next(before) for _ in range(3)] == EPOCH[:3]
    other = DataLoader(StateOfLoader(), 2)
    other.load_state_dict(through_json(loader.state_dict()))
    assert [*steps(iter(other))] == EPOCH[3:]


@pytest.mark.skipif(not hasattr(torch, "uint16"), reason="torch 2.2 needs a process group here")
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.parametrize("other_steps", [None, 0, 1, 4])
@pytest.mark.parametrize("dataset", [Resumable, WithFaults])
def test_distributed_checkpoint_loads_a_state_at_any_position(dataset, other_steps, tmp_path):
    def at(done):
        loader = DataLoader(dataset(), 2)
        batches = steps(iter(loader) if done is not None else iter(()))
        for _ in range(done or 0):
            next(batches)
        return loader, batches

    first, rest = at(3)
    checkpoint.save({"loader": first}, checkpoint_id=tmp_path, no_dist=True)
    other, _ = at(other_steps)
    checkpoint.load({"loader": other}, checkpoint_id=tmp_path, no_dist=True)
    assert list(steps(iter(other))) == list(rest)


def test_error_before_resume_position_loses_no_sample():
    dataset = FailsOnce(at=1)
    loader = DataLoader(dataset, 2)
    batches = iter(loader)
    assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    state = loader.state_dict()
    other = DataLoader(dataset, 2)
    other.load_state_dict(state)
    dataset.away = True
    with pytest.raises(OSError, match="the disk is away"):
        iter(other)
    assert other.state_dict() == state
    assert [batch.tolist() for batch in other] == [[4, 5], [6, 7], [8, 9], [10, 11]]
    assert other.epoch == 1


@pytest.mark.parametrize("persistent", [False, True])
def test_close_ends_workers_even_if_an_exception_references_their_iterator(persistent):
    before = own_family()
    with DataLoader(WithFaults(), 2, num_workers=1, persistent_workers=persistent) as loader:
        earlier, batches = iter(loader), iter(loader)
        assert next(batches).tolist() == EPOCH[0]
        with pytest.raises(ValueError, match="not 2") as raised:
            next(batches)
        assert newcomers(before)
    assert not newcomers(before)
    assert raised.tb is not None
    del earlier


def test_an_earlier_iteration_that_ends_leaves_persistent_workers_at_work():
    before = own_family()
    with DataLoader(WithFaults(), 2, num_workers=1, persistent_workers=True) as loader:
        earlier = iter(loader)
        assert next(earlier).tolist() == EPOCH[0]
        batches = steps(iter(loader))
        assert next(batches) == EPOCH[0]
        workers = newcomers(before)
        del earlier
        gc.collect()
        assert [*batches] == EPOCH[1:]
        assert [*steps(iter(loader))] == EPOCH
        assert newcomers(before) == workers


@pytest.mark.parametrize("done", [0, 1])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (1, True)])
def test_epoch_left_early_is_followed_by_next(workers, persistent, done):
    options = {"num_workers": workers, "persistent_workers": persistent}
    before = own_family()
    with DataLoader(WithFaults(), 2, **options) as loader:
        for _ in range(done):
            assert [*steps(iter(loader))] == EPOCH
        for batch in loader:
            assert batch.tolist() == EPOCH[0]
            break
        left = through_json(loader.state_dict())
        assert (left["epoch"], left["step"]) == (done, 1)
        gc.collect()
        assert bool(newcomers(before)) == persistent
        batches = steps(iter(loader))
        assert [next(batches), next(batches)] == EPOCH[:2]
        later = through_json(loader.state_dict())
        assert (later["epoch"], later["step"]) == (done + 1, 2)
    for state, step in ((left, 1), (later, 2)):
        with DataLoader(WithFaults(), 2, **options) as other:
            other.load_state_dict(state)
            assert [*steps(iter(other))] == EPOCH[step:]


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (1, True)])
def test_work_of_workers_is_counted_once(workers, persistent):
    options = {"num_workers": workers, "persistent_workers": persistent}
    with DataLoader(WithFaults(), 2, **options) as loader:
        for epoch in (1, 2, 3):
            assert [*steps(iter(loader))] == EPOCH
            # Each step, and the look that finds no more.
            assert {
                seat: each.tasks for seat, each in loader._runtime.stream.stage_timings().items()
            } == {0: epoch * (len(EPOCH) + 1)}


@pytest.mark.parametrize("raised", [None, 1, "1", [2], [-1], [0.5], [True], {"0": 1}])
def test_damaged_error_records_are_rejected(raised):
    loader = DataLoader(WithFaults(), 2)
    next(iter(loader))
    with pytest.raises(StateError, match="invalid 'raised'"):
        loader.load_state_dict({**loader.state_dict(), "raised": raised})


@pytest.mark.parametrize("workers", [0, 1])
def test_epoch_set_before_first_batch_is_used(workers):
    with DataLoader(Epochs(), 2, num_workers=workers) as loader:
        batches = iter(loader)
        loader.set_epoch(1)
        assert [batch.tolist() for batch in batches] == [[100, 101], [102, 103]]
        assert loader.epoch == 2
