"""Process of one run.

    python -m progressive_peers.drive CONTESTANT ORDER

ORDER is a JSON object with "work" (see `work.py`) and either "rates", the paced step's images per
second by size, or "model", the name of a model to train. Prints one JSON object: {"missing"} with
the reason why the contestant cannot run, or

    first_batch_s   from building the loader, after imports, to its first batch
    steps           [size, rows, begin_s, end_s] of every step
    alone_s         for each step, its duration without waiting for a batch
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import time
from typing import Any

from progressive_peers.steps import PacedSteps, Steps
from progressive_peers.work import Work


def steps_of(order: dict[str, Any], work: Work) -> Steps:
    if "rates" in order:
        return PacedSteps({int(size): rate for size, rate in order["rates"].items()})
    # A paced run needs neither a model nor timm.
    from progressive_peers.model_steps import ModelSteps

    shapes = [(stage.size, stage.batch_size) for stage in work.stages]
    return ModelSteps(order["model"], work.device, shapes)


def reason(error: ModuleNotFoundError) -> str:
    """Why a module cannot be imported: its package is too old or not installed."""
    package = (error.name or "").partition(".")[0]
    try:
        return f"not in {package} {importlib.metadata.version(package)}"
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return f"{package} is not installed"


def run(contestant: str, order: dict[str, Any]) -> dict[str, Any]:
    work = Work(**order["work"])
    try:
        module = importlib.import_module(f"progressive_peers.{contestant}")
    except ModuleNotFoundError as error:
        return {"missing": reason(error)}
    steps = steps_of(order, work)
    first_batch_s = None
    start_s = time.perf_counter()
    for images, labels in module.batches(work):
        if first_batch_s is None:
            first_batch_s = time.perf_counter() - start_s
        steps.take(images, labels)
    step_times = steps.step_times()
    return {
        "first_batch_s": first_batch_s,
        "steps": step_times,
        "alone_s": [steps.alone_s(step.size, step.rows) for step in step_times],
    }


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print to stdout
    json.dump(run(sys.argv[1], json.loads(sys.argv[2])), answers)


if __name__ == "__main__":
    main()
