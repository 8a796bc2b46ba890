"""feedline.watch with loaders of all kinds: equal batches, and a correct record."""

import contextlib
import functools
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate
from torchvision.transforms import v2

import feedline
import preloaded
from feedline.errors import UsageError
from feedline.profile import watch as watching
from feedline.randomness import seed_all
from feedline.timing.passes import PassRecord
from feedline.timing.run import Loader
from feedline.timing.run_file import read_run
from sets import Drawing, Made, plain
from slow import slow

pytestmark = pytest.mark.own_fork_server


@pytest.fixture(autouse=True)
def _forgotten():
    watching._recorders.clear()
    yield
    watching._recorders.clear()


def watch(loader, **options):
    return feedline.watch(loader, panel=False, **options)


def only(watched):
    (entry,) = watched.run.passes
    return entry


class Counting(IterableDataset[int]):
    """This many numbers in each worker."""

    def __init__(self, length, raises=-1):
        self.length, self.raises = length, raises

    def __iter__(self):
        return Stubborn(self.length, self.raises)


class Stubborn:
    """An iterator that continues after it has raised."""

    def __init__(self, length, raises):
        self.at, self.length, self.raises = -1, length, raises

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        if self.at >= self.length:
            raise StopIteration
        if self.at == self.raises:
            raise ValueError("this one is bad")
        return self.at


class Together(Drawing):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Mine(DataLoader[Any]):
    """A user-defined loader whose iterator is a generator."""

    def __iter__(self):
        for batch in super().__iter__():
            yield batch, "mine"


LOADERS = {
    "no workers": lambda: DataLoader(Drawing(), 4),
    "workers": lambda: DataLoader(Drawing(), 4, shuffle=True, num_workers=2),
    "persistent": lambda: DataLoader(Drawing(), 4, num_workers=2, persistent_workers=True),
    "spawn": lambda: DataLoader(Drawing(), 4, num_workers=1, multiprocessing_context="spawn"),
    "forkserver": lambda: DataLoader(
        Drawing(), 4, num_workers=1, multiprocessing_context="forkserver"
    ),
    "together": lambda: DataLoader(Together(), 4, num_workers=2),
    "no batches": lambda: DataLoader(Drawing(), batch_size=None, num_workers=2),
    "iterable": lambda: DataLoader(Counting(9), 4, num_workers=2),
    "iterable here": lambda: DataLoader(Counting(9), 4),
    "subclass": lambda: Mine(Drawing(), 4, num_workers=2),
    "feedline": lambda: feedline.DataLoader(Drawing(), 4, num_workers=2),
    "feedline here": lambda: feedline.DataLoader(Drawing(), 4),
    "feedline iterable": lambda: feedline.DataLoader(Counting(9), 4, num_workers=2),
}


def two_epochs(loader):
    seed_all(3)
    return [plain(batch) for _ in range(2) for batch in loader]


SLOW = ("spawn", "forkserver", "persistent", "subclass", "iterable here", "feedline here")
SLOW += ("together",)


@pytest.mark.parametrize("name", [*(each for each in LOADERS if each not in SLOW), *slow(*SLOW)])
def test_batches_equal_those_of_bare_loader_and_workers_are_seen(name):
    bare = two_epochs(LOADERS[name]())
    loader = LOADERS[name]()
    watched = watch(loader)
    init = loader.worker_init_fn
    assert two_epochs(watched) == bare
    assert loader.worker_init_fn is init is None
    run = watched.run
    assert [entry.ended for entry in run.passes] == ["exhausted", "exhausted"]
    assert [entry.epoch for entry in run.passes] == [0, 1]
    assert sum(entry.batches for entry in run.passes) == len(bare)
    assert all(entry.start_ms.count == 1 for entry in run.passes)
    assert all(entry.wait.count == entry.batches - 1 for entry in run.passes)
    assert run.tasks >= len(bare)
    (said,) = run.loaders
    assert said.workers == loader.num_workers
    assert said.kind == ("feedline" if "feedline" in name else "torch")
    assert (len(run.use.processes) > 1) == (loader.num_workers > 0)


@pytest.mark.parametrize("name", ["no workers", "workers", "feedline"])
def test_workers_of_a_loader_that_only_the_loop_holds_are_recorded(name, tmp_path):
    for _ in watch(LOADERS[name](), run=tmp_path):
        gc.collect()
    assert read_run(tmp_path).tasks > 0


