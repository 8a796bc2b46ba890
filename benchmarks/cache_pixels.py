"""How far the pixels of a cache's copies are from the originals', by level and quality.

    python benchmarks/cache_pixels.py FOLDER --json result.json

A cache of each level and quality is built of the photographs in a temporary folder. Then the same
crops, of the same seeds, are made from the originals and from the cache, and compared: the mean
absolute difference in grey levels (0 to 255) over all crops, pixels and channels. Random crops show
25 to 100% of the area, `TrainCrop((0.25, 1))`, and are mirrored half of the time; the central crop
is that of `EvalCrop(0.875)`. Rows are only made of levels that feedline would read for them.

For each level only those photographs count that are larger than it: others are kept as they are.
Levels up to `--common` px are all measured on the photographs that are larger than that, so they
can be compared with one another; for larger levels fewer photographs are left.

The yardsticks say what a grey level is worth: the same crops of the originals, resized by other
libraries' usual ways, decoded smaller, or moved by one pixel, against feedline's rows, which are
torch's antialiased bilinear resize of uint8. OpenCV takes part where it is installed.

Caveats: a mean over pixels says nothing of where they differ: copies are softer at edges and in
fine texture, and much the same elsewhere. The JSON also holds the 95th percentile over crops. What
that does to a model is measured by `cache_accuracy.py`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cache_pixels_table import tables
from PIL import Image
from report import machine, save, versions

from feedline import EvalCrop, ImageFolder, TrainCrop, build_cache
from feedline.images.crops import Box, Placement, wanted_side
from feedline.order.batch_spec import Item
from feedline.order.seeds import mix
from feedline.sources.remote_cache import open_cache

try:
    import cv2
except ImportError:
    cv2 = None

LEVELS = (128, 160, 192, 256, 320, 384)
QUALITIES = (None, 95, 90, 85)  # None: raw pixels
SIZES = (112, 160, 224)
CROPS: dict[str, TrainCrop | EvalCrop] = {"random": TrainCrop((0.25, 1.0)), "central": EvalCrop()}
PACKAGES = ("feedline", "torch", "numpy", "simplejpeg", "pillow", "opencv-python-headless")

Found = dict[str, Any]
Rows = np.ndarray[Any, np.dtype[np.uint8]]
Resize = Callable[[Rows, int, int], Rows]


def items(samples: list[int], crop: str, size: int, crops: int) -> list[Item]:
    """What is asked of every source: `crops` random crops of a photograph, or the central one."""
    draws = range(crops if crop == "random" else 1)
    return [Item(sample, size, mix(0, draw, sample), 1.0) for sample in samples for draw in draws]


def made(data: ImageFolder, wanted: list[Item]) -> Rows:
    """The rows, uint8 (n, size, size, 3)."""
    rows = np.empty((len(wanted), wanted[0].side, wanted[0].side, 3), np.uint8)
    label = np.empty((), np.int64)
    for item, row in zip(wanted, rows, strict=True):
        data.load(item, (row, label))
    return rows


def difference(rows: Rows, reference: Rows) -> Found:
    """Mean absolute difference in grey levels, and its 95th percentile over the crops."""
    each = [
        float(np.abs(row.astype(np.int16) - other).mean())
        for row, other in zip(rows, reference, strict=True)
    ]
    return {
        "mean": round(float(np.mean(each)), 4),
        "p95": round(float(np.percentile(each, 95)), 4),
        "crops": len(each),
    }


def pillow_by(filter: Image.Resampling) -> Resize:
    def resize(pixels: Rows, height: int, width: int) -> Rows:
        return np.asarray(Image.fromarray(pixels).resize((width, height), filter))

    return resize


def opencv_by(interpolation: int) -> Resize:
    def resize(pixels: Rows, height: int, width: int) -> Rows:
        return cv2.resize(pixels, (width, height), interpolation=interpolation)

    return resize


def row_by(resize: Resize, pixels: Rows, place: Placement, size: int) -> Rows:
    """A row of a whole image, by another library's resize."""
    if isinstance(place, Box):
        part = pixels[place.top : place.top + place.height, place.left : place.left + place.width]
        row = resize(np.ascontiguousarray(part), size, size)
        return row[:, ::-1] if place.flip else row
    whole = resize(pixels, place.height, place.width)
    return whole[place.top : place.top + size, place.left : place.left + size]


def moved(place: Placement, width: int) -> Placement:
    """A crop one pixel further to the right, or to the left at the right edge."""
    step = 1 if place.left + place.width < width else -1
    return place._replace(left=max(0, place.left + step))


