"""Measure the effect of resized copies on accuracy: train on originals and on caches.

    python benchmarks/cache_accuracy.py FOLDER --epochs 40 --seeds 8 --json result.json
    python benchmarks/cache_accuracy_table.py result.json

FOLDER holds train/ and val/ with class folders, as written by `feedline demo-data`. For each seed a
small network is trained from scratch on the originals and on each kind of copies (`--copies 256q90`
means JPEGs of 256 px, quality 90) with feedline's recipe: `TrainCrop()`, AdamW, one cycle of the
learning rate. Runs of one seed share initial weights, order and crops, on one thread with
deterministic kernels, so that only the pixels of the training images differ and runs can be
compared in pairs. Each model is evaluated on crops of the original validation images, as it would
be in deployment, and on each cache's copies of them.

The control, 64q90, is smaller than the image size and must lower accuracy; otherwise the
measurement could not detect anything. It runs last.

Caveats: the number of seeds and of validation images limits how small an effect can be detected. A
cache stores images that are no larger than its resolution unchanged; the JSON counts them. A small
network trained from scratch is not a large pretrained one. Weights are bitwise reproducible for the
same settings, versions and CPU kernels; the JSON holds their digest.

Results are saved after each run; the same command resumes an interrupted benchmark.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import timm
import torch
from report import resume_results, save
from torch import Tensor, nn

from feedline import DataLoader, EvalCrop, ImageFolder, TrainCrop, build_cache
from feedline.sources.remote_cache import open_cache
from feedline.train.evaluate import evaluate
from feedline.train.recipe import Recipe
from feedline.train.runtime import prepare_process
from feedline.train.train_state import StepCounter, TrainState, train_step

ORIGINALS = "originals"
CPU = torch.device("cpu")
MODEL = "resnet10t"
# Half the usual width, so that a run takes about a minute on one core.
WIDTHS = {"channels": (32, 64, 128, 256), "stem_width": 16}
PACKAGES = ("feedline", "torch", "timm", "numpy", "simplejpeg", "pillow")

Results = dict[str, Any]
Batches = list[tuple[Tensor, Tensor]]


def build_copies(folder: Path, copies: str, root: Path) -> Path:
    """Build a cache of a folder for a name such as "256q90"; return its folder."""
    match = re.fullmatch(r"(\d+)q(\d+)", copies)
    if match is None:
        raise SystemExit(f"--copies: expected SIZEqQUALITY such as 256q90, got {copies!r}")
    size, quality = map(int, match.groups())
    build_cache(folder, root, (size,), format="webdataset", quality=quality)
    return root


def open_images(root: Path, transform: TrainCrop | EvalCrop) -> ImageFolder:
    """Images of a folder or cache; those of the control are enlarged."""
    return ImageFolder(root, transform, enlarge=True)


def check_alike(images: ImageFolder, copies: ImageFolder) -> None:
    """Exit unless sample numbers refer to the same image in both."""
    names = [str(Path(images.path(k)).relative_to(images.root)) for k in range(len(images))]
    if names != [copies.name(k) for k in range(len(copies))]:
        raise SystemExit(f"{copies.root} does not hold the images of {images.root}")
    if (images.targets != copies.targets).any():
        raise SystemExit(f"{copies.root} has other labels than {images.root}")


def rows_of(data: ImageFolder, size: int) -> Batches:
    """All validation batches."""
    with DataLoader(data, 64, seed=0, image_size=size, num_workers=0, device="cpu") as loader:
        return [(images.clone(), labels.clone()) for images, labels in loader]


def train(
    root: Path, recipe: Recipe, validation: dict[str, Batches], judged_epochs: int
) -> Results:
    """Train once; return results of the last epochs and a digest of the weights."""
    start_s = time.monotonic()
    prepare_process(seed=recipe.seed, device=CPU)
    data = open_images(root, TrainCrop())
    model: nn.Module = timm.create_model(
        MODEL, pretrained=False, num_classes=len(data.classes), **WIDTHS
    ).to(memory_format=torch.channels_last)
    epochs, evaluations = [], []
    with DataLoader(
        data,
        recipe.batch_size,
        schedule=recipe.schedule,
        seed=recipe.seed,
        num_workers=0,
        device="cpu",
        drop_last=True,
    ) as loader:
        state = TrainState(model, recipe, device=CPU, precision=torch.float32)
        steps = StepCounter(recipe=recipe, batches_in=loader.steps_in)
        for epoch in range(recipe.epochs):
            losses = []
            for step, (images, labels) in enumerate(loader):
                state.set_progress(steps.progress(epoch, step))
                losses.append(float(train_step(state, images, labels)))
            epochs.append(sum(losses) / len(losses))
            if epoch >= recipe.epochs - judged_epochs:
                evaluations.append(figures(model, validation[ORIGINALS]))
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.contiguous().numpy().tobytes())
    return {
        "train_loss": epochs,
        "judged": evaluations,
        "on": {name: figures(model, batches) for name, batches in validation.items()},
        "weights_sha256": digest.hexdigest(),
        "seconds": time.monotonic() - start_s,
    }


def figures(model: torch.nn.Module, batches: Batches) -> Results:
    """Top-1 accuracy (0 to 1) and loss."""
    result = evaluate(model, batches, device=CPU)
    assert result is not None
    return {"top1": result.top1, "loss": result.loss}


def facts(roots: dict[str, dict[str, Path]]) -> Results:
    """Number and size of the images, per kind of copies."""
    results: Results = {}
    for part in ("train", "val"):
        images = ImageFolder(roots[ORIGINALS][part])
        sizes = [Path(images.path(k)).stat().st_size for k in range(len(images))]
        results[part] = {
            "images": len(images),
            "classes": len(images.classes),
            "files": images.fingerprint(),
            "bytes_an_image": {ORIGINALS: round(sum(sizes) / len(sizes))},
            "kept_as_they_are": {},
        }
        for name, root in roots.items():
            if name != ORIGINALS:
                check_alike(images, ImageFolder(root[part]))
                store = open_cache(root[part])
                level = store.manifest.levels[0]
                small = sum(min(store.original_size(k)) <= level.side for k in range(len(store)))
                results[part]["bytes_an_image"][name] = round(level.bytes / len(store))
                results[part]["kept_as_they_are"][name] = small
    return results


def run_all(options: argparse.Namespace, seeds: Sequence[int], scratch: Path) -> None:
    folders = {part: options.folder.resolve() / part for part in ("train", "val")}
    roots = {ORIGINALS: folders}
    for copies in (*options.copies, options.control):
        roots[copies] = {
            part: build_copies(folder, copies, scratch / copies / part)
            for part, folder in folders.items()
        }
    recipe = Recipe(
        model=MODEL,
        schedule=f"{options.size}x{options.epochs}",
        batch_size=options.batch_size,
        lr=options.lr,
    )
    settings = {
        "folder": options.folder.name,
        "model": {"name": MODEL, **WIDTHS},
        "recipe": {name: value for name, value in recipe.as_dict().items() if name != "seed"},
        "arms": list(roots),
        "judged_epochs": options.judged,
        "threads": options.threads,
        "data": facts(roots),
    }
    results = resume_results(options.json, settings, PACKAGES)
    validation = {
        name: rows_of(open_images(root["val"], EvalCrop()), options.size)
        for name, root in roots.items()
    }
    finished = {(run["seed"], run["arm"]) for run in results["runs"]}
    pairs = [(seed, name) for seed in seeds for name in roots if name != options.control]
    for seed, name in pairs + [(seed, options.control) for seed in seeds]:
        if (seed, name) not in finished:
            seeded = Recipe(**{**recipe.as_dict(), "seed": seed})
            run = train(roots[name]["train"], seeded, validation, options.judged)
            results["runs"].append({"seed": seed, "arm": name, **run})
            save(results, options.json)
            on = run["on"][ORIGINALS]
            print(
                f"seed {seed}  {name:9}  top-1 {on['top1']:.3f}  loss {on['loss']:.3f}  "
                f"{run['seconds']:.0f} s",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="dataset with train/ and val/")
    parser.add_argument("--copies", nargs="*", default=["256q90", "256q95"])
    parser.add_argument(
        "--control", default="64q90", help="copies expected to lower accuracy, trained last"
    )
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--size", type=int, default=112, help="image size, in pixels")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument(
        "--judged", type=int, default=5, help="evaluate this many of the last epochs"
    )
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument(
        "--lr", type=float, help="learning rate (default: that of feedline's recipe)"
    )
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument(
        "--json",
        type=Path,
        required=True,
        help="results file; runs that it contains are not repeated",
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    with tempfile.TemporaryDirectory() as scratch:
        run_all(options, range(options.seeds), Path(scratch))


if __name__ == "__main__":
    main()
