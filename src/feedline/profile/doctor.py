"""Checks of this machine for problems that slow training down, and settings to start with.

Guarantees: each check gives one result, whatever happens: an exception or a missed deadline is a
result, too. A fact that several checks need is found once. Torch is imported only if measuring was
requested and torch can use a GPU; nothing is written.
"""

from __future__ import annotations

import contextlib
import inspect
import multiprocessing
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from feedline.engine.defaults import (
    DEFAULT_PREFETCH,
    WORKER_BYTES,
    auto_workers,
    default_start_method,
)
from feedline.machine import find_disk, find_gpus
from feedline.profile import doctor_data, doctor_gpu, doctor_machine
from feedline.profile.doctor_data import require_folder
from feedline.profile.doctor_machine import (
    BATCH_ROWS,
    BATCH_SLOTS,
    IMAGE_PX,
    CheckResult,
    NotMeasuredError,
    describe_cores,
    slot_bytes,
)
from feedline.system import CoreLimits, MemoryLimits, core_limits, memory_limits
from feedline.text import as_bytes

DEADLINE_S = 10.0

_FACTS: dict[str, Callable[..., Any]] = {
    "limits": core_limits,
    "memory": memory_limits,
    "workers": doctor_machine.find_workers,
    "other_cores": doctor_machine.find_other_cores,
    "missing_modules": doctor_machine.find_missing_modules,
    "data": doctor_data.inspect_data,
    "disk": find_disk,
    "read_rate": doctor_data.find_read_rate,
    "cached": doctor_data.is_cached,
    "gpus": find_gpus,
    "torch_build": doctor_gpu.find_torch_build,
    "usable_gpu": doctor_gpu.is_gpu_usable,
    "copy_rate": doctor_gpu.measure_copy_rate,
}
_CHECKS: dict[str, Callable[..., CheckResult]] = {
    "usable-cores": doctor_machine.check_cores,
    "other-programs": doctor_machine.check_other_programs,
    "memory": doctor_machine.check_memory,
    "shared-memory": doctor_machine.check_shared_memory,
    "open-files": doctor_machine.check_open_files,
    "omp-threads": doctor_machine.check_openmp,
    "opencv-threads": doctor_machine.check_opencv,
    "decoders": doctor_machine.check_decoders,
    "compiled-parts": doctor_machine.check_native_modules,
    "libraries": doctor_machine.check_libraries,
    "data-folder": doctor_data.check_data_folder,
    "disk": doctor_data.check_disk,
    "read-rate": doctor_data.check_read_rate,
    "page-cache": doctor_data.check_page_cache,
    "gpu": doctor_gpu.check_gpu,
    "gpu-driver": doctor_gpu.check_driver,
    "pcie-link": doctor_gpu.check_pcie_link,
    "torch-build": doctor_gpu.check_torch,
    "copy-rate": doctor_gpu.check_copy_rate,
}
_UNLIMITED = ("opencv-threads", "copy_rate")  # they call libraries, which must not be abandoned
CHECK_IDS = tuple(_CHECKS)
"""Ids of all checks, in their order."""
_ONLY_WITH_FOLDER = ("disk", "read-rate", "page-cache")


Answer = TypeVar("Answer")


class NoAnswerError(Exception):
    """Something did not end within its deadline."""


