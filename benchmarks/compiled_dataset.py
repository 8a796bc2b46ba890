"""Compare the time per image of torchvision's ImageFolder with feedline's fused source.

    python benchmarks/compiled_dataset.py FOLDER     # root/CLASS/*.jpg, a few dozen images

Method: one thread, no workers. The two contestants of a pipeline alternate, ten rounds over all
images. Prints the medians over the rounds and their ratio. The last line times the conversion of
uint8 pixels to normalised floats: feedline's lookup table and torch's operations.

Caveats: files are in the page cache; the ratio depends on the size of the images; steps that are
not fused cost the same in both.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from report import describe_processor, machine
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from feedline.images.compile.compile_dataset import compile_dataset
from feedline.images.resize import apply_lut
from feedline.order.batch_spec import Item

ROUNDS = 10
MOST_IMAGES = 100
NORMALIZE = v1.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
TRAIN = [v1.RandomResizedCrop(224), v1.RandomHorizontalFlip()]
FLOATS = [v1.ToTensor(), NORMALIZE]
PIPELINES = {
    "v1, training": v1.Compose([*TRAIN, *FLOATS]),
    "v1, training, erasing not fused": v1.Compose([*TRAIN, *FLOATS, v1.RandomErasing()]),
    "v1, training, a function not fused": v1.Compose([*TRAIN, *FLOATS, torch.neg]),
    "v1, training, colours not fused": v1.Compose([*TRAIN, v1.ColorJitter(0.3), *FLOATS]),
    "v1, bytes first": v1.Compose(
        [v1.PILToTensor(), *TRAIN, v1.ConvertImageDtype(torch.float32), NORMALIZE]
    ),
    "v1, testing": v1.Compose([v1.Resize(256), v1.CenterCrop(224), *FLOATS]),
    "v2, training": v2.Compose(
        [
            *(v2.ToImage(), v2.RandomResizedCrop(224), v2.RandomHorizontalFlip()),
            *(v2.ToDtype(torch.float32, scale=True), v2.Normalize(NORMALIZE.mean, NORMALIZE.std)),
        ]
    ),
}


def seconds(work: Callable[[int], object], count: int) -> float:
    """Mean time per call."""
    start = time.perf_counter()
    for number in range(count):
        work(number)
    return (time.perf_counter() - start) / count


def turns(ours: Callable[[int], object], theirs: Callable[[int], object], count: int) -> str:
    """Time both alternately; return the cells of a row."""
    times = [(seconds(ours, count), seconds(theirs, count)) for _ in range(ROUNDS)]
    own, other = (statistics.median(column) * 1e6 for column in zip(*times, strict=True))
    ratio = statistics.median(b / a for a, b in times)
    return f"{own:7.0f} us   {other:7.0f} us   {ratio:5.2f} x"


def main(root: str) -> None:
    """Print one line per pipeline."""
    torch.set_num_threads(1)
    print(describe_processor(machine()), flush=True)
    print(f"{'':36s}  feedline  torchvision    ratio")
    for name, pipeline in PIPELINES.items():
        dataset = ImageFolder(root, pipeline)
        recognition = compile_dataset(dataset)
        source = recognition.pipeline
        assert source is not None, recognition.reasons
        row = tuple(np.zeros(field.shape, field.dtype) for field in source.fields(224))
        count = min(len(dataset), MOST_IMAGES)
        seeds = itertools.count(1 << 60, 0x9E3779B97F4A7)

        def ours(number: int, source=source, row=row, seeds=seeds) -> None:
            source.load(Item(number, 224, next(seeds), 1.0), row)

        print(f"{name:36s}{turns(ours, dataset.__getitem__, count)}")
    pixels = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    table, floats = np.ones((3, 256), np.float32), np.ones((3, 224, 224), np.float32)
    picture = torch.from_numpy(pixels).permute(2, 0, 1)
    line = turns(
        lambda _: apply_lut(pixels, table, floats),
        lambda _: NORMALIZE(picture.contiguous().to(torch.float32).div(255)),
        200,
    )
    print(f"{'pixels to floats alone, 224 px':36s}{line}")


if __name__ == "__main__":
    main(sys.argv[1])
