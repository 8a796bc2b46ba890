"""`feedline train`: train a timm model with progressive resizing.

Torch and timm are imported when it runs: they take seconds.
"""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from feedline.cli.options import (
    DEVICE,
    LOADER,
    AmpDtype,
    JsonFile,
    amp_mode,
    panel,
    parse_workers,
)
from feedline.cli.output import complain, write_json
from feedline.errors import UsageError
from feedline.system import rank_and_world

if TYPE_CHECKING:
    from feedline.train.config import Assignment
    from feedline.train.history import TrainResult

__all__ = ["train"]

_NOTHING_SAVED = 1
_SIGNAL = 128  # plus the number of the signal, as shells do

_model = panel("Model and schedule")
_optimizer = panel("Optimizer")
_augment = panel("Augmentation and regularization (they grow with the image size)")
_loader = panel(LOADER)
_device = panel(DEVICE)
_run = panel("Run and checkpoints")


def train(
    ctx: typer.Context,
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            help="Class folders of images, or a folder with train/ and val/.",
            show_default="that of --resume or --config",
        ),
    ] = None,
    model: Annotated[str | None, _model("timm model.", "NAME", default="resnet18")] = None,
    schedule: Annotated[
        str | None,
        _model(
            "Image sizes and epochs, optionally with @BATCH.",
            "SIZExEPOCHS,...",
            default="128x2,160x2,224x2",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        _model("Published schedule instead, with --epochs.", "efficientnetv2|ffcv|mosaicml|..."),
    ] = None,
    epochs: Annotated[int | None, _model("Epochs of the preset.", "N")] = None,
    pretrained: Annotated[
        bool, _model("Start from timm's pretrained weights.", "", "--pretrained")
    ] = False,
    initial_checkpoint: Annotated[
        Path | None, _model("Start from the weights in a file.", "FILE")
    ] = None,
    freeze: Annotated[
        list[str] | None,
        _model("Freeze parameters whose names begin with PREFIX; repeatable.", "PREFIX"),
    ] = None,
    config: Annotated[
        Path | None, _model("TOML file of settings; options override it.", "FILE")
    ] = None,
    opt: Annotated[str | None, _optimizer("timm optimizer.", "NAME", default="adamw")] = None,
    lr: Annotated[
        float | None,
        _optimizer(
            "Peak learning rate.", "LR", default="0.002 for adamw, 0.1 x batch / 256 for sgd"
        ),
    ] = None,
    sched: Annotated[
        Literal["onecycle", "cosine", "linear", "constant"] | None,
        _optimizer(
            "Learning-rate schedule.", "onecycle|cosine|linear|constant", default="onecycle"
        ),
    ] = None,
    warmup_epochs: Annotated[
        float | None, _optimizer("Warm-up epochs.", "N", default="a quarter of all")
    ] = None,
    weight_decay: Annotated[
        float | None, _optimizer("Weight decay.", "X", default="0.05, for sgd 0.00005")
    ] = None,
    grad_accum_steps: Annotated[
        int | None, _optimizer("Batches for each optimizer step.", "N", default="1")
    ] = None,
    clip_grad: Annotated[float | None, _optimizer("Clip the gradient norm.", "NORM")] = None,
    model_ema_decay: Annotated[
        float | None, _optimizer("Validate and save an average of the weights.", "DECAY")
    ] = None,
    class_weights: Annotated[
        Literal["none", "balanced"] | None,
        _optimizer("Weight the loss by inverse class frequency.", "balanced"),
    ] = None,
    mixup: Annotated[float | None, _augment("MixUp alpha.", "ALPHA")] = None,
    cutmix: Annotated[float | None, _augment("CutMix alpha.", "ALPHA")] = None,
    aa: Annotated[
        Literal["rand", "trivial", "none"] | None,
        _augment("RandAugment or TrivialAugment.", "rand|trivial|none"),
    ] = None,
    aa_strength: Annotated[float | None, _augment("Strength of --aa.", "0..1", default="1")] = None,
    reprob: Annotated[float | None, _augment("Random-erasing probability.", "P")] = None,
    drop: Annotated[float | None, _augment("Dropout rate of the head.", "P")] = None,
    drop_path: Annotated[float | None, _augment("Drop-path rate.", "P")] = None,
    smoothing: Annotated[float | None, _augment("Label smoothing.", "X", default="0.1")] = None,
    ramp_from: Annotated[
        float | None,
        _augment("Share of these in the first phase; 1: no ramp.", "0..1", default="0"),
    ] = None,
    batch_size: Annotated[
        int | None, _loader("Images in a batch.", "N", "--batch-size", "-b", default="64")
    ] = None,
    workers: Annotated[
        str | None,
        _loader("Loader processes; 0: none.", "N|auto", "--workers", "-j", default="auto"),
    ] = None,
    cache: Annotated[Path | None, _loader("Cache of resized copies.", "DIR")] = None,
    settings: Annotated[Path | None, _loader("Settings from feedline tune --save.", "FILE")] = None,
    on_error: Annotated[
        Literal["raise", "skip"] | None,
        _loader("Images that cannot be decoded.", "raise|skip", default="raise"),
    ] = None,
    device: Annotated[
        str | None, _device("cuda, mps, xpu or cpu.", "NAME", default="cuda if available")
    ] = None,
    amp: Annotated[
        bool | None, _device("Mixed precision.", "", "--amp/--no-amp", default="on a GPU")
    ] = None,
    amp_dtype: AmpDtype = None,
    compile: Annotated[bool, _device("Use torch.compile.", "", "--compile")] = False,
    warmup_shapes: Annotated[
        bool | None,
        _device(
            "Run each image size before training.",
            "",
            "--warmup-shapes/--no-warmup-shapes",
            default="on a GPU",
        ),
    ] = None,
    out: Annotated[Path | None, _run("Folder of the run.", "DIR", default="runs/MODEL-N")] = None,
    resume: Annotated[
        str | None, _run("Resume a run; auto: the newest one, if any.", "RUN|auto")
    ] = None,
    seed: Annotated[int | None, _run("Random seed.", "N", default="0")] = None,
    val_dir: Annotated[Path | None, _run("Validation images.", "DIR", default="DIR/val")] = None,
    val_image_size: Annotated[
        int | None, _run("Validation image size.", "PX", default="the last training size")
    ] = None,
    patience: Annotated[
        int | None, _run("Stop after N epochs without a better top-1.", "N")
    ] = None,
    checkpoint_every: Annotated[
        int | None, _run("Save a checkpoint every N steps.", "N", default="each epoch")
    ] = None,
    keep_checkpoints: Annotated[
        int | None, _run("Checkpoints of epochs to keep.", "N", default="the last")
    ] = None,
    tensorboard: Annotated[
        bool | None,
        _run("Write metrics for TensorBoard.", "", "--tensorboard/--no-tensorboard"),
    ] = None,
    dry_run: Annotated[
        bool, _run("Measure some steps and print the plan, without training.", "", "--dry-run")
    ] = False,
    dry_run_s: Annotated[
        float | None, _run("Time of --dry-run for each image size.", "SECONDS", default="10")
    ] = None,
    json: JsonFile = None,
) -> None:
    """Train a timm model with progressive resizing.

    Ctrl-C finishes the step and saves a checkpoint; --resume RUN continues from it.

    Example: feedline train demo-data --model resnet18 --schedule 128x2,160x2,224x2 --mixup 0.2
    """
    if pretrained and initial_checkpoint is not None:
        raise UsageError("--pretrained and --initial-checkpoint exclude each other")
    if dry_run_s is not None and not dry_run:
        raise UsageError("--dry-run-s is the time of --dry-run", hint="add --dry-run")
    from feedline.train.config import Assignment  # loads torch
    from feedline.train.recipe import Recipe
    from feedline.train.run_settings import RunSettings

    options = dict(ctx.params)
    options["workers"] = None if workers is None else parse_workers(workers)
    options["pretrained"] = "hub" if pretrained else initial_checkpoint and str(initial_checkpoint)
    options["amp"] = amp_mode(amp, amp_dtype, device)
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
    typer.echo(str(plan))
    return plan.as_dict()


def _print_end(result: TrainResult) -> None:
    """Print how a run ended, and how to resume it."""
    for (path, reason), times in Counter(result.skipped).items():  # once in each epoch
        often = "" if times == 1 else f" {times} times"
        typer.echo(f"skipped{often}: {reason if path in reason else f'{path}: {reason}'}")
    if result.stopped_by is not None:
        command = f"feedline train --resume {shlex.quote(str(result.out))}"
        complain(f"stopped\nhint: resume with: {command}")
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
        complain(f"the best weights could not be written: {result.weights_error}; {rest}", "error")
    elif result.weights is None:
        complain(
            f"no weights in {result.out}/: no epoch was better than the best one of the run that "
            "was resumed, in its own folder",
            "note",
        )
