"""`feedline evaluate`, `predict` and `export`: a trained model used.

Import torch only when they run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from feedline.cli.output import JsonFile, write_json
from feedline.cli.workers import Workers, worker_setting

__all__ = ["evaluate", "export", "predict"]

_WORST = 5

Model = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run's folder, or a file of weights as best.pt.")
]
Size = Annotated[
    int | None,
    typer.Option(help="Side of the images in pixels. [dim]Default: that of validation.[/dim]"),
]
Device = Annotated[
    str, typer.Option(help="Where the model is run: auto, or torch's name: cpu, cuda, mps.")
]
Amp = Annotated[str, typer.Option(help="off, bf16, fp16 or auto, on a GPU only.")]
OnError = Annotated[
    str,
    typer.Option(help="An image that cannot be read: raise, or skip it.", metavar="raise|skip"),
]
Batch = Annotated[int, typer.Option(help="Images in a batch.")]


def _loaded(run: Path, device: str, amp: str) -> tuple[Any, Any, Any]:
    from feedline.train.runtime import choose_device, choose_precision
    from feedline.train.weights import load_weights

    where = choose_device(device)
    return load_weights(run, where), where, choose_precision(amp, where)


def _check_size(size: int | None) -> None:
    if size is not None and size < 1:
        from feedline.errors import UsageError

        raise UsageError(
            f"--size must be at least 1 pixel, got {size}; leave it out for that of the run's "
            "validation"
        )


def _left_out(path: str, reason: str) -> str:
    return f"left out: {reason if path in reason else f'{path}: {reason}'}"


def evaluate(
    run: Model,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Class folders with images, or val/ with those.")
    ],
    size: Size = None,
    batch_size: Batch = 64,
    device: Device = "auto",
    amp: Amp = "auto",
    workers: Workers = "auto",
    on_error: OnError = "raise",
    skip: Annotated[bool, typer.Option("--skip", hidden=True)] = False,  # as it was called before
    json: JsonFile = None,
) -> None:
    """Judge a trained model: accuracy, loss, and which classes it takes for which.

    Example: feedline evaluate runs/resnet18-1 demo-data --json judged.json
    """
    from rich.progress import TimeRemainingColumn

    from feedline.cli.progress import progress_bar
    from feedline.train.splits import val_folder
    from feedline.train.use import judge

    _check_size(size)
    weights, where, precision = _loaded(run, device, amp)
    with progress_bar(TimeRemainingColumn()) as bar:
        task = bar.add_task("judging", total=None)
        found = judge(
            weights,
            val_folder(folder),
            device=where,
            precision=precision,
            size=size,
            batch_size=batch_size,
            workers=worker_setting(workers),
            on_error="skip" if skip else on_error,
            advance=lambda done, total: bar.update(task, completed=done, total=total),
        )
    result = found.result
    five = "" if result.top5 is None else f", top-5 {result.top5:.1%}"
    typer.echo(
        f"{weights.name} at {weights.size if size is None else size} px: top-1 "
        f"{result.top1:.1%}{five}, loss {result.loss:.4f} on {result.samples} images"
    )
    worst = sorted(found.by_class, key=lambda each: each[2])[:_WORST]
    if len(found.by_class) > 1:
        typer.echo("least found: " + ", ".join(f"{name} {share:.0%}" for name, _, share in worst))
    for path, reason in found.skipped:
        typer.echo(_left_out(path, reason))
    write_json(json, {"model": weights.name, "weights": str(weights.path), **found.as_dict()})


def predict(
    run: Model,
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE|DIR...", help="Images, or folders of some.")
    ],
    top: Annotated[int, typer.Option(help="Classes to name for each image.")] = 1,
    size: Size = None,
    batch_size: Batch = 64,
    device: Device = "auto",
    amp: Amp = "auto",
    workers: Workers = "auto",
    on_error: OnError = "raise",
    json: JsonFile = None,
) -> None:
    """Say what images are: a line for each, with tabs between path, class and probability.

    Example: feedline predict runs/resnet18-1 demo-data/val --top 3
    """
    from feedline.errors import UsageError
    from feedline.images.files import find_images
    from feedline.train.use import predict as predictions

    if top < 1:
        raise UsageError(f"--top must be at least 1, got {top}")
    _check_size(size)
    paths = find_images(images)
    weights, where, precision = _loaded(run, device, amp)
    said = []
    skipped: list[tuple[str, str]] = []
    for found in predictions(
        weights,
        paths,
        device=where,
        precision=precision,
        most=top,
        size=size,
        batch_size=batch_size,
        workers=worker_setting(workers),
        on_error=on_error,
        skipped=lambda path, reason: skipped.append((path, reason)),
    ):
        classes = "\t".join(f"{name}\t{chance:.4f}" for name, chance in found.classes)
        typer.echo(f"{found.path}\t{classes}")
        said.append({"path": found.path, "classes": [list(pair) for pair in found.classes]})
    for path, reason in skipped:
        typer.echo(_left_out(path, reason), err=True)  # stdout has images alone
    about = {"model": weights.name, "weights": str(weights.path)}
    write_json(json, {**about, "predictions": said, "skipped": [list(each) for each in skipped]})


def export(
    run: Model,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="To be written, as model.safetensors.")
    ],
) -> None:
    """Write the weights of a run as safetensors, with model, classes and size as metadata.

    Example: feedline export runs/resnet18-1 model.safetensors
    """
    from feedline.train.weights import export_safetensors

    weights, _, _ = _loaded(run, "cpu", "off")
    export_safetensors(weights, file)
    typer.echo(f"{weights.name}, {len(weights.classes)} classes, {weights.size} px: {file}")
