"""The options of `feedline train`, in the panels that its help shows them in.

Each is a type of its own, so that the command is a list of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = [
    "Accumulate",
    "Amp",
    "Augment",
    "BatchSize",
    "Cache",
    "CheckpointEvery",
    "ClassWeights",
    "Clip",
    "Compile",
    "Config",
    "Curve",
    "Cutmix",
    "Device",
    "DropPath",
    "Dropout",
    "DryRun",
    "Ema",
    "Epochs",
    "Erasing",
    "Folder",
    "Freeze",
    "Keep",
    "LabelSmoothing",
    "Level",
    "Lr",
    "Mixup",
    "Model",
    "OnError",
    "Optimizer",
    "Out",
    "Patience",
    "Policy",
    "Preset",
    "Pretrained",
    "RampFrom",
    "Rehearse",
    "Resume",
    "Schedule",
    "Seed",
    "Settings",
    "Tensorboard",
    "Val",
    "ValSize",
    "Warm",
    "Warmup",
    "WeightDecay",
    "Workers",
]

_PHASES, _RATE, _REGULARISATION, _COMPUTING, _RUN = (
    "Phases",
    "Optimizer and rate",
    "Regularisation (grows with the images, but for --level)",
    "Computing",
    "The run",
)


def _option(panel: str, help: str, **more: Any) -> Any:
    return typer.Option(help=help, rich_help_panel=panel, show_default=False, **more)


Folder = Annotated[
    Path | None,
    typer.Argument(
        metavar="[DIR]",
        help="train/ and val/, or class folders, with images. [dim]Default: of --resume or "
        "--config.[/dim]",
        show_default=False,
    ),
]
Model = Annotated[str | None, _option(_PHASES, "A timm model. [dim]Default: resnet18.[/dim]")]
Schedule = Annotated[
    str | None,
    _option(
        _PHASES,
        "SIZExEPOCHS\\[@BATCH], comma separated: sizes in pixels. [dim]Default: "
        "112x2,160x2,224x2.[/dim]",
        metavar="PHASES",
    ),
]
Preset = Annotated[
    str | None,
    _option(_PHASES, "In its place: efficientnetv2, ffcv, mosaicml or fixres, for --epochs."),
]
Epochs = Annotated[int | None, _option(_PHASES, "Of a preset.")]
BatchSize = Annotated[
    int | None, _option(_PHASES, "Where a phase names none. [dim]Default: 64.[/dim]")
]
ValSize = Annotated[
    int | None,
    _option(_PHASES, "Validate at this size. [dim]Default: the schedule's last.[/dim]"),
]
Config = Annotated[
    Path | None,
    _option(_PHASES, "A TOML file of these settings, also of phases.", metavar="FILE"),
]
Optimizer = Annotated[
    str | None, _option(_RATE, "adamw, sgd or another of timm's. [dim]Default: adamw.[/dim]")
]
Lr = Annotated[
    float | None,
    _option(_RATE, "Peak rate. [dim]Default: adamw 0.002, sgd 0.1 x batch / 256.[/dim]"),
]
Curve = Annotated[
    str | None,
    _option(_RATE, "onecycle, cosine, linear or constant. [dim]Default: onecycle.[/dim]"),
]
Warmup = Annotated[
    float | None,
    _option(_RATE, "Share of all samples in which the rate rises. [dim]Default: 0.25.[/dim]"),
]
WeightDecay = Annotated[
    float | None, _option(_RATE, "[dim]Default: adamw 0.05, sgd 0.00005.[/dim]")
]
Accumulate = Annotated[
    int | None, _option(_RATE, "Batches that make one step. [dim]Default: 1.[/dim]")
]
Clip = Annotated[
    float | None, _option(_RATE, "Cut the gradients' norm to this. [dim]Default: none.[/dim]")
]
Ema = Annotated[
    float | None,
    _option(_RATE, "Keep a mean of the weights with this decay. [dim]Default: none.[/dim]"),
]
Mixup = Annotated[float | None, _option(_REGULARISATION, "Alpha of MixUp, as 0.2.")]
Cutmix = Annotated[float | None, _option(_REGULARISATION, "Alpha of CutMix, as 1.")]
Policy = Annotated[
    str | None, _option(_REGULARISATION, "rand or trivial: RandAugment or TrivialAugment.")
]
Augment = Annotated[
    float | None, _option(_REGULARISATION, "Its strength, 0 to 1. [dim]Default: 1.[/dim]")
]
Erasing = Annotated[float | None, _option(_REGULARISATION, "Chance that a rectangle is erased.")]
Dropout = Annotated[float | None, _option(_REGULARISATION, "Its chance, before the head.")]
DropPath = Annotated[float | None, _option(_REGULARISATION, "Stochastic depth.")]
LabelSmoothing = Annotated[
    float | None, _option(_REGULARISATION, "0 is none. [dim]Default: 0.1.[/dim]")
]
Level = Annotated[bool, _option(_REGULARISATION, "All of it in every phase: it does not grow.")]
RampFrom = Annotated[
    float | None,
    _option(_REGULARISATION, "The first phase's share of it, 0 to 1. [dim]Default: 0.[/dim]"),
]
ClassWeights = Annotated[
    str | None, _option(_REGULARISATION, "balanced: rare classes count as much as others.")
]
Pretrained = Annotated[
    str | None,
    _option(_COMPUTING, "Begin with timm's weights or a file's.", metavar="hub|FILE"),
]
Freeze = Annotated[
    list[str] | None,
    _option(
        _COMPUTING,
        "Do not train parameters whose names begin with NAME; may be given several times.",
        metavar="NAME",
    ),
]
Amp = Annotated[
    str | None,
    _option(_COMPUTING, "off, bf16, fp16 or auto, on a GPU only. [dim]Default: auto.[/dim]"),
]
Compile = Annotated[bool, _option(_COMPUTING, "Let torch.compile make the kernels.")]
Device = Annotated[
    str | None,
    _option(
        _COMPUTING,
        "cpu, or as torch names it: cuda, mps, xpu. [dim]Default: cuda where it is.[/dim]",
    ),
]
Seed = Annotated[
    int | None,
    _option(_COMPUTING, "Of weights, order and draws. [dim]Default: 0.[/dim]"),
]
Workers = Annotated[
    str | None,
    _option(
        _RUN,
        "Processes that load images. [dim]Default: of --settings, or else auto.[/dim]",
        metavar="auto|N",
    ),
]
Settings = Annotated[
    Path | None, _option(_RUN, "Settings of feedline tune --save.", metavar="FILE")
]
Out = Annotated[
    Path | None,
    _option(_RUN, "The run's folder. [dim]Default: the next free runs/MODEL-N.[/dim]"),
]
Resume = Annotated[
    str | None,
    _option(
        _RUN,
        "Go on from a checkpoint or run folder, with all its settings; auto: the newest.",
        metavar="PATH|auto",
    ),
]
Val = Annotated[
    Path | None, _option(_RUN, "Images to validate on, in class folders.", metavar="DIR")
]
OnError = Annotated[
    str | None,
    _option(_RUN, "An image that cannot be read: raise or skip. [dim]Default: raise.[/dim]"),
]
CheckpointEvery = Annotated[
    int | None,
    _option(_RUN, "Also within epochs; 0 is after epochs only.", metavar="STEPS"),
]
Keep = Annotated[
    int | None,
    _option(_RUN, "Keep so many checkpoints of epochs besides the last one."),
]
Warm = Annotated[
    bool | None,
    typer.Option(
        "--warm/--no-warm",
        help="Run each shape before the training. [dim]Default: on a GPU.[/dim]",
        rich_help_panel=_RUN,
        show_default=False,
    ),
]
Cache = Annotated[
    Path | None, _option(_RUN, "A cache with smaller copies of the images.", metavar="DIR")
]
Tensorboard = Annotated[
    bool | None,
    typer.Option(
        "--tensorboard/--no-tensorboard",
        help="Write figures for TensorBoard into the run's folder.",
        rich_help_panel=_RUN,
        show_default=False,
    ),
]
Patience = Annotated[int | None, _option(_RUN, "End after so many epochs without a better top-1.")]
DryRun = Annotated[
    bool,
    _option(_RUN, "Print the plan with predicted times and train nothing; leaves nothing behind."),
]
Rehearse = Annotated[
    float | None,
    _option(
        _RUN,
        "Of --dry-run: how long each size is tried at most. [dim]Default: 10.[/dim]",
        metavar="SECONDS",
    ),
]
