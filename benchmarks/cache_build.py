"""Compare building a cache with decoding, resizing and encoding alone.

    python benchmarks/cache_build.py FOLDER --json benchmarks/results/cache_build.json

Method: `build_cache` builds a cache of `--images` images (hard links to the folder's, in classes of
1300) on all cores, of one resolution and of three. Alternating with it, one bare process per core
holds the folder's image bytes in memory and runs only `LevelEncoder.make_copies` (decode, resize,
encode) for `--seconds`. Repeated `--rounds` times; ratios are computed per round.

The build rate is all images over the total time from the call to the finished cache, including
sampling, worker start, writing and flushing to disk. Prints the time of each part:

    look        until the first report: list the folder, resize 64 images on one core
    start       until the first shard is done, minus a worker's time for that shard
    shards      until the last shard is done
    finish      write index and manifest, flush everything to disk

Caveats: the originals are in the page cache. Output is written to the disk of `--under`, so its
speed is included, as in a user's build. Imports are not included.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from links import linked
from page_cache import read_once
from process_pool import ProcessPool, ProcessState
from report import machine, save, spread, table, versions

from feedline import build_cache
from feedline.cache.job import BuildState
from feedline.cache.level_encoder import LevelEncoder
from feedline.cache.spec import make_levels
from feedline.images.codec_base import DecodeOptions
from feedline.system import usable_cores

PACKAGES = ("feedline", "torch", "numpy", "simplejpeg", "pillow", "xxhash")
SIZES = ((256,), (128, 192, 256))
LEAST = 0.85


def hold(state: ProcessState, paths: list[str]) -> None:
    """In a bare process: read the images to copy."""
    state["images"] = [Path(path).read_bytes() for path in paths]


def encode(state: ProcessState, sizes: tuple[int, ...], quality: int, seconds: float) -> float:
    """In a bare process: make copies for `seconds`; return images per second."""
    levels = make_levels(sizes, quality=quality, raw=False)
    encoder = LevelEncoder(levels, DecodeOptions())
    images = state["images"]
    encoder.make_copies(images[0])
    start = now = time.perf_counter()
    count = 0
    while now - start < seconds:
        encoder.make_copies(images[count % len(images)])
        count += 1
        now = time.perf_counter()
    return count / (now - start)


def build(source: Path, root: Path, sizes: tuple[int, ...], options: Any) -> dict[str, float]:
    """Build a cache; return the seconds of each part."""
    reports: list[tuple[float, BuildState]] = []
    start = time.perf_counter()

    def note(progress: BuildState) -> None:
        reports.append((time.perf_counter() - start, progress))

    manifest = build_cache(
        source, root, sizes, format=options.format, quality=options.quality, progress=note
    )
    total_s = time.perf_counter() - start
    assert manifest.samples == options.images
    (look_s, _), (first_s, first), *_ = reports
    last_s, _ = reports[-1]
    steady = (options.images - first.new_images) / (last_s - first_s)
    return {
        "images_per_s": options.images / total_s,
        "steady_images_per_s": steady,
        "total_s": total_s,
        "look_s": look_s,
        "start_s": max(0.0, first_s - look_s - first.new_images * usable_cores() / steady),
        "shards_s": last_s - look_s,
        "finish_s": total_s - last_s,
    }


def measure(originals: Path, scratch: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run all rounds."""
    many = linked(originals, options.images, scratch / "images")
    read_once(many)
    paths = sorted(str(path) for path in originals.glob("*/*"))
    cores = usable_cores()
    results: list[dict[str, Any]] = [{"sizes": sizes, "turns": []} for sizes in SIZES]
    with ProcessPool(cores) as pool:
        pool.each(hold, [(paths[number::cores],) for number in range(cores)])
        for number in range(options.rounds):
            for entry in results:
                sizes = entry["sizes"]
                order = [(sizes, options.quality, options.seconds)] * cores
                bare = sum(pool.each(encode, order))
                with tempfile.TemporaryDirectory(dir=scratch) as root:
                    turn = build(many, Path(root, "cache"), sizes, options)
                entry["turns"].append({"bare_images_per_s": bare, **turn})
            log(f"round {number + 1} of {options.rounds}")
    return results


def tables(results: list[dict[str, Any]]) -> str:
    """Results as text, with the target of the build."""
    rows, lines = [], []
    for entry in results:
        name = f"{', '.join(map(str, entry['sizes']))} px"
        turns = entry["turns"]
        ratios = [turn["images_per_s"] / turn["bare_images_per_s"] for turn in turns]
        rows.append(
            [
                name,
                *(
                    f"{median(turn[key] for turn in turns):.0f}"
                    for key in ("images_per_s", "steady_images_per_s", "bare_images_per_s")
                ),
                spread(ratios),
                *(
                    f"{median(turn[key] for turn in turns):.2f}"
                    for key in ("look_s", "start_s", "shards_s", "finish_s")
                ),
            ]
        )
        status = "met   " if median(ratios) >= LEAST else "MISSED"
        lines.append(f"{status} {name}: build / bare {spread(ratios)}, at least {LEAST}")
    headers = ["copies", "img/s", "once under way", "bare", "build / bare"]
    headers += ["look s", "start s", "shards s", "finish s"]
    return "\n".join([table(rows, headers), "", *lines])


def log(message: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {message}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder of JPEGs with one sub-folder per class")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="seconds per turn of bare processes"
    )
    parser.add_argument("--format", default="webdataset", choices=("webdataset", "lmdb", "folder"))
    parser.add_argument("--quality", type=int, default=95)
    parser.add_argument("--under", type=Path, help="parent folder of the temporary caches")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clean up, as on Ctrl-C
    fixed = ("images", "rounds", "seconds", "format", "quality")
    with tempfile.TemporaryDirectory(prefix="feedline-build-", dir=options.under) as scratch:
        builds = measure(options.folder.resolve(), Path(scratch), options)
    print(tables(builds))
    results = {
        "machine": machine(),
        "versions": versions(PACKAGES),
        "settings": {name: getattr(options, name) for name in fixed},
        "builds": builds,
    }
    save(results, options.json)


if __name__ == "__main__":
    main()
