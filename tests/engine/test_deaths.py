"""Workers that die, hang or are killed: the same bytes arrive, or the sample is named."""

import gc
import os
import random
import signal
import socket
import threading
import time
import weakref
from functools import partial

import psutil
import pytest
from faulty import Counted, Deadly, DeadlyStart, FailsToOpen, Steady, next_number

from feedline.engine import pool_linux
from feedline.engine.pool import MAX_CONSECUTIVE_DEATHS
from feedline.errors import LoadTimeoutError, SampleError, WorkerError
from feedline.loader import DataLoader
from feedline.system import oom_kills
from loader_reading import planned_epoch, read
from processes import Child, descendants, eventually, gone, newcomers, own_family
from sets import Slow, plain
from slow import slow


def loader_of(source, workers, **options):
    """A loader of batches of 16 rows of 8 px."""
    return DataLoader(source, 16, num_workers=workers, image_size=8, seed=0, **options)


class Killer(threading.Thread):
    """Kills random workers of a loader, until stopped or after a number of kills."""

    def __init__(self, loader, kills, seed):
        super().__init__(daemon=True)
        self.loader, self.kills = loader, kills
        self.random = random.Random(seed)
        self.stopped = threading.Event()

    def run(self):
        while self.kills and not self.stopped.wait(self.random.uniform(0.1, 0.4)):
            if pids := self.loader.worker_pids:
                try:
                    os.kill(
                        self.random.choice(pids),
                        self.random.choice([signal.SIGKILL, signal.SIGTERM]),
                    )
                    self.kills -= 1
                except ProcessLookupError:
                    pass


def test_progress_before_death_counts_without_message_of_fork_server(monkeypatch):
    with loader_of(Steady(64), 1, shuffle=True) as loader:
        with monkeypatch.context() as patched:
            patched.setattr(pool_linux.LinuxPool, "_server_messages", lambda _: ())
            next(iter(loader))
            [pid] = loader.worker_pids
        os.kill(pid, signal.SIGKILL)
        assert len(list(loader)) == 4
        assert len(loader.worker_deaths) == 1


ROWS = {"batch_size": 16, "schedule": "8x30,12x30", "seed": 5, "num_workers": 3}
BATCHES = {"batch_size": 4, "shuffle": True, "seed": 1, "num_workers": 2}


@pytest.mark.parametrize(
    ("data", "still", "options", "method"),
    [
        (Steady(200, row_s=0.005), Steady(200), ROWS, "forkserver"),
        (Slow(60, 0.01), Slow(60, 0.0), BATCHES, "fork"),
        *slow(*((Steady(200, row_s=0.005), Steady(200), ROWS, each) for each in ("fork", "spawn"))),
    ],
)
def test_workers_killed_at_random_moments_do_not_change_a_byte(data, still, options, method):
    with DataLoader(data, start_method=method, on_error="skip", **options) as loader:
        next(iter(loader))
        loader.set_epoch(0)
        killer = Killer(loader, 15, seed=1)
        killer.start()
        epochs, seen = 0, []
        try:
            while killer.is_alive():
                seen += [plain(batch) for batch in loader]
                epochs += 1
        finally:
            killer.stopped.set()
            killer.join()
        assert not loader.skipped
        assert len(loader.worker_deaths) >= 10
    with DataLoader(still, **{**options, "num_workers": 0}) as loader:
        assert seen == [plain(batch) for _ in range(epochs) for batch in loader]


@pytest.mark.parametrize("method", ["forkserver", *slow("fork", "spawn")])
def test_kills_of_idle_workers_have_no_limit(method):
    options = {"persistent_workers": True, "shuffle": False, "start_method": method}
    with loader_of(Steady(64), MAX_CONSECUTIVE_DEATHS + 1, **options) as loader:
        assert len(list(loader)) == 4
        for pid in loader.worker_pids:
            os.kill(pid, signal.SIGKILL)
        assert read(loader) == planned_epoch(loader, 1)


