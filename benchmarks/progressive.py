"""Measure how long training steps wait for batches in a whole progressive run, by loader.

    python benchmarks/progressive.py FOLDER --images 5000 --rounds 5 --json F --plot F.png
    python benchmarks/progressive.py FOLDER --step model --model resnet50 --device cuda

Method: every contestant (`progressive_peers/`) runs the schedule in its own process, alternately
for `--rounds` rounds (A B C A B C), for each speed of the step:

    --step paced    steps of duration batch / rate(size) that use no CPU, like an accelerator's: a
                    step begins when its batch has arrived and the previous step has ended. The rate
                    is a share (`--speeds`) of the limit: the rate of bare processes that only read,
                    decode, crop and resize with library calls (`peers/limit.py`), measured at each
                    size before and after the run.
    --step model    steps that train a timm model on `--device`, including the copy of the batch.

The next batch is requested during a step, so only waits that outlast the step count. Reports
medians and ranges over the rounds: time of the run over the time of its steps alone; share of each
phase in which the step waited (a phase begins where the previous one ends, so a size change counts
for the new phase); the longest interval between steps near each size change, in seconds and over
the usual interval of the new size; and, separately, the time from building the loader to the first
batch.

Target for feedline: with steps at the limit, at most 3% data wait in every phase and at most 1.03
times the time of the steps alone, as medians. Runs during which the limit changed by more than 5%
at any size are excluded.

Caveats: files are in the page cache. A paced step leaves the whole CPU to the loader and copies
nothing to a device; only `--step model` includes the cost of launching kernels. With it, a copy
that the contestant leaves to the step (torch) lengthens the step, and a copy made during the step
(timm, feedline) is waited for if it is late; the time of the run includes both. Epochs of a small
folder end often, which penalises contestants that pause between epochs: `--images` makes a larger
folder of hard links. If the speed of the machine changes between limit and run, so do the waits;
the JSON has the limits around every run. Pixels and dtypes are those usual for each contestant.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from links import linked
from progressive_peers import CONTESTANTS
from progressive_peers.figures import figures
from progressive_peers.steps import Step
from progressive_peers.turns import limit, run
from progressive_peers.work import Work
from progressive_table import bar, limits, picture, tables
from report import machine, save, versions

from feedline import ImageFolder
from feedline.system import usable_cores

PACKAGES = ("feedline", "torch", "torchvision", "timm", "numpy", "simplejpeg", "pillow")


def prepare(options: argparse.Namespace, scratch: Path) -> tuple[Work, int]:
    """Prepare the images in the page cache; return the work and the images per epoch."""
    folder = options.folder.resolve()
    if options.images:
        folder = linked(folder, options.images, scratch / "images")
    data = ImageFolder(folder)
    for sample in range(len(data)):
        Path(data.path(sample)).read_bytes()
    work = Work(
        folder=str(folder),
        schedule=options.schedule,
        batch_size=options.batch_size,
        workers=options.workers,
        device=options.device if options.step == "model" else "",
    )
    for stage in work.stages:
        if len(data) < 2 * stage.batch_size:
            raise SystemExit(
                f"{len(data)} images make fewer than 2 batches of {stage.batch_size} an epoch; "
                "give a smaller --batch-size or more --images"
            )
    return work, len(data)


def measure(
    contestant: str, work: Work, images: int, model: str, rates: dict[str, float]
) -> dict[str, Any]:
    """Run once; return its figures or why it failed. Paced if rates are given."""
    answer = run(contestant, work, **({"rates": rates} if rates else {"model": model}))
    if "missing" in answer:
        return answer
    steps = [Step(*step) for step in answer["steps"]]
    return asdict(figures(steps, answer["alone_s"], answer["first_batch_s"], work.stages, images))


def compare(work: Work, options: argparse.Namespace, results: dict[str, Any]) -> None:
    """Run all contestants alternately; save after each run."""
    runs, missing = results["runs"], results["missing"]
    paced = options.step == "paced"
    after = limit(work, options.limit_seconds) if paced else {}
    for number, speed, contestant in product(
        range(options.rounds), options.speeds if paced else [None], options.contestants
    ):
        if contestant in missing:
            continue
        before = after
        rates = {size: speed * rate for size, rate in before.items()}
        images = results["settings"]["images"]
        result = measure(contestant, work, images, options.model, rates)
        if "missing" in result:
            missing[contestant] = result["missing"]
        else:
            after = limit(work, options.limit_seconds) if paced else {}
            named = {"contestant": contestant, "speed": speed, "round": number}
            runs.append({**named, "limit": before, "limit_after": after, **result})
            save(results, options.json)
        text = result.get("missing") or f"run / steps alone {result['total']:.3f}"
        log(f"round {number + 1}, {speed or options.model}, {contestant}: {text}")


def log(message: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {message}", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of JPEGs with one sub-folder per class")
    parser.add_argument("--schedule", default="112x4,160x4,224x4")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument(
        "--images", type=int, default=0, help="images per epoch; 0: all images of the folder"
    )
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--contestants", default=",".join(CONTESTANTS), help="contestants, comma separated"
    )
    parser.add_argument("--step", choices=("paced", "model"), default="paced")
    parser.add_argument(
        "--speeds", default="0.5,1.0,1.2", help="paced: step speeds, as shares of the limit"
    )
    parser.add_argument(
        "--limit-seconds",
        type=float,
        default=3.0,
        help="paced: seconds per measurement of the limit",
    )
    parser.add_argument("--model", default="resnet50", help="model: timm model name")
    parser.add_argument("--device", default="cuda", help="model: training device")
    parser.add_argument("--under", type=Path, help="parent folder of the temporary image folder")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--plot", type=Path, help="write a plot to this file")
    options = parser.parse_args()
    options.speeds = [float(speed) for speed in options.speeds.split(",")]
    options.contestants = options.contestants.split(",")
    if unknown := set(options.contestants) - set(CONTESTANTS):
        parser.error(f"unknown contestants {sorted(unknown)}; there are {', '.join(CONTESTANTS)}")
    return options


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clean up, as on Ctrl-C
    names = ["schedule", "batch_size", "workers", "rounds", "step"]
    names += ["limit_seconds"] if options.step == "paced" else ["model", "device"]
    results: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(PACKAGES),
        "settings": {name: getattr(options, name) for name in names},
        "missing": {},
        "runs": [],
    }
    with tempfile.TemporaryDirectory(prefix="feedline-progressive-", dir=options.under) as scratch:
        work, results["settings"]["images"] = prepare(options, Path(scratch))
        compare(work, options, results)
    print(tables(results))
    print(f"{limits(results)}{bar(results)}")
    save(results, options.json)
    if options.plot:
        picture(results, options.plot)


if __name__ == "__main__":
    main()
