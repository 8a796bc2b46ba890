"""Compare the CPU time per image of a torchvision pipeline with `feedline.compile` and `views`.

    python benchmarks/compiled.py FOLDER [--images N] [--rounds N] [--json FILE]

Method: one thread, no workers, process CPU time. Contestants alternate, `--rounds` passes over all
images. Prints the median over the rounds in ms per image, and the median ratio with its range.
"torchvision" is the usual `transform(Image.open(path).convert("RGB"))`; for several views the image
is opened once.

For views, two more columns show other ways of decoding: the whole image once, and once per view.

Caveats: files are in the page cache; the ratio depends on the size of the images; steps that are
not fused, such as RandomSolarize, cost the same in both.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from report import machine, save, table, versions
from torchvision import transforms as v1
from torchvision.transforms import v2

import feedline
from feedline.images.compile.fused_transform import PlacedViews

FLOATS = [v1.ToTensor(), v1.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
V2_FLOATS = [
    *(v2.ToImage(), v2.ToDtype(torch.float32, scale=True)),
    v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
]
TRAIN = v1.Compose([v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), *FLOATS])
JITTER = v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8)


def crops(side: int, scale: tuple[float, float], *more: Any) -> v1.Compose:
    """A view as in SimCLR and DINO: crop, flip, colour steps, to float."""
    crop = v1.RandomResizedCrop(side, scale, interpolation=v1.InterpolationMode.BICUBIC)
    return v1.Compose([crop, v1.RandomHorizontalFlip(), *more, *FLOATS])


SIMCLR_STEPS = (JITTER, v1.RandomGrayscale(0.2), v1.RandomApply([v1.GaussianBlur(23)], p=0.5))
ONE = {
    "training": TRAIN,
    "training, v2": v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), *V2_FLOATS]),
    "training, ColorJitter": v1.Compose([*TRAIN.transforms[:2], v1.ColorJitter(0.4), *FLOATS]),
    "testing": v1.Compose([v1.Resize(256), v1.CenterCrop(224), *FLOATS]),
}
MANY = {
    "2 x 224, crops alone": 2 * [crops(224, (0.08, 1.0))],
    "2 x 224, SimCLR's steps": 2 * [crops(224, (0.08, 1.0), *SIMCLR_STEPS)],
    "2 x 224 + 8 x 96, crops alone": [
        *2 * [crops(224, (0.4, 1.0))],
        *8 * [crops(96, (0.05, 0.4))],
    ],
    "2 x 224 + 8 x 96, DINO's steps": [
        crops(224, (0.4, 1.0), JITTER, v1.RandomGrayscale(0.2), v1.GaussianBlur(23)),
        crops(224, (0.4, 1.0), JITTER, v1.RandomGrayscale(0.2), v1.RandomSolarize(128, 0.2)),
        *8 * [crops(96, (0.05, 0.4), *SIMCLR_STEPS)],
    ],
}


def cost_ms(work: Callable[[str], object], paths: list[str]) -> float:
    """Mean CPU time per call, in ms."""
    torch.manual_seed(0)
    start = time.process_time()
    for path in paths:
        work(path)
    return 1e3 * (time.process_time() - start) / len(paths)


def turns(
    contestants: dict[str, Callable[[str], object]], paths: list[str], rounds: int
) -> dict[str, list[float]]:
    """Times per call of each contestant by round, in ms; the first round is discarded."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name, work in contestants.items():
            took = cost_ms(work, paths)
            if turn:
                times[name].append(took)
    return times


def open_image(path: str) -> Image.Image:
    """Open an image as torchvision's loader does."""
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


def one(transform: Any) -> dict[str, Callable[[str], object]]:
    """Contestants for one view."""
    compiled = feedline.compile(transform)
    return {
        "torchvision": lambda path: transform(open_image(path)),
        "path": compiled,
        "Image.open": lambda path: compiled(Image.open(path)),
        "loaded image": lambda path: compiled(open_image(path)),
    }


def many(transforms: list[Any]) -> dict[str, Callable[[str], object]]:
    """Contestants for several views."""
    views = feedline.views(*transforms)
    alone = [feedline.compile(transform) for transform in transforms]

    def whole(path: str) -> object:
        part, PlacedViews.part = PlacedViews.part, property(lambda self: None)  # type: ignore
        cut, PlacedViews.cut = PlacedViews.cut, _cut_of_whole  # type: ignore
        try:
            return views(path)
        finally:
            PlacedViews.part, PlacedViews.cut = part, cut  # type: ignore

    def usual(path: str) -> object:
        image = open_image(path)
        return [transform(image) for transform in transforms]

    return {
        "torchvision": usual,
        "path": views,
        "decoded whole": whole,
        "each for itself": lambda path: [each(path) for each in alone],
    }


def _cut_of_whole(self: PlacedViews, image: Any) -> Any:
    for placement in self.placements:
        top, left, height, width = placement.part or (0, 0, *image.shape[:2])
        yield image[top : top + height, left : left + width], placement


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    paths = sorted(str(path) for path in options.folder.rglob("*") if path.suffix.lower() == ".jpg")
    paths = paths or sorted(str(path) for path in options.folder.rglob("*.JPEG"))
    paths = paths[:: max(1, len(paths) // options.images)][: options.images]
    results: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(("torch", "torchvision", "pillow")),
        "images": len(paths),
    }
    for title, makers, pipelines in (("one", one, ONE), ("several", many, MANY)):
        rows = []
        for name, pipeline in pipelines.items():
            times = turns(makers(pipeline), paths, options.rounds)
            results.setdefault(title, {})[name] = times
            ratios = sorted(a / b for a, b in zip(times["torchvision"], times["path"], strict=True))
            medians = [f"{statistics.median(column):.2f}" for column in times.values()]
            ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            rows.append([name, *medians, ratio])
        headers = [f"{title}, ms an image", *times, "torchvision / path"]
        print(table(rows, headers, markdown=True), "\n")
    save(results, options.json)


if __name__ == "__main__":
    main()
