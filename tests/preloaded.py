"""Python programs in processes that have already imported torch, torchvision and feedline.

`Popen` and `run` are those of subprocess. On Linux, a program for this Python runs in a fork of a
process that has imported them and started no thread, which saves 2 to 3 s. It is a child of this
process, with the arguments, environment, streams and exit status that a new interpreter would have.
Use them for programs that do not test the start of Python, the order of imports or hash seeds.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import json
import os
import random
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from packaging.version import Version

_PRELOAD = (
    "PIL.JpegImagePlugin",
    "feedline.cli.app",
    "feedline.loader.dataloader",
    "psutil",
    "torch.distributed",
    "torchvision.datasets",
    "torchvision.transforms.v2",
)
_MAX_REQUEST_BYTES = 1 << 20
_PR_SET_CHILD_SUBREAPER = 36
# Variables that Python reads only when it starts, apart from those of `_set_environment`.
_START_PREFIXES = ("LD_", "PYTHON")
_START_EXCEPTIONS = ("PYTHONPATH", "PYTHONUNBUFFERED")


class _Preloaded:
    """The process that is forked. It starts with the first program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self, fds: Sequence[int], **request: Any) -> int:
        """Run a program in a fork that is a child of this process. Return its id."""
        with self._lock:
            if self._process is None:
                self._connection, other_end = socket.socketpair(type=socket.SOCK_SEQPACKET)
                size = socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_REQUEST_BYTES
                self._connection.setsockopt(*size)
                with other_end:
                    self._process = subprocess.Popen(
                        [sys.executable, __file__, str(other_end.fileno())],
                        pass_fds=[other_end.fileno()],
                        stdin=subprocess.DEVNULL,
                        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # it starts threads
                    )
            # A fork whose parent ends is given to the nearest subreaper.
            prctl = ctypes.CDLL(None).prctl
            message = json.dumps({"parent": os.getpid(), **request}).encode()
            prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._connection, [message], list(fds))
                answer = self._connection.recv(100)
            finally:
                prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        if not answer:
            raise RuntimeError(f"the preloaded Python ended: {self._process.wait()}")
        return int(answer)

    def end(self) -> None:
        if self._process is not None:
            self._connection.close()
            self._process.wait()
            self._process = None


_PRELOADED = _Preloaded()


def end() -> None:
    """End the process that is forked."""
    _PRELOADED.end()


def _starts_alike(args: Any, env: dict[str, str] | None) -> bool:
    """Return True if a command may run in a fork: it is for this Python, without options of it."""
    if isinstance(args, str) or args[0] != sys.executable or len(args) < 2:
        return False
    if str(args[1]).startswith("-") and args[1] not in ("-c", "-m"):
        return False
    own, other = (
        {
            name: value
            for name, value in variables.items()
            if name.startswith(_START_PREFIXES) and name not in _START_EXCEPTIONS
        }
        for variables in (os.environ, os.environ if env is None else env)
    )
    return own == other


if sys.platform != "linux":
    Popen = subprocess.Popen
else:

    class Popen(subprocess.Popen):  # type: ignore[type-arg,no-redef]
        """subprocess.Popen of a program in a fork."""

        def _execute_child(self, args: Any, executable: Any, *options: Any) -> None:
            preexec_fn, _, pass_fds, cwd, env, _, _, shell, *pipes = options[:14]
            _, gid, gids, uid, umask, new_session, *_ = options[14:]
            special = (preexec_fn, executable, shell, gid, gids, uid, *pass_fds)
            if any(special) or umask >= 0 or not _starts_alike(args, env):
                super()._execute_child(args, executable, *options)  # type: ignore[misc]
                return
            ends = pipes[0], pipes[3], pipes[5]
            try:
                self.pid = _PRELOADED.fork(
                    [end if end >= 0 else number for number, end in enumerate(ends)],
                    args=[os.fsdecode(each) for each in args],
                    cwd=os.fsdecode(os.getcwd() if cwd is None else cwd),
                    environment=dict(os.environ if env is None else env),
                    new_session=new_session,
                )
            finally:
                self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
            self._child_created = True


