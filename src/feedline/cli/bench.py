"""`feedline bench`: measure how fast images load."""

from __future__ import annotations

from typing import Annotated, Literal

from feedline.cli import options
from feedline.cli.output import echo_text, use_folder, write_json

_measurement = options.panel(options.MEASUREMENT)


def bench(
    folder: options.Images,
    image_size: options.ImageSize = 224,
    batch_size: options.BatchSize = 64,
    workers: options.Workers = None,
    against: Annotated[
        Literal["torch"] | None,
        _measurement("Compare with torch's DataLoader and torchvision.", "torch"),
    ] = None,
    seconds: Annotated[float, _measurement("Time to count images.", "SECONDS", True)] = 30.0,
    json: options.JsonFile = None,
) -> None:
    """Measure how many images a second your images load at, and the cost of one image by stage.

    Reads up to 1000 random images into memory and makes batches of random crops, uint8 on the CPU;
    no model and no GPU.

    Example: feedline bench demo-data --image-size 224 --against torch
    """
    from feedline.cli.progress import ProgressBar
    from feedline.profile.bench import benchmark_table, run_benchmark  # loads torch
    from feedline.train.data import find_splits

    images = find_splits(folder).train
    count = options.parse_workers(workers)
    use_folder(folder, images)
    with ProgressBar("starting", clock="elapsed", steady=True) as bar:
        result = run_benchmark(
            images,
            bar.stage,
            image_size=image_size,
            batch_size=batch_size,
            workers=count,
            against=against,
            seconds=seconds,
        )
    echo_text(benchmark_table(result))
    write_json(json, result)
