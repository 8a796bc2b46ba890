"""Compare photometric transforms on Pillow images, on arrays by libraries, and fused.

    python benchmarks/photometric_steps.py FOLDER [--images N] [--rounds N] [--json FILE]

Method: photographs, cropped and resized to 224 px by the fused crop, are in memory as arrays. For
each transform the CPU time of one thread is measured for three contestants, alternately, over all
photographs: the transform on a Pillow image, including conversion to Pillow and back, as when it is
not fused; the fastest library call on the array with the same effect; and feedline's replacement in
`images.compile.supported_transforms`. Prints medians over the rounds in us per image, and median
ratios with ranges. All use the same seeds.

The libraries are numpy for maps of grey levels, and torch's tensor kernels, whose rounding differs
from Pillow's by more than one level for some transforms. OpenCV, if installed, is used for maps,
equalize and lookup tables.

The last lines are RandomErasing on a row of floats, not fused and written into the row.

Caveats: the conversion to Pillow and back is counted for each transform; consecutive unfused
transforms share it.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from report import machine, save, spread, table, versions
from timm.data import auto_augment as timm
from torchvision import transforms as v1
from torchvision.transforms import functional, v2

import feedline
from feedline.images.compile.supported_transforms import pixel_step
from feedline.randomness import seed_all

Work = Callable[[Any], object]
BILINEAR, BICUBIC = v1.InterpolationMode.BILINEAR, v1.InterpolationMode.BICUBIC

STEPS: dict[str, Any] = {
    "solarize": v1.RandomSolarize(128, 1.0),
    "posterize": v1.RandomPosterize(4, 1.0),
    "invert": v1.RandomInvert(1.0),
    "flip down": v1.RandomVerticalFlip(1.0),
    "equalize": v1.RandomEqualize(1.0),
    "autocontrast": v1.RandomAutocontrast(1.0),
    "sharpness": v1.RandomAdjustSharpness(1.5, 1.0),
    "affine, nearest": v1.RandomAffine(20, (0.1, 0.1), shear=10),
    "affine, bilinear": v1.RandomAffine(20, (0.1, 0.1), shear=10, interpolation=BILINEAR),
    "rotation, bicubic": v1.RandomRotation(20, BICUBIC),
    "translate, nearest": v1.RandomAffine(0, (0.2, 0.2)),
    "RandAugment": v1.RandAugment(),
    "RandAugment, v2": v2.RandAugment(),
    "TrivialAugmentWide": v1.TrivialAugmentWide(),
    "TrivialAugmentWide, v2": v2.TrivialAugmentWide(),
    "AutoAugment": v1.AutoAugment(),
    "AutoAugment, v2": v2.AutoAugment(),
    "AugMix": v1.AugMix(),
    "AugMix, v2": v2.AugMix(),
    "timm, rand-m9-mstd0.5-inc1": timm.rand_augment_transform("rand-m9-mstd0.5-inc1", {}),
    "timm, original AutoAugment": timm.auto_augment_transform("originalr-mstd0.5", {}),
}


def _equalized(pixels: Any) -> object:
    made = np.empty_like(pixels)
    for c in range(3):
        counts = np.bincount(pixels[..., c].ravel(), minlength=256)
        step = max(1, int(counts.sum() - counts[counts > 0][-1]) // 255)
        table = np.minimum((step // 2 + np.cumsum(counts) - counts) // step, 255).astype(np.uint8)
        np.take(table, pixels[..., c], out=made[..., c])
    return made


def _spread(pixels: Any) -> object:
    low = pixels.reshape(-1, 3).min(0).astype(np.float32)
    high = pixels.reshape(-1, 3).max(0).astype(np.float32)
    return ((pixels - low) * (255 / np.maximum(high - low, 1))).astype(np.uint8)


def _on_tensor(step: Callable[[torch.Tensor], torch.Tensor]) -> Work:
    def work(pixels: Any) -> object:
        made = step(torch.from_numpy(pixels).permute(2, 0, 1))
        return np.ascontiguousarray(made.permute(1, 2, 0).numpy())

    return work


LIBRARIES: dict[str, Work] = {
    "solarize": lambda pixels: np.where(pixels >= 128, ~pixels, pixels),
    "posterize": lambda pixels: pixels & 0xF0,
    "invert": lambda pixels: ~pixels,
    "flip down": lambda pixels: pixels[::-1].copy(),
    "equalize": _equalized,
    "autocontrast": _spread,
    "sharpness": _on_tensor(lambda image: functional.adjust_sharpness(image, 1.5)),
    **{
        name: _on_tensor(STEPS[name])
        for name in ("affine, nearest", "affine, bilinear", "translate, nearest")
    },
}
if importlib.util.find_spec("cv2"):
    import cv2

    MATRIX = np.array([[0.94, 0.34, -30], [-0.34, 0.94, 40]])
    LIBRARIES |= {
        "equalize": lambda pixels: cv2.merge([cv2.equalizeHist(c) for c in cv2.split(pixels)]),
        "affine, nearest": lambda p: cv2.warpAffine(p, MATRIX, (224, 224), flags=0),
        "affine, bilinear": lambda p: cv2.warpAffine(p, MATRIX, (224, 224), flags=1),
        "rotation, bicubic": lambda p: cv2.warpAffine(p, MATRIX, (224, 224), flags=2),
    }

ERASINGS = {
    f"RandomErasing, {value}": (
        v1.RandomErasing(1.0, value=value),
        v1.RandomErasing(1.0, value=value, inplace=True),
    )
    for value in (0, "random")
}


def cost_us(work: Work, inputs: list[Any]) -> float:
    """Mean CPU time per call, in us."""
    seed_all(0)
    start = time.process_time()
    for each in inputs:
        work(each)
    return 1e6 * (time.process_time() - start) / len(inputs)


def turns(
    contestants: dict[str, Work], made: Callable[[], list[Any]], rounds: int
) -> dict[str, list[float]]:
    """Times of each contestant by round; the first round is discarded."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name, work in contestants.items():
            took = cost_us(work, made())
            if turn:
                times[name].append(took)
    return times


