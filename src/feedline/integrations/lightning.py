"""Lightning callback that records how a training spends its time.

Guarantees: the training is not changed. If recording fails, the error is logged, and the training
continues. With a feedline.DataLoader, the run is the loader's own record.
Relies on: Lightning's hooks. Between the end of a batch and the start of the next, Lightning
requests the batch, copies it to the device and runs other hooks; this time counts as data wait.
Validation in between counts as compute.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from feedline.loader import DataLoader, access
from feedline.profile.live import MetricsCallback
from feedline.profile.loader_probe import LoaderProbe, get_probe
from feedline.profile.save import RunOutputs
from feedline.timing import is_recording_enabled
from feedline.timing.passes import PassRecord
from feedline.timing.recorder import Recorder
from feedline.timing.run import Run

if TYPE_CHECKING:
    from lightning.pytorch import Callback
elif "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback


class WatchCallback(Callback):
    """Records a Lightning training.

    Args:
        run: folder for the run, as in `feedline.watch`.
        trace: trace file, as in `feedline.watch`.
        panel: live panel, as in `feedline.watch`.
        metrics: function called with the run's figures; None logs them to the trainer's loggers.
        every_s: seconds between two calls of it.

    Example:
        >>> watch = WatchCallback(run="runs/today")                             # doctest: +SKIP
        >>> lightning.Trainer(callbacks=[watch]).fit(model, loader)             # doctest: +SKIP
    """

    def __init__(
        self,
        run: str | os.PathLike[str] | None = None,
        *,
        trace: str | os.PathLike[str] | None = None,
        panel: bool | str = False,
        metrics: MetricsCallback | None = None,
        every_s: float = 10.0,
    ) -> None:
        super().__init__()
        self._folder, self._trace = run, trace
        self._panel = panel
        self._metrics = metrics
        self._every_s = every_s
        self.recorder = Recorder()
        self._own: DataLoader[Any] | None = None  # a loader that records itself
        self._probe: LoaderProbe | None = None
        self._steps: PassRecord | None = None
        self._outputs: RunOutputs | None = None
        self._requested_ns = 0

    @property
    def run(self) -> Run:
        """Record of the run so far."""
        if self._steps is not None and self._steps.clock is not None:
            with contextlib.suppress(Exception):  # the device is gone
                self._steps.clock.settle()
        return self.recorder.run()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start recording the trainer's loaders."""
        loader = trainer.train_dataloader
        if isinstance(loader, DataLoader):
            self._own, self.recorder = loader, loader.recorder
        elif is_recording_enabled():
            self._probe = get_probe(loader, self.recorder)
        self._outputs = RunOutputs(
            folder=self._folder,
            trace=self._trace,
            metrics=self._metrics or (_log_metrics(trainer) if trainer.loggers else None),
            every_s=self._every_s,
            name="train",
            panel=self._panel,
        )
        self._outputs.open(self.recorder)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Start a pass."""
        if self._probe is not None:
            self._steps = self.recorder.begin(
                self._probe.number, trainer.current_epoch, time.monotonic_ns()
            )
        self._note_request()

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record that a batch has arrived."""
        if self._steps is not None:
            self._steps.batch_received(batch, self._requested_ns)
        if self._outputs is not None:
            self._outputs.note_batch()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record that the next batch will be requested."""
        self._note_request()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Continue after validation, which counts as compute."""
        self._note_request()

    def _note_request(self) -> None:
        if self._steps is not None:
            self._requested_ns = self._steps.batch_requested()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """End the pass."""
        self._end("exhausted")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the record after an error."""
        self._end("raised")

    def _end(self, how: str) -> None:
        if self._steps is not None:
            self._steps.end(how)
        if self._own is not None:  # Lightning knows its length and requests no batch after the last
            access.end_pass(self._own, how)
        if self._outputs is not None:
            self._outputs.end()


def _log_metrics(trainer: Any) -> MetricsCallback:
    def log(figures: dict[str, float]) -> None:
        for logger in trainer.loggers:
            logger.log_metrics(figures, step=trainer.global_step)

    return log
