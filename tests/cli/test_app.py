"""The command line: help, version, exit statuses, error messages and signals."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import preloaded
from feedline import __version__
from feedline.cli.app import app
from feedline.cli.output import write_json
from feedline.errors import (
    FeedlineError,
    ImageError,
    ResourceError,
    StateError,
    UsageError,
    WorkerError,
)


def test_the_package_runs_as_a_module():
    command = [sys.executable, "-m", "feedline", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"feedline {__version__}\n"), done.stderr


def commands(command, *names):
    """All commands and groups, by the names that lead to them."""
    yield names
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, *names, name)


@pytest.mark.parametrize("command", list(commands(typer.main.get_command(app))), ids=" ".join)
def test_help_fits_80_columns_and_has_an_example(feedline, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    found = typer.main.get_command(app)
    for name in command:
        found = found.commands[name]
    ended = feedline(*command, "--help")
    assert ended.status == 0
    assert "Example: feedline" in ended.out
    assert "<bool>" not in ended.out
    assert "\u2026" not in ended.out
    for each in found.params:
        assert not each.opts[0].startswith("--") or each.opts[0] in ended.out


@pytest.mark.parametrize(
    ("unknown", "hint"),
    [
        ("--lr-rate", "--lr"),
        ("--optimizer", "--opt"),
        ("--batchsize", "--batch-size"),
        ("--ema", "--model-ema-decay"),
        ("--color-jitter", "--aa rand"),
        ("--data-dir", "feedline train DIR"),
        ("--min-lr", "--sched onecycle"),
    ],
)
def test_option_of_another_tool_prints_its_equivalent(feedline, unknown, hint):
    error, advice = feedline("train", ".", unknown, 1).err.splitlines()
    assert error == f"error: no such option: {unknown}"
    assert hint in advice
    assert "--val-dir" not in advice


IMPORTS = """
import contextlib, sys
from feedline.cli.app import main
tune = ["tune", ".", "--step-ms", "3"]
lines = [[*command, "--help"] for command in (["cache", "build"], ["report"], ["train"])]
lines += [[*tune[:3], "nan"], [*tune, "--budget", "1"], [*tune, "--batch-size", "few"]]
lines += [[*tune, "--schedule", "16"], [*tune, "--what-if", "disk=1"]]
for line in lines:
    with contextlib.suppress(SystemExit):
        main(line)
    assert not {"torch", "timm"} & set(sys.modules), line
    assert "numpy" not in sys.modules or "--help" not in line, line
"""


def test_help_and_rejected_arguments_import_no_large_library():
    command = [sys.executable, "-c", IMPORTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("error: ") == 5


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("x"), 2),
        (StateError("x"), 2),
        (ResourceError("x"), 2),
        (ImageError("x"), 1),
        (WorkerError("x"), 1),
        (FeedlineError("x"), 1),
        (OSError(28, "No space left on device"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_an_error_is_printed_without_a_traceback_and_has_its_exit_status(
    feedline, monkeypatch, error, status
):
    monkeypatch.setattr("feedline.cli.demo_set.write_demo_set", _raising(error))
    ended = feedline("demo-data", "somewhere")
    assert ended.status == status
    label, *hints = ended.err.splitlines()
    assert label == "interrupted" if status == 130 else label.startswith("error: ")
    assert all(line.startswith("hint: ") for line in hints)


def _raising(error):
    def write(*_, **__):
        raise error

    return write


def test_debug_shows_the_traceback(feedline, monkeypatch, tmp_path):
    with pytest.raises(UsageError):
        feedline("--debug", "demo-data", tmp_path, "--num-classes", 1)
    with monkeypatch.context() as patch:
        patch.setenv("FEEDLINE_DEBUG", "1")
        with pytest.raises(UsageError):
            feedline("demo-data", tmp_path, "--num-classes", 1)
    assert feedline("demo-data", tmp_path, "--num-classes", 1).status == 2


@pytest.mark.skipif(sys.platform == "win32", reason="a working directory cannot be removed there")
def test_a_removed_working_directory_is_named(feedline, tmp_path, monkeypatch):
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    ended = feedline("run", __file__)
    assert ended.status == 1
    assert "error: the working directory was removed" in ended.err


def test_unwritable_json_file_is_rejected_before_work(feedline, tmp_path):
    forbidden = [Path("/proc/out.json")] if sys.platform == "linux" else []
    for target in (tmp_path, tmp_path / "nowhere" / "out.json", *forbidden):
        ended = feedline("demo-data", tmp_path / "demo", "--json", target)
        assert ended.status == 2
        assert "--json" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_json_replaces_a_file_atomically_and_is_written_to_a_link_or_a_pipe(tmp_path):
    target, link, pipe = tmp_path / "out.json", tmp_path / "link.json", tmp_path / "pipe"
    write_json(target, {"a": 0})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(target, {"a": float("nan")})
    assert json.loads(target.read_text()) == {"a": 0}
    assert [child.name for child in tmp_path.iterdir()] == ["out.json"]
    write_json(None, {"a": 2})
    link.symlink_to(target)
    write_json(link, {"a": 1})
    assert link.is_symlink()
    assert json.loads(target.read_text()) == {"a": 1}
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_json(pipe, {"a": 2})
    assert json.loads(os.read(reader, 1000)) == {"a": 2}
    os.close(reader)
    assert pipe.is_fifo()


def test_ctrl_c_during_import_prints_one_line():
    script = (
        "import os, signal, sys\n"
        "from feedline.cli.start import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Early:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Early())\n"
        "main(['--version'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (130, b"")
    assert done.stderr == b"interrupted\n"


@pytest.mark.parametrize(
    ("signum", "status"),
    [
        (signal.SIGINT, 130),
        (signal.SIGTERM, 143),
        *([(signal.SIGHUP, 129)] if hasattr(signal, "SIGHUP") else []),
    ],
)
def test_signal_ends_command_and_leaves_nothing_behind(tmp_path, signum, status):
    script = (
        "import os, signal, sys\n"
        "import feedline.cli.demo_set as demo_set\n"
        "from feedline.cli.app import main\n"
        "draw = demo_set.demo_jpeg\n"
        "def draw_and_signal(name, **settings):\n"
        "    if settings['number'] == 2:\n"
        "        os.kill(os.getpid(), int(sys.argv[2]))\n"
        "    return draw(name, **settings)\n"
        "demo_set.demo_jpeg = draw_and_signal\n"
        "if hasattr(signal, 'SIGHUP'):\n"
        "    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it\n"
        "main(['demo-data', sys.argv[1]])\n"
    )
    done = preloaded.run(
        [sys.executable, "-c", script, str(tmp_path / "demo"), str(int(signum))],
        capture_output=True,
        timeout=60,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == status, done.stderr
    assert b"Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
