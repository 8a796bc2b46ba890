"""How fast a cache is built, against decoding, resizing and encoding alone.

Method: `build_cache` with all cores makes a cache of `--images` images (hard links to the folder's,
in classes of 1300), of one size and of three. In turn with it as many bare processes as there
are cores go for `--seconds` through the folder's images, whose bytes they hold, and do nothing but
`LevelEncoder.make_copies`: decode, resize, encode. `--rounds` times; ratios are taken round by
round.

A build's rate is all images over all of its time, from the call to the finished cache: with the
look at some images beforehand, the start of the workers, the writing, and bringing it all to the
disk at the end. Where that time goes is told apart:

    look        until the first report: listing the folder, 64 images made on one core
    start       from there until the first shard is done, less what a worker needs for that shard
    shards      until the last shard is done
    finish      index, manifest, and all to the disk

Caveats: the originals are in the page cache. What is written goes to the disk under `--under`;
its speed is in the figures, as it is in a user's build. Imports are not counted.

    python benchmarks/cache_build.py FOLDER --json benchmarks/results/cache_build.json
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
from report import machine, save, spread, table, versions

from feedline import build_cache
from feedline.bench.pool import ProcessPool, ProcessState, Send
from feedline.cache.build_shards import BuildState
from feedline.cache.level_encoder import LevelEncoder
from feedline.cache.spec import make_levels
from feedline.images.codec_registry import DEFAULT_MAX_PIXELS
from feedline.system import usable_cores

PACKAGES = ("feedline", "torch", "numpy", "simplejpeg", "pillow", "xxhash")
SIZES = ((256,), (128, 192, 256))
LEAST = 0.85


def hold(state: ProcessState, send: Send, paths: list[str]) -> None:
    """In a bare process: read the images that it is to make copies of."""
    state["images"] = [Path(path).read_bytes() for path in paths]


def encode(
    state: ProcessState, send: Send, sizes: tuple[int, ...], quality: int, seconds: float
) -> float:
    """In a bare process: make copies for about so many seconds; images per second."""
    levels = make_levels(sizes, quality=quality, raw=False)
    encoder = LevelEncoder(levels, exif=False, max_pixels=DEFAULT_MAX_PIXELS)
    images = state["images"]
    encoder.make_copies(images[0])
    start = now = time.perf_counter()
    made = 0
    while now - start < seconds:
        encoder.make_copies(images[made % len(images)])
        made += 1
        now = time.perf_counter()
    return made / (now - start)


def build(source: Path, root: Path, sizes: tuple[int, ...], options: Any) -> dict[str, float]:
    """Build once; seconds by part."""
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
    """All turns."""
    many = linked(originals, options.images, scratch / "images")
    read_once(many)
    paths = sorted(str(path) for path in originals.glob("*/*"))
    cores = usable_cores()
    found: list[dict[str, Any]] = [{"sizes": sizes, "turns": []} for sizes in SIZES]
    with ProcessPool(cores) as pool:
        pool.each(hold, [(paths[number::cores],) for number in range(cores)])
        for number in range(options.rounds):
            for entry in found:
                sizes = entry["sizes"]
                order = [(sizes, options.quality, options.seconds)] * cores
                bare = sum(pool.each(encode, order))
                with tempfile.TemporaryDirectory(dir=scratch) as root:
                    turn = build(many, Path(root, "cache"), sizes, options)
                entry["turns"].append({"bare_images_per_s": bare, **turn})
            say(f"round {number + 1} of {options.rounds}")
    return found


def tables(found: list[dict[str, Any]]) -> str:
    """The figures, and what the build is held to."""
    rows, lines = [], []
    for entry in found:
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
        said = "met   " if median(ratios) >= LEAST else "MISSED"
        lines.append(f"{said} {name}: build / bare {spread(ratios)}, at least {LEAST}")
    headers = ["copies", "img/s", "once under way", "bare", "build / bare"]
    headers += ["look s", "start s", "shards s", "finish s"]
    return "\n".join([table(rows, headers), "", *lines])


def say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="a folder with one sub-folder of JPEGs a class")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of bare processes, in a turn")
    parser.add_argument("--format", default="webdataset", choices=("webdataset", "lmdb", "folder"))
    parser.add_argument("--quality", type=int, default=95)
    parser.add_argument("--under", type=Path, help="where the caches are made")
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # cleans up, as Ctrl-C does
    fixed = ("images", "rounds", "seconds", "format", "quality")
    with tempfile.TemporaryDirectory(prefix="feedline-build-", dir=options.under) as scratch:
        builds = measure(options.folder.resolve(), Path(scratch), options)
    print(tables(builds))
    found = {
        "machine": machine(),
        "versions": versions(PACKAGES),
        "settings": {name: getattr(options, name) for name in fixed},
        "builds": builds,
    }
    save(found, options.json)


if __name__ == "__main__":
    main()