def test_stages_of_a_transform_are_named_and_the_slow_sample_by_its_path(jpeg_folder):
    from torchvision import datasets

    slow = str(jpeg_folder / "cats" / "3.jpg")

    class Folder(datasets.ImageFolder):
        def __getitem__(self, index):
            if self.samples[index][0] == slow:
                threading.Event().wait(0.3)
            return super().__getitem__(index)

    steps = [v2.RandomResizedCrop(16), v2.PILToTensor()]
    loader = DataLoader(Folder(str(jpeg_folder), v2.Compose(steps)), 1, num_workers=1)
    watched = watch(loader)
    for _ in watched:
        pass
    run = watched.run
    names = {stage.name for stage in run.stages}
    assert {"transform: RandomResizedCrop", "transform: PILToTensor", "collate"} <= names
    assert {"open", "read and decode"} <= names
    # 300 ms, less the time that the worker waited for a core.
    assert max(each.ms for each in run.slowest if each.name == slow) >= 200
    assert run.use.dataset_bytes == sum(path.stat().st_size for path in jpeg_folder.glob("*/*"))
    assert run.use.worker_threads is not None


@pytest.mark.parametrize("kind", [DataLoader, feedline.DataLoader])
def test_loop_that_breaks_off_is_recorded_as_left(kind, recwarn):
    watched = watch(kind(Drawing(), 4, num_workers=2))
    for _ in watched:
        break
    assert (only(watched).ended, only(watched).batches) == ("left", 1)


def broken_at_2(index):
    if index == 2:
        raise KeyError("sample 2 is broken")
    return index


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [DataLoader, feedline.DataLoader])
def test_loader_that_raises_may_continue(kind, workers):
    watched = watch(kind(Made(4, broken_at_2), 1, num_workers=workers))
    batches = iter(watched)
    assert [int(next(batches)), int(next(batches))] == [0, 1]
    with pytest.raises(KeyError, match="sample 2 is broken"):
        next(batches)
    assert only(watched).ended == "raised"
    assert int(next(batches)) == 3
    assert only(watched).ended == ""
    with pytest.raises(StopIteration):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)
    assert (only(watched).ended, only(watched).batches) == ("exhausted", 3)


@pytest.mark.parametrize("workers", [0, 1])
def test_iterable_dataset_may_continue_after_error(workers):
    batches = iter(watch(DataLoader(Counting(4, raises=1), None, num_workers=workers)))
    assert next(batches) == 0
    with pytest.raises(ValueError, match="this one is bad"):
        next(batches)
    assert list(batches) == [2, 3]


def test_a_generator_is_watched_once_and_a_list_repeatedly():
    watched = watch(torch.zeros(2, 3, 8, 8) for _ in range(5))
    assert len(list(watched)) == 5
    assert list(watched) == []
    first, second = watched.run.passes
    assert (first.batches, first.image_size, first.samples) == (5, 8, 10)
    assert len(first.first_steps_ms) == len(first.first_steps_cpu_ms) == 4
    assert (second.batches, second.ended) == (0, "exhausted")
    watched = watch([torch.zeros(4)] * 3, name="list")
    assert len(watched) == 3
    assert len(list(watched)) + len(list(watched)) == 6
    assert [entry.batches for entry in watched.run.passes] == [3, 3]
    assert watched.run.loaders == [Loader(kind="other", name="builtins.list")]


def init_that_sets_threads(worker):
    os.environ["FEEDLINE_TEST_WORKER"] = str(worker)


def worker_of(index):
    return os.environ.get("FEEDLINE_TEST_WORKER", "")


def init_that_raises(worker):
    raise RuntimeError("no data for this worker")


class Broken(DataLoader[Any]):
    def __iter__(self):
        raise RuntimeError("no such bucket")


@pytest.mark.parametrize("method", ["fork", *slow("spawn")])
def test_worker_init_fn_of_user_runs_and_is_restored(method):
    loader = DataLoader(
        Made(2, worker_of),
        1,
        num_workers=1,
        worker_init_fn=init_that_sets_threads,
        multiprocessing_context=method,
    )
    assert list(watch(loader)) == [["0"], ["0"]]
    assert loader.worker_init_fn is init_that_sets_threads


