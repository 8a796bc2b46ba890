"""`feedline train`: train a timm model with progressive resizing.

Torch and timm are imported when it runs: they take seconds.
"""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedline.cli.output import JsonFile, complain, write_json
from feedline.cli.workers import worker_setting
from feedline.errors import UsageError
from feedline.system import rank_and_world

if TYPE_CHECKING:
    from feedline.train.config import Assignment
    from feedline.train.history import TrainResult

__all__ = ["train"]

_NOTHING_SAVED = 1
_SIGNAL = 128  # plus the number of the signal, as shells do


def _panel(name: str) -> Any:
    def option(help: str, metavar: str | None = None, default: str = "", *names: str) -> Any:
        text = help + (f" [dim]Default: {default}.[/dim]" if default else "")
        return typer.Option(
            *names, help=text, metavar=metavar, rich_help_panel=name, show_default=False
        )

    return option


_schedule = _panel("Model and schedule")
_optimizer = _panel("Optimizer")
_regularise = _panel("Augmentation and regularisation (ramped up with the image size)")
_run = _panel("Run")
_checkpoint = _panel("Checkpoints and validation")


def train(
    ctx: typer.Context,
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]",
            help="Images: train/ and val/, or class folders. [dim]Default: of --resume or "
            "--config.[/dim]",
            show_default=False,
        ),
    ] = None,
    model: Annotated[str | None, _schedule("timm model.", "NAME", "resnet18")] = None,
    schedule: Annotated[
        str | None,
        _schedule(
            "Image sizes and epochs, comma separated, optionally @BATCH.",
            "SIZExEPOCHS,...",
            "128x2,160x2,224x2",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        _schedule("Published schedule instead, with --epochs.", "efficientnetv2|ffcv|mosaicml|..."),
    ] = None,
    epochs: Annotated[int | None, _schedule("Number of epochs of --preset.", "N")] = None,
    batch_size: Annotated[int | None, _schedule("Images in a batch.", "N", "64")] = None,
    pretrained: Annotated[
        str | None, _schedule("Initial weights: timm's (hub) or a file.", "hub|FILE", "random")
    ] = None,
    freeze: Annotated[
        list[str] | None,
        _schedule("Do not train parameters whose names begin with PREFIX. Repeatable.", "PREFIX"),
    ] = None,
    config: Annotated[Path | None, _schedule("TOML file of these settings.", "FILE")] = None,
    opt: Annotated[str | None, _optimizer("timm optimizer.", "NAME", "adamw")] = None,
    lr: Annotated[
        float | None,
        _optimizer("Peak learning rate.", "LR", "0.002 for adamw, 0.1 x batch / 256 for sgd"),
    ] = None,
    sched: Annotated[
        str | None,
        _optimizer("Learning-rate schedule.", "onecycle|cosine|linear|constant", "onecycle"),
    ] = None,
    warmup_epochs: Annotated[
        float | None, _optimizer("Epochs of warm-up.", "N", "a quarter of all")
    ] = None,
    weight_decay: Annotated[
        float | None, _optimizer("Weight decay.", "X", "0.05, sgd 0.00005")
    ] = None,
    grad_accum_steps: Annotated[
        int | None, _optimizer("Batches for one optimizer step.", "N", "1")
    ] = None,
    clip_grad: Annotated[float | None, _optimizer("Clip the gradient norm.", "NORM")] = None,
    model_ema_decay: Annotated[
        float | None, _optimizer("Validate and keep an average of the weights.", "DECAY")
    ] = None,
    class_weights: Annotated[
        str | None, _optimizer("Weigh the loss by inverse class frequency.", "balanced")
    ] = None,
    amp: Annotated[
        str | None, _optimizer("Mixed precision.", "auto|off|bf16|fp16", "auto: on a GPU")
    ] = None,
    compile: Annotated[bool, _optimizer("Use torch.compile.")] = False,
    mixup: Annotated[float | None, _regularise("MixUp alpha.", "ALPHA")] = None,
    cutmix: Annotated[float | None, _regularise("CutMix alpha.", "ALPHA")] = None,
    aa: Annotated[
        str | None, _regularise("RandAugment or TrivialAugment.", "rand|trivial|none")
    ] = None,
    aa_strength: Annotated[float | None, _regularise("Strength of --aa.", "0..1", "1")] = None,
    reprob: Annotated[float | None, _regularise("Probability of random erasing.", "P")] = None,
    drop: Annotated[float | None, _regularise("Dropout before the head.", "P")] = None,
    drop_path: Annotated[float | None, _regularise("Stochastic depth.", "P")] = None,
    smoothing: Annotated[float | None, _regularise("Label smoothing.", "X", "0.1")] = None,
    ramp_from: Annotated[
        float | None,
        _regularise("Share of the above in the first phase; 1: no ramp.", "0..1", "0"),
    ] = None,
    device: Annotated[
        str | None, _run("Device of torch: cuda, mps, xpu, cpu.", "NAME", "cuda if available")
    ] = None,
    workers: Annotated[str | None, _run("Loader processes.", "N|auto", "auto")] = None,
    settings: Annotated[Path | None, _run("Settings of feedline tune --save.", "FILE")] = None,
    cache: Annotated[Path | None, _run("Cache of resized copies.", "DIR")] = None,
    seed: Annotated[int | None, _run("Random seed.", "N", "0")] = None,
    on_error: Annotated[
        str | None, _run("Images that cannot be decoded.", "raise|skip", "raise")
    ] = None,
    warmup_shapes: Annotated[
        bool | None,
        _run(
            "Run each image size before training.",
            None,
            "on a GPU",
            "--warmup-shapes/--no-warmup-shapes",
        ),
    ] = None,
    dry_run: Annotated[
        bool, _run("Measure a few steps, print the plan and the expected time, write nothing.")
    ] = False,
    dry_run_s: Annotated[
        float | None, _run("Time of --dry-run for each image size.", "SECONDS", "10")
    ] = None,
    out: Annotated[Path | None, _checkpoint("Folder of the run.", "DIR", "runs/MODEL-N")] = None,
    resume: Annotated[
        str | None,
        _checkpoint("Resume a run with its settings; auto: the newest one.", "RUN|auto"),
    ] = None,
    checkpoint_every: Annotated[
        int | None, _checkpoint("Checkpoints within an epoch.", "STEPS", "after epochs only")
    ] = None,
    keep_checkpoints: Annotated[
        int | None, _checkpoint("Checkpoints of epochs to keep.", "N", "0: the last only")
    ] = None,
    val_dir: Annotated[Path | None, _checkpoint("Validation images.", "DIR")] = None,
    val_image_size: Annotated[
        int | None, _checkpoint("Size of validation images.", "PX", "the last training size")
    ] = None,
    patience: Annotated[
        int | None, _checkpoint("End after N epochs without a better top-1.", "N")
    ] = None,
    tensorboard: Annotated[
        bool | None,
        _checkpoint("Write metrics for TensorBoard.", None, "", "--tensorboard/--no-tensorboard"),
    ] = None,
    json: JsonFile = None,
) -> None:
    """Train a timm model with progressive resizing.

    Ctrl-C finishes the step and writes a checkpoint; `--resume RUN` continues.

    Example: feedline train demo-data --model resnet18 --schedule "128x2,160x2,224x2" --mixup 0.2
    """
    from feedline.train.config import Assignment  # loads torch
    from feedline.train.recipe import Recipe
    from feedline.train.run_settings import RunSettings

    options = dict(ctx.params)
    options["workers"] = None if workers is None else worker_setting(workers)
    options |= {"compile": compile or None, "freeze": freeze or None}
    recipe = {each.name for each in fields(Recipe) if each.init} | {"preset", "epochs"}
    assignment = Assignment.collect(
        {name: value for name, value in options.items() if name in recipe},
        RunSettings(**{each.name: options[each.name] for each in fields(RunSettings)}),
        config=config,
    )
    if dry_run:
        write_json(json, _print_plan(assignment, dry_run_s))
        return
    if dry_run_s is not None:
        raise UsageError("--dry-run-s is the time of --dry-run", hint="add --dry-run")
    from rich.progress import TextColumn

    from feedline.cli.progress import progress_bar
    from feedline.cli.train_progress import TrainProgress
    from feedline.train.run import run_training

    with progress_bar(TextColumn("{task.fields[left]}")) as bar:
        result = run_training(assignment, TrainProgress(bar))
    if not rank_and_world()[0]:
        _print_end(result)
        write_json(json, result.as_dict())
        if result.weights_error and result.checkpoint_error:
            raise typer.Exit(_NOTHING_SAVED)
    if result.stopped_by is not None:
        raise typer.Exit(_SIGNAL + result.stopped_by)


