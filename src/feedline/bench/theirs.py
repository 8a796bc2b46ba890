"""torch's own loader, turn by turn, in a process that stands for a training process.

Guarantees: torchvision is imported there and not here; nothing that torch starts, and no file that
it leaves, outlives the context.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import time
import warnings
from collections.abc import Iterator

from feedline.bench.pool import Keep, Pool, Tell
from feedline.bench.rate import Turn, count, endless, family_cpu, settle_down
from feedline.bench.sample import Sample
from feedline.bench.scratch import temporary_folder
from feedline.bench.settings import Settings
from feedline.errors import UsageError

__all__ = ["FORMS", "Theirs", "torch_process"]

FORMS = {"pillow": "torch + Pillow, float32", "uint8": "torch + torchvision v2, uint8"}
"""The forms (see `against`), and what to call them."""


@contextlib.contextmanager
def torch_process() -> Iterator[Pool]:
    """A process for torch's loaders, which has imported torchvision.

    Raises:
        UsageError: it does not import.
        OSError: there is no folder for the files that multiprocessing leaves in killed processes.
    """
    with (
        temporary_folder() as scratch,
        Pool(1, as_workers=False, environment={"TMPDIR": str(scratch)}) as pool,
    ):
        (problem,) = pool.each(_import, [()])
        if problem:
            raise UsageError(
                f"--against torch measures torchvision, which does not import ({problem}); "
                "install one that fits this torch: pip install torchvision"
            )
        yield pool


class Theirs:
    """torch's DataLoader over a sample; takes its first batch at once.

    Args:
        pool: a `torch_process`.
        form: "pillow" or "uint8".
        sample: the images, in their order.
        settings: size of the images and of the batches.
        workers: processes; 0 loads in the one process.

    Raises:
        WorkerError, OSError: it did not get as far; says why.
    """

    def __init__(
        self, pool: Pool, form: str, sample: Sample, settings: Settings, workers: int
    ) -> None:
        self.name = FORMS[form]
        self.first_batch_s: float | None
        self._pool = pool
        self._form = form
        # In a spawned process the default would be to spawn, which nobody's training does.
        start_method = multiprocessing.get_start_method()
        settle_down()
        order = (form, sample, settings, workers, start_method)
        (self.first_batch_s,) = pool.each(_begin, [order])

    def turn(self, seconds: float) -> Turn:
        """Count images for about this long."""
        (turn,) = self._pool.each(_turn, [(self._form, seconds)])
        assert isinstance(turn, Turn)
        return turn


def _import(keep: Keep, tell: Tell) -> str:
    """Why torchvision does not import, or ""."""
    try:
        importlib.import_module("torchvision")
    except Exception as error:  # one built for another torch raises anything
        return f"{type(error).__name__}: {error}"
    return ""


def _begin(
    keep: Keep,
    tell: Tell,
    form: str,
    sample: Sample,
    settings: Settings,
    workers: int,
    start_method: str,
) -> float:
    """Build the loader and take its first batch; the seconds that took."""
    from feedline.bench.against import PREFETCH_FACTOR, build  # loads torchvision

    warnings.simplefilter("ignore")  # torch warns of many workers, and of forking
    start = time.perf_counter()
    batches = endless(build(form, sample, settings, workers, start_method))
    next(batches)
    keep[form] = batches, workers, PREFETCH_FACTOR * workers
    return time.perf_counter() - start


def _turn(keep: Keep, tell: Tell, form: str, seconds: float) -> Turn:
    batches, workers, ahead = keep[form]
    unit = max(1, workers)  # each worker makes a batch of its own
    return count(batches, ahead=ahead, unit=unit, seconds=seconds, cpu_s=family_cpu())