@pytest.mark.parametrize("method", ["forkserver", *slow("fork", "spawn")])
@pytest.mark.parametrize(
    ("way", "step", "deaths"),
    [("kill", "open", MAX_CONSECUTIVE_DEATHS + 2), ("kill", "prepare", 2), ("exit", "prepare", 2)],
)
def test_workers_that_die_before_their_first_row_cost_no_sample(
    way, step, deaths, method, tmp_path
):
    source = DeadlyStart(tmp_path, deaths, way, step)
    options = {"shuffle": False, "on_error": "skip", "start_method": method}
    with loader_of(source, 2, **options) as loader:
        assert read(loader) == planned_epoch(loader, 0)
        assert not loader.skipped
        # The other worker may finish the epoch before the last death of a worker without a task is
        # reported.
        unreported = 1 if step == "open" else 0
        assert deaths - unreported <= len(loader.worker_deaths) <= deaths


def test_a_sample_that_ends_workers_preparing_it_is_skipped_alone():
    source = Deadly({41: "exit"}, step="prepare")
    with loader_of(source, 2, shuffle=False, on_error="skip") as loader:
        labels = [label for _, labels in loader for label in labels.tolist()]
        assert labels == [k for k in range(96) if k != 41]
        assert [name for name, _ in loader.skipped] == ["sample-41"]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize(("counted", "words"), [(True, "Memory ran out"), (False, "another prog")])
def test_a_sample_whose_workers_are_killed_from_outside_is_named_and_not_skipped(
    on_error, counted, words, tmp_path, monkeypatch
):
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.events").write_text("oom 0\noom_kill 0\n")
    monkeypatch.setattr("feedline.engine.pool.oom_kills", partial(oom_kills, tmp_path))
    next_number(tmp_path)
    source = Counted({41: "kill"}, tmp_path) if counted else Deadly({41: "kill"})
    with loader_of(source, 2, shuffle=False, on_error=on_error) as loader:
        batches = iter(loader)
        seen = [next(batches)[1].tolist() for _ in range(2)]
        for errors in (1, 2):  # the same batch again
            with pytest.raises(WorkerError, match=f"(?s)sample-41.*SIGKILL.*{words}"):
                next(batches)
            # The first kill, in a task of several rows, does not count.
            assert len(loader.worker_deaths) == 4 * errors
        assert seen == [list(range(16)), list(range(16, 32))]
        assert not loader.skipped


def test_kills_on_one_sample_after_another_have_no_limit(tmp_path):
    kills = dict.fromkeys((3, 20, 40, 60, 80), "kill")
    source = Deadly(kills, first_time_only=tmp_path)
    # Each row is a task, so that the row of each kill is known to be alone.
    with loader_of(source, 2, shuffle=False, task_ms=1e-6) as loader:
        assert read(loader) == planned_epoch(loader, 0)
        assert len(loader.worker_deaths) == len(kills)


@pytest.mark.own_fork_server
@pytest.mark.parametrize("method", ["fork", *slow("forkserver")])
def test_a_killed_fork_server_is_replaced_and_does_not_change_a_byte(method):
    source = Steady(200, row_s=0.002)
    with loader_of(source, 2, shuffle=True, start_method=method) as loader:
        seen = []
        for epoch in range(3):
            for step, batch in enumerate(loader):
                seen += read([batch])
                if step == 3 + epoch:
                    old = loader.worker_pids
                    server = os.getpid()
                    for child in descendants(server):
                        if child.pid not in old and child.children():
                            child.kill()
        assert seen == [each for epoch in range(3) for each in planned_epoch(loader, epoch)]
        assert any("fork server" in how for how in loader.worker_deaths)


@pytest.mark.parametrize("way", ["segfault", "exit", *slow("kill", "hang")])
def test_sample_that_kills_worker_once_is_redone(way, tmp_path):
    # Of two workers that hang at the same time neither is known to be at fault.
    ways = {7: way} if way == "hang" else {7: way, 50: way}
    source = Deadly(ways, first_time_only=tmp_path)
    with loader_of(source, 2, shuffle=True, timeout=1.5) as loader:
        assert read(loader) == planned_epoch(loader, 0)
        assert len(loader.worker_deaths) == len(ways)


class LateSecondWorker(Deadly):
    """The second worker opens only long after a sample of the first one hangs."""

    def open(self, worker_id, workers):
        assert self.first_time_only is not None
        if worker_id == 1:
            assert eventually((self.first_time_only / "7").exists, within_s=60)
            time.sleep(2.5)


