"""What is said of a batch for which the device had no memory.

Guarantees: it names the batch, the size and, within a run, the phase, and a next step that the
run's own checks let through.
Relies on: torch's messages, which `tuning.device_memory` knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from feedline.errors import UsageError
from feedline.train.check_memory import largest_batch
from feedline.train.checkpoint import CHECKPOINT_NAME
from feedline.train.learner import Learner
from feedline.train.recipe import Recipe
from feedline.tuning.device_memory import is_out_of_memory

__all__ = ["in_memory", "run_too_large", "too_large"]


@contextmanager
def in_memory(said: Callable[[BaseException], UsageError]) -> Iterator[None]:
    """What takes the device's memory; where that is out, another error is raised.

    Args:
        said: makes the error from torch's own.

    Raises:
        UsageError: the memory is out.
    """
    try:
        yield
    except RuntimeError as error:  # torch's own derives from it
        if not is_out_of_memory(error):
            raise
        raise said(error) from error


def too_large(
    what: str,
    rows: int | None,
    size: int,
    error: BaseException,
    *,
    fits: int | None = None,
    instead: str = "Use a smaller --batch-size, or --accumulate; feedline tune --batch-size auto "
    "finds the largest that fits",
) -> UsageError:
    """An error about a batch.

    Args:
        what: it is, as "a batch".
        rows: of it.
        size: side of its images, in pixels.
        error: torch's own.
        fits: rows that would fit, where that is known.
        instead: what to do.
    """
    least = f"; about {fits} would fit" if fits else ""
    own = str(error).strip().partition("\n")[0].rstrip(".")
    return UsageError(
        f"{what} of {rows} images at {size} px does not fit the device's memory{least}: {own}. "
        f"{instead}"
    )


def run_too_large(
    learner: Learner,
    recipe: Recipe,
    error: BaseException,
    *,
    epoch: int,
    judging: bool,
    kept: Path | None,
) -> UsageError:
    """An error about a batch of a run under way.

    Args:
        learner: was at work.
        recipe: of the run.
        error: torch's own.
        epoch: under way, from 0.
        judging: it validates.
        kept: the run's folder, where a checkpoint is in it.
    """
    number, phase = recipe.phase_number(epoch), recipe.phase_at(epoch)
    rows, size, fits = phase.batch_size or recipe.batch_size, phase.size, None
    if judging:
        rows, size, what = recipe.largest_batch, recipe.val_size_of(phase), "a validation batch"
        on, anew = "--val-size and a smaller size", "with a smaller --val-size"
    else:
        what = "a batch"
        fits = largest_batch(learner.model, recipe, rows, size, learner.device, learner.precision)
        on = (
            f"--schedule and a smaller batch ({size}xEPOCHS@{fits or 'BATCH'}) for epochs to come, "
            "if it stands between two epochs, or on more processes, which share a batch"
        )
        anew = "with a smaller --batch-size, or with --accumulate"
    again = f"There is no checkpoint yet: begin again {anew}"
    if kept is not None:
        again = (
            f"Go on from {kept / CHECKPOINT_NAME} with --resume {kept} and {on}; or begin anew "
            f"{anew}"
        )
    where = f"epoch {epoch + 1} (phase {number + 1} of {len(recipe.phases)})"
    return too_large(f"in {where}, {what}", rows, size, error, fits=fits, instead=again)
