"""Measure how much the pixels of resized copies differ from the originals.

    python benchmarks/cache_pixels.py FOLDER --json result.json

A cache of each resolution and quality is built from the photographs. The same crops, with the same
seeds, are read from the originals and from the cache. The figure is the mean absolute difference in
grey levels (0 to 255) over all crops, pixels and channels. Random crops cover 25 to 100% of the
area, `TrainCrop((0.25, 1))`, half of them mirrored; the central crop is `EvalCrop(0.875)`. Only
combinations that feedline would read are measured.

Each resolution counts only photographs that are larger than it, because smaller ones are stored
unchanged. All resolutions up to `--common` px count the photographs larger than that, so that they
can be compared; larger resolutions have fewer photographs.

Yardsticks give the scale: the same crops of the originals resized by other libraries (OpenCV if
installed), decoded at reduced size, or moved by one pixel, compared with feedline's rows, which use
torch's antialiased bilinear resize of uint8.

Caveats: a mean over pixels does not show where they differ: copies are softer at edges and in fine
texture, and nearly equal elsewhere. The JSON also has the 95th percentile over crops.
`cache_accuracy.py` measures the effect on a model.
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

Results = dict[str, Any]
Rows = np.ndarray[Any, np.dtype[np.uint8]]
Resize = Callable[[Rows, int, int], Rows]


def items(samples: list[int], crop: str, size: int, crops: int) -> list[Item]:
    """Items to load: `crops` random crops of each photograph, or the central crop."""
    draws = range(crops if crop == "random" else 1)
    return [Item(sample, size, mix(0, draw, sample), 1.0) for sample in samples for draw in draws]


def load_rows(data: ImageFolder, requested: list[Item]) -> Rows:
    """Load the rows; uint8 (n, size, size, 3)."""
    size = requested[0].required_image_size
    rows = np.empty((len(requested), size, size, 3), np.uint8)
    label = np.empty((), np.int64)
    for item, row in zip(requested, rows, strict=True):
        data.load(item, (row, label))
    return rows


def difference(rows: Rows, reference: Rows) -> Results:
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
    """Crop and resize a whole image with another library."""
    if isinstance(place, Box):
        part = pixels[place.top : place.top + place.height, place.left : place.left + place.width]
        row = resize(np.ascontiguousarray(part), size, size)
        return row[:, ::-1] if place.flip else row
    whole = resize(pixels, place.height, place.width)
    return whole[place.top : place.top + size, place.left : place.left + size]


def move_crop(place: Placement, width: int) -> Placement:
    """Move a crop by one pixel to the right, or to the left at the right edge."""
    step = 1 if place.left + place.width < width else -1
    return place._replace(left=max(0, place.left + step))


def yardsticks() -> dict[str, tuple[Resize, bool]]:
    """Alternative resizes of the originals, and whether the crop is moved."""
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


def other_rows(
    data: ImageFolder, requested: list[Item], resize: Resize, move: bool
) -> Iterator[Rows]:
    open_sample, pixels = -1, np.empty((0, 0, 3), np.uint8)
    for item in requested:
        if item.sample != open_sample:
            with Image.open(data.path(item.sample)) as image:
                open_sample, pixels = item.sample, np.asarray(image.convert("RGB"))
        place = data.transform.place(*pixels.shape[:2], item)
        if move:
            place = move_crop(place, pixels.shape[1])
        yield row_by(resize, pixels, place, item.required_image_size)


def measure_yardsticks(folder: Path, samples: list[int], crops: int) -> list[Results]:
    """Differences of the yardsticks from feedline's rows of the originals."""
    results: list[Results] = []
    for crop, transform in CROPS.items():
        data = ImageFolder(folder, transform)
        scaled = ImageFolder(folder, transform, decode="scaled")
        for size in SIZES:
            requested = items(samples, crop, size, crops)
            rows = load_rows(data, requested)
            about = {"crop": crop, "row_px": size}
            for name, (resize, move) in yardsticks().items():
                if crop == "random" or not move:
                    others = np.stack(list(other_rows(data, requested, resize, move)))
                    results.append({"way": name, **about, **difference(others, rows)})
            name = "decoded smaller (feedline's decode=scaled)"
            results.append({"way": name, **about, **difference(load_rows(scaled, requested), rows)})
    return results


def larger_than(side: int, data: ImageFolder) -> list[int]:
    """Sample numbers of photographs with a shorter side above `side` px."""
    samples = []
    for sample in range(len(data)):
        with Image.open(data.path(sample)) as image:
            if min(image.size) > side:
                samples.append(sample)
    return samples


class Originals:
    """Rows of the originals, cached for each set of photographs."""

    def __init__(self, folder: Path, crops: int) -> None:
        self.data = {crop: ImageFolder(folder, transform) for crop, transform in CROPS.items()}
        self.crops = crops
        self._rows: dict[tuple[str, int, int], tuple[list[Item], Rows]] = {}

    def rows(self, crop: str, size: int, samples: list[int]) -> tuple[list[Item], Rows]:
        key = crop, size, len(samples)
        if key not in self._rows:
            requested = items(samples, crop, size, self.crops)
            self._rows[key] = requested, load_rows(self.data[crop], requested)
        return self._rows[key]


def measure_cache(root: Path, originals: Originals, common_px: int) -> Iterator[Results]:
    """Differences of a cache of one resolution, for each image size that reads it."""
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
                requested, rows = originals.rows(crop, size, samples)
                yield {
                    "level_px": level.side,
                    "quality": level.quality,
                    "crop": crop,
                    "row_px": size,
                    "photographs": len(samples),
                    "bytes_an_image": round(level_bytes),
                    **difference(load_rows(data, requested), rows),
                }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="image folder with one sub-folder per class")
    parser.add_argument("--common", type=int, default=320, metavar="PX")
    parser.add_argument("--crops", type=int, default=2, help="random crops per photograph")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    originals = Originals(options.folder, options.crops)
    results: Results = {
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
                results["copies"] += measure_cache(Path(root), originals, options.common)
    larger = larger_than(options.common, originals.data["central"])
    results["yardsticks"] = measure_yardsticks(options.folder, larger, options.crops)
    save(results, options.json)
    print(tables(results))


if __name__ == "__main__":
    main()
