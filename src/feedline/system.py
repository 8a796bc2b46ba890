"""Cores, memory and disk available to this process, and system calls that differ by platform.

Guarantees: the strictest limit applies: CPU affinity, the cgroup's CPU quota and memory limit (v1
and v2), a batch system's share, divided among the training processes of this machine. A limit that
cannot be read, or is not a number, is ignored.
Relies on: /proc and /sys/fs/cgroup if they exist, otherwise on psutil. A file for `read_at`,
`write_at` and `lock_file` is opened with `BINARY`, which only Windows needs.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import math
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import spawn as mp_spawn
from multiprocessing import util as mp_util
from pathlib import Path
from typing import IO, Any

import psutil

from feedline.errors import UsageError
from feedline.private_names import find_private

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

BINARY: int = getattr(os, "O_BINARY", 0)
"""Flag of `os.open`: without it Windows translates line endings."""

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # 1 in an interactive shell, none in a batch script
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI
)
_LOCAL_PROCESSES = (
    "LOCAL_WORLD_SIZE",
    "SLURM_NTASKS_PER_NODE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",  # MPICH, Intel MPI
)
_PORTS = [f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10)]
_DEVICES = ("con", "prn", "aux", "nul", *_PORTS)
_LONGEST_PATH = 259  # MAX_PATH without the closing zero
LONG_PATH_HINT = (
    "use a folder with a shorter path, or enable long paths: set LongPathsEnabled to 1 under "
    r"HKEY_LOCAL_MACHINE\SYSTEM\CurrentControlSet\Control\FileSystem and start Python again"
)
"""Hint of errors with a `long_path_problem`."""
_LOCKED_BYTE = 1 << 30  # far behind what is written: on Windows others cannot read a locked byte
_LOCKED_ERRORS = (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK)
_PEEK_EVERY_S = 0.02
_ROOT = Path("/")
_SET_EXECUTABLE = "call multiprocessing.set_executable with the path of Python"
_FOR_FILES = 0.8


@dataclass(frozen=True, kw_only=True)
class CoreLimits:
    """Limits on the cores this process may use.

    Args:
        machine: logical cores of the machine.
        affinity: cores in this process's CPU affinity mask.
        quota: smallest CPU quota of the enclosing cgroups, in cores; infinite if none is set.
        allotted: cores that SLURM allots to a task; None outside of SLURM.
        processes: training processes that share these cores.
    """

    machine: int
    affinity: int
    quota: float
    allotted: int | None
    processes: int

    @property
    def usable(self) -> int:
        """Cores for this process, at least 1, rounded down: a quota of 3.5 keeps 3 workers busy."""
        most = min(self.affinity, self.quota, math.inf if self.allotted is None else self.allotted)
        return max(1, int(most / self.processes))


@dataclass(frozen=True, kw_only=True)
class MemoryLimits:
    """Limits on memory, in bytes.

    Args:
        machine: memory of the machine.
        limit: smallest limit of the enclosing cgroups; None if none is below the machine's memory.
        available: memory that can be allocated before the machine or a cgroup runs out.
    """

    machine: int
    limit: int | None
    available: int

    @property
    def cacheable(self) -> int:
        """Bytes the page cache may hold during training: four fifths of the available memory.

        Memory the page cache holds now counts as available, because the kernel releases it.
        """
        return int(_FOR_FILES * self.available)


def read_text(path: Path) -> str:
    """Read a small file, such as one of the kernel; "" if it cannot be read."""
    try:
        return os.fsdecode(path.read_bytes()).strip()
    except OSError:
        return ""


def find_attribute(thing: object, name: str, default: Any = None) -> Any:
    """Attribute of a user's object; `default` if it has none, or if its code raises any error."""
    try:
        return getattr(thing, name, default)
    except Exception:  # of a property, or of a __getattr__
        return default


def _number(text: str | None) -> int | None:
    """Parse a whole number of at least 0; None for "max", "-1" and anything else."""
    try:
        value = int(text or "")
    except ValueError:
        return None
    return value if value >= 0 else None


def _cgroup_folders(controller: str, root: Path) -> Iterator[Path]:
    """This process's cgroup folders for a controller, innermost first, v2 and v1 layouts."""
    groups = root / "sys/fs/cgroup"
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, where = rest.partition(":")
        if not colon or (controllers and controller not in controllers.split(",")):
            continue
        base = groups / controllers if controllers else groups
        folder = base / where.lstrip("/")
        # Inside a container the path may name the host's tree: the mount's own root then counts.
        while True:
            yield folder
            if folder == base or base not in folder.parents:
                break
            folder = folder.parent
    yield groups
    yield groups / controller


