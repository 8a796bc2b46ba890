"""Programs in forks of a preloaded Python have what they have in a new one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import preloaded

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a new Python elsewhere")

FACTS = """
import atexit, json, os, signal, sys, tempfile
print(input(), flush=True)
atexit.register(print, "the end")
print(json.dumps([
    sys.argv, sys.path, os.getcwd(), dict(os.environ), tempfile.gettempdir(), os.getppid(),
    os.getsid(0) == os.getpid(), __name__, globals().get("__file__"), sys.stdout.line_buffering,
    signal.getsignal(signal.SIGINT) is signal.default_int_handler, len(os.listdir("/dev/fd")),
]))
print("an error", file=sys.stderr)
raise SystemExit(5)
"""


@pytest.mark.parametrize("by", ["file", "command", "module"])
def test_a_program_finds_what_it_finds_in_a_new_interpreter(by: str, tmp_path: Path) -> None:
    (tmp_path / "facts.py").write_text(FACTS)
    target = {"file": ["facts.py"], "command": ["-c", FACTS], "module": ["-m", "facts"]}[by]
    search_path = os.pathsep.join(["relative", str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": search_path, "TMPDIR": str(tmp_path), "OWN": "1"}
    programs = [
        start(
            [sys.executable, *target, "-m", "a b"],
            input="a line\n",
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            start_new_session=True,
            timeout=100,
        )
        for start in (subprocess.run, preloaded.run)
    ]
    new, fork = ((each.returncode, each.stdout, each.stderr) for each in programs)
    assert fork == new
    assert new[0] == 5


def test_a_program_is_a_child_and_its_death_by_a_signal_is_seen() -> None:
    text = "import sys, time; print('torch' in sys.modules, flush=True); time.sleep(100)"
    with preloaded.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "True\n"
        assert psutil.Process(program.pid).ppid() == os.getpid()
        assert program.poll() is None
        program.send_signal(signal.SIGTERM)
        assert program.wait(100) == -signal.SIGTERM


def test_options_of_the_interpreter_start_a_new_one() -> None:
    text = "import sys; print('torch' in sys.modules, sys.flags.no_site)"
    done = preloaded.run([sys.executable, "-S", "-c", text], capture_output=True, text=True)
    assert done.stdout == "False 1\n"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    text = "import sys; print('torch' in sys.modules, sys.stdout.encoding)"
    done = preloaded.run(
        [sys.executable, "-c", text], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "False ascii\n"
