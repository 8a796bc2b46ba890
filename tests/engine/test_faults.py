"""Errors in a dataset arrive with their cause, and killed workers cost no batch."""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import signal
import sys
import threading
import traceback
import weakref
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

from feedline.errors import SampleError, UsageError
from feedline.loader import DataLoader
from feedline.timing import RECORD_SWITCH
from sets import Drawing, Made, as_it_is
from slow import slow

LOCK = threading.Lock()


def locked(index):
    with LOCK:
        return index


def asleep(index):
    threading.Event().wait()


class Two(Exception):
    def __init__(self, first, second):
        super().__init__(first, second)


class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Locked(Exception):
    def __init__(self):
        super().__init__("locked")
        self.lock = threading.Lock()


def local():
    class Local(Exception):
        pass

    return Local("here only")


RAISED = {
    "plain": (lambda: ValueError("bad"), ValueError),
    "two arguments": (lambda: Two(1, 2), RuntimeError),
    "frozen": (lambda: Frozen(3), Frozen),
    "not picklable": (Locked, RuntimeError),
    "local": (local, RuntimeError),
    "key": (lambda: KeyError("k"), KeyError),
    "stop": (StopIteration, RuntimeError),
    "quit": (lambda: SystemExit(3), RuntimeError),
    "os": (lambda: FileNotFoundError(2, "no", "file"), FileNotFoundError),
    "decode": (lambda: UnicodeDecodeError("utf8", b"x", 0, 1, "bad"), RuntimeError),
    "cuda": (lambda: RuntimeError("Cannot re-initialize CUDA in forked subprocess"), RuntimeError),
    "memory": (lambda: MemoryError("much"), MemoryError),
}


def rest(batches):
    """Batches, and classes of errors, until the end."""
    found = []
    while True:
        try:
            found.append(next(batches))
        except StopIteration:
            return found
        except Exception as error:
            found.append(type(error))


@pytest.mark.parametrize("name", RAISED)
def test_sample_exception_is_raised_and_next_batch_follows(name):
    make, kind = RAISED[name]

    def sample(index):
        if index == 5:
            raise make()
        return index

    with DataLoader(Made(12, sample), 4, num_workers=2, collate_fn=as_it_is) as loader:
        batches = iter(loader)
        assert next(batches) == [0, 1, 2, 3]
        with pytest.raises(kind) as caught:
            next(batches)
        if name != "frozen":  # nothing can be added to it
            assert "index 5" in str(caught.value)
        assert type(make()).__name__ in str(caught.value)
        assert "test_faults.py" in str(caught.value)
        assert rest(batches) == [[8, 9, 10, 11]]
        assert not loader.worker_deaths


KEYS = [40, 10, 30, 20, 50]


