"""How fast a cache is read, in each format, against plain files and the originals.

    python benchmarks/caches.py FOLDER [--rounds 5] [--seconds 1.5]

Caches of the folder's images are built in a temporary folder, JPEG (q95) and raw, at 128 and
256 px. Random crops of 25 to 100% of the area become batches of 64 by two workers; the contestants
take turns, and medians are printed. All files are in the page cache.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from feedline import DataLoader, ImageFolder, TrainCrop, build_cache

FORMATS = ("folder", "webdataset", "lmdb")
SIZES = (224, 112)


def images_per_s(root: Path, size: int, seconds: float) -> float:
    data = ImageFolder(root, TrainCrop((0.25, 1.0)))
    with DataLoader(data, 64, seed=0, image_size=size, num_workers=2) as loader:
        started, images = 0.0, 0
        while True:
            for _, labels in loader:
                now = time.perf_counter()
                if not started:  # the first batch waits for the workers to start
                    started = now
                    continue
                images += len(labels)
                if now - started > seconds:
                    return images / (now - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5)
    given = parser.parse_args()
    rates: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as temporary:
        roots = {("originals", "JPEG"): given.folder}
        for name in FORMATS:
            for raw in (False, True):
                root = Path(temporary, f"{name}-{raw}")
                build_cache(given.folder, root, (128, 256), format=name, raw=raw)  # type: ignore[arg-type]
                roots[name, "raw" if raw else "JPEG"] = root
        for _ in range(given.rounds):
            for (name, kind), root in roots.items():
                for size in SIZES:
                    rates[name, kind, size].append(images_per_s(root, size, given.seconds))
    for (name, kind, size), found in sorted(rates.items(), key=lambda item: item[0][1:]):
        files = rates["folder", kind, size]
        ratio = statistics.median(one / other for one, other in zip(found, files, strict=True))
        print(
            f"{kind:5} @{size}  {name:10} {statistics.median(found):8.0f} images/s "
            f"({min(found):.0f} to {max(found):.0f}), {ratio:.2f} of plain files"
        )


if __name__ == "__main__":
    main()