def _print_plan(assignment: Assignment, budget_s: float | None) -> dict[str, Any]:
    """Plan a run and print the plan; returns it JSON-able."""
    from rich.progress import TimeElapsedColumn

    from feedline.cli.progress import note, progress_bar
    from feedline.train.dry_run import BUDGET_S, dry_run

    with progress_bar(TimeElapsedColumn()) as bar:
        task = bar.add_task("", total=None)
        plan = dry_run(
            assignment.recipe,
            assignment.run,
            assignment.resumed,
            budget_s=BUDGET_S if budget_s is None else budget_s,
            note=lambda text: note(bar, text),
            progress=lambda text: bar.update(task, description=text),
        )
    typer.echo(str(plan))
    return plan.as_dict()


def _print_end(result: TrainResult) -> None:
    """Print how a run ended, and how to resume it."""
    for (path, reason), times in Counter(result.skipped).items():  # once in each epoch
        often = "" if times == 1 else f" {times} times"
        typer.echo(f"skipped{often}: {reason if path in reason else f'{path}: {reason}'}")
    if result.stopped_by is not None:
        typer.echo(
            f"stopped; resume with: feedline train --resume {shlex.quote(str(result.out))}",
            err=True,
        )
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
    typer.echo(text)
    if result.weights_error:
        rest = f"the last epoch's are in {result.out}/last.pt"
        if result.checkpoint_error:
            rest = "the latest checkpoint could not be written either"
        complain(f"the best weights could not be written: {result.weights_error}; {rest}")
    elif result.weights is None:
        complain(
            f"no weights in {result.out}/: no epoch was better than the best one of the run that "
            "was resumed, in its own folder",
            label="note: ",
        )
