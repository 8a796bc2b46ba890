"""What smaller copies do to accuracy: trainings from originals and from caches, alike otherwise.

    python benchmarks/cache_accuracy.py FOLDER --epochs 40 --seeds 8 --json result.json
    python benchmarks/cache_accuracy_table.py result.json

FOLDER holds train/ and val/ with class folders, as `feedline demo-data` makes them. For each seed a
small network is trained from scratch once on the originals and once on each kind of copies
(`--copies 256q90` are JPEGs of 256 px, quality 90), by feedline's own recipe: `TrainCrop()`, AdamW,
one cycle of the rate. The runs of a seed have the same initial weights, order and crops, on one
thread with deterministic kernels: only the pixels of the training images differ, so the runs are
pairs. All are judged on crops of the *original* validation images, which is what a model is
deployed on, and once more on the copies that each kind of cache gives of them.

One more kind of copies, 64q90, is a control: it is smaller than the rows and has to do harm. If the
measurement did not find that, it would find nothing. It is run when all others are done.

Caveats: how small an effect can be seen follows from the number of seeds and of validation images.
Images that are no larger than a level are the originals themselves in its cache; the JSON says how
many. A small network from scratch is not a large one with pretrained weights. The weights follow
bit for bit from settings, versions and the processor's kernels; the JSON holds their digest.

Runs are saved one by one. The same command goes on where it was stopped.
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
from report import begun, save
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
# Half the usual width: a run has to take a minute on one core.
WIDTHS = {"channels": (32, 64, 128, 256), "stem_width": 16}
PACKAGES = ("feedline", "torch", "timm", "numpy", "simplejpeg", "pillow")

Found = dict[str, Any]
Batches = list[tuple[Tensor, Tensor]]


def built(folder: Path, copies: str, root: Path) -> Path:
    """A cache of a folder as `copies` says, e.g. "256q90"; its folder."""
    match = re.fullmatch(r"(\d+)q(\d+)", copies)
    if match is None:
        raise SystemExit(f"--copies are named as 256q90 is, size and quality, got {copies!r}")
    size, quality = map(int, match.groups())
    build_cache(folder, root, (size,), format="webdataset", quality=quality)
    return root


def opened(root: Path, transform: TrainCrop | EvalCrop) -> ImageFolder:
    """The images of a folder or of a cache; the control's are enlarged."""
    return ImageFolder(root, transform, enlarge=True)


def check_alike(images: ImageFolder, copies: ImageFolder) -> None:
    """Make sure that a sample number means one image in both."""
    names = [str(Path(images.path(k)).relative_to(images.root)) for k in range(len(images))]
    if names != [copies.name(k) for k in range(len(copies))]:
        raise SystemExit(f"{copies.root} does not hold the images of {images.root}")
    if (images.targets != copies.targets).any():
        raise SystemExit(f"{copies.root} has other labels than {images.root}")


def rows_of(data: ImageFolder, size: int) -> Batches:
    """All validation rows, which are the same each time they are looked at."""
    with DataLoader(data, 64, seed=0, image_size=size, num_workers=0, device="cpu") as loader:
        return [(images.clone(), labels.clone()) for images, labels in loader]


def trained(
    root: Path, recipe: Recipe, validation: dict[str, Batches], judged_epochs: int
) -> Found:
    """One run: what it achieved in each of the last epochs, and a digest of its weights."""
    began = time.monotonic()
    prepare_process(seed=recipe.seed, device=CPU)
    data = opened(root, TrainCrop())
    model: nn.Module = timm.create_model(
        MODEL, pretrained=False, num_classes=len(data.classes), **WIDTHS
    ).to(memory_format=torch.channels_last)
    epochs, judged = [], []
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
                judged.append(figures(model, validation[ORIGINALS]))
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.contiguous().numpy().tobytes())
    return {
        "train_loss": epochs,
        "judged": judged,
        "on": {name: figures(model, batches) for name, batches in validation.items()},
        "weights_sha256": digest.hexdigest(),
        "seconds": time.monotonic() - began,
    }


def figures(model: torch.nn.Module, batches: Batches) -> Found:
    """Top-1 accuracy, 0 to 1, and loss."""
    result = evaluate(model, batches, device=CPU)
    assert result is not None
    return {"top1": result.top1, "loss": result.loss}


def facts(roots: dict[str, dict[str, Path]]) -> Found:
    """How many images there are, and what each kind of copies makes of them."""
    found: Found = {}
    for part in ("train", "val"):
        images = ImageFolder(roots[ORIGINALS][part])
        sizes = [Path(images.path(k)).stat().st_size for k in range(len(images))]
        found[part] = {
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
                found[part]["bytes_an_image"][name] = round(level.bytes / len(store))
                found[part]["kept_as_they_are"][name] = small
    return found


def run_all(options: argparse.Namespace, seeds: Sequence[int], scratch: Path) -> None:
    folders = {part: options.folder.resolve() / part for part in ("train", "val")}
    roots = {ORIGINALS: folders}
    for copies in (*options.copies, options.control):
        roots[copies] = {
            part: built(folder, copies, scratch / copies / part) for part, folder in folders.items()
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
    found = begun(options.json, settings, PACKAGES)
    validation = {
        name: rows_of(opened(root["val"], EvalCrop()), options.size) for name, root in roots.items()
    }
    done = {(run["seed"], run["arm"]) for run in found["runs"]}
    compared = [(seed, name) for seed in seeds for name in roots if name != options.control]
    for seed, name in compared + [(seed, options.control) for seed in seeds]:
        if (seed, name) not in done:
            seeded = Recipe(**{**recipe.as_dict(), "seed": seed})
            run = trained(roots[name]["train"], seeded, validation, options.judged)
            found["runs"].append({"seed": seed, "arm": name, **run})
            save(found, options.json)
            on = run["on"][ORIGINALS]
            print(
                f"seed {seed}  {name:9}  top-1 {on['top1']:.3f}  loss {on['loss']:.3f}  "
                f"{run['seconds']:.0f} s",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="holds train/ and val/")
    parser.add_argument("--copies", nargs="*", default=["256q90", "256q95"])
    parser.add_argument("--control", default="64q90", help="copies that have to do harm; run last")
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--size", type=int, default=112, help="side of the rows in pixels")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--judged", type=int, default=5, help="how many of the last epochs")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, help="as in feedline's recipe where it is left out")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--json", type=Path, required=True, help="where runs are kept")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    with tempfile.TemporaryDirectory() as scratch:
        run_all(options, range(options.seeds), Path(scratch))


if __name__ == "__main__":
    main()