@pytest.mark.parametrize(
    ("kind", "init", "error"),
    [(DataLoader, init_that_raises, "no data for this worker"), (Broken, None, "no such bucket")],
)
def test_loader_that_cannot_start_raises_and_is_unchanged(kind, init, error):
    loader = kind(Drawing(), 1, num_workers=1, worker_init_fn=init)
    watched = watch(loader)
    with pytest.raises(RuntimeError, match=error):
        list(watched)
    assert loader.worker_init_fn is init
    gc.collect()
    assert [each.ended for each in watched.run.passes] == ["raised"] * (kind is DataLoader)


def test_the_same_loader_watched_in_each_epoch_is_one_with_its_epochs():
    loader = DataLoader(Drawing(), 4, num_workers=1, persistent_workers=True)
    for _ in range(3):
        for _ in watch(loader):
            pass
    run = watch(loader).run
    assert len(run.loaders) == 1
    assert [entry.epoch for entry in run.passes] == [0, 1, 2]
    assert run.tasks == 18, "the workers of the first epoch are still seen"
    data = [torch.zeros(4)] * 3
    for _ in range(20):
        list(watch(data, name="a list"))
    last = watch(data, name="a list").run.passes[-1]
    assert (last.built, last.epoch) == (1, 19)


def test_loader_rebuilt_each_epoch_is_one_and_is_released():
    gone, descriptors = [], []
    for _ in range(20):
        loader = DataLoader(Drawing(), 4)
        gone.append(weakref.ref(loader))
        watched = watch(loader)
        for _ in watched:
            pass
        run = watched.run
        del loader, watched
        gc.collect()  # multiprocessing's shared memory is released as garbage
        descriptors.append(len(os.listdir("/proc/self/fd")))
    assert [each() for each in gone] == [None] * 20
    assert descriptors[-1] == descriptors[9]
    assert (len(run.loaders), len(run.passes), run.tasks) == (1, 20, 120)


def test_concurrent_loops_and_threads_are_separate():
    training = watch(DataLoader(Drawing(40), 4, num_workers=1))
    validation = watch(DataLoader(Drawing(8), 8, num_workers=1))
    for _ in training:
        for _ in validation:
            pass
    run = training.run
    assert run.passes[0].batches == 10
    assert sum(entry.batches for entry in run.passes) == 20

    loader = DataLoader(Drawing(40), 4)
    with ThreadPoolExecutor(4) as executor:
        loops = [executor.submit(lambda: list(watch(loader, name="threads"))) for _ in range(4)]
    assert [len(loop.result()) for loop in loops] == [10] * 4
    assert sum(e.batches for e in watch(loader, name="threads").run.passes) == 40


def test_attributes_are_forwarded_to_loader():
    loader = feedline.DataLoader(Drawing(), 4, num_workers=1, seed=0)
    with loader:
        watched = watch(loader)
        watched.set_epoch(3)
        watched.num_workers = 2
        assert (loader.epoch, loader.num_workers, watched.num_workers) == (3, 2, 2)
        assert watched.run.loaders == loader.run.loaders
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            watched.nonsense  # noqa: B018
    assert watch(watched).iterable is loader
    assert watch(torch.zeros(2) for _ in range(2))
    assert not watch([])


def test_unwatchable_object_is_rejected():
    with pytest.raises(UsageError, match=r"iterable.*int"):
        watch(3)
    with pytest.raises(UsageError, match="panel must be"):
        feedline.watch([], panel="loud")
    with pytest.raises(UsageError, match="metrics must be a function"):
        watch([], metrics=3)
    with pytest.raises(UsageError, match="every_s must be more than 0"):
        watch([], metrics=print, every_s=0)


def broken(*_):
    raise ArithmeticError("the record is broken")


@pytest.mark.parametrize("kind", [DataLoader, feedline.DataLoader])
def test_a_record_that_fails_ends_no_loop_and_changes_no_exception(kind, monkeypatch, caplog):
    batches = iter(watch(kind(Made(4, broken_at_2), 1)))
    assert int(next(batches)) == 0
    with monkeypatch.context() as patch:
        patch.setattr(PassRecord, "_flush", broken)
        assert int(next(batches)) == 1
        with pytest.raises(KeyError, match="sample 2 is broken"):
            next(batches)
        assert [int(batch) for batch in batches] == [3]
    monkeypatch.setattr(PassRecord, "add_batch", broken)
    caplog.clear()
    watched = watch(kind(Drawing(), 4), name="another")
    assert len(list(watched)) == len(list(watched)) == 6
    assert any("the record is broken" in note for note in watched.run.notes)
    assert "the record is broken" in caplog.text


