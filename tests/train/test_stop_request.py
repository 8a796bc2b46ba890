"""A stop that is heard at once, also while C code computes, and obeyed between two steps."""

import ctypes
import os
import queue
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from feedline.train.ranks import StopRequest

needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="no such signals there")


@pytest.fixture(autouse=True)
def default_sighup():
    """SIGHUP as in a program without nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL) if hasattr(signal, "SIGHUP") else None
    yield
    if before is not None:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGBREAK"])
def test_each_signal_that_ends_a_run_is_a_request(name):
    if not hasattr(signal, name):
        pytest.skip(f"no {name} on this system")
    with StopRequest() as stop:
        for _ in range(1 + (name == "SIGHUP")):  # a terminal that closes sends it twice
            signal.raise_signal(signal.Signals[name])
        assert stop.requested() == signal.Signals[name]


@needs_signals
def test_stop_is_recorded_while_main_thread_runs_no_python():
    """A lock of the C library, which signals do not interrupt, simulates a long backward pass."""
    libc = ctypes.CDLL(None)
    lock = ctypes.create_string_buffer(64)
    assert libc.pthread_mutex_init(lock, None) == 0
    assert libc.pthread_mutex_lock(lock) == 0
    told = threading.Event()
    in_time = []

    def end_the_step():
        os.kill(os.getpid(), signal.SIGINT)
        in_time.append(told.wait(60))
        libc.pthread_mutex_unlock(lock)

    with StopRequest(lambda signum: told.set()) as stop:
        thread = threading.Thread(target=end_the_step)
        thread.start()
        libc.pthread_mutex_lock(lock)  # returns only once the other thread gives it free
        thread.join()
        assert in_time == [True]
        assert stop.requested() == signal.SIGINT


@needs_signals
def test_stop_is_reported_once_and_handlers_are_restored():
    before = signal.getsignal(signal.SIGTERM)
    told, caught = queue.SimpleQueue(), []
    previous = signal.signal(signal.SIGUSR1, lambda number, frame: caught.append(number))
    try:
        with StopRequest(told.put) as stop:
            assert stop.requested() is None
            os.kill(os.getpid(), signal.SIGUSR1)
            assert told.get(timeout=60) == signal.SIGUSR1
            assert stop.requested() == signal.SIGUSR1
            os.kill(os.getpid(), signal.SIGUSR1)  # a second one acts as it did before
        assert caught == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert told.empty()
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.set_wakeup_fd(-1) == -1


@needs_signals
def test_a_sighup_that_nohup_ignores_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert stop.requested() is None
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_outside_the_main_thread_nothing_is_noted():
    def work():
        with StopRequest() as stop:
            return stop.requested()

    with ThreadPoolExecutor(1) as executor:
        assert executor.submit(work).result() is None


class Interrupted:
    """Receives a second Ctrl-C at a point where Python loses the handler's exception."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


@needs_signals
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_second_signal_lost_by_python_is_handled():
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.requested() == signal.SIGINT
        Interrupted()
        with pytest.raises(KeyboardInterrupt):
            stop.requested()