def answer_within(deadline_s: float | None, work: Callable[[], Answer]) -> Answer:
    """Return the result of `work`, or raise its exception, or NoAnswerError after a deadline.

    Then `work` is abandoned in a daemon thread. Without a deadline it is not, as abandoning a
    thread in a library may crash the process at its end.
    """
    if deadline_s is None:
        return work()
    answer: Future[Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if not wait([answer], deadline_s).done:
        raise NoAnswerError(f"no answer within {deadline_s:g} s")
    return answer.result()


class CheckRun:
    """One run of checks.

    The parameters of a function name the facts that it needs. If a fact cannot be found, a
    parameter with a default has its default.

    Args:
        checks: functions that return a result, by ids in kebab-case that never change.
        facts: functions that find a fact, or raise an exception, e.g. NotMeasuredError, by names.
        given: facts that are known.
        deadline_s: of each function; see `answer_within`.
        unlimited: names of functions without a deadline.
    """

    def __init__(
        self,
        checks: Mapping[str, Callable[..., CheckResult]],
        facts: Mapping[str, Callable[..., Any]],
        given: Mapping[str, Any],
        *,
        deadline_s: float = DEADLINE_S,
        unlimited: Collection[str] = (),
    ) -> None:
        self._checks, self._facts = checks, facts
        self._deadline_s, self._unlimited = deadline_s, unlimited
        self._found = dict(given)  # an Exception if a fact cannot be found

    def fact(self, name: str, *default: Any) -> Any:
        """Return a fact, which is found once, or `default` instead of raising its exception."""
        if name not in self._found:
            try:
                self._found[name] = self._call(name, self._facts[name])
            except Exception as error:
                self._found[name] = error
        found = self._found[name]
        if isinstance(found, Exception) and not default:
            raise found
        return default[0] if isinstance(found, Exception) else found

    def check(self, name: str) -> CheckResult:
        """Return the result of a check."""
        try:
            return self._call(name, self._checks[name])
        except NotMeasuredError as error:
            return CheckResult("unknown", error.reason, fix=error.fix)
        except NoAnswerError as error:
            fix = "a file server, a disk or a driver hangs: `dmesg` may name it"
            return CheckResult("fail", str(error), fix=fix)
        except Exception as error:  # an unusual machine may raise anything
            return CheckResult("unknown", f"{type(error).__name__}: {error}")

    def _call(self, name: str, function: Callable[..., Answer]) -> Answer:
        arguments = {}
        for each in inspect.signature(function).parameters.values():
            default = () if each.default is each.empty else (each.default,)
            arguments[each.name] = self.fact(each.name, *default)
        deadline_s = None if name in self._unlimited else self._deadline_s
        return answer_within(deadline_s, partial(function, **arguments))


@dataclass(frozen=True)
class StartingSetting:
    """Argument of feedline.DataLoader, or a fact about it, with the reason for its value."""

    name: str
    value: int | str | bool
    reason: str


class DoctorReport(NamedTuple):
    """Results of all checks by their ids, and settings to start with."""

    checks: Mapping[str, CheckResult]
    settings: tuple[StartingSetting, ...]


def examine(
    folder: str | None = None,
    *,
    measure: bool = False,
    tell: Callable[[str, CheckResult], object] = lambda name, result: None,
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
) -> DoctorReport:
    """Run all checks.

    Args:
        folder: of the data; None checks no disk.
        measure: also run checks that take seconds: import OpenCV, and torch to copy to the GPU.
        tell: called with the id and result of each check.
        root: folder that contains /proc and /sys.
        environ: of the training.

    Raises:
        UsageError: the folder does not exist, or cannot be listed.
    """
    if folder is not None:
        with contextlib.suppress(NoAnswerError):  # the check "data-folder" reports it
            answer_within(DEADLINE_S, partial(require_folder, folder))
    given = {"folder": folder, "measure": measure, "root": root, "environ": environ}
    run = CheckRun(_CHECKS, _FACTS, given, unlimited=_UNLIMITED)
    results: dict[str, CheckResult] = {}
    for name in CHECK_IDS:
        if folder is not None or name not in _ONLY_WITH_FOLDER:
            results[name] = run.check(name)
            tell(name, results[name])
    facts = run.fact("limits"), run.fact("memory", None), run.fact("workers")
    gpu = run.fact("usable_gpu", False)
    return DoctorReport(results, tuple(suggest_settings(*facts, gpu=gpu)))


def suggest_settings(
    limits: CoreLimits, memory: MemoryLimits | None, workers: int, *, gpu: bool
) -> Iterator[StartingSetting]:
    """Suggest settings to start with; `workers` is the value of `num_workers="auto"` here.

    `memory` is None if its limits are unknown; `gpu` is True if torch can use a GPU.
    """
    usable = limits.usable
    spare = {0: "one per core", 1: "one core is left to the training loop"}.get(
        usable - workers, "some cores are left to the training loop and its threads"
    )
    reason = f'initial value of num_workers="auto": {spare}: {describe_cores(limits)}'
    if workers < auto_workers(usable):
        available = 0 if memory is None else memory.available // limits.processes
        reason = (
            'initial value of num_workers="auto" for such batches: each worker uses up to '
            f"{as_bytes(WORKER_BYTES)}; workers and batches together use at most half of the "
            f"{as_bytes(available)} available; at least one worker"
        )
    yield StartingSetting("num_workers", workers, reason)
    reason = "the default: the training step uses one batch, and two keep any number of workers "
    yield StartingSetting("prefetch", DEFAULT_PREFETCH, f"{reason}busy, as all share each batch")
    reason = f"{BATCH_SLOTS} batches of {BATCH_ROWS} images at {IMAGE_PX} px, uint8 "
    reason += f"({as_bytes(slot_bytes())} each): prefetched ones, and the one in use"
    yield StartingSetting("batch memory", as_bytes(BATCH_SLOTS * slot_bytes()), reason)
    method, python = default_start_method(), multiprocessing.get_all_start_methods()[0]
    reason = f"the default for feedline sources; for any other Dataset Python's: {python}"
    if method == "spawn":
        reason += '; guard the script with `if __name__ == "__main__":`, as each worker imports it'
    yield StartingSetting("start_method", method, reason)
    if gpu:
        reason = "batches of feedline sources are pinned and copied one step ahead; for any other "
        yield StartingSetting("device", "cuda", f"{reason}Dataset set pin_memory=True")
    else:
        reason = "pinned memory speeds up copies to a GPU, but torch cannot use a GPU"
        yield StartingSetting("pin_memory", False, reason)