FORKED = """
import os, torch, feedline
from torch.utils.data import DataLoader, TensorDataset
loaders = [DataLoader(TensorDataset(torch.arange(8)), 2, num_workers=1) for _ in range(1)]
loaders.append(feedline.DataLoader(TensorDataset(torch.arange(8)), 2, seed=0))
for loader in loaders:
    watched = feedline.watch(loader, panel=False, run="run")
    for _ in watched: pass
    child = os.fork()
    if not child:
        assert len(list(watched)) == 4
        assert len(watched.run.passes) == 1, watched.run.passes
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    for _ in watched: pass
    assert [entry.batches for entry in watched.run.passes] == [4, 4], watched.run.passes
    assert watched.run.tasks >= 0
"""

FORKED_WITHIN = """
import os, sys, feedline
told = []
outputs = {"run": "run", "trace": "t.json", "metrics": told.append, "every_s": 1e-6}
watched = feedline.watch([1, 2, 3], panel=False, **outputs)
list(watched)
batches = iter(watched)
next(batches)
watched.save()
files = [open(name).read() for name in ("run/trace.json", "t.json")]
child = os.fork()
if not child:
    told.clear()
    assert list(batches) == [2, 3]
    assert list(watched) == list(watched) == [1, 2, 3]
    assert [entry.batches for entry in watched.run.passes] == [3, 3]
    assert not told
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert [open(name).read() for name in ("run/trace.json", "t.json")] == files
"""

CHILDREN = """
import multiprocessing, sys, feedline
from feedline.timing.run_file import read_run
def work():
    watched = feedline.watch(list(range(100)), panel=False, run="run")
    work.kept = iter(watched)  # until the process ends
    for _ in range(51):
        next(work.kept)
    sys.exit()
if __name__ == "__main__":
    for method in ("fork", "spawn"):
        child = multiprocessing.get_context(method).Process(target=work)
        child.start()
        child.join()
        assert child.exitcode == 0
        assert read_run("run").passes[0].batches == 51
"""


WORKER_KILLED = """
import gc, os, feedline
from torch.utils.data import DataLoader
class Deadly:
    def __len__(self): return 8
    def __getitem__(self, index):
        if index == 5: os.kill(os.getpid(), 9)
        return index
watched = feedline.watch(DataLoader(Deadly(), 1, num_workers=1), panel=False)
try:
    list(watched)
except (RuntimeError, OSError, EOFError):  # whichever of its connections torch tries first
    pass
else:
    raise SystemExit("the worker was not killed")
gc.collect()
assert [entry.ended for entry in watched.run.passes] == ["raised"], watched.run.passes
"""


WORKER_KILLED_WHILE_RECORDING = """
import gc, time, feedline, psutil
from torch.utils.data import DataLoader
class Trap(list):
    armed = False
    def __getitem__(self, key):  # called by the record of a batch
        if Trap.armed:
            Trap.armed = False
            for worker in psutil.Process().children():
                worker.kill()
            time.sleep(60)  # until torch's handler of SIGCHLD raises
        return super().__getitem__(key)
watched = feedline.watch(
    DataLoader(range(8), 1, num_workers=1, collate_fn=Trap), panel=False
)
batches = iter(watched)
next(batches)
Trap.armed = True
try:
    next(batches)
except RuntimeError as error:
    assert "killed by signal" in str(error), error
else:
    raise SystemExit("the error was lost")
del batches
gc.collect()
assert [entry.ended for entry in watched.run.passes] == ["raised"], watched.run.passes
"""


UNTOUCHED = """
import multiprocessing, torch, feedline
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.arange(8)), 2, num_workers=1)
feedline.watch(loader, panel=False)
multiprocessing.set_start_method("spawn")
"""

PROGRAMS = {
    "a forked process has its own run": FORKED,
    "a process forked within a run leaves its files alone": FORKED_WITHIN,
    "a killed worker raises torch's error": WORKER_KILLED,
    "torch's error is raised while a batch is recorded": WORKER_KILLED_WHILE_RECORDING,
    "the start method can still be set": UNTOUCHED,
}


