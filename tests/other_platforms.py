"""The standard library as seen by feedline on macOS or Windows: with names missing.

Only imports of feedline's modules change; the standard library and torch behave as on Linux. This
finds calls that do not exist on another platform, not differences in their behaviour.
"""

from __future__ import annotations

import builtins
import fnmatch
import os
import socket
import sys
from types import ModuleType
from typing import Any

PRETENDED = "PRETENDED_PLATFORM"
"""Environment variable that names the platform: "darwin" or "win32"."""

_LINUX_ONLY = {
    "os": """memfd_create MFD_* sched_* SCHED_* posix_fadvise POSIX_FADV_* posix_fallocate RWF_*
        eventfd* EFD_* splice SPLICE_* copy_file_range pidfd_open O_DIRECT O_TMPFILE O_PATH
        O_NOATIME getrandom pipe2""",
    "select": "epoll EPOLL*",
    "signal": "SIGPWR SIGSTKFLT SIGRTM* SIGPOLL sigtimedwait sigwaitinfo",
    "socket": "MSG_CMSG_CLOEXEC SOCK_CLOEXEC SOCK_NONBLOCK SO_PEERCRED SO_PASSCRED",
    "time": "CLOCK_BOOTTIME CLOCK_TAI",
}
_UNIX_ONLY = {
    "os": """fork forkpty register_at_fork wait* W[A-Z]* killpg getuid geteuid getgid getegid getpg*
        getsid setsid setpg* nice getpriority setpriority PRIO_* pread* pwrite* readv writev
        O_CLOEXEC O_NONBLOCK O_NOCTTY O_NOFOLLOW O_DIRECTORY O_SYNC O_DSYNC chown fchown lchown
        statvfs fstatvfs sysconf* getloadavg uname sync fdatasync sendfile mkfifo posix_spawn*
        lockf""",
    "select": "poll POLL* PIPE_BUF",
    "signal": """SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP
        SIGUSR* SIG_BLOCK SIG_UNBLOCK SIG_SETMASK alarm pause *etitimer pthread_* sigwait
        sigpending""",
    "socket": "AF_UNIX CMSG_* MSG_DONTWAIT MSG_NOSIGNAL SCM_* send_fds recv_fds",
    "time": "CLOCK_* clock_*",
}
_UNIX_MODULES = ("fcntl", "grp", "pwd", "resource", "termios", "tty")


class _Lacking(ModuleType):
    """A module without some of its names, and with replacements for others."""

    def __init__(self, module: ModuleType, lacking: str, instead: dict[str, Any]) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(instead)
        self.__module, self.__lacking = module, set[str]()
        for pattern in lacking.split():
            self.__lacking.update(fnmatch.filter(dir(module), pattern))

    def __getattr__(self, name: str) -> Any:
        if name in self.__lacking:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self.__module, name)


def pretend(platform: str) -> None:
    """Have the modules of feedline that this process imports from now on see another platform."""
    windows = platform == "win32"
    lacking = dict(_LINUX_ONLY)
    if windows:
        lacking = {name: f"{lacking[name]} {_UNIX_ONLY[name]}" for name in lacking}
    instead: dict[str, dict[str, Any]] = {"socket": {"socketpair": _without_packets}}
    if windows:
        instead["os"] = {"O_BINARY": 0, "O_TEMPORARY": 0, "open": _no_folder, "sep": "\\"}
    seen: dict[str, ModuleType] = {
        name: _Lacking(__import__(name), names, instead.get(name, {}))
        for name, names in lacking.items()
    }
    seen["sys"] = _Lacking(sys, "", {"platform": platform})
    if windows:
        seen["msvcrt"] = _locks()
    usual = builtins.__import__

    def found(
        name: str,
        globals: dict[str, Any] | None = None,
        locals: Any = None,
        fromlist: Any = (),
        level: int = 0,
    ) -> ModuleType:
        if not str((globals or {}).get("__name__")).startswith("feedline"):
            return usual(name, globals, locals, fromlist, level)
        if windows and name in _UNIX_MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in seen:
            return seen[name]
        return usual(name, globals, locals, fromlist, level)

    builtins.__import__ = found


def _without_packets(
    family: int = socket.AF_UNIX, type: int = socket.SOCK_STREAM, proto: int = 0
) -> tuple[socket.socket, socket.socket]:
    if type == socket.SOCK_SEQPACKET:
        raise OSError(43, "Protocol not supported")
    return socket.socketpair(family, type, proto)


def _no_folder(path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    return os.open(path, flags, mode, **options)


def _locks() -> ModuleType:
    """The locks of Windows's C library."""
    import fcntl

    made = ModuleType("msvcrt")
    made.LK_NBLCK = fcntl.LOCK_EX | fcntl.LOCK_NB  # type: ignore[attr-defined]
    made.locking = fcntl.lockf  # type: ignore[attr-defined]
    return made


if PRETENDED in os.environ:
    pretend(os.environ[PRETENDED])
