"""Loaders that a benchmark measures: feedline, bare processes and, on request, torch.

Guarantees: everything started for a loader ends with the exit stack it was started on. If a torch
loader fails, it is left out with the reason; the other figures are kept.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from feedline.bench.copies import JpegCopies, temporary_folder
from feedline.bench.options import BenchmarkOptions
from feedline.bench.pool import ProcessPool, ProcessState, Send
from feedline.bench.rate import Turn, count, endless, family_cpu, settle_down
from feedline.bench.result import BenchmarkRow, Files, Loader, Omission
from feedline.bench.survey import ImageSample
from feedline.engine.buffers import batch_bytes
from feedline.engine.load_samples import Source, fill
from feedline.engine.messages import RowTask
from feedline.errors import UsageError, WorkerError
from feedline.images.folder import ImageFolder
from feedline.loader import DataLoader
from feedline.order.batch_spec import TASK_NS, rows_per_task

__all__ = [
    "FORMS",
    "PREFETCH",
    "BareProcesses",
    "Entry",
    "MeasuredFeedline",
    "MeasuredLoader",
    "MeasuredTorch",
    "TurnPlan",
    "bare_rows",
    "plan_turns",
    "start_feedline",
    "start_torch",
    "take_turns",
    "torch_process",
]


class MeasuredLoader(Protocol):
    """Loader whose images are counted."""

    name: str
    first_batch_s: float | None

    def turn(self, seconds: float) -> Turn:
        """Count images for about `seconds`."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Measured loader with its kind and the files it reads."""

    measured: MeasuredLoader
    loader: Loader
    files: Files


def start_feedline(
    stack: contextlib.ExitStack,
    pool: ProcessPool,
    originals: ImageSample,
    copies: JpegCopies | None,
    settings: BenchmarkOptions,
    workers: int,
) -> list[Entry]:
    """Start feedline and bare processes on the originals and, if there are any, on the copies."""
    samples: list[tuple[Files, str, ImageSample]] = [("originals", "originals", originals)]
    first_batches_s: dict[str, float | None] = {}
    if copies is not None:
        folder = ImageFolder(copies.root)
        copied = ImageSample(folder, range(len(folder)))
        samples.append(("copies", f"{copies.side_px} px copies", copied))
        # The first loader starts the shared fork server, which takes longest. Each of the two is
        # timed as the first loader: here the copies, later the originals.
        with MeasuredFeedline("", copied, settings, workers) as alone:
            first_batches_s["copies"] = alone.first_batch_s
    entries: list[Entry] = []
    rows = bare_rows(settings.batch_size, PREFETCH + 1, len(pool))
    for files, name, sample in samples:
        loader = stack.enter_context(
            MeasuredFeedline(f"feedline, {name}", sample, settings, workers)
        )
        loader.first_batch_s = first_batches_s.get(files, loader.first_batch_s)
        bare = BareProcesses(
            pool, sample, name=f"bare processes, {name}", size=settings.size_px, rows=rows
        )
        entries += [Entry(loader, "feedline", files), Entry(bare, "bare", files)]
    return entries


def start_torch(
    pool: ProcessPool,
    originals: ImageSample,
    settings: BenchmarkOptions,
    workers: int,
    left_out: list[Omission],
) -> list[Entry]:
    """Start both forms of the torch loader on the originals, in the pool of `torch_process`."""
    entries: list[Entry] = []
    for form, name in FORMS.items():
        try:
            theirs = MeasuredTorch(pool, form, originals, settings, workers)
        except (WorkerError, OSError) as error:
            left_out.append(_left_out(name, error))
        else:
            entries.append(Entry(theirs, "torch", "originals"))
    return entries


def _left_out(name: str, error: Exception) -> Omission:
    return Omission(name, str(error).splitlines()[0])


def take_turns(
    entries: list[Entry],
    turns: TurnPlan,
    left_out: list[Omission],
    advance: Callable[[int, str], None],
) -> tuple[BenchmarkRow, ...]:
    """Measure all loaders in turn, round after round.

    Args:
        entries: the loaders.
        turns: number of rounds and seconds per turn.
        left_out: receives the loaders that fail.
        advance: called with the number of finished turns and a description of the next.
    """
    counted: dict[Entry, list[Turn]] = {entry: [] for entry in entries}
    over = 0
    for number in range(turns.rounds):
        for entry in list(counted):
            name = entry.measured.name
            advance(over, f"round {number + 1} of {turns.rounds}: {name}")
            over += 1
            settle_down()
            try:
                counted[entry].append(entry.measured.turn(turns.seconds))
            except (WorkerError, OSError) as error:
                if entry.loader != "torch":
                    raise
                left_out.append(_left_out(name, error))
                del counted[entry]
    return tuple(
        BenchmarkRow(
            name=entry.measured.name,
            loader=entry.loader,
            files=entry.files,
            first_batch_s=entry.measured.first_batch_s,
            turns=tuple(taken),
        )
        for entry, taken in counted.items()
    )


