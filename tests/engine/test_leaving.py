"""Ends of a program, and many epochs, leave nothing behind."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from faulty import Deadly, Steady

from feedline.engine import pool_linux
from feedline.errors import ClosedError
from feedline.loader import DataLoader, start_engine
from processes import (
    NEW_PYTHON,
    descendants,
    eventually,
    gone,
    outcome,
    running,
    shared_memory,
    start_script,
)
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


@pytest.mark.parametrize(
    ("data", "method", "body", "status"),
    [
        (ROWS, "forkserver", "pass", -signal.SIGINT),
        (BATCHES, "fork", "pass", -signal.SIGINT),
        (BATCHES, "fork", "assert step < 3", 1),
        *slow(
            (BATCHES, "fork", "if step == 3: sys.exit(0)", 0),
            (ROWS, "forkserver", "assert step < 3", 1),
            (ROWS, "forkserver", "if step == 3: sys.exit(0)", 0),
        ),
    ],
)
def test_ctrl_c_an_exception_or_an_exit_ends_everything_with_one_message_at_most(
    data, method, body, status, tmp_path
):
    script = train(tmp_path, data, method, body)
    processes = running(script, least=3)
    if status == -signal.SIGINT:
        os.killpg(script.pid, signal.SIGINT)  # as a terminal does: to the whole group
    _, errors = script.communicate(timeout=60)
    assert script.returncode == status
    assert errors.count("Traceback") == (status != 0), errors
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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("json.py", "raise OSError('not the one')"),
        *slow(("simplejpeg.py", "raise OSError('no libGL')")),
    ],
)
def test_shadowing_modules_do_not_prevent_workers_from_starting(name, text, tmp_path):
    # The first is found in the working directory only, the second on the path itself.
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / name).write_text(text)
    path = f"sys.path.insert(0, {str(folder)!r})" if name == "simplejpeg.py" else "pass"
    body = f"""
import sys
{path}
from pathlib import Path
from typing import Any
sys.path.append(Path("/nowhere"))
from faulty import Steady
from feedline.loader import DataLoader

if __name__ == "__main__":
    with DataLoader(Steady(64), 16, num_workers=1, image_size=8) as loader:
        print(sum(len(labels) for _, labels in loader))
"""
    script = start_script(body, tmp_path, prefix=NEW_PYTHON, cwd=folder)
    out, err = script.communicate(timeout=60)
    assert (out.strip(), script.returncode) == ("64", 0), err


def test_fork_server_ignores_ctrl_c_even_while_starting():
    started = pool_linux.ForkServer.start()
    try:
        status = Path(f"/proc/{started.process.pid}/status").read_text()
        masks = [re.search(rf"{name}:\s*(\w+)", status) for name in ("SigBlk", "SigIgn")]
        deaf_to = [int(mask[1], 16) for mask in masks if mask]
        assert any(mask >> signal.SIGINT - 1 & 1 for mask in deaf_to)
    finally:
        pid = started.process.pid
        del started
        assert not psutil.pid_exists(pid)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_shared_fork_server_ends_with_its_last_user(monkeypatch):
    monkeypatch.setattr(pool_linux, "_shared", None)  # another one than that of other tests
    first, second = pool_linux.shared_server(), pool_linux.shared_server()
    assert first is second
    first.release()
    assert second.alive()
    second.release()
    assert not second.alive()


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize(
    ("part", "dataset", "options"),
    [
        ("HostTransfer", Steady(64), {"image_size": 8}),
        ("WholeBatchTransfer", list(range(64)), {}),
    ],
)
def test_workers_end_if_their_loader_cannot_be_built(part, dataset, options, error, monkeypatch):
    def broken(*_, **__):
        raise error

    monkeypatch.setattr(start_engine, part, broken)
    before = {child.pid for child in descendants(os.getpid())}
    with pytest.raises(error):
        iter(DataLoader(dataset, 16, num_workers=2, **options))
    assert eventually(lambda: gone([p for p in descendants(os.getpid()) if p.pid not in before]))


DAEMON = """
import threading
from faulty import Steady

if __name__ == "__main__":
    from feedline.loader import DataLoader

    loader = DataLoader(
        Steady(400, row_s=0.5), 2, num_workers=2, image_size=32, start_method={method!r}
    )
    first = threading.Event()

    def read():
        for _ in range(1000):
            for batch in loader:
                first.set()

    threading.Thread(target=read, daemon=True).start()
    assert first.wait(60)
    print("ends", flush=True)
"""


@pytest.mark.parametrize("method", ["fork", *slow("forkserver", "spawn")])
def test_a_program_ends_quietly_while_a_daemon_thread_waits_for_a_batch(method, tmp_path):
    script = start_script(DAEMON.format(method=method), tmp_path)
    said, errors = script.communicate(timeout=60)
    assert (said, errors) == ("ends\n", "")
    assert script.returncode == 0


@pytest.mark.parametrize("method", ["forkserver", *slow("spawn")])
def test_thread_waiting_for_a_batch_is_notified_of_close(method, caplog):
    loader = DataLoader(Deadly({4: "hang"}), 2, num_workers=1, image_size=4, start_method=method)
    first, raised = threading.Event(), []

    def read():
        try:
            for _ in loader:
                first.set()
        except Exception as error:
            raised.append(type(error))

    thread = threading.Thread(target=read)
    thread.start()
    assert first.wait(60)
    with caplog.at_level("WARNING", "feedline"):
        loader.close()
        thread.join(60)
    assert raised == [ClosedError]
    assert caplog.messages == []
    assert loader.worker_pids == []


class _ClosesItsLoader(Deadly):
    """Dataset that closes its loader when it is pickled for a new worker pool."""

    loader: DataLoader[Any] | None = None

    def __getstate__(self):
        if self.loader is not None:
            self.loader.close()
        return {k: value for k, value in vars(self).items() if k != "loader"}


def test_no_worker_is_left_if_the_loader_is_closed_while_it_starts():
    dataset = _ClosesItsLoader({})
    loader = DataLoader(dataset, 2, num_workers=1, image_size=4, start_method="forkserver")
    dataset.loader = loader
    with pytest.raises(ClosedError):
        iter(loader)
    assert loader.worker_pids == []