@pytest.mark.slow
def test_a_hang_waits_for_workers_that_are_starting(tmp_path):
    source = LateSecondWorker({7: "hang"}, first_time_only=tmp_path)
    with loader_of(source, 2, shuffle=False, timeout=1.0) as loader:
        assert [label for _, labels in loader for label in labels.tolist()] == list(range(96))
        assert len(loader.worker_deaths) == 1


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("segfault", "SIGSEGV"),
        ("exit", "exited with status 3"),
        *slow(("abort", "SIGABRT"), ("hang", "without progress")),
    ],
)
def test_sample_that_kills_worker_twice_is_named(way, words):
    source = Deadly({41: way})
    timeout = 3.0 if way == "hang" else 0  # on a busy machine any worker may stand still for one
    loader = loader_of(source, 2, timeout=timeout)
    with loader, pytest.raises(SampleError, match=f"(?s)sample-41.*{words}"):
        list(loader)


@pytest.mark.parametrize("method", ["forkserver", *slow("spawn")])
def test_samples_that_fail_in_every_way_are_skipped_and_all_others_arrive(method):
    ways = {3: "segfault", 20: "raise", 21: "abort", 50: "exit", 51: "quit", 95: "raise"}
    options = {"on_error": "skip", "start_method": method, "shuffle": True}
    with loader_of(Deadly(ways), 2, **options) as loader:
        for _ in range(2):
            labels = [label for _, labels in loader for label in labels.tolist()]
            assert sorted(labels) == [k for k in range(96) if k not in ways]
        named = {name for name, _ in loader.skipped}
        assert named == {f"sample-{k}" for k in ways}
        assert len(loader.skipped) == 2 * len(ways)


@pytest.mark.parametrize(
    ("way", "said"),
    [("raise", r"(?s)bad sector.*faulty\.py"), ("exit", "exited with status 3")],
)
def test_source_that_no_worker_can_open_raises(way, said):
    loader = loader_of(FailsToOpen(way), 2, shuffle=True)
    with loader, pytest.raises(WorkerError, match=said):
        next(iter(loader))


@pytest.mark.own_fork_server
@pytest.mark.parametrize("started", [True, False])
def test_close_leaves_no_process(started):
    before = own_family()
    loader = loader_of(Steady(200, row_s=0.01), 3, shuffle=True)
    if started:  # else the fork server is still starting
        next(iter(loader))
    mine = newcomers(before)
    assert len(mine) >= (4 if started else 1)
    loader.close()
    assert gone(mine)


@pytest.mark.own_fork_server
@pytest.mark.parametrize("rows", [True, False])
def test_garbage_collected_loader_leaves_no_process(rows):
    before = own_family()
    data = Steady() if rows else Slow(1000, 0.01)
    loader = DataLoader(data, 16, num_workers=2, **({"image_size": 8} if rows else {}))
    batches = iter(loader)
    kept = next(batches)
    mine = newcomers(before)
    assert len(mine) >= 2
    del batches, loader
    gc.collect()
    assert eventually(lambda: gone(mine))
    assert (kept[1] if rows else kept[:, 0]).tolist() == list(range(16))


@pytest.mark.slow
@pytest.mark.own_fork_server
def test_stopped_fork_server_does_not_delay_close():
    before = own_family()
    keeper, loader = (loader_of(Steady(), workers, shuffle=True) for workers in (1, 2))
    next(iter(loader))
    next(iter(keeper))
    mine = newcomers(before)
    server = next(child for child in mine if child.children())
    server.suspend()
    loader.close()
    ended = [child for child in mine if child.pid in (server.pid, *loader.worker_pids)]
    # Their end is detected by closed files; the kernel removes them a moment later.
    assert eventually(lambda: gone(ended), within_s=1.0)
    assert len(list(keeper)) == 13  # with another server
    keeper.close()


def test_workers_that_all_hang_raise(monkeypatch):
    monkeypatch.setattr("feedline.engine.hang_detection.OPEN_S", 1.0)
    loader = loader_of(FailsToOpen("hang"), 2, timeout=1.0, shuffle=True)
    with loader, pytest.raises(LoadTimeoutError) as caught:
        next(iter(loader))
    assert caught.value.worker is None
    assert caught.value.seconds >= 2.0


