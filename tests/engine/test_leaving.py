"""Ends of a program, and many epochs, leave nothing behind."""

import gc
import os
import signal
import time

import psutil
import pytest
import torch

from feedline.loader import DataLoader
from processes import descendants, eventually, gone, outcome, running, shared_memory, start_script
from sets import Closed, Made, as_it_is
from slow import slow

pytestmark = pytest.mark.own_fork_server

TRAIN = """
import os, sys, time

if __name__ == "__main__":  # workers of rows would load torch
    from faulty import Steady
    from feedline.loader import DataLoader
    from sets import Slow

    loader = DataLoader({data}, num_workers=3, start_method={method!r})
    for epoch in range(1000):
        for step, batch in enumerate(loader):
            if epoch == 0 and step == 1:
                print("running", flush=True)
            {body}
"""
ROWS, BATCHES = "Steady(400, row_s=0.005), 32, image_size=32", "Slow(40000, 0.005), 8"
WORKERS = [
    *((ROWS, "forkserver"), (BATCHES, "fork")),
    *slow((ROWS, "spawn"), (BATCHES, "forkserver"), (BATCHES, "spawn")),
]


def train(folder, data, method, body="pass"):
    return start_script(TRAIN.format(data=data, method=method, body=body), folder)


@pytest.mark.parametrize(("data", "method"), WORKERS)
def test_a_trainer_that_is_killed_leaves_no_process_and_no_memory(data, method, tmp_path):
    script = train(tmp_path, data, method)
    processes = running(script, least=3)
    memory = shared_memory([psutil.Process(script.pid), *processes])
    assert bool(memory) == (method == "spawn")
    script.kill()
    script.wait()
    try:
        assert eventually(lambda: gone(processes))
        assert eventually(lambda: not any(path.exists() for path in memory))
    finally:
        script.communicate()


def test_a_trainer_killed_while_its_child_lives_on_leaves_no_worker(tmp_path):
    # The child holds copies of the trainer's sockets: they do not end with the trainer.
    body = """if epoch == 0 and step == 0:
                child = os.fork()
                if child == 0:
                    time.sleep(60)
                    os._exit(0)
                print(child, flush=True)"""
    script = train(tmp_path, ROWS, "forkserver", body)
    assert script.stdout is not None
    child = int(script.stdout.readline())
    workers = [p for p in running(script, least=3) if p.pid != child]
    script.kill()
    script.wait()
    try:
        assert eventually(lambda: gone(workers), within_s=10)
    finally:
        os.kill(child, signal.SIGKILL)
        script.communicate()


@pytest.mark.parametrize(("data", "method"), WORKERS[:2])
def test_ctrl_c_ends_program_once_and_silently(data, method, tmp_path):
    script = train(tmp_path, data, method)
    processes = running(script, least=3)
    os.killpg(script.pid, signal.SIGINT)  # as a terminal does: to the whole group
    _, errors = script.communicate(timeout=60)
    assert script.returncode == -signal.SIGINT
    assert errors.count("Traceback") == 1, errors
    assert eventually(lambda: gone(processes))


@pytest.mark.parametrize(
    ("data", "method", "body", "status"),
    [
        (BATCHES, "fork", "assert step < 3", 1),
        *slow(
            (BATCHES, "fork", "if step == 3: sys.exit(0)", 0),
            (ROWS, "forkserver", "assert step < 3", 1),
            (ROWS, "forkserver", "if step == 3: sys.exit(0)", 0),
        ),
    ],
)
def test_an_exception_or_an_exit_in_the_loop_ends_everything(data, method, body, status, tmp_path):
    script = train(tmp_path, data, method, body)
    processes = running(script, least=3)
    _, errors = script.communicate(timeout=60)
    assert script.returncode == status
    assert errors.count("Traceback") == status, errors
    assert eventually(lambda: gone(processes))


def test_missing_file_descriptors_raise_and_no_batch_is_wrong(tmp_path):
    text = """
import os, resource
import torch
from sets import Made
from feedline.errors import ResourceError
from feedline.loader import DataLoader

data = Made(60, lambda index: torch.full((1000 * (index + 1),), float(index)))
batches = iter(DataLoader(data, None, num_workers=2, prefetch_factor=20, start_method="fork"))
next(batches)
limit = len(os.listdir("/proc/self/fd")) + 2
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
try:
    for index, batch in enumerate(batches, 1):
        assert (batch == index).all() and len(batch) == 1000 * (index + 1)
except ResourceError as error:
    print("too many open files" in str(error))
"""
    output, errors = outcome(text, tmp_path)
    assert output == "True", errors


class Garbage:
    """Reports its garbage collection, in any process."""

    def __init__(self, path):
        self.path, self.me = path, self

    def __del__(self):
        with self.path.open("a") as file:
            file.write(f"{os.getpid()}\n")


def test_workers_collect_no_garbage_of_the_trainers(tmp_path):
    gc.disable()
    try:
        Garbage(tmp_path / "collected")
        data = Made(40, lambda index: (gc.collect() and index) or index)
        assert len(list(DataLoader(data, 4, num_workers=2))) == 10
        assert not (tmp_path / "collected").exists()
    finally:
        gc.enable()
    gc.collect()
    assert (tmp_path / "collected").read_text() == f"{os.getpid()}\n"


def fork(_=None):
    child = os.fork()
    if child == 0:
        try:
            time.sleep(60)
        finally:
            os._exit(0)
    return child


def fork_twice(_):
    """A child of a child, as a daemon is."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, fork().to_bytes(8, "little"))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return int.from_bytes(os.read(reader, 8), "little")


def start_program(_):
    return os.posix_spawn("/bin/sleep", ["sleep", "60"], {})


@pytest.mark.parametrize(
    ("method", "start"),
    [
        *(("fork", fork), ("fork", fork_twice), ("forkserver", start_program)),
        *slow(("forkserver", fork), ("spawn", fork)),
    ],
)
def test_orphan_of_worker_does_not_delay_close(method, start):
    data, pids = Made(4, start), []
    loader = DataLoader(data, None, num_workers=1, start_method=method)
    try:  # each sample is a process that outlives its worker
        pids += loader  # of one worker
        data.note = "another dataset"
        pids += loader  # of another, as the first is renewed
        loader.close()
        assert len(pids) == 8
        assert all(psutil.pid_exists(pid) for pid in pids)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        loader.close()


def open_files():
    return len(os.listdir("/proc/self/fd"))


def test_many_epochs_leak_no_descriptors_processes_or_memory():
    data = Closed(torch.zeros(50_000))
    options = {"num_workers": 2, "collate_fn": as_it_is}
    me = psutil.Process()
    with DataLoader(data, 1, **options) as loader:

        def epochs(count):
            for _ in range(count):
                for batch in loader:
                    assert batch[0][0][0] == data.value[0]

        epochs(5)
        gc.collect()
        files, children, memory = open_files(), len(descendants(me.pid)), me.memory_info().rss
        epochs(10)
        gc.collect()
        assert open_files() <= files + 2
        assert len(descendants(me.pid)) <= children
        assert me.memory_info().rss < memory + (20 << 20)  # an epoch that stayed makes 80 MB


def test_batches_of_varying_sizes_leak_no_descriptors():
    sizes = [1, 500, 20, 1000, 3] * 20
    data = Made(len(sizes), lambda index: torch.full((sizes[index] * 100,), float(index)))
    with DataLoader(data, None, num_workers=2) as loader:
        counts = []
        for _ in range(5):
            for index, batch in enumerate(loader):
                assert bool((batch == index).all())
            counts.append(open_files())
    assert counts[-1] <= counts[1]