def steps(name: str) -> dict[str, Work]:
    """Contestants for a transform."""
    step = STEPS[name]
    results: dict[str, Work] = {"as it is": lambda p: np.asarray(step(Image.fromarray(p)))}
    if name in LIBRARIES:
        results["library"] = LIBRARIES[name]
    fast = pixel_step(step)
    if fast is not None:
        results["fused"] = fast
    return results


def erasings(name: str) -> dict[str, Work]:
    """Contestants for RandomErasing; the transform returns a new image, which is copied."""
    step, within = ERASINGS[name]
    return {"as it is": lambda row: row.copy_(step(row)), "fused": within}


def row_of(name: str, times: dict[str, list[float]]) -> list[object]:
    """One row of the table."""
    first = times["as it is"]
    line: list[object] = [name]
    line += [f"{statistics.median(times[k]):.0f}" if k in times else "" for k in _COLUMNS]
    fused = times.get("fused", first)
    ratio = [a / b for a, b in zip(first, fused, strict=True)]
    return [*line, spread(ratio, 2) if "fused" in times else ""]


_COLUMNS = ("as it is", "library", "fused")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    paths = sorted(p for p in options.folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    paths = paths[:: max(1, len(paths) // options.images)][: options.images]
    torch.manual_seed(0)
    crop = feedline.compile(v1.Compose([v1.RandomResizedCrop(224)]))
    pixels = [np.array(crop(str(path))) for path in paths]
    rows = [torch.from_numpy(each).permute(2, 0, 1).float().contiguous() for each in pixels]
    results: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(("torch", "torchvision", "timm", "pillow", "opencv-python-headless")),
        "images": len(paths),
        "us": {},
    }
    lines = []
    for name in (*STEPS, *ERASINGS):
        if name in STEPS:
            times = turns(steps(name), lambda: [p.copy() for p in pixels], options.rounds)
        else:
            times = turns(erasings(name), lambda: [row.clone() for row in rows], options.rounds)
        results["us"][name] = times
        lines.append(row_of(name, times))
    print(table(lines, ("us an image", *_COLUMNS, "as it is / fused"), markdown=True))
    save(results, options.json)


if __name__ == "__main__":
    main()
