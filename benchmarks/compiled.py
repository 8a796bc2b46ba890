"""What an image costs in a Dataset of one's own: its pipeline, and `feedline.compile` and `views`.

Method: one thread, no workers, the same files, processor time of the process. The contestants of a
line take turns, so many rounds of every image; given are the medians over the rounds in ms an
image, and the median ratio with the lowest and the highest. "torchvision" is what is mostly
written, `transform(Image.open(path).convert("RGB"))`, for several views one opened image for all.

For views there are two more columns, of how the decode could be shared: the whole image decoded
once, and each view decoded for itself.

Caveats: files come from the page cache; other images, as of other sizes, have other ratios; steps
that run as they are, such as RandomSolarize, cost the same in both.

    python benchmarks/compiled.py FOLDER [--images N] [--rounds N] [--json FILE]
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
    """A view as SimCLR's and DINO's are: a crop, a flip, steps of the colours, floats."""
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
    """Mean processor time of a call."""
    torch.manual_seed(0)
    start = time.process_time()
    for path in paths:
        work(path)
    return 1e3 * (time.process_time() - start) / len(paths)


def turns(
    contestants: dict[str, Callable[[str], object]], paths: list[str], rounds: int
) -> dict[str, list[float]]:
    """Each contestant's times of a call in ms, round by round, after one that does not count."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name, work in contestants.items():
            took = cost_ms(work, paths)
            if turn:
                times[name].append(took)
    return times


def opened(path: str) -> Image.Image:
    """As torchvision's loader."""
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


def one(transform: Any) -> dict[str, Callable[[str], object]]:
    """Who makes one view."""
    compiled = feedline.compile(transform)
    return {
        "torchvision": lambda path: transform(opened(path)),
        "path": compiled,
        "Image.open": lambda path: compiled(Image.open(path)),
        "loaded image": lambda path: compiled(opened(path)),
    }


def many(transforms: list[Any]) -> dict[str, Callable[[str], object]]:
    """Who makes several."""
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
        image = opened(path)
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
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    paths = sorted(str(path) for path in asked.folder.rglob("*") if path.suffix.lower() == ".jpg")
    paths = paths or sorted(str(path) for path in asked.folder.rglob("*.JPEG"))
    paths = paths[:: max(1, len(paths) // asked.images)][: asked.images]
    found: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(("torch", "torchvision", "pillow")),
        "images": len(paths),
    }
    for title, makers, pipelines in (("one", one, ONE), ("several", many, MANY)):
        rows = []
        for name, pipeline in pipelines.items():
            times = turns(makers(pipeline), paths, asked.rounds)
            found.setdefault(title, {})[name] = times
            ratios = sorted(a / b for a, b in zip(times["torchvision"], times["path"], strict=True))
            medians = [f"{statistics.median(column):.2f}" for column in times.values()]
            ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            rows.append([name, *medians, ratio])
        headers = [f"{title}, ms an image", *times, "torchvision / path"]
        print(table(rows, headers, markdown=True), "\n")
    save(found, asked.json)


if __name__ == "__main__":
    main()
