"""`feedline evaluate`, `predict` and `export`: use a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from feedline.cli import options
from feedline.cli.output import echo, echo_row, echo_skipped, write_json
from feedline.errors import UsageError

_LOWEST = 5

Model = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a run, its best.pt, or an exported file.")
]
_loader, _output = options.panel(options.LOADER), options.panel(options.OUTPUT)
EvalSize = Annotated[int | None, _loader("Image size in pixels.", "PX", "as validated")]


def _load(
    run: Path, device: str | None, amp: bool | None, amp_dtype: str | None = None
) -> tuple[Any, Any]:
    from feedline.train.model import load_trained
    from feedline.train.runtime import choose_device, choose_precision

    where = choose_device(device or "auto")
    return load_trained(run, where), choose_precision(where, amp, amp_dtype)


def evaluate(
    run: Model,
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            help="Class folders of images, or a folder with val/. "
            "[dim]\\[default: validation images of the run][/dim]",
        ),
    ] = None,
    image_size: EvalSize = None,
    batch_size: options.BatchSize = 64,
    workers: options.Workers = None,
    on_error: options.OnError = None,
    device: options.Device = None,
    amp: options.Amp = None,
    amp_dtype: options.AmpDtype = None,
    json: options.JsonFile = None,
) -> None:
    """Evaluate a trained model: accuracy, loss and confusion matrix.

    Example: feedline evaluate runs/resnet18-1 --json evaluation.json
    """
    from feedline.cli.progress import ProgressBar
    from feedline.train.data import run_val_folder, val_folder
    from feedline.train.evaluate import evaluate_folder

    trained, precision = _load(run, device, amp, amp_dtype)
    images = run_val_folder(trained.path) if folder is None else val_folder(folder)
    with ProgressBar("evaluating") as bar:
        found = evaluate_folder(
            trained,
            images,
            precision=precision,
            image_size=image_size,
            batch_size=batch_size,
            workers=options.parse_workers(workers),
            on_error=on_error or "raise",
            advance=bar.update,
        )
    five = "" if found.top5 is None else f", top-5 {found.top5:.1%}"
    echo(
        f"{trained.name} at {image_size or trained.image_size} px: top-1 "
        f"{found.top1:.1%}{five}, loss {found.loss:.4f} on {found.samples} images of {images}"
    )
    lowest = sorted(found.by_class, key=lambda each: each[2])[:_LOWEST]
    if len(found.by_class) > 1:
        echo("lowest top-1: " + ", ".join(f"{name} {share:.0%}" for name, _, share in lowest))
    for path, reason in found.skipped:
        echo_skipped(path, reason)
    about = {"model": trained.name, "weights": str(trained.path), "images": str(images)}
    write_json(json, {**about, **found.as_dict()})


def predict(
    run: Model,
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE|DIR...", help="Images, or folders of images.")
    ],
    topk: Annotated[int, _output("Classes of each image.", "K", True, "--topk", "-k")] = 1,
    image_size: EvalSize = None,
    batch_size: options.BatchSize = 64,
    workers: options.Workers = None,
    on_error: options.OnError = None,
    device: options.Device = None,
    amp: options.Amp = None,
    amp_dtype: options.AmpDtype = None,
    json: options.JsonFile = None,
) -> None:
    """Classify images. Prints path, class and probability as TSV.

    Example: feedline predict runs/resnet18-1 demo-data/val --topk 3
    """
    from feedline.images.image_list import find_images
    from feedline.train.evaluate import predict as predictions

    if topk < 1:
        raise UsageError(f"--topk must be at least 1, got {topk}")
    paths = find_images(images)
    trained, precision = _load(run, device, amp, amp_dtype)
    predicted = []
    skipped: list[tuple[str, str]] = []
    for path, classes in predictions(
        trained,
        paths,
        precision=precision,
        topk=topk,
        image_size=image_size,
        batch_size=batch_size,
        workers=options.parse_workers(workers),
        on_error=on_error or "raise",
        skipped=lambda path, reason: skipped.append((path, reason)),
    ):
        echo_row(path, *(cell for name, share in classes for cell in (name, f"{share:.4f}")))
        predicted.append({"path": path, "classes": [list(pair) for pair in classes]})
    for path, reason in skipped:
        echo_skipped(path, reason, err=True)  # stdout has images alone
    about = {"model": trained.name, "weights": str(trained.path)}
    write_json(
        json, {**about, "predictions": predicted, "skipped": [list(each) for each in skipped]}
    )


def export(
    run: Model,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Such as model.safetensors.")],
    json: options.JsonFile = None,
) -> None:
    """Export the weights of a run as safetensors.

    Metadata: the model, its classes, its image size, and timm's pretrained_cfg to load it. feedline
    evaluate and predict read FILE, too.

    Example: feedline export runs/resnet18-1 model.safetensors
    """
    from feedline.train.model import export_safetensors

    trained, _ = _load(run, "cpu", False)
    export_safetensors(trained, file)
    echo(f"{file}: {trained.name}, {len(trained.classes)} classes, {trained.image_size} px")
    about = {"classes": trained.classes, "image_size": trained.image_size}
    weights = {"model": trained.name, "weights": str(trained.path)}
    write_json(json, {"file": str(file), "bytes": file.stat().st_size, **weights, **about})
