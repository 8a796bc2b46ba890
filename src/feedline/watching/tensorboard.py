"""A run's figures in TensorBoard."""

from __future__ import annotations

import os
from typing import Any

from feedline.errors import UsageError
from feedline.watching.metrics import Tracker

__all__ = ["writer"]


def writer(folder: str | os.PathLike[str]) -> Tracker:
    """What `feedline.watch(loader, metrics=...)` tells its figures, for TensorBoard.

    The step of each figure is the number of batches so far.

    Args:
        folder: for the event files, as `torch.utils.tensorboard.SummaryWriter` takes it.

    Raises:
        UsageError: TensorBoard is not installed.

    Example:
        >>> from feedline.watching import tensorboard
        >>> tell = tensorboard.writer("runs/today")                          # doctest: +SKIP
        >>> watched = feedline.watch(loader, metrics=tell)                   # doctest: +SKIP
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError(
            "TensorBoard was asked for, and it is not installed: pip install tensorboard"
        ) from error
    made: Any = SummaryWriter(log_dir=os.fspath(folder))

    def tell(figures: dict[str, float]) -> None:
        step = int(figures["feedline/batches"])
        for name, value in figures.items():
            if name != "feedline/batches":
                made.add_scalar(name, value, step)
        made.flush()

    return tell