@pytest.mark.parametrize("recorded", ["0", "1"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("bad", KEYS)
def test_an_error_names_the_sample_that_raised_and_no_neighbour(
    bad, workers, recorded, monkeypatch
):
    def sample(index):
        if index == bad:
            raise ValueError("cannot be read")
        return index

    monkeypatch.setenv(RECORD_SWITCH, recorded)
    options = {"num_workers": workers, "collate_fn": list}
    with DataLoader(Made(60, sample), batch_sampler=[KEYS, [1, 2]], **options) as loader:
        batches = iter(loader)
        with pytest.raises(ValueError, match="cannot be read") as caught:
            next(batches)
        said, _, _ = str(caught.value).partition("Original Traceback")
        said += "".join(getattr(caught.value, "__notes__", ()))
        assert re.findall(r"sample with index (\d+) of Made\.", said) == [str(bad)]
        assert next(batches) == [1, 2]


def test_exception_without_message_arrives_by_its_class():
    def sample(index):
        raise Mute

    with pytest.raises(Mute):
        list(DataLoader(Made(4, sample), num_workers=1))


@pytest.mark.parametrize("way", ["exit", "SIGSEGV", "SIGTRAP", "SIGSYS"])
def test_sample_that_always_kills_worker_is_named(way):
    def sample(index):
        if index == 5:
            faulthandler.disable()  # otherwise pytest's handler would print a traceback
            os._exit(3) if way == "exit" else os.kill(os.getpid(), signal.Signals[way])
        return index

    with DataLoader(Made(12, sample), 4, num_workers=2, collate_fn=as_it_is) as loader:
        batches = iter(loader)
        assert next(batches) == [0, 1, 2, 3]
        said = "exited with status 3" if way == "exit" else f"is killed by signal: {way}"
        with pytest.raises(RuntimeError, match=f"index 5 .*{said}"):
            next(batches)
        assert rest(batches) == [[8, 9, 10, 11]]


@pytest.mark.parametrize("batch_size", [2, None])
def test_failing_sample_with_non_integer_key_is_named(batch_size):
    def sample(key):
        if key == "c":
            os._exit(4)
        return key

    loader = DataLoader(Made(3, sample), batch_size, sampler=["a", "b", "c"], num_workers=1)
    with loader, pytest.raises(SampleError, match="index 'c'"):
        list(loader)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize(
    ("make", "where", "kind"),
    [
        (lambda: (i for i in range(3)), "batch[0][1]", "generator"),
        (threading.Lock, "batch[0][1]", "lock"),
        (lambda: sys.__stderr__, "batch[0][1]", "TextIOWrapper"),
        (lambda: {"of": sys}, "batch[0][1]['of']", "module"),
    ],
)
def test_unpicklable_result_is_named_with_hint(make, where, kind, on_error):
    def sample(index):
        if on_error == "skip" and index % 2:
            raise ValueError("odd")
        return torch.zeros(3, requires_grad=True), make()

    data = Made(4, sample)
    options = {"collate_fn": as_it_is, "on_error": on_error}
    loader = DataLoader(data, 2, num_workers=1, **options)
    with (
        loader,
        pytest.raises(TypeError, match=r"(?s)Caught.*Original Traceback.*pickle") as caught,
    ):
        next(iter(loader))
    first = str(caught.value).split("\n")[0]
    assert f"and {where}, of type {kind}, cannot be" in first
    assert "in collate_fn or __getitem__, or use num_workers=0" in first


@pytest.mark.parametrize("workers", [0, 1])
def test_too_large_length_is_named(workers):
    loader = DataLoader(Made(8, range(6).__getitem__), 4, num_workers=workers)
    with loader, pytest.raises(IndexError) as caught:
        list(loader)
    said = str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
    assert "index 6" in said
    assert "__len__: it returns 8" in said


def test_sample_raising_stop_iteration_is_named_without_workers():
    def sample(index):
        return next(iter(())) if index == 5 else index

    batches = iter(DataLoader(Made(12, sample), 4, num_workers=0, collate_fn=as_it_is))
    assert next(batches) == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match=r"StopIteration.*index 5 of Made\."):
        next(batches)
    assert rest(batches) == [[8, 9, 10, 11]]


class RaisesOnce:
    """Batch sampler whose iterator raises before its third batch, and continues."""

    def __len__(self):
        return 5

    def __iter__(self):
        self.batches, self.has_raised = iter(range(5)), False
        return self

    def __next__(self):
        number = next(self.batches)
        if number == 2 and not self.has_raised:
            self.has_raised, self.batches = True, iter(range(2, 5))
            raise ValueError("once")
        return [2 * number, 2 * number + 1]


@pytest.mark.parametrize("loader_class", [TorchDataLoader, DataLoader])
def test_a_sampler_continues_after_an_exception(loader_class):
    batches = iter(loader_class(list(range(10)), batch_sampler=RaisesOnce(), collate_fn=list))
    assert [next(batches), next(batches)] == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="once"):
        next(batches)
    assert list(batches) == [[4, 5], [6, 7], [8, 9]]


def test_skipped_sample_keeps_no_object_alive():
    def sample(index):
        if index == 1:
            raise ValueError("bad")
        made = torch.ones(3)
        alive.append(weakref.ref(made))
        return made

    alive = []
    gc.disable()
    try:
        list(DataLoader(Made(4, sample), 4, num_workers=0, on_error="skip"))
        assert [ref() for ref in alive] == [None] * 3
    finally:
        gc.enable()


def test_samples_that_cannot_be_collated_are_named():
    data = Made(8, lambda index: torch.ones(6 if index == 6 else 3))
    loader = DataLoader(data, 4, num_workers=1)
    with loader, pytest.raises(RuntimeError, match=r"(?s)Sample 6 is.*\[6\].*\[3\].*equal size"):
        list(loader)