def run(
    args: Sequence[Any],
    *,
    input: Any = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """As subprocess.run."""
    if capture_output:
        options.update(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Popen(args, **options) as process:
        try:
            output, errors = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def _next_program(connection: socket.socket) -> dict[str, Any]:
    """Fork for each request. Return in the forks, with the request."""
    while True:
        message, fds, _, _ = socket.recv_fds(connection, _MAX_REQUEST_BYTES, 3)
        if not message:
            raise SystemExit
        request = json.loads(message)
        pipe = os.pipe()
        if (between := os.fork()) == 0:
            if (child := os.fork()) != 0:
                os.write(pipe[1], str(child).encode())
                os._exit(0)
            connection.close()
            for number, fd in enumerate(fds):
                os.dup2(fd, number)
            for fd in {*pipe, *fds} - {0, 1, 2}:
                os.close(fd)
            while os.getppid() != request["parent"]:
                time.sleep(0.001)
            return request
        os.waitpid(between, 0)
        connection.send(os.read(pipe[0], 100))
        for fd in (*pipe, *fds):
            os.close(fd)


def _set_environment(request: dict[str, Any], search_path: list[str], random_state: Any) -> None:
    """Set what a new interpreter takes from its environment."""
    environment, args = request["environment"], request["args"][1:]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(request["cwd"])
    if request["new_session"]:
        os.setsid()
    is_unbuffered = bool(environment.get("PYTHONUNBUFFERED"))
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        raw: Any = io.FileIO(number, "w", closefd=False)
        text = io.TextIOWrapper(
            raw if is_unbuffered else io.BufferedWriter(raw),
            stream.encoding,
            stream.errors,
            line_buffering=number == 2 or raw.isatty(),
            write_through=is_unbuffered,
        )
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)
    tempfile.tempdir = None  # found again from the environment
    if threads := environment.get("OMP_NUM_THREADS"):
        sys.modules["torch"].set_num_threads(int(threads))
    # Python seeds `random` again in forks, which a new interpreter does not.
    random.setstate(random_state)
    draws = os.getpid() % 1000  # states that the program does not seed differ from run to run
    random.randbytes(draws), sys.modules["numpy"].random.rand(draws)
    folder = os.path.dirname(os.path.realpath(args[0]))
    first = {"-c": "", "-m": os.getcwd()}.get(args[0], folder)
    added = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [first, *dict.fromkeys([*map(os.path.abspath, added), *search_path])]
    sys.argv[:] = args[1:] if args[0] == "-m" else ["-c", *args[2:]] if args[0] == "-c" else args


def _run_program(args: list[str]) -> None:
    """Run a program as Python runs it from the command line."""
    # multiprocessing makes both one module when it is imported.
    main = sys.modules["__main__"] = sys.modules["__mp_main__"] = ModuleType("__main__")
    if args[0] == "-m":
        sys.modules.pop(args[1], None)
        runpy._run_module_as_main(args[1])  # type: ignore[attr-defined]
        return
    if args[0] == "-c":
        code = compile(args[1], "<string>", "exec", dont_inherit=True)
    else:
        main.__file__ = os.path.abspath(args[0])
        source = Path(main.__file__).read_bytes()
        code = compile(source, main.__file__, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _serve(fd: int) -> None:
    own = os.environ.pop("PYTHONPATH", "").split(os.pathsep)
    search_path = [path for path in sys.path[1:] if path not in map(os.path.abspath, own)]
    for name in _PRELOAD:
        with contextlib.suppress(ModuleNotFoundError):
            import_module(name)
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads run"
    random_state = random.getstate()
    # At the end of Python, torch removes its operators from its tables, which takes 0.7 s.
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        if finalizer.peek()[1].__module__ == "torch.library":
            finalizer.detach()
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=fd) as connection:
        request = _next_program(connection)
    triton = sys.modules.get("triton")
    if triton is not None and Version(triton.__version__) >= Version("3.9"):
        atexit.register(gc.unfreeze)  # it reports frozen objects on stderr
    _set_environment(request, search_path, random_state)
    _run_program(request["args"][1:])


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
