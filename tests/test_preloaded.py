"""Programs in forks of a preloaded Python have what they have in a new one."""

import os
import subprocess
import sys

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
def test_a_program_finds_what_it_finds_in_a_new_interpreter(by, tmp_path):
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
