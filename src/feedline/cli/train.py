"""`feedline train`: train a timm model with progressive resizing.

Imports torch and timm only when it runs: they take seconds.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from feedline.cli.output import JsonFile, write_json
from feedline.cli.workers import worker_setting
from feedline.errors import UsageError
from feedline.system import rank_and_world

__all__ = ["train"]

_INTERRUPTED = 128  # plus the signal's number, as a shell says it

Device = Enum("Device", {"auto": "auto", "cpu": "cpu", "cuda": "cuda"})

_PHASES, _RATE, _REGULARISATION, _COMPUTING, _RUN = (
    "Phases",
    "Optimizer and rate",
    "Regularisation (grows with the images, but for --level)",
    "Computing",
    "The run",
)


def _option(panel: str, help: str, **more: Any) -> Any:
    return typer.Option(help=help, rich_help_panel=panel, show_default=False, **more)


def train(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="train/ and val/, or class folders, with images.")
    ],
    model: Annotated[
        str | None, _option(_PHASES, "A timm model. [dim]Default: resnet18.[/dim]")
    ] = None,
    schedule: Annotated[
        str | None,
        _option(
            _PHASES,
            "SIZExEPOCHS\\[@BATCH], comma separated: sizes in pixels. [dim]Default: "
            "112x2,160x2,224x2.[/dim]",
            metavar="PHASES",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        _option(_PHASES, "In its place: efficientnetv2, ffcv, mosaicml or fixres, for --epochs."),
    ] = None,
    epochs: Annotated[int | None, _option(_PHASES, "Of a preset.")] = None,
    batch_size: Annotated[
        int | None, _option(_PHASES, "Where a phase names none. [dim]Default: 64.[/dim]")
    ] = None,
    val_size: Annotated[
        int | None,
        _option(_PHASES, "Validate at this size. [dim]Default: the schedule's last.[/dim]"),
    ] = None,
    config: Annotated[
        Path | None,
        _option(_PHASES, "A TOML file of these settings, also of phases.", metavar="FILE"),
    ] = None,
    optimizer: Annotated[
        str | None, _option(_RATE, "adamw, sgd or another of timm's. [dim]Default: adamw.[/dim]")
    ] = None,
    lr: Annotated[
        float | None,
        _option(_RATE, "Peak rate. [dim]Default: adamw 0.002, sgd 0.1 x batch / 256.[/dim]"),
    ] = None,
    curve: Annotated[
        str | None,
        _option(_RATE, "onecycle, cosine, linear or constant. [dim]Default: onecycle.[/dim]"),
    ] = None,
    warmup: Annotated[
        float | None,
        _option(_RATE, "Share of all samples in which the rate rises. [dim]Default: 0.25.[/dim]"),
    ] = None,
    weight_decay: Annotated[
        float | None, _option(_RATE, "[dim]Default: adamw 0.05, sgd 0.00005.[/dim]")
    ] = None,
    accumulate: Annotated[
        int | None, _option(_RATE, "Batches that make one step. [dim]Default: 1.[/dim]")
    ] = None,
    clip: Annotated[
        float | None, _option(_RATE, "Cut the gradients' norm to this. [dim]Default: none.[/dim]")
    ] = None,
    ema: Annotated[
        float | None,
        _option(_RATE, "Keep a mean of the weights with this decay. [dim]Default: none.[/dim]"),
    ] = None,
    mixup: Annotated[float | None, _option(_REGULARISATION, "Alpha of MixUp, as 0.2.")] = None,
    cutmix: Annotated[float | None, _option(_REGULARISATION, "Alpha of CutMix, as 1.")] = None,
    policy: Annotated[
        str | None, _option(_REGULARISATION, "rand or trivial: RandAugment or TrivialAugment.")
    ] = None,
    augment: Annotated[
        float | None, _option(_REGULARISATION, "Its strength, 0 to 1. [dim]Default: 1.[/dim]")
    ] = None,
    erasing: Annotated[
        float | None, _option(_REGULARISATION, "Chance that a rectangle is erased.")
    ] = None,
    dropout: Annotated[float | None, _option(_REGULARISATION, "Before the head.")] = None,
    drop_path: Annotated[float | None, _option(_REGULARISATION, "Stochastic depth.")] = None,
    label_smoothing: Annotated[
        float | None, _option(_REGULARISATION, "0 is none. [dim]Default: 0.1.[/dim]")
    ] = None,
    level: Annotated[
        bool, _option(_REGULARISATION, "All of it in every phase: it does not grow.")
    ] = False,
    class_weights: Annotated[
        str | None, _option(_REGULARISATION, "balanced: rare classes count as much as others.")
    ] = None,
    pretrained: Annotated[
        str | None,
        _option(_COMPUTING, "Begin with timm's weights or a file's.", metavar="hub|FILE"),
    ] = None,
    freeze: Annotated[
        list[str] | None,
        _option(_COMPUTING, "Keep parameters whose names begin so; several times.", metavar="NAME"),
    ] = None,
    amp: Annotated[
        str | None,
        _option(_COMPUTING, "off, bf16, fp16 or auto, on a GPU only. [dim]Default: auto.[/dim]"),
    ] = None,
    compile: Annotated[bool, _option(_COMPUTING, "Let torch.compile make the kernels.")] = False,
    device: Annotated[Device, _option(_COMPUTING, "Where to train.")] = Device.auto,
    seed: Annotated[
        int | None,
        _option(_COMPUTING, "Of weights, order and draws. [dim]Default: 0.[/dim]"),
    ] = None,
    workers: Annotated[
        str | None,
        _option(
            _RUN,
            "Processes that load images. [dim]Default: of --settings, or else auto.[/dim]",
            metavar="auto|N",
        ),
    ] = None,
    settings: Annotated[
        Path | None, _option(_RUN, "Settings of feedline tune --save.", metavar="FILE")
    ] = None,
    out: Annotated[
        Path | None,
        _option(_RUN, "The run's folder. [dim]Default: the next free runs/MODEL-N.[/dim]"),
    ] = None,
    resume: Annotated[
        str | None,
        _option(
            _RUN,
            "Go on from a checkpoint or run folder, with its settings; auto: the newest.",
            metavar="PATH|auto",
        ),
    ] = None,
    val: Annotated[
        Path | None, _option(_RUN, "Images to validate on, in class folders.", metavar="DIR")
    ] = None,
    on_error: Annotated[
        str | None,
        _option(_RUN, "An image that cannot be read: stop or skip. [dim]Default: stop.[/dim]"),
    ] = None,
    checkpoint_every: Annotated[
        int,
        _option(_RUN, "Also within epochs; 0 is after epochs only.", metavar="STEPS"),
    ] = 0,
    keep: Annotated[
        int, _option(_RUN, "Keep so many checkpoints of epochs besides the last one.")
    ] = 0,
    warm: Annotated[
        bool | None,
        typer.Option(
            "--warm/--no-warm",
            help="Run each shape before the training. [dim]Default: on a GPU.[/dim]",
            rich_help_panel=_RUN,
            show_default=False,
        ),
    ] = None,
    cache: Annotated[
        Path | None, _option(_RUN, "A cache with smaller copies of the images.", metavar="DIR")
    ] = None,
    tensorboard: Annotated[
        bool, _option(_RUN, "Write figures for TensorBoard into the run's folder.")
    ] = False,
    patience: Annotated[
        int | None, _option(_RUN, "End after so many epochs without a better top-1.")
    ] = None,
    json: JsonFile = None,
) -> None:
    """Train a model while the images grow, and say where each step's time goes.

    Ctrl-C finishes the step and writes a checkpoint; --resume goes on with what remains.

    Example: feedline train demo-data --model resnet18 --schedule "112x2,160x2,224x2"
    """
    if on_error not in (None, "stop", "skip"):
        raise UsageError(f"--on-error must be 'stop' or 'skip', got {on_error!r}")
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
        "compile": True if compile else None,
        "seed": seed,
        "patience": patience,
        "on_error": {None: None, "stop": "raise", "skip": "skip"}[on_error],
    }
    processes = None if workers is None else worker_setting(workers)

    from feedline.train.configuration import read_settings, recipe_of
    from feedline.train.run_folder import find_checkpoint
    from feedline.train.run_settings import RunSettings

    under = None if config is None else read_settings(config)
    checkpoint = find_checkpoint(resume, out=out, model=model or (under or {}).get("model"))
    if checkpoint is not None:
        from feedline.train.checkpoint import load_checkpoint

        under = (under or {}) | load_checkpoint(checkpoint)["recipe"]
    recipe = recipe_of(given, under)
    asked = RunSettings(
        root=folder,
        val=val,
        cache=cache,
        device=device.value,
        workers=processes,
        settings=settings,
        out=out,
        resume=str(checkpoint) if checkpoint is not None else resume,
        checkpoint_every=checkpoint_every,
        keep=keep,
        warm=warm,
        tensorboard=tensorboard,
    )

    from rich.progress import TimeRemainingColumn

    from feedline.cli.progress import progress_bar
    from feedline.cli.train_progress import TrainProgress
    from feedline.train.run import run_training  # loads torch

    with progress_bar(TimeRemainingColumn()) as bar:
        result = run_training(recipe, TrainProgress(bar), asked)
    if rank_and_world()[0]:  # rank 0 alone says how it ended
        raise typer.Exit(0 if result.stopped_by is None else _INTERRUPTED + result.stopped_by)
    write_json(json, result.as_dict())
    for path, reason in result.skipped:
        typer.echo(f"left out: {reason if str(path) in reason else f'{path}: {reason}'}")
    if result.stopped_by is not None:
        places = {"--resume": result.out, "--val": val, "--cache": cache}
        again = " ".join(f"{name} {place}" for name, place in places.items() if place is not None)
        typer.echo(
            f"stopped; everything is in {result.out}/. Go on with: feedline train {folder} {again}",
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
