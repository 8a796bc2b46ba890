"""The loader against bare processes that make the same crops with the same calls.

Method: in one run, in turn, `--rounds` times: some epochs of the loader, the same epochs by as
many bare processes as it has workers (`limit.py`). The first round warms up and is left out.
The loader's rate is taken in mid-stream: an epoch before it, not counted, uses up what was made
ahead while the bare processes ran. The ratio is
loader / bare of the same round; printed are its median and range. A second ratio is to bare
processes that also parse the header and draw the crop. Work: the originals, and
JPEG copies (quality 90) with a shorter side of 256 and 128 px, made in a temporary folder.

Caveats: files come from the page cache. Where the loader, the bare processes and this script
outnumber the cores, the script's own microseconds count against the loader, as they should.

    python benchmarks/engine_limit.py FOLDER --rounds 7
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

from limit import Limit, draw
from PIL import Image

from feedline import DataLoader, ImageFolder, TrainCrop
from feedline.plan.batches import Plan
from feedline.plan.schedule import Phase, Schedule

CROP = TrainCrop(scale=(0.25, 1.0))


def copies(data: ImageFolder, shorter: int, folder: Path) -> Path:
    """JPEG copies with a shorter side of `shorter` px, quality 90."""
    root = folder / str(shorter)
    for k in range(len(data)):
        source = Path(data.path(k))
        with Image.open(source) as image:
            scale = shorter / min(image.size)
            size = (round(image.width * scale), round(image.height * scale))
            small = image.convert("RGB").resize(size, Image.Resampling.BICUBIC)
        target = root / source.parent.name / f"{source.stem}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        small.save(target, quality=90)
    return root


def loader_rate(loader: DataLoader, epochs: int) -> float:
    """Images per second over `epochs`, after one epoch that uses up what was made ahead."""
    for _ in loader:
        pass
    images = 0
    start = time.perf_counter()
    for _ in range(epochs):
        for _, labels in loader:
            images += len(labels)
    return images / (time.perf_counter() - start)


def compare(
    name: str, root: Path, size: int, options: argparse.Namespace, limits: list[Limit]
) -> None:
    data = ImageFolder(root, CROP)
    plan = Plan(
        length=len(data),
        schedule=Schedule((Phase(size=size, epochs=1),)),
        batch_size=options.batch_size,
    )
    rates: list[list[float]] = []
    with DataLoader(
        data, options.batch_size, image_size=size, num_workers=options.workers
    ) as loader:
        for turn in range(options.rounds + 1):
            first = loader.epoch + 1
            fast = loader_rate(loader, options.epochs)
            # The bare processes must not share the cores with what is made ahead.
            time.sleep(0.5)
            epochs = range(first, first + options.epochs)
            work = [one for epoch in epochs for one in draw(data, plan, size, epoch)]
            if turn:
                rates.append([fast, *[limit.rate(work, size) for limit in limits]])
    fast, bare, drawing = (median(rate[k] for rate in rates) for k in range(3))
    print(
        f"{name:>16} @{size}: loader {fast:7.0f} img/s, bare {bare:7.0f} img/s, ratio "
        f"{spread([rate[0] / rate[1] for rate in rates])}; drawing too {drawing:7.0f} img/s, ratio "
        f"{spread([rate[0] / rate[2] for rate in rates])}",
        flush=True,
    )


def spread(ratios: list[float]) -> str:
    return f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a folder with one sub-folder a class")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=4, help="of each turn")
    parser.add_argument("--only", default="", help="part of a name, to run less")
    options = parser.parse_args()
    limits = [Limit(options.workers, options.batch_size, crop) for crop in (None, CROP)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            originals = ImageFolder(options.folder)
            for name, shorter, size in (
                ("originals", 0, 224),
                ("originals", 0, 112),
                ("256 px copies", 256, 224),
                ("128 px copies", 128, 112),
            ):
                if options.only in f"{name} @{size}":
                    root = options.folder
                    if shorter:
                        root = copies(originals, shorter, Path(folder))
                    compare(name, root, size, options, limits)
    finally:
        for limit in limits:
            limit.close()


if __name__ == "__main__":
    main()