_LEAD = 0.1  # share of the time, as the processes do not start and end at the same instant


def bare_rows(batch_size: int, slots: int, processes: int) -> int:
    """Rows of memory in each process, so that all write to as much memory as the loader does."""
    return max(1, -(-batch_size * slots // processes))


class BareProcesses:
    """Do the work of a loader's workers, in the processes of a pool, without passing it on.

    Args:
        pool: the processes.
        source: makes the rows.
        name: printed name; unique among the sources in the pool.
        size: of the rows, in pixels.
        rows: rows of memory in each process.
    """

    def __init__(
        self, pool: ProcessPool, source: Source, *, name: str, size: int, rows: int
    ) -> None:
        self.name = name
        self.first_batch_s: float | None = None  # no batches are made
        self._pool = pool
        pool.each(_hold_source, [(name, source, size, rows)] * len(pool))

    def turn(self, seconds: float) -> Turn:
        """Count images for about `seconds`."""
        share = len(self._pool)
        turns = self._pool.each(_load_rows, [(self.name, k, share, seconds) for k in range(share)])
        images = sum(turn.images for turn in turns)
        rate = sum(turn.images_per_s for turn in turns)
        return Turn(images=images, seconds=images / rate, cpu_s=sum(turn.cpu_s for turn in turns))


def _hold_source(
    state: ProcessState, send: Send, name: str, source: Source, size: int, rows: int
) -> None:
    state[name] = {
        "source": source,
        "block": np.zeros(batch_bytes(source.fields(size), rows), np.uint8),
        "rows": rows,
        "size": size,
        "next": 0,
        "row_ns": TASK_NS,
        # Reading memory in order would be faster than a loader's random order.
        "order": np.random.default_rng(0).permutation(len(source)),
    }


def _load_rows(
    state: ProcessState, send: Send, name: str, first: int, step: int, seconds: float
) -> Turn:
    held: dict[str, Any] = state[name]
    source, block, rows, order = held["source"], held["block"], held["rows"], held["order"]
    line = np.zeros(8, np.int64)
    lead_s = _LEAD * seconds

    def make(until: float, least: int) -> int:
        made = 0
        while made < least or time.perf_counter() < until:
            start = held["next"] % rows
            count = min(rows_per_task(rows, 1, held["row_ns"]), rows - start)
            places = first + step * np.arange(held["next"], held["next"] + count)
            task = RowTask(
                id=1,
                samples=order[places % len(order)],
                slot_bytes=len(block),
                batch_rows=rows,
                start=start,
                image_size=held["size"],
                seed=held["next"],
            )
            # Failed rows, of images that were removed since, count: the loader skips them, too.
            report = fill(task, source, block, line, 0)
            held["row_ns"] = (report.ended_ns - report.started_ns) / count
            held["next"] += count
            made += count
        return made

    make(time.perf_counter() + lead_s, 1)
    start, used_s = time.perf_counter(), time.process_time()
    images = make(start + seconds, 1)
    end, cpu_s = time.perf_counter(), time.process_time() - used_s
    make(end + lead_s, 0)
    return Turn(images=images, seconds=end - start, cpu_s=cpu_s)


PREFETCH = 3
"""Batches that the loader makes ahead: the default."""


class MeasuredFeedline:
    """feedline.DataLoader that lives from turn to turn; a context manager.

    Args:
        name: printed name.
        sample: the images, in their order.
        settings: size of the images and of the batches.
        workers: processes; 0 loads in this one.

    `first_batch_s` is the time from building the loader to its first batch. It is shorter if
    another loader is alive, as loaders share their fork server.
    """

    def __init__(
        self, name: str, sample: ImageSample, settings: BenchmarkOptions, workers: int
    ) -> None:
        self.name = name
        self.first_batch_s: float | None
        start = time.perf_counter()
        self._loader: DataLoader[Any] = DataLoader(
            sample,
            settings.batch_size,
            image_size=settings.size_px,
            shuffle=False,  # the sample is in random order already
            num_workers=workers,
            prefetch=PREFETCH,
            on_error="skip",
            rank=0,  # all images, even if the environment sets a rank
            world_size=1,
            seed=0,
        )
        try:
            self._batches = endless(self._loader)
            next(self._batches)
            self.first_batch_s = time.perf_counter() - start
        except BaseException:
            self._loader.close()
            raise

    def turn(self, seconds: float) -> Turn:
        """Count images for about `seconds`."""
        ahead = PREFETCH + 1 if self._loader.num_workers else 0
        return count(self._batches, ahead=ahead, unit=1, seconds=seconds, cpu_s=family_cpu())

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """(path, reason) of images that could not be loaded."""
        return self._loader.skipped

    def __enter__(self) -> MeasuredFeedline:
        return self

    def __exit__(self, *exc: object) -> None:
        self._loader.close()


FORMS = {"pillow": "torch + Pillow, float32", "uint8": "torch + torchvision v2, uint8"}
"""Printed names of the forms (see `torch_loaders`)."""


@contextlib.contextmanager
def torch_process() -> Iterator[ProcessPool]:
    """Start a process for torch's loaders, which has imported torchvision.

    Raises:
        UsageError: torchvision cannot be imported.
        OSError: there is no folder for files that multiprocessing leaves in killed processes.
    """
    with (
        temporary_folder() as scratch,
        ProcessPool(1, as_workers=False, environment={"TMPDIR": str(scratch)}) as pool,
    ):
        (problem,) = pool.each(_import_torchvision, [()])
        if problem:
            raise UsageError(
                f"--against torch measures torchvision, which cannot be imported ({problem})",
                hint="install a version that fits this torch: pip install torchvision",
            )
        yield pool


class MeasuredTorch:
    """torch's DataLoader over a sample; loads its first batch when it is created.

    Args:
        pool: of `torch_process`.
        form: "pillow" or "uint8".
        sample: the images, in their order.
        settings: size of the images and of the batches.
        workers: processes; 0 loads in the pool's process.

    Raises:
        WorkerError, OSError: the first batch could not be loaded; gives the reason.
    """

    def __init__(
        self,
        pool: ProcessPool,
        form: str,
        sample: ImageSample,
        settings: BenchmarkOptions,
        workers: int,
    ) -> None:
        self.name = FORMS[form]
        self.first_batch_s: float | None
        self._pool = pool
        self._form = form
        # A spawned process would spawn workers by default, unlike a training process.
        start_method = multiprocessing.get_start_method()
        settle_down()
        arguments = (form, sample, settings, workers, start_method)
        (self.first_batch_s,) = pool.each(_start_loader, [arguments])

    def turn(self, seconds: float) -> Turn:
        """Count images for about `seconds`."""
        (turn,) = self._pool.each(_count_turn, [(self._form, seconds)])
        assert isinstance(turn, Turn)
        return turn


def _import_torchvision(state: ProcessState, send: Send) -> str:
    """Import torchvision. Returns the error, or ""."""
    try:
        importlib.import_module("torchvision")
    except Exception as error:  # a build for another torch raises any exception
        return f"{type(error).__name__}: {error}"
    return ""


def _start_loader(
    state: ProcessState,
    send: Send,
    form: str,
    sample: ImageSample,
    settings: BenchmarkOptions,
    workers: int,
    start_method: str,
) -> float:
    """Build the loader and load its first batch. Returns the seconds that took."""
    from feedline.bench.torch_loaders import PREFETCH_FACTOR, build_loader  # loads torchvision

    warnings.simplefilter("ignore")  # torch warns about many workers, and about forking
    start = time.perf_counter()
    batches = endless(build_loader(form, sample, settings, workers, start_method))
    next(batches)
    state[form] = batches, workers, PREFETCH_FACTOR * workers
    return time.perf_counter() - start


def _count_turn(state: ProcessState, send: Send, form: str, seconds: float) -> Turn:
    batches, workers, ahead = state[form]
    unit = max(1, workers)  # each worker makes its own batch
    return count(batches, ahead=ahead, unit=unit, seconds=seconds, cpu_s=family_cpu())


_ROUNDS = 5
_FEWER_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """Number of rounds, and seconds of each loader's turn in a round."""

    rounds: int
    seconds: float


def plan_turns(loaders: int, seconds: float, refill_s: float) -> TurnPlan:
    """Divide the time of counting images into turns.

    Args:
        loaders: number of measured loaders.
        seconds: time for all of them.
        refill_s: uncounted time of a loader after its turn to refill its prefetch buffer: if it
            is longer than the turn itself, there are fewer turns.
    """
    rounds = _ROUNDS if refill_s * loaders * _ROUNDS <= seconds else _FEWER_ROUNDS
    return TurnPlan(rounds, seconds / (loaders * rounds))
