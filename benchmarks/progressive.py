"""A whole progressive run, with steps of a given speed: does the step ever wait for a batch?

Method: every contestant (`progressive_peers/`) goes through the schedule in a process of its own,
in turn, `--rounds` times (A B C A B C), for each speed of the step. Its batches are given to

    --step paced    steps that last batch / rate(size) and cost no CPU, as an accelerator's do: a
                    step begins when its batch has come and the step before has ended. The rate
                    is a share (`--speeds`) of the limit: what bare processes reach that only
                    read, decode, crop and resize by library calls (`peers/limit.py`), at each
                    size, measured directly before the run, and once more after it.
    --step model    steps that train a model from timm on `--device`, the batch's copy included.

The next batch is asked for while a step is under way, so only a wait that outlasts the step is
exposed. Reported are, as medians and ranges over the rounds: the time of the run over what its
steps take alone; the share of each phase in which the step waited for a batch (a phase begins
where the one before it ends, so a change of size counts for the new phase); the longest interval
between two steps near each change of size, in seconds and over the usual interval of the new
size; and apart from all that, the time from building the loader to its first batch.

The bar that feedline is held to: with steps that keep up with the limit, at most 3% exposed wait
in every phase and at most 1.03 times the time that the steps take alone, as medians. Runs around
which the limit itself moved by more than 5% at some size do not count for it, nor against it.

Caveats: files come from the page cache, read once beforehand. A paced step leaves all of the CPU
to the loader and asks for no copy to a device; what launching a real step's kernels costs is seen
with `--step model` only. There, a copy that the contestant leaves to the step (torch) lengthens
the step, and one that it makes beside the step (timm, feedline) is waited for where it comes too
late; the time of the run holds both. Epochs of a small folder end often, and contestants that
pause between epochs pay for it more often than with a large one: `--images` makes a larger folder
of hard links. Where the machine's speed changes between the limit and the run, the waits change
with it; the JSON holds the limits around every run. Pixels and dtypes are each contestant's own,
as its users have them.

    python benchmarks/progressive.py FOLDER --images 5000 --rounds 5 --json F --plot F.png
    python benchmarks/progressive.py FOLDER --step model --model resnet50 --device cuda
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


def prepared(options: argparse.Namespace, scratch: Path) -> tuple[Work, int]:
    """The work and how many images an epoch has; their files are in the page cache."""
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
    """One run's figures, or why there are none; paced where there are rates."""
    answer = run(contestant, work, **({"rates": rates} if rates else {"model": model}))
    if "missing" in answer:
        return answer
    steps = [Step(*step) for step in answer["steps"]]
    return asdict(figures(steps, answer["alone_s"], answer["first_batch_s"], work.stages, images))


def compare(work: Work, options: argparse.Namespace, found: dict[str, Any]) -> None:
    """All runs, in turn; saves them as they come."""
    runs, missing = found["runs"], found["missing"]
    paced = options.step == "paced"
    after = limit(work, options.limit_seconds) if paced else {}
    for number, speed, contestant in product(
        range(options.rounds), options.speeds if paced else [None], options.contestants
    ):
        if contestant in missing:
            continue
        before = after
        rates = {size: speed * rate for size, rate in before.items()}
        images = found["settings"]["images"]
        result = measure(contestant, work, images, options.model, rates)
        if "missing" in result:
            missing[contestant] = result["missing"]
        else:
            after = limit(work, options.limit_seconds) if paced else {}
            named = {"contestant": contestant, "speed": speed, "round": number}
            runs.append({**named, "limit": before, "limit_after": after, **result})
            save(found, options.json)
        said = result.get("missing") or f"run / steps alone {result['total']:.3f}"
        log(f"round {number + 1}, {speed or options.model}, {contestant}: {said}")


def log(message: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {message}", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of JPEGs with one sub-folder per class")
    parser.add_argument("--schedule", default="112x4,160x4,224x4")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--images", type=int, default=0, help="of an epoch; 0: those there are")
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contestants", default=",".join(CONTESTANTS), help="comma separated")
    parser.add_argument("--step", choices=("paced", "model"), default="paced")
    parser.add_argument("--speeds", default="0.5,1.0,1.2", help="paced: shares of the limit")
    parser.add_argument("--limit-seconds", type=float, default=3.0, help="paced: at each size")
    parser.add_argument("--model", default="resnet50", help="model: timm's name")
    parser.add_argument("--device", default="cuda", help="model: where it trains")
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
    found: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(PACKAGES),
        "settings": {name: getattr(options, name) for name in names},
        "missing": {},
        "runs": [],
    }
    with tempfile.TemporaryDirectory(prefix="feedline-progressive-", dir=options.under) as scratch:
        work, found["settings"]["images"] = prepared(options, Path(scratch))
        compare(work, options, found)
    print(tables(found))
    print(f"{limits(found)}{bar(found)}")
    save(found, options.json)
    if options.plot:
        picture(found, options.plot)


if __name__ == "__main__":
    main()
