"""Ends of a program leave nothing behind."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from faulty import Deadly, Steady

from feedline.engine import pool_linux
from feedline.errors import ClosedError
from feedline.loader import DataLoader, start_engine
from processes import NEW_PYTHON, descendants, eventually, gone, start_script
from slow import slow

pytestmark = pytest.mark.own_fork_server


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