@pytest.mark.parametrize("workers", [0, 1])
def test_exception_with_failing_str_is_reported(workers):
    source = Deadly({5: "speechless"})
    with loader_of(source, workers, shuffle=False, on_error="skip") as loader:
        assert [len(labels) for _, labels in loader] == [15, *[16] * 5]
        assert loader.skipped[0][0] == "sample-5"
        assert "_Speechless" in loader.skipped[0][1]
        assert loader.worker_deaths == []


@pytest.mark.own_fork_server
def test_closing_and_starting_over_do_not_wait_for_a_child_that_was_forked_meanwhile():
    with loader_of(Steady(), 1) as first, loader_of(Steady(), 1) as second:
        next(iter(first))
        next(iter(second))
        child = Child()  # holds copies of the sockets of both
        try:
            first.close()
            old = second.worker_pids
            second._runtime.stream.engine._needs_recovery = True  # as after an interrupt
            assert sum(len(labels) for _, labels in second) == 200
            assert second.worker_pids != old
        finally:
            child.end()


@pytest.mark.own_fork_server
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_closing_does_not_wait_for_a_child_that_another_thread_forked_meanwhile(
    method, monkeypatch
):
    children, register = [], pool_linux.ForkServer.register_pool

    def register_after_fork(*arguments):
        children.append(Child())  # holds copies of the workers' ends of the sockets
        register(*arguments)

    monkeypatch.setattr(pool_linux.ForkServer, "register_pool", register_after_fork)
    loader = loader_of(Steady(), 1, start_method=method, persistent_workers=True)
    try:
        next(iter(loader))
        loader.close()
    finally:
        for child in children:
            child.end()
    assert len(children) == 1


@pytest.mark.own_fork_server
def test_garbage_collected_loader_does_not_block_another_starting(monkeypatch):
    garbage = [loader_of(Steady(), 1)]
    garbage.append(garbage)
    kept = pool_linux.ForkServer.alive

    def alive(self):
        gc.collect()  # the collector may run at any moment, here with the server's lock held
        return kept(self)

    monkeypatch.setattr(pool_linux.ForkServer, "alive", alive)
    collected = weakref.ref(garbage[0])
    del garbage
    with loader_of(Steady(), 1) as loader:
        assert collected() is None
        assert sum(len(labels) for _, labels in loader) == 200


@pytest.mark.own_fork_server
def test_disconnected_fork_server_counts_as_dead():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    dying = pool_linux.ForkServer(ours, psutil.Popen(["sleep", "60"]))
    assert dying.alive()
    theirs.close()
    assert not dying.alive()


def test_deaths_are_detected_with_blocked_signals():
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    try:
        with loader_of(Steady(row_s=0.005), 1, shuffle=True) as loader:
            batches = iter(loader)
            next(batches)
            os.kill(loader.worker_pids[0], signal.SIGKILL)
            assert sum(1 for _ in batches) == 12
            assert len(loader.worker_deaths) == 1
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)


@pytest.mark.slow
def test_reducing_workers_takes_effect_with_a_full_queue(monkeypatch):
    monkeypatch.setattr(pool_linux, "_SEND_BUFFER_BYTES", 4 << 10)
    with DataLoader(
        Steady(10_000, row_s=0.016), 100, num_workers=3, image_size=4, shuffle=True, seed=0
    ) as loader:
        batches = iter(loader)
        next(batches)
        next(batches)  # tasks are a few rows now, and not all fit into the queue
        loader.num_workers = 1
        for _ in range(3):
            next(batches)
        assert len(loader.worker_pids) == 1


def test_busy_worker_ids_do_not_shorten_epoch(monkeypatch):
    monkeypatch.setattr("feedline.engine.pool.MAX_WORKERS", 3)
    with loader_of(Steady(row_s=0.005), 3, shuffle=True) as loader:
        batches = iter(loader)
        next(batches)
        loader.num_workers = 1
        loader.num_workers = 3
        assert sum(1 for _ in batches) == 12
        assert eventually(
            lambda: loader._runtime.stream.engine.feed.ready() and len(loader.worker_pids) == 3
        )


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of sockets whose making was interrupted
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.own_fork_server
def test_an_interrupt_while_a_loader_is_built_leaves_nothing(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    gc.collect()
    processes, descriptors = own_family(), len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(pool_linux.ForkServer, "register_pool", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loader_of(Steady(), 1)
    gc.collect()
    assert not newcomers(processes)
    assert len(os.listdir("/proc/self/fd")) <= descriptors