@pytest.mark.parametrize("name", [*list(PROGRAMS)[:4], *slow(*list(PROGRAMS)[4:])])
def test_programs_with_other_processes_are_recorded(name, tmp_path):
    done = preloaded.run(
        [sys.executable, "-c", PROGRAMS[name]], cwd=tmp_path, capture_output=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_process_of_multiprocessings_writes_its_run_when_it_ends(tmp_path):
    (tmp_path / "main.py").write_text(CHILDREN)
    done = preloaded.run(
        [sys.executable, "main.py"], cwd=tmp_path, capture_output=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


KILLED = """
import os, tempfile, torch, feedline
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.arange(800)), 2, num_workers=2)
for k, _ in enumerate(feedline.watch(loader, panel=False)):
    if k == 5:
        os.kill(os.getpid(), 9)
"""


def test_killed_program_leaves_nothing_behind(tmp_path):
    shared = set(os.listdir("/dev/shm"))
    temporary = tempfile.mkdtemp()  # a short path: torch's sockets lie there
    program = preloaded.Popen(
        [sys.executable, "-c", KILLED],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": temporary},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert program.wait(100) == -9
    finally:  # torch's workers end when they come to see it, if they do
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
    left = [path.name for path in Path(temporary).rglob("*") if "pymp" not in str(path)]
    shutil.rmtree(temporary, ignore_errors=True)
    assert left == []
    assert not [name for name in set(os.listdir("/dev/shm")) - shared if "feedline" in name]


def test_non_list_datasets_have_numbered_samples():
    data = Made(3, int)
    data.samples = "not a list"
    watched = watch(DataLoader(data, 1))
    assert len(list(watched)) == 3
    assert {slow.name for slow in watched.run.slowest} == {"sample 0", "sample 1", "sample 2"}
    assert watched.run.use.dataset_bytes is None


class Open(IterableDataset[int]):
    """A dataset that says when its files are closed."""

    closed = 0

    def __iter__(self):
        try:
            yield from range(8)
        finally:
            self.closed += 1


def test_an_iterable_datasets_files_are_closed_when_the_loop_ends():
    gc.disable()
    try:
        data = Open()
        watched = watch(DataLoader(data, 2))
        for _ in watched:
            break
        assert data.closed == 1
    finally:
        gc.enable()


class Resumable(Stubborn):
    def state_dict(self):
        return {"at": self.at}


class Stateful(Counting):
    def __iter__(self):
        return Resumable(self.length, self.raises)


def test_an_iterator_with_a_state_stays_in_its_place_and_its_time_is_seen():
    watched = watch(DataLoader(Stateful(20), 2))
    batches = iter(watched)
    assert type(batches._dataset_fetcher.dataset_iter) is Resumable
    assert len(list(batches)) == 10
    assert {"dataset", "collate"} <= {stage.name for stage in watched.run.stages}


def test_equal_or_unhashable_loaders_are_distinguished():
    class Equal(DataLoader[Any]):
        def __eq__(self, other):
            return True

        __hash__ = None

    loader, other = Equal(Drawing(), 4), Equal(Drawing(8), 4)
    for each in (loader, other, loader):
        for _ in watch(each):
            pass
    run = watch(loader).run
    assert [entry.loader for entry in run.passes] == [0, 1, 0]
    assert {entry.built for entry in run.passes} == {1}
    assert run.tasks == 6 + 2 + 6


class Mixing:
    """A collate function that is an instance."""

    def __call__(self, samples):
        return default_collate(samples)


def scaled(samples, factor):
    return default_collate(samples) * factor


@pytest.mark.parametrize("kind", [DataLoader, feedline.DataLoader])
@pytest.mark.parametrize(
    ("collate", "name"),
    [
        (default_collate, ""),
        (functools.partial(scaled, factor=2), "scaled"),
        (functools.partial(Mixing()), "Mixing"),
    ],
)
def test_collate_functions_of_any_form_are_named(kind, collate, name):
    watched = watch(kind(list(range(4)), 2, collate_fn=collate))
    iter(watched)
    assert [loader.collate for loader in watched.run.loaders] == [name]
