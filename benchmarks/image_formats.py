"""Compare feedline with torch + Pillow by image format, with one import changed, on one thread.

    python benchmarks/image_formats.py [FOLDER] [--json FILE]

Method: the images of a folder (default: the demo set) are written in each format with Pillow.
torchvision's ImageFolder with RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize is
loaded by both DataLoaders without workers, alternately, and their CPU time is measured. Prints the
median rate over the rounds, and the median ratio with its range. Files are in the page cache.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from PIL import Image, features
from report import machine, save, spread, table, versions
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import feedline
from feedline.cli.demo_set import CLASS_NAMES, demo_pixels

FORMATS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "JPEG 4:2:0": ("RGB", "jpg", {"quality": 91}),
    "JPEG 4:4:4": ("RGB", "jpg", {"quality": 91, "subsampling": 0}),
    "JPEG grey": ("L", "jpg", {"quality": 91}),
    "JPEG progressive": ("RGB", "jpg", {"quality": 91, "progressive": True}),
    "PNG": ("RGB", "png", {}),
    "PNG grey": ("L", "png", {}),
    "WebP": ("RGB", "webp", {"quality": 85}),
    "WebP lossless": ("RGB", "webp", {"lossless": True, "method": 1}),
    "AVIF": ("RGB", "avif", {"quality": 75, "speed": 8}),
}


def pictures(folder: Path | None, count: int) -> Iterator[Image.Image]:
    """RGB images of a folder, or of the demo set."""
    if folder is None:
        for number in range(count):
            name = CLASS_NAMES[number % len(CLASS_NAMES)]
            yield Image.fromarray(demo_pixels(name, number=number))
        return
    for path in sorted(folder.rglob("*.*"))[:count]:
        yield Image.open(path).convert("RGB")


def seconds(loader: Any) -> float:
    """CPU time of an epoch, which varies less with other load than its duration."""
    start = time.process_time()
    for _ in loader:
        pass
    return time.process_time() - start


def measure(root: Path, size: int, rounds: int) -> dict[str, Any]:
    """Images per second of both loaders."""
    data = ImageFolder(
        str(root),
        v1.Compose(
            [
                v1.RandomResizedCrop(size),
                v1.RandomHorizontalFlip(),
                v1.ToTensor(),
                v1.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        ),
    )
    kinds: dict[str, Callable[..., Any]] = {
        "torch": torch.utils.data.DataLoader,
        "feedline": feedline.DataLoader,
    }
    loaders = {name: kind(data, 32, shuffle=True) for name, kind in kinds.items()}
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(rounds + 1):
        for name, loader in loaders.items():
            taken = seconds(loader)
            if turn:  # the first round is a warm-up
                rates[name].append(len(data) / taken)
    ratios = [ours / theirs for ours, theirs in zip(*reversed(rates.values()), strict=True)]
    return {"images_per_s": {name: median(each) for name, each in rates.items()}, "ratios": ratios}


def main() -> None:
    """Measure all formats and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--images", type=int, default=96)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name, (mode, ending, settings) in FORMATS.items():
        if options.only not in name or (ending == "avif" and not features.check("avif")):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            (Path(scratch) / "a").mkdir()
            for number, image in enumerate(pictures(options.folder, options.images)):
                path = Path(scratch, "a", f"{number:05d}.{ending}")
                image.convert(mode).save(path, **settings)
                if ending == "avif":  # torchvision's ImageFolder skips this extension
                    path.rename(path.with_suffix(".webp"))
            results[name] = measure(Path(scratch), options.size, options.rounds)
    rows = [
        [name, *(f"{rate:.0f}" for rate in each["images_per_s"].values()), spread(each["ratios"])]
        for name, each in results.items()
    ]
    print(table(rows, ["format", "torch", "feedline", "ratio"]))
    packages = ("feedline", "torch", "torchvision", "pillow", "simplejpeg")
    settings = {"size": options.size, "images": options.images, "rounds": options.rounds}
    save(
        {
            "machine": machine(),
            "versions": versions(packages),
            "settings": settings,
            "formats": results,
        },
        options.json,
    )


if __name__ == "__main__":
    main()
