"""`--batch-size auto|N` of `feedline tune`: a number, or the largest that a GPU's memory holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from feedline.errors import UsageError

if TYPE_CHECKING:
    from feedline.tuning.batch_sizes import BatchSizes

__all__ = ["Batches", "batches"]


@dataclass(frozen=True, slots=True)
class Batches:
    """What was asked for, or found.

    Args:
        rows: of a batch where the schedule names none.
        schedule: with the batch sizes that were found.
        found: how; None where a number was asked for.
    """

    rows: int
    schedule: str
    found: BatchSizes | None = None

    @property
    def estimated(self) -> bool:
        """Whether they are for a GPU that is not here."""
        return self.found is not None and self.found.how == "estimate"

    def as_dict(self) -> dict[str, Any]:
        """What was found, as plain values; empty where nothing was sought."""
        return {} if self.found is None else {"batch_sizes": self.found.as_dict()}


def batches(
    text: str,
    schedule: str,
    *,
    model: str | None,
    classes: int,
    images: int,
    device: str,
    gpu_memory: float | None,
) -> Batches:
    """Read the option; with "auto", find the sizes and print them with how they were found.

    Args:
        text: "auto" or a number.
        schedule: as `Schedule.parse` takes it.
        model: of timm, by name.
        classes: that it tells apart.
        images: that there are: no batch is larger.
        device: "auto", "cpu" or "cuda".
        gpu_memory: in GB, to estimate for.

    Raises:
        UsageError: neither "auto" nor a number; "auto" without a model, or without a GPU and its
            memory.
    """
    if text != "auto":
        if not text.isdecimal() or not int(text):
            raise UsageError(
                f"--batch-size must be 'auto' or a whole number of images, at least 1, got {text!r}"
            )
        if gpu_memory is not None:
            raise UsageError("--gpu-memory is for --batch-size auto, which estimates with it")
        return Batches(int(text), schedule)
    if model is None:
        raise UsageError(
            "--batch-size auto needs --model with a timm model's name: how large a batch may be "
            "depends on what trains; for a model of your own there is feedline.find_batch_size"
        )
    from rich.progress import TimeElapsedColumn

    from feedline.cli.progress import progress_bar
    from feedline.train.tune_step import largest_batches
    from feedline.tuning.batch_search import BatchTrial

    with progress_bar(TimeElapsedColumn()) as bar:
        task = bar.add_task("batch size", total=None)

        def told(size: int, trial: BatchTrial) -> None:
            fits = "fits" if trial.fits else "does not fit"
            bar.update(task, description=f"{size} px: a batch of {trial.rows} {fits}")

        found = largest_batches(
            model,
            classes=classes,
            schedule=schedule,
            most=images,
            device=device,
            gpu_memory=gpu_memory,
            told=told,
        )
    typer.echo(f"{found}\n")
    return Batches(found.largest, str(found.schedule), found)
