"""TensorBoard as an experiment tracker."""

from __future__ import annotations

import os
from typing import Any

from feedline.errors import UsageError
from feedline.profile.metrics import MetricsCallback

__all__ = ["writer"]


def writer(folder: str | os.PathLike[str]) -> MetricsCallback:
    """Create a callback for `feedline.watch(loader, metrics=...)` that writes to TensorBoard.

    The step of each value is the number of batches so far.

    Args:
        folder: folder of the event files, see `torch.utils.tensorboard.SummaryWriter`.

    Raises:
        UsageError: TensorBoard is not installed.
    Example:
        >>> from feedline.profile import tensorboard
        >>> callback = tensorboard.writer("runs/today")                      # doctest: +SKIP
        >>> watched = feedline.watch(loader, metrics=callback)               # doctest: +SKIP
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError("TensorBoard is not installed", hint="pip install tensorboard") from error
    summary: Any = SummaryWriter(log_dir=os.fspath(folder))

    def write(figures: dict[str, float]) -> None:
        step = int(figures["feedline/batches"])
        for name, value in figures.items():
            if name != "feedline/batches":
                summary.add_scalar(name, value, step)
        summary.flush()

    return write
