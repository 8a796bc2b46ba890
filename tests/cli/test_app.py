"""The command line as such: help, version, exit statuses, and one message for each error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Command

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


def test_the_version_is_printed(feedline: Command) -> None:
    ended = feedline("--version")
    assert (ended.status, ended.out) == (0, f"feedline {__version__}\n")


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("train",),
        ("bench",),
        ("report",),
        ("check",),
        ("explain-overlap",),
        ("demo-data",),
        ("doctor",),
        ("cache",),
        *(("cache", name) for name in ("build", "verify", "repair", "info", "add-size")),
    ],
)
def test_every_help_text_has_an_example(feedline: Command, command: tuple[str, ...]) -> None:
    ended = feedline(*command, "--help")
    assert ended.status == 0
    assert "Example: feedline" in ended.out


def test_help_imports_neither_torch_nor_numpy() -> None:
    script = (
        "import contextlib, sys\n"
        "from feedline.cli.app import main\n"
        "with contextlib.suppress(SystemExit):\n"
        "    main(['cache', 'build', '--help'])\n"
        "with contextlib.suppress(SystemExit):\n"
        "    main(['report', '--help'])\n"
        "try:\n"
        "    main(['train', '--help'])\n"
        "finally:\n"
        "    assert not {'torch', 'timm', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [("fly",), ("train", "x", "--wings"), ("demo-data",), ()])
def test_a_command_line_that_does_not_parse_is_wrong_use(
    feedline: Command, arguments: tuple[str, ...]
) -> None:
    ended = feedline(*arguments)
    assert ended.status == 2
    assert "Traceback" not in ended.err


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
def test_an_error_ends_in_one_line_and_its_exit_status(
    feedline: Command, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int
) -> None:
    monkeypatch.setattr("feedline.train.demo_set.write_demo_set", _raising(error))
    ended = feedline("demo-data", "somewhere")
    assert ended.status == status
    assert ended.err.startswith("feedline: ")
    assert ended.err.count("\n") == 1


def _raising(error: BaseException) -> object:
    def write(*_: object, **__: object) -> None:
        raise error

    return write


def test_debug_shows_the_traceback(
    feedline: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UsageError):
        feedline("--debug", "demo-data", tmp_path, "--classes", 1)
    with monkeypatch.context() as patch:
        patch.setenv("FEEDLINE_DEBUG", "1")
        with pytest.raises(UsageError):
            app(["demo-data", str(tmp_path), "--classes", "1"])
    assert feedline("demo-data", tmp_path, "--classes", 1).status == 2


def test_a_json_file_that_cannot_be_written_is_refused_before_the_work(
    feedline: Command, tmp_path: Path
) -> None:
    forbidden = [Path("/proc/out.json")] if sys.platform == "linux" else []
    for target in (tmp_path, tmp_path / "nowhere" / "out.json", *forbidden):
        ended = feedline("demo-data", tmp_path / "demo", "--json", target)
        assert ended.status == 2
        assert "--json" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_json_is_replaced_whole_or_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [child.name for child in tmp_path.iterdir()] == ["out.json"]
    write_json(None, {"a": 2})


def test_json_goes_into_what_is_no_file_and_leaves_it_there(tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "out.json", tmp_path / "link.json", tmp_path / "pipe"
    target.write_text("before")
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


def test_ctrl_c_while_the_command_is_loaded_is_said_in_one_line() -> None:
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
    assert done.stderr == b"feedline: interrupted\n"


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_and_leaves_nothing_behind(
    tmp_path: Path, signum: int, status: int
) -> None:
    script = (
        "import os, sys\n"
        "import feedline.train.demo_set as demo_set\n"
        "from feedline.cli.app import main\n"
        "draw = demo_set.demo_jpeg\n"
        "def draw_and_signal(name, **settings):\n"
        "    if settings['number'] == 2:\n"
        "        os.kill(os.getpid(), int(sys.argv[2]))\n"
        "    return draw(name, **settings)\n"
        "demo_set.demo_jpeg = draw_and_signal\n"
        "main(['demo-data', sys.argv[1]])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "demo"), str(int(signum))],
        capture_output=True,
        timeout=60,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == status, done.stderr
    assert b"Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