@pytest.mark.parametrize("sample", [None, object()])
def test_samples_that_are_none_are_named(sample):
    loader = DataLoader(Made(8, lambda index: sample), 4)
    with pytest.raises(TypeError, match="default_collate") as caught:
        list(loader)
    notes = "".join(getattr(caught.value, "__notes__", ()))
    assert ("Sample 0 contains None" in notes) == (sample is None)


@pytest.mark.parametrize("workers", [0, 1])
def test_uncollatable_sample_is_named_among_remaining_ones(workers):
    def sample(index):
        if index in (0, 2):
            raise ValueError("bad")
        return torch.ones(6 if index == 4 else 3)

    options = {"num_workers": workers, "on_error": "skip"}
    with DataLoader(Made(6, sample), 6, **options) as loader, pytest.raises(RuntimeError) as caught:
        list(loader)
    told = "".join(traceback.format_exception(caught.value))
    assert re.search(r"Sample 4 is float32 \[6\].*float32 \[3\] \(sample 1\)", told)


class Choosy:
    def __init__(self, kept):
        self.lock, self.kept = threading.Lock(), kept

    def __getstate__(self):
        if self.kept is None:
            raise LookupError("nothing kept")
        return {"kept": self.kept}


class Held(Made):
    def __init__(self, held):
        super().__init__(4, as_it_is)
        self.held = held


AT_THE_TOP = "at the top level of a module, or use start_method="
LEFT_OUT = "in the worker, .*leave it out in __getstate__, or use start_method="


def local_instance():
    class Local:
        pass

    return Local()


@pytest.mark.parametrize(
    ("make", "path", "said"),
    [
        (lambda: lambda: 0, "dataset.held", AT_THE_TOP),
        (local_instance, "dataset.held", AT_THE_TOP),
        (lambda: partial(as_it_is, lambda: 0), "dataset.held.args[0]", AT_THE_TOP),
        (threading.Lock, "dataset.held", LEFT_OUT),
        (lambda: {"all": [1, sys.__stderr__]}, "dataset.held['all'][1]", LEFT_OUT),
        (lambda: iter(i for i in range(3)), "dataset.held", "Create the generator " + LEFT_OUT),
        (lambda: threading, "dataset.held", LEFT_OUT),
        (lambda: Choosy(threading.Lock()), "dataset.held.kept", LEFT_OUT),
        (lambda: Choosy(None), "dataset.held", "LookupError: nothing kept"),
    ],
)
def test_unpicklable_object_is_named_with_hint(make, path, said):
    loader = DataLoader(Held(make()), num_workers=1, start_method="forkserver")
    with pytest.raises(
        UsageError, match=f"(?s)^{re.escape(path)} cannot be sent.*{said}"
    ) as caught:
        iter(loader)
    assert ("top level of a module" in str(caught.value)) == (said == AT_THE_TOP)


@pytest.mark.parametrize("name", ["collate_fn", "worker_init_fn"])
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_unpicklable_argument_is_named_by_parameter(name, method):
    options = {name: lambda given: given}
    loader = DataLoader(Drawing(), num_workers=1, start_method=method, **options)
    with pytest.raises(UsageError, match=f"^{name} cannot be sent"):
        iter(loader)


def test_failing_init_function_raises_each_time():
    def init(worker):
        raise ValueError(f"no {worker}")

    loader = DataLoader(Drawing(), 4, num_workers=2, worker_init_fn=init)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"(?s)test_faults.*no [01]"):
            next(iter(loader))
    loader.close()


@pytest.mark.parametrize("method", ["fork", *slow("forkserver")])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")  # from Python 3.12 on
def test_a_lock_held_by_a_thread_during_the_fork_is_suspected_after_a_timeout(method):
    held, let_go = threading.Event(), threading.Event()

    def hold():
        with LOCK:
            held.set()
            let_go.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(60)
        data = Made(4, locked if method == "fork" else asleep)
        with (
            DataLoader(data, start_method=method, num_workers=1, timeout=1) as loader,
            pytest.raises(RuntimeError, match="timed out") as caught,
        ):
            next(iter(loader))
    finally:
        let_go.set()
        holder.join()
    assert ('multiprocessing_context="forkserver"' in str(caught.value)) == (method == "fork")
