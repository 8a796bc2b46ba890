"""`feedline train`: train a timm model with progressive resizing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedline.cli import options
from feedline.cli.output import complain, echo, echo_skipped, echo_text, write_json
from feedline.errors import UsageError
from feedline.system import rank_and_world
from feedline.text import shell_command
from feedline.train.recipe import Recipe, RunSettings
from feedline.train.settings import MODEL, RUN, setting_names

if TYPE_CHECKING:
    from feedline.train.history import TrainResult
    from feedline.train.prepare import Assignment

_NOTHING_SAVED = 1
_SIGNAL = 128  # plus the number of the signal, as shells do

_MODEL, _RUN = options.panel(MODEL.title), options.panel(RUN.title)


@options.with_settings(Recipe, RunSettings)
def train(
    ctx: typer.Context,
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            help="Class folders of images, or a folder with train/ and val/. "
            "[dim]\\[default: that of --resume or --config][/dim]",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        _MODEL("Published schedule: efficientnetv2, ffcv, mosaicml or fixres.", "NAME"),
    ] = None,
    epochs: Annotated[int | None, _MODEL("Epochs, with --preset or --image-size.", "N")] = None,
    image_size: Annotated[
        int | None, _MODEL("Image size in pixels.", "PX", False, "--image-size", "--img-size")
    ] = None,
    config: Annotated[Path | None, _MODEL("TOML file; options override it.", "FILE")] = None,
    workers: options.Workers = None,
    cache: options.CacheFolder = None,
    on_error: options.OnError = None,
    device: options.Device = None,
    amp: options.Amp = None,
    amp_dtype: options.AmpDtype = None,
    dry_run: Annotated[bool, _RUN("Measure some steps and print the plan only.")] = False,
    dry_run_s: Annotated[
        float | None,
        _RUN("Time to measure each image size after a warm-up, 5 steps or more.", "SECONDS", "10"),
    ] = None,
    json: options.JsonFile = None,
    **settings: Any,
) -> None:
    """Train a timm model with progressive resizing.

    Ctrl-C finishes the step and saves a checkpoint; --resume RUN continues from it. Exit status: 0
    when done, 1 after a failure, 2 for wrong use, 130 after Ctrl-C, 143 after SIGTERM.

    Example: feedline train demo-data --model resnet18 --schedule 128x2,160x2,224x2 --mixup 0.2
    """
    if image_size is not None and (epochs is None or settings["schedule"] or preset):
        raise UsageError(
            "--image-size also needs --epochs, and cannot be combined with --schedule or --preset",
            hint="--image-size 224 --epochs 10",
        )
    if dry_run_s is not None and not dry_run:
        raise UsageError("--dry-run-s needs --dry-run")
    from feedline.train.prepare import Assignment  # loads torch

    values = dict(ctx.params)
    values["workers"] = None if workers is None else options.parse_workers(workers)
    if image_size is not None:
        values |= {"schedule": f"{image_size}x{epochs}", "epochs": None}
    recipe = {*setting_names(Recipe), "preset", "epochs"}
    assignment = Assignment.collect(
        {name: value for name, value in values.items() if name in recipe},
        RunSettings(**{name: values[name] for name in setting_names(RunSettings)}),
        config=config,
    )
    if dry_run:
        write_json(json, _print_plan(assignment, dry_run_s))
        return
    from feedline.cli.progress import ProgressBar, TrainProgress
    from feedline.train.run import run_training

    with ProgressBar("starting", clock="text") as bar:
        result = run_training(assignment, TrainProgress(bar))
    if not rank_and_world()[0]:
        _print_end(result)
        write_json(json, result.as_dict())
        if result.weights_error and result.checkpoint_error:
            raise typer.Exit(_NOTHING_SAVED)
    if result.stopped_by is not None:
        raise typer.Exit(_SIGNAL + result.stopped_by)


def _print_plan(assignment: Assignment, budget_s: float | None) -> dict[str, Any]:
    """Plan a run and print the plan; return it JSON-able."""
    from feedline.cli.progress import ProgressBar
    from feedline.train.dry_run import BUDGET_S, dry_run

    with ProgressBar("starting", clock="elapsed") as bar:
        plan = dry_run(
            assignment,
            budget_s=BUDGET_S if budget_s is None else budget_s,
            note=bar.note,
            progress=lambda text: bar.update(what=text),
        )
    echo_text(str(plan))
    return plan.as_dict()


def _print_end(result: TrainResult) -> None:
    """Print how a run ended, and how to resume it."""
    for (path, reason), times in Counter(result.skipped).items():  # once in each epoch
        echo_skipped(path, reason, times)
    if result.stopped_by is not None:
        done, epochs = len(result.records), result.recipe.epochs
        command = f"feedline train --resume {shell_command(str(result.out))}"
        where = f"epoch {min(done + 1, epochs)}/{epochs}, after {result.step} steps in total"
        complain(f"stopped in {where}", hint=f"resume with: {command}")
        return
    text = "done"
    last = result.records[-1] if result.records else None
    if result.best_top1 is not None and last is not None and last.val_top1 is not None:
        five = "" if last.val_top5 is None else f", top-5 {last.val_top5:.1%}"
        text += (
            f": top-1 {last.val_top1:.1%}{five} on {last.val_samples} images "
            f"(best {result.best_top1:.1%})"
        )
    if result.weights is not None:
        text += f"; weights in {result.weights}"
    echo(text)
    if result.weights_error:
        rest = f"the last epoch's are in {result.out}/last.pt"
        if result.checkpoint_error:
            rest = "the latest checkpoint could not be written either"
        complain(f"the best weights could not be written: {result.weights_error}; {rest}", "error")
    elif result.weights is None:
        complain(
            f"no weights in {result.out}/: no epoch was better than the best one of the run that "
            "was resumed, in its own folder",
            "note",
        )
