"""`feedline train`: train a timm model with progressive resizing.

Imports torch and timm only when it runs: they take seconds.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.output import JsonFile, write_json
from feedline.cli.workers import worker_setting

__all__ = ["train"]

_INTERRUPTED = 128  # plus the signal's number, as a shell says it


# The choices of options; a member's value is what a user writes.
Optimizer = Enum("Optimizer", {"adamw": "adamw", "sgd": "sgd"})
Amp = Enum("Amp", {"auto": "auto", "off": "off", "bf16": "bf16", "fp16": "fp16"})
Device = Enum("Device", {"auto": "auto", "cpu": "cpu", "cuda": "cuda"})
OnError = Enum("OnError", {"stop": "raise", "skip": "skip"})


def train(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="train/ and val/, or class folders, with images.")
    ],
    model: Annotated[str, typer.Option(help="A timm model, trained from scratch.")] = "resnet18",
    schedule: Annotated[
        str,
        typer.Option(
            metavar="PHASES", help="SIZExEPOCHS\\[@BATCH], comma separated: sizes in pixels."
        ),
    ] = "112x2,160x2,224x2",
    batch_size: Annotated[int, typer.Option(help="Where the schedule names none.")] = 64,
    optimizer: Annotated[Optimizer, typer.Option(help="Which optimizer.")] = Optimizer.adamw,
    lr: Annotated[
        float | None,
        typer.Option(help="Peak rate. [dim]Default: adamw 0.002, sgd 0.1 x batch / 256.[/dim]"),
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="[dim]Default: adamw 0.05, sgd 0.00005.[/dim]")
    ] = None,
    warmup: Annotated[
        float, typer.Option(help="Share of all steps in which the rate rises.")
    ] = 0.25,
    label_smoothing: Annotated[float, typer.Option(help="0 is none.")] = 0.1,
    amp: Annotated[Amp, typer.Option(help="Mixed precision; auto on a GPU only.")] = Amp.auto,
    device: Annotated[Device, typer.Option(help="Where to train.")] = Device.auto,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="auto|N",
            help="Processes that load images. [dim]Default: of --settings, or else auto.[/dim]",
        ),
    ] = None,
    settings: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Settings that feedline tune --save has written."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of weights, order and augmentation.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="The run's folder. [dim]Default: the next free runs/MODEL-N.[/dim]"),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|auto", help="Go on from a checkpoint or run folder; auto: the newest."
        ),
    ] = None,
    val: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Images to validate on, in class folders.")
    ] = None,
    val_size: Annotated[
        int | None,
        typer.Option(help="Validate at this size. [dim]Default: the schedule's last.[/dim]"),
    ] = None,
    on_error: Annotated[
        OnError, typer.Option(help="What to do about an image that cannot be read.")
    ] = OnError.stop,
    checkpoint_every: Annotated[
        int, typer.Option(metavar="STEPS", help="Also within epochs; 0 is after epochs only.")
    ] = 0,
    json: JsonFile = None,
) -> None:
    """Train a model while the images grow, and say where each step's time goes.

    Ctrl-C finishes the step and writes a checkpoint; --resume goes on with what remains.

    Example: feedline train demo-data --model resnet18 --schedule "112x2,160x2,224x2"
    """
    from feedline.train.recipe import Recipe

    recipe = Recipe(
        model=model,
        schedule=schedule,
        batch_size=batch_size,
        optimizer=optimizer.value,
        lr=lr,
        weight_decay=weight_decay,
        warmup=warmup,
        label_smoothing=label_smoothing,
        amp=amp.value,
        seed=seed,
        val_size=val_size,
        on_error=on_error.value,
    )
    processes = None if workers is None else worker_setting(workers)

    from rich.progress import TimeRemainingColumn

    from feedline.cli.progress import progress_bar
    from feedline.cli.train_progress import TrainProgress
    from feedline.train.run import run_training  # loads torch

    with progress_bar(TimeRemainingColumn()) as bar:
        result = run_training(
            recipe,
            TrainProgress(bar),
            root=folder,
            val=val,
            device=device.value,
            workers=processes,
            settings=settings,
            out=out,
            resume=resume,
            checkpoint_every=checkpoint_every,
        )
    write_json(json, result.as_dict())
    if result.skipped:
        _, reason = result.skipped[0]  # names the file
        typer.echo(f"unreadable images skipped: {len(result.skipped)}; the first: {reason}")
    if result.stopped_by is not None:
        typer.echo(
            f"stopped; everything is in {result.out}/. Go on with the same command and "
            f"--resume {result.out}",
            err=True,
        )
        raise typer.Exit(_INTERRUPTED + result.stopped_by)
    if result.best_top1 is not None:
        last = result.records[-1]
        five = "" if last.val_top5 is None else f", top-5 {last.val_top5:.1%}"
        typer.echo(
            f"done: top-1 {last.val_top1:.1%}{five} on {last.val_samples} images "
            f"(best {result.best_top1:.1%}); weights in {result.out}/best.pt"
        )
    else:
        typer.echo(f"done: weights in {result.out}/best.pt")