def _cpu_quota(root: Path = _ROOT) -> float:
    """The smallest CPU quota of the enclosing cgroups, in cores; infinite where none is set."""
    least = math.inf
    for folder in _cgroup_folders("cpu", root):
        v2 = read_text(folder / "cpu.max").split()
        v1 = (read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us"))
        for pair in (v2, v1):
            if len(pair) == 2 and (quota := _number(pair[0])) and (period := _number(pair[1])):
                least = min(least, quota / period)
    return least


def throttled_s(root: Path = _ROOT) -> float | None:
    """Time for which CPU quotas have throttled this process, in seconds; None without a quota.

    Of several enclosing cgroups with a quota, the largest time.
    """
    longest: float | None = None
    for folder in _cgroup_folders("cpu", root):
        stat = _table(folder / "cpu.stat")
        if not _number(stat.get("nr_periods")):
            continue  # no quota is set in this group, or none has counted yet
        v2, v1 = _number(stat.get("throttled_usec")), _number(stat.get("throttled_time"))
        here = v2 / 1e6 if v2 is not None else v1 / 1e9 if v1 is not None else None
        if here is not None:
            longest = max(longest or 0.0, here)
    return longest


def storage_stall_s(root: Path = _ROOT) -> float | None:
    """Time for which any process of the machine waited for storage, in seconds; None if unknown.

    The kernel's pressure stall information, "some" of io: local disks and network file systems.
    """
    words = read_text(root / "proc/pressure/io").split()
    total = next((word for word in words if word.startswith("total=")), "")
    stall_us = _number(total.removeprefix("total="))
    return None if stall_us is None else stall_us / 1e6


def local_processes(environ: Mapping[str, str] = os.environ) -> int:
    """Number of training processes on this machine, as their launcher reports it; else 1."""
    for name in _LOCAL_PROCESSES:
        if count := _number(environ.get(name)):
            return count
    return 1


def rank_and_world(environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Rank and world size of this process: from torch.distributed, else torchrun, else (0, 1).

    Does not import torch: if torch is not loaded, it is not initialised either.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    rank, world = environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
    return (int(rank), int(world)) if rank.isdecimal() and world.isdecimal() else (0, 1)


def launched_rank(environ: Mapping[str, str] = os.environ) -> int | None:
    """Rank that torchrun, srun or mpirun gave this process, or None for a process on its own.

    Its loaders may share no samples: torch.distributed may not be used, or be initialised later.
    """
    for rank, ranks in _LAUNCHERS:
        if (_number(environ.get(ranks)) or 0) > 1 and environ.get(rank, "").isdecimal():
            return int(environ[rank])
    return None


def launch_id(environ: Mapping[str, str] = os.environ) -> str | None:
    """Name that all ranks of a launch share, on one machine if the launcher is not srun; None for a
    process on its own.
    """
    if launched_rank(environ) is None:
        return None
    if (_number(environ.get("SLURM_STEP_NUM_TASKS")) or 0) > 1:
        return f"{environ.get('SLURM_JOB_ID')}.{environ.get('SLURM_STEP_ID')}"
    return str(os.getppid())


def affinity_cores() -> int:
    """Cores the scheduler may run this process on; all cores of the machine if unknown."""
    if hasattr(os, "sched_getaffinity"):
        with contextlib.suppress(OSError):  # a sandbox refuses the call
            return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def core_limits(root: Path = _ROOT, environ: Mapping[str, str] = os.environ) -> CoreLimits:
    """Read the limits on the cores of this process.

    Args:
        root: folder that holds /proc and /sys.
        environ: environment variables, which may hold a launcher's or batch system's share.
    """
    cores = os.cpu_count() or 1
    allotted = _number(environ.get("SLURM_CPUS_PER_TASK")) or None
    # A task is one training process, unless it is torchrun, which starts several.
    alone = allotted is not None and "TORCHELASTIC_RUN_ID" not in environ
    return CoreLimits(
        machine=cores,
        affinity=affinity_cores(),
        quota=_cpu_quota(root),
        allotted=allotted,
        processes=1 if alone else local_processes(environ),
    )


def usable_cores() -> int:
    """Return the number of cores this process may use, at least 1."""
    return core_limits().usable


def memory_limits(root: Path = _ROOT) -> MemoryLimits:
    """Read the limits on memory.

    Args:
        root: folder that holds /proc and /sys; the machine's memory is read with psutil.

    Raises:
        OSError: the machine's memory is unknown.
    """
    machine = psutil.virtual_memory()
    total, least, available = int(machine.total), math.inf, int(machine.available)
    for folder in _cgroup_folders("memory", root):
        pairs = (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        )
        for limit_name, used_name in pairs:
            limit, used = (_number(read_text(folder / name)) for name in (limit_name, used_name))
            if limit is not None and used is not None:
                # Page cache counts as used but is given back: inactive cache is available.
                available = min(available, limit - used + _inactive_file_bytes(folder))
                least = min(least, limit)
    return MemoryLimits(
        machine=total, limit=int(least) if least < total else None, available=max(0, available)
    )


def oom_kills(root: Path = _ROOT) -> int | None:
    """Count the processes of this cgroup that the kernel has killed because memory ran out.

    Outside of a cgroup those of the machine. None if unknown, as on macOS and Windows.

    Args:
        root: folder that holds /proc and /sys.
    """
    for folder in _cgroup_folders("memory", root):
        for name in ("memory.events", "memory.oom_control"):  # of v2, of v1
            count = _number(_table(folder / name).get("oom_kill"))
            if count is not None:
                return count
    return _number(_table(root / "proc/vmstat").get("oom_kill"))


def available_memory_bytes() -> int:
    """Return the bytes that can be allocated before this machine or cgroup runs out of memory."""
    return memory_limits().available


def cacheable_memory_bytes() -> int:
    """Return the bytes of files that the page cache may hold during training."""
    return memory_limits().cacheable


def unwritten(file: Path, needed: int, error: Exception) -> str:
    """Reason why a file cannot be written, with the bytes needed and the bytes free on its disk."""
    from feedline.text import as_bytes

    why = getattr(error, "strerror", None) or str(error).strip().partition("\n")[0]
    try:
        free = shutil.disk_usage(file.parent).free
    except OSError:  # the folder is gone
        return why
    if free < needed:
        why = "the disk is full"
    return f"{why} (needed: about {as_bytes(needed)}, free: {as_bytes(free)})"


def _table(path: Path) -> dict[str, str]:
    """Lines of a kernel's file, each a name and a value; empty if it cannot be read."""
    return dict(line.partition(" ")[::2] for line in read_text(path).splitlines())


def _inactive_file_bytes(folder: Path) -> int:
    stat = _table(folder / "memory.stat")
    # v1 has both: usage counts the groups inside this one too, and so does the total.
    return _number(stat.get("total_inactive_file")) or _number(stat.get("inactive_file")) or 0


def slashed(path: str) -> str:
    """Return a path with "/" separators on every platform, for names, fingerprints and keys."""
    return path if os.sep == "/" else path.replace(os.sep, "/")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name in the same folder; the file there takes the name `path` at the end."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)  # of another process, or a link to another file
    try:
        yield partial
        os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def write_through(path: str | Path) -> None:
    """Flush a file's bytes, or the names in a folder, to the disk.

    Windows has no such call for a folder: its file system's log keeps names in order.
    """
    windows = sys.platform == "win32"
    if windows and os.path.isdir(path):
        return
    descriptor = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def are_long_paths_enabled() -> bool:
    """Return True if Windows lets this process use paths of more than 259 characters."""
    if sys.platform == "win32":
        enabled = getattr(ctypes.WinDLL("ntdll"), "RtlAreLongPathsEnabled", None)
        return enabled is None or bool(enabled() & 0xFF)  # a BOOLEAN; Windows 10 and later
    return True


def long_path_problem(path: str | os.PathLike[str], *, room: int = 0) -> str:
    """Return why Windows cannot use a path for its length; "" if it can, and elsewhere.

    `room` is the length of the longest name that is put into the folder.
    """
    if sys.platform != "win32":
        return ""
    full = os.path.abspath(path)
    if len(full) + room <= _LONGEST_PATH or full.startswith("\\\\?\\") or are_long_paths_enabled():
        return ""
    files = f", and names of files in it up to {room}" if room else ""
    return f"Windows limits paths to {_LONGEST_PATH} characters; this one has {len(full)}{files}"


def refuse_unusable_path(path: str | os.PathLike[str], *, room: int = 0) -> None:
    """Raise a UsageError if Windows cannot use a path: one of its names is that of a device, as con
    or nul.txt, or it is too long; see `long_path_problem`.
    """
    if problem := long_path_problem(path, room=room):
        raise UsageError(f"{os.fspath(path)!r}: {problem}", hint=LONG_PATH_HINT)
    for part in Path(path).parts if sys.platform == "win32" else ():
        if part.partition(".")[0].strip().lower() in _DEVICES:
            raise UsageError(
                f"Windows reserves the name {part!r} of {os.fspath(path)!r} for a device",
                hint="choose another name",
            )


def lock_file(descriptor: int) -> bool:
    """Lock an open file without waiting. Return True if no other process has it locked.

    The kernel releases the lock when the file is closed or the process ends, however it ends.
    Raises an OSError if the file system supports no locks.
    """
    try:
        if sys.platform == "win32":
            os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _LOCKED_ERRORS:
            raise
        return False
    return True


def signals_to_handle(*names: str) -> list[signal.Signals]:
    """Signals that this platform has, of these names. SIGHUP only unless it is ignored (nohup)."""
    found = [signal.Signals[name] for name in names if hasattr(signal, name)]
    return [
        each for each in found if each.name != "SIGHUP" or signal.getsignal(each) != signal.SIG_IGN
    ]


def call_at_exit(function: Callable[[], object]) -> None:
    """Call a function at the end of this process; a multiprocessing child does not run atexit."""
    if multiprocessing.parent_process() is None:
        atexit.register(function)
    else:
        mp_util.Finalize(None, function, exitpriority=1)


def flush_standard_streams() -> None:
    """Flush `sys.stdout` and `sys.stderr`. Streams that are None, closed or not files are ignored.

    Otherwise a fork would duplicate buffered text, and `os._exit` and `os.execve` would lose it.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):  # as multiprocessing does
            stream.flush()


def python_program() -> str:
    """Python program for new processes, as set by `multiprocessing.set_executable`."""
    program = mp_spawn.get_executable()
    if not program:
        raise UsageError(
            "sys.executable is empty, so worker processes cannot be started",
            hint=_SET_EXECUTABLE,
        )
    return os.fsdecode(program)


def interpreter_options() -> list[str]:
    """Options with which this Python was started, such as -O or -X dev."""
    options: list[str] = find_private("subprocess._args_from_interpreter_flags")()
    return options


def code_command(code: str, *arguments: str) -> list[str]:
    """Command that runs code in a new Python with the options and search path of this one.

    In `sys.argv` the search path follows the arguments.
    """
    program = python_program()
    if is_frozen():  # it would run itself again, and so on
        raise UsageError(f"{program} is not Python but a frozen program", hint=_SET_EXECUTABLE)
    return [program, *interpreter_options(), "-c", code, *arguments, *search_path()]


def is_frozen() -> bool:
    """Return True if new processes run an executable of PyInstaller or the like, not Python."""
    return getattr(sys, "frozen", False) and python_program() == sys.executable


def search_path() -> list[str]:
    """Module search path of this process, in a form for another process."""
    here = ""
    with contextlib.suppress(OSError):  # the working directory was removed
        here = os.getcwd()
    # Like Python, skip entries of other types, e.g. Path.
    return [entry or here for entry in sys.path if isinstance(entry, str)]


def describe_exit(process: str, status: int) -> str:
    """Describe an exit status like torch's DataLoader; negative values are signals."""
    if status >= 0:
        return f"{process} exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:  # a real-time signal
        name = f"signal {-status}"
    return f"{process} is killed by signal: {name}"


def readable(pipe: IO[bytes], within_s: float) -> bool:
    """Return True if a read of an unbuffered pipe would not block; waits `within_s` at most."""
    if sys.platform == "win32":
        import _winapi

        handle, until = msvcrt.get_osfhandle(pipe.fileno()), time.monotonic() + within_s
        while True:
            try:
                if _winapi.PeekNamedPipe(handle, 0)[0]:
                    return True
            except OSError:  # its other end is closed, which a read tells at once
                return True
            if time.monotonic() >= until:
                return False
            time.sleep(_PEEK_EVERY_S)
    else:
        from multiprocessing.connection import wait

        return bool(wait([pipe.fileno()], within_s))


_seeking = threading.Lock()


def _read_at(descriptor: int, length: int, offset: int) -> bytes:
    with _seeking:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, length)


def _write_at(descriptor: int, data: bytes, offset: int) -> int:
    with _seeking:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.write(descriptor, data)


read_at: Callable[[int, int, int], bytes] = getattr(os, "pread", _read_at)
"""Read bytes of a descriptor at an offset, in any number of threads: `os.pread`."""

write_at: Callable[[int, bytes, int], int] = getattr(os, "pwrite", _write_at)
"""Write bytes to a descriptor at an offset, in any number of threads: `os.pwrite`."""
