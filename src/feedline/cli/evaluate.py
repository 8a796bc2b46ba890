"""`feedline evaluate`, `predict` and `export`: use a trained model.

Torch is imported when they run.
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
    Path,
    typer.Argument(metavar="RUN", help="Folder of a run, or a file of weights such as best.pt."),
]
Size = Annotated[
    int | None,
    typer.Option(
        "--image-size",
        metavar="PX",
        help="Side of the images. [dim]Default: as in the validation of the run.[/dim]",
    ),
]
Device = Annotated[
    str, typer.Option(help="Device of torch: cuda, mps, xpu, cpu; auto: cuda if available.")
]
Amp = Annotated[
    str, typer.Option(metavar="auto|off|bf16|fp16", help="Mixed precision; auto: on a GPU.")
]
OnError = Annotated[
    str,
    typer.Option(help="Images that cannot be decoded.", metavar="raise|skip"),
]
Batch = Annotated[int, typer.Option(help="Images in a batch.")]


def _load(run: Path, device: str, amp: str) -> tuple[Any, Any]:
    from feedline.train.model import load_trained
    from feedline.train.runtime import choose_device, choose_precision

    where = choose_device(device)
    return load_trained(run, where), choose_precision(amp, where)


def _check_size(size: int | None) -> None:
    if size is not None and size < 1:
        from feedline.errors import UsageError

        raise UsageError(f"--image-size must be at least 1 pixel, got {size}")


def _skipped(path: str, reason: str) -> str:
    return f"skipped: {reason if path in reason else f'{path}: {reason}'}"


def evaluate(
    run: Model,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Class folders, or a folder with val/.")
    ],
    size: Size = None,
    batch_size: Batch = 64,
    device: Device = "auto",
    amp: Amp = "auto",
    workers: Workers = "auto",
    on_error: OnError = "raise",
    json: JsonFile = None,
) -> None:
    """Evaluate a trained model: accuracy, loss and confusion matrix.

    Example: feedline evaluate runs/resnet18-1 demo-data --json evaluation.json
    """
    from rich.progress import TimeRemainingColumn

    from feedline.cli.progress import progress_bar
    from feedline.train.data import val_folder
    from feedline.train.evaluate import evaluate_folder

    _check_size(size)
    trained, precision = _load(run, device, amp)
    with progress_bar(TimeRemainingColumn()) as bar:
        task = bar.add_task("evaluating", total=None)
        found = evaluate_folder(
            trained,
            val_folder(folder),
            precision=precision,
            image_size=size,
            batch_size=batch_size,
            workers=worker_setting(workers),
            on_error=on_error,
            advance=lambda done, total: bar.update(task, completed=done, total=total),
        )
    result = found.result
    five = "" if result.top5 is None else f", top-5 {result.top5:.1%}"
    typer.echo(
        f"{trained.name} at {trained.image_size if size is None else size} px: top-1 "
        f"{result.top1:.1%}{five}, loss {result.loss:.4f} on {result.samples} images"
    )
    worst = sorted(found.by_class, key=lambda each: each[2])[:_WORST]
    if len(found.by_class) > 1:
        typer.echo("lowest top-1: " + ", ".join(f"{name} {share:.0%}" for name, _, share in worst))
    for path, reason in found.skipped:
        typer.echo(_skipped(path, reason))
    write_json(json, {"model": trained.name, "weights": str(trained.path), **found.as_dict()})


def predict(
    run: Model,
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE|DIR...", help="Images, or folders of images.")
    ],
    topk: Annotated[int, typer.Option(metavar="K", help="Classes for each image.")] = 1,
    size: Size = None,
    batch_size: Batch = 64,
    device: Device = "auto",
    amp: Amp = "auto",
    workers: Workers = "auto",
    on_error: OnError = "raise",
    json: JsonFile = None,
) -> None:
    """Classify images. Prints path, class and probability as TSV.

    Example: feedline predict runs/resnet18-1 demo-data/val --topk 3
    """
    from feedline.errors import UsageError
    from feedline.images.files import find_images
    from feedline.train.evaluate import predict as predictions

    if topk < 1:
        raise UsageError(f"--topk must be at least 1, got {topk}")
    _check_size(size)
    paths = find_images(images)
    trained, precision = _load(run, device, amp)
    predicted = []
    skipped: list[tuple[str, str]] = []
    for found in predictions(
        trained,
        paths,
        precision=precision,
        topk=topk,
        image_size=size,
        batch_size=batch_size,
        workers=worker_setting(workers),
        on_error=on_error,
        skipped=lambda path, reason: skipped.append((path, reason)),
    ):
        classes = "\t".join(f"{name}\t{chance:.4f}" for name, chance in found.classes)
        typer.echo(f"{found.path}\t{classes}")
        predicted.append({"path": found.path, "classes": [list(pair) for pair in found.classes]})
    for path, reason in skipped:
        typer.echo(_skipped(path, reason), err=True)  # stdout has images alone
    about = {"model": trained.name, "weights": str(trained.path)}
    write_json(
        json, {**about, "predictions": predicted, "skipped": [list(each) for each in skipped]}
    )


def export(
    run: Model,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File to write, such as model.safetensors.")
    ],
) -> None:
    """Write the weights of a run as safetensors, with model, classes and size as metadata.

    Example: feedline export runs/resnet18-1 model.safetensors
    """
    from feedline.train.model import export_safetensors

    trained, _ = _load(run, "cpu", "off")
    export_safetensors(trained, file)
    typer.echo(f"{trained.name}, {len(trained.classes)} classes, {trained.image_size} px: {file}")