def yardsticks() -> dict[str, tuple[Resize, bool]]:
    """How else rows of the originals are made: the resize, and whether the crop is moved."""
    bilinear = pillow_by(Image.Resampling.BILINEAR)
    ways: dict[str, tuple[Resize, bool]] = {
        "Pillow, bilinear": (bilinear, False),
        "Pillow, bicubic": (pillow_by(Image.Resampling.BICUBIC), False),
    }
    if cv2 is not None:
        cv2.setNumThreads(1)
        ways["OpenCV, INTER_AREA"] = opencv_by(cv2.INTER_AREA), False
        ways["OpenCV, INTER_LINEAR"] = opencv_by(cv2.INTER_LINEAR), False
    ways["the crop moved by 1 px"] = bilinear, True
    return ways


def other_rows(data: ImageFolder, wanted: list[Item], resize: Resize, move: bool) -> Iterator[Rows]:
    opened, pixels = -1, np.empty((0, 0, 3), np.uint8)
    for item in wanted:
        if item.sample != opened:
            with Image.open(data.path(item.sample)) as image:
                opened, pixels = item.sample, np.asarray(image.convert("RGB"))
        place = data.transform.place(*pixels.shape[:2], item)
        if move:
            place = moved(place, pixels.shape[1])
        yield row_by(resize, pixels, place, item.required_image_size)


def measure_yardsticks(folder: Path, samples: list[int], crops: int) -> list[Found]:
    """The originals against themselves."""
    found: list[Found] = []
    for crop, transform in CROPS.items():
        data = ImageFolder(folder, transform)
        scaled = ImageFolder(folder, transform, decode="scaled")
        for size in SIZES:
            wanted = items(samples, crop, size, crops)
            rows = made(data, wanted)
            about = {"crop": crop, "row_px": size}
            for name, (resize, move) in yardsticks().items():
                if crop == "random" or not move:
                    others = np.stack(list(other_rows(data, wanted, resize, move)))
                    found.append({"way": name, **about, **difference(others, rows)})
            name = "decoded smaller (feedline's decode=scaled)"
            found.append({"way": name, **about, **difference(made(scaled, wanted), rows)})
    return found


def larger_than(side: int, data: ImageFolder) -> list[int]:
    """Which photographs have a shorter side of more than `side` px."""
    found = []
    for sample in range(len(data)):
        with Image.open(data.path(sample)) as image:
            if min(image.size) > side:
                found.append(sample)
    return found


class Originals:
    """The rows of the originals, made once for each set of photographs."""

    def __init__(self, folder: Path, crops: int) -> None:
        self.data = {crop: ImageFolder(folder, transform) for crop, transform in CROPS.items()}
        self.crops = crops
        self._kept: dict[tuple[str, int, int], tuple[list[Item], Rows]] = {}

    def rows(self, crop: str, size: int, samples: list[int]) -> tuple[list[Item], Rows]:
        key = crop, size, len(samples)
        if key not in self._kept:
            wanted = items(samples, crop, size, self.crops)
            self._kept[key] = wanted, made(self.data[crop], wanted)
        return self._kept[key]


def measure_cache(root: Path, originals: Originals, common_px: int) -> Iterator[Found]:
    """A cache of one level, at every size of rows that it serves."""
    store = open_cache(root)
    (level,) = store.manifest.levels
    least = max(level.side, common_px)
    samples = [k for k in range(len(store)) if min(store.original_size(k)) > least]
    if not samples:
        return
    reader = store.reader(level)
    level_bytes = sum(len(reader.file(sample)) for sample in samples) / len(samples)
    for crop, transform in CROPS.items():
        data = ImageFolder(root, transform)
        for size in SIZES:
            if wanted_side(transform, size) <= level.side:
                wanted, rows = originals.rows(crop, size, samples)
                yield {
                    "level_px": level.side,
                    "quality": level.quality,
                    "crop": crop,
                    "row_px": size,
                    "photographs": len(samples),
                    "bytes_an_image": round(level_bytes),
                    **difference(made(data, wanted), rows),
                }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="class folders with photographs")
    parser.add_argument("--common", type=int, default=320, metavar="PX")
    parser.add_argument("--crops", type=int, default=2, help="random crops of each photograph")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    originals = Originals(options.folder, options.crops)
    found: Found = {
        "machine": machine(),
        "versions": versions(PACKAGES),
        "settings": {
            "folder": options.folder.name,
            "common_px": options.common,
            "crops": options.crops,
            "transforms": {name: repr(crop) for name, crop in CROPS.items()},
        },
        "copies": [],
    }
    for level in LEVELS:
        for quality in QUALITIES:
            with tempfile.TemporaryDirectory() as root:
                build_cache(
                    options.folder, root, (level,), quality=quality or 95, raw=quality is None
                )
                found["copies"] += measure_cache(Path(root), originals, options.common)
    larger = larger_than(options.common, originals.data["central"])
    found["yardsticks"] = measure_yardsticks(options.folder, larger, options.crops)
    save(found, options.json)
    print(tables(found))


if __name__ == "__main__":
    main()
