"""`feedline train`: train a timm model with progressive resizing.

Imports torch and timm only when it runs: they take seconds.
"""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any

import typer

from feedline.cli import train_options as options
from feedline.cli.output import JsonFile, complain, write_json
from feedline.cli.workers import worker_setting
from feedline.errors import UsageError
from feedline.system import rank_and_world

if TYPE_CHECKING:
    from feedline.train.result import Result

__all__ = ["train"]

_LOST = 1
_INTERRUPTED = 128  # plus the signal's number, as a shell says it


def train(
    folder: options.Folder = None,
    model: options.Model = None,
    schedule: options.Schedule = None,
    preset: options.Preset = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    val_size: options.ValSize = None,
    config: options.Config = None,
    optimizer: options.Optimizer = None,
    lr: options.Lr = None,
    curve: options.Curve = None,
    warmup: options.Warmup = None,
    weight_decay: options.WeightDecay = None,
    accumulate: options.Accumulate = None,
    clip: options.Clip = None,
    ema: options.Ema = None,
    mixup: options.Mixup = None,
    cutmix: options.Cutmix = None,
    policy: options.Policy = None,
    augment: options.Augment = None,
    erasing: options.Erasing = None,
    dropout: options.Dropout = None,
    drop_path: options.DropPath = None,
    label_smoothing: options.LabelSmoothing = None,
    level: options.Level = False,
    ramp_from: options.RampFrom = None,
    class_weights: options.ClassWeights = None,
    pretrained: options.Pretrained = None,
    freeze: options.Freeze = None,
    amp: options.Amp = None,
    compile: options.Compile = False,
    device: options.Device = None,
    seed: options.Seed = None,
    workers: options.Workers = None,
    settings: options.Settings = None,
    out: options.Out = None,
    resume: options.Resume = None,
    val: options.Val = None,
    on_error: options.OnError = None,
    checkpoint_every: options.CheckpointEvery = None,
    keep: options.Keep = None,
    warm: options.Warm = None,
    cache: options.Cache = None,
    tensorboard: options.Tensorboard = None,
    patience: options.Patience = None,
    dry_run: options.DryRun = False,
    rehearse: options.Rehearse = None,
    json: JsonFile = None,
) -> None:
    """Train a model while the images grow, and say where each step's time goes.

    Ctrl-C finishes the step and writes a checkpoint; --resume RUN alone goes on with what remains.

    Example: feedline train demo-data --model resnet18 --schedule "112x2,160x2,224x2"
    """
    given: dict[str, Any] = {
        "model": model,
        "schedule": schedule,
        "preset": preset,
        "epochs": epochs,
        "batch_size": batch_size,
        "val_size": val_size,
        "optimizer": optimizer,
        "lr": lr,
        "curve": curve,
        "warmup": warmup,
        "weight_decay": weight_decay,
        "clip": clip,
        "accumulate": accumulate,
        "ema": ema,
        "mixup": mixup,
        "cutmix": cutmix,
        "policy": policy,
        "augment": augment,
        "erasing": erasing,
        "dropout": dropout,
        "drop_path": drop_path,
        "label_smoothing": label_smoothing,
        "amp": amp,
        "class_weights": class_weights,
        "pretrained": pretrained,
        "freeze": freeze or None,
        "ramp": False if level else None,
        "ramp_from": ramp_from,
        "compile": True if compile else None,
        "seed": seed,
        "patience": patience,
        "on_error": on_error,
    }
    processes = None if workers is None else worker_setting(workers)

    from feedline.train.assignment import Assignment  # loads torch
    from feedline.train.run_settings import RunSettings

    asked = RunSettings(
        data=folder,
        val=val,
        cache=cache,
        device=device,
        workers=processes,
        settings=settings,
        out=out,
        resume=resume,
        checkpoint_every=checkpoint_every,
        keep=keep,
        warm=warm,
        tensorboard=tensorboard,
    )
    what = Assignment.of(given, asked, config=config)

    if dry_run:
        from feedline.cli.train_dry_run import print_plan

        write_json(json, print_plan(what, rehearse))
        return
    if rehearse is not None:
        raise UsageError("--rehearse says how long --dry-run tries each size; add --dry-run")

    from rich.progress import TextColumn

    from feedline.cli.progress import progress_bar
    from feedline.cli.train_progress import TrainProgress
    from feedline.train.run import run_training

    with progress_bar(TextColumn("{task.fields[left]}")) as bar:
        result = run_training(what.recipe, TrainProgress(bar), what.asked, what.earlier)
    if not rank_and_world()[0]:  # rank 0 alone says how it ended
        _say_end(result)
        write_json(json, result.as_dict())
        if result.unkept and result.unsaved:  # nothing of what was learnt is left
            raise typer.Exit(_LOST)
    if result.stopped_by is not None:
        raise typer.Exit(_INTERRUPTED + result.stopped_by)


def _say_end(result: Result) -> None:
    """How a run ended, and how to go on."""
    for (path, reason), times in Counter(result.skipped).items():  # each epoch meets it again
        often = "" if times == 1 else f" {times} times"
        typer.echo(f"left out{often}: {reason if path in reason else f'{path}: {reason}'}")
    if result.stopped_by is not None:
        typer.echo(
            f"stopped; everything is in {result.out}/. Go on with: feedline train --resume "
            f"{shlex.quote(str(result.out))}",
            err=True,
        )
        return
    said = "done"
    last = result.records[-1] if result.records else None
    if result.best_top1 is not None and last is not None and last.val_top1 is not None:
        five = "" if last.val_top5 is None else f", top-5 {last.val_top5:.1%}"
        said += (
            f": top-1 {last.val_top1:.1%}{five} on {last.val_samples} images "
            f"(best {result.best_top1:.1%})"
        )
    if result.weights is not None:
        said += f"; weights in {result.weights}"
    typer.echo(said)
    if result.unkept:
        left = f"the last epoch's are in {result.out}/last.pt"
        if result.unsaved:
            left = "the latest checkpoint could not be written either; free some space, train again"
        complain(f"weights could not be kept: {result.unkept}; {left}")
    elif result.weights is None:
        complain(
            f"no weights in {result.out}/: no epoch was better than the best of the run that this "
            "one went on from; that one's folder has them",
            label="note: ",
        )
