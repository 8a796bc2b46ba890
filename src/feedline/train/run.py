"""A whole training run, on every rank.

Guarantees: errors that can be found beforehand are raised before a folder is made or a worker
starts. A resumed run ends with the same weights as an uninterrupted one, bit for bit on a CPU with
the same number of torch threads.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from os import PathLike
from pathlib import Path

import torch

from feedline.machine import environment
from feedline.order.seeds import mix
from feedline.train.checkpoint import BEST_NAME, CHECKPOINT_NAME
from feedline.train.config import as_toml
from feedline.train.data import train_loader
from feedline.train.history import TrainReport, TrainResult
from feedline.train.loop import TrainingLoop
from feedline.train.prepare import Assignment, PreparedRun, prepare
from feedline.train.ranks import Ranks, join_ranks
from feedline.train.recipe import Recipe
from feedline.train.run_folder import RECIPE_NAME, lock_run_folder, make_run_folder, write_text
from feedline.train.run_settings import RunSettings

__all__ = ["run_training", "train_model"]


def train_model(
    recipe: Recipe | None = None,
    run: RunSettings | None = None,
    *,
    config: str | PathLike[str] | None = None,
    report: TrainReport | None = None,
) -> TrainResult:
    """Train a timm model with progressive resizing, or resume a run, as `feedline train` does.

    Ctrl-C, SIGTERM and SIGUSR1 end it after the current step, with a checkpoint;
    `RunSettings(resume=result.out)` continues.

    Args:
        recipe: settings that decide the weights; None for those of the file, of the resumed run,
            or the defaults.
        run: where and how to train; completed by the file and the resumed run.
        config: a TOML file of settings, such as `recipe.toml` in the folder of a run.
        report: a `feedline.TrainReport` with callbacks; None for no output.

    Returns:
        The figures of each epoch, the folder of the run, the best top-1, and what stopped it.

    Raises:
        UsageError: a setting is out of range, or a folder, model, device or checkpoint cannot be
            used.
        SampleError: an image cannot be decoded, and on_error is "raise".
        FeedlineError: the loss became NaN or infinite.
    """
    assignment = Assignment.collect(
        recipe or {}, run or RunSettings(), config=None if config is None else Path(config)
    )
    return run_training(assignment, report or TrainReport())


def run_training(assignment: Assignment, report: TrainReport) -> TrainResult:
    """Train, or resume a run; see `train_model`."""
    with join_ranks() as ranks:
        report = report if ranks.is_main else TrainReport()
        return _train(prepare(assignment, report.note, world=ranks.world), ranks, report)


def _train(ready: PreparedRun, ranks: Ranks, report: TrainReport) -> TrainResult:
    """Train on one rank."""
    recipe, run, data = ready.recipe, ready.run, ready.data
    measured_on = environment("timm")
    measured_on["machine"] |= {
        "device": ready.device.type,
        "torch_threads": torch.get_num_threads(),
    }
    with ExitStack() as stack:
        # First, as a cache that cannot be used is an error.
        loader = train_loader(recipe, data.train, run, ready.device, stack)
        made = None
        if ranks.is_main:
            checkpoint = ready.resumed.checkpoint if ready.resumed else None
            made = make_run_folder(run.out, checkpoint=checkpoint, model=recipe.model)
            stack.enter_context(lock_run_folder(made))
        out = ranks.gathered(made)[0]
        assert out is not None, "rank 0 has made it"
        if not ranks.is_main:  # each drops other units
            torch.manual_seed(mix(recipe.seed, ranks.rank) >> 1)
        if not ready.is_finished:
            report.note(
                f"{len(data.train)} images of {len(data.train.classes)} classes"
                + (f", {len(data.val)} for validation" if data.val else "")
                + f"; {recipe.model} in {str(ready.precision).removeprefix('torch.')} on "
                f"{ready.device.type}, {recipe.opt} with lr {recipe.peak_lr:.3g}; writing to {out}/"
            )
        loop = TrainingLoop(ready, loader, out, ranks, report, stack)
        if ranks.is_main:
            write_text(out / RECIPE_NAME, as_toml(recipe, run), report.note)
            write_text(out / "environment.json", json.dumps(measured_on, indent=2), report.note)
        stopped_by = loop.fit()
    return TrainResult(
        recipe=recipe,
        out=out,
        classes=list(data.train.classes),
        records=loop.history.records,
        step=loop.state.step,
        stopped_by=stopped_by,
        best_top1=loop.history.best_top1,
        weights=loop.writer.best,
        weights_error=loop.writer.errors.get(BEST_NAME),
        checkpoint_error=loop.writer.errors.get(CHECKPOINT_NAME),
        skipped=loop.skipped,
        **measured_on,
    )
