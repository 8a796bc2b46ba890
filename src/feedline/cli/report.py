"""`feedline report`, `check` and `explain-overlap`: where the time of a training goes."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from feedline.cli import options
from feedline.cli.output import echo, say, use_folder, write_json, write_text
from feedline.errors import UsageError

_FAILED, _INCONCLUSIVE = 1, 3
_LONGEST_STEP_MS = 10_000.0

_limits, _measurement = options.panel("Limits"), options.panel(options.MEASUREMENT)


def report(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="Folder of a run, or its trace.json.")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A B", help="Compare two runs: the speed of B over that of A."),
    ] = None,
    html: options.HtmlFile = None,
    json: options.JsonFile = None,
) -> None:
    """Report the bottleneck of a run and how to fix it.

    Reads what feedline train or feedline.watch(..., run=FOLDER) recorded. Exit status: 0 if there
    is nothing to fix, 1 with a finding, 3 if no cause was found. With --compare: 1 if B is
    slower than A by more than the spread, 4 if other programs disturbed a run.

    Example: feedline report runs/resnet18-1 --html report.html
    """
    if (run is None) == (compare is None):
        raise UsageError("name one run, or two with --compare A B")
    if compare is not None:
        if html is not None:
            raise UsageError("--html is for one run", hint="use --json with --compare")
        _compare(compare, json)
        return
    assert run is not None

    from feedline.profile.report import load_report, to_json
    from feedline.profile.terminal import ReportView

    facts = load_report(run)
    say(ReportView(facts, str(run)))
    if html is not None:
        from feedline.profile.page import page

        write_text(html, page(facts, str(run)))
        echo("", f"wrote {html}")
    write_json(json, to_json(facts))
    raise typer.Exit({"healthy": 0, "finding": 1, "inconclusive": 3}[facts.state])


def _compare(runs: tuple[Path, Path], json: Path | None) -> None:
    from feedline.profile.compare import compare, comparison_view
    from feedline.profile.report import load_report, to_json

    found = compare(*(load_report(run) for run in runs))
    say(comparison_view(found, [str(run) for run in runs]))
    write_json(json, to_json(found))
    raise typer.Exit(found.status)


def check(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or its trace.json.")],
    max_wait_pct: Annotated[
        float | None, _limits("Maximum data wait, in percent of the time.", "PCT")
    ] = None,
    min_images_per_s: Annotated[
        float | None, _limits("Minimum throughput in images/s from the first batch on.", "RATE")
    ] = None,
    json: options.JsonFile = None,
) -> None:
    """Check a run against limits, for CI.

    Exit status: 0 if all limits are met, 1 if one is not, 3 if too little was measured.

    Example: feedline check runs/resnet18-1 --max-wait-pct 5 --min-images-per-s 900
    """
    if max_wait_pct is None and min_images_per_s is None:
        raise UsageError("no limit", hint="name --max-wait-pct, --min-images-per-s, or both")
    if max_wait_pct is not None and not 0 <= max_wait_pct <= 100:
        raise UsageError(f"--max-wait-pct must be from 0 to 100, got {max_wait_pct}")
    if min_images_per_s is not None and not 0 < min_images_per_s < float("inf"):
        raise UsageError(f"--min-images-per-s must be above 0, got {min_images_per_s}")

    from feedline.profile.report import check_limits, load_report, to_json

    facts = load_report(run)
    found = check_limits(facts, max_wait_pct, min_images_per_s)
    words = {True: "passed", False: "FAILED", None: "inconclusive"}
    for each in found:
        echo(f"{words[each.passed]:<12}  {each.said}")
    if facts.bound == "inconclusive":
        for finding in facts.findings[:1]:
            echo(f"{finding.cause} {finding.evidence}")
    results = [each.passed for each in found]
    status = _FAILED if False in results else _INCONCLUSIVE if None in results else 0
    passed = None if status == _INCONCLUSIVE else status == 0
    checks = [to_json(each) for each in found]
    write_json(json, {"passed": passed, "bound": facts.bound, "checks": checks})
    raise typer.Exit(status)


def explain_overlap(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            help="Class folders of images, or a folder with train/.",
            show_default="generated images",
        ),
    ] = None,
    image_size: options.ImageSize = 224,
    batch_size: options.BatchSize = 32,
    workers: options.Workers = None,
    step_ms: Annotated[
        float | None,
        _measurement("Duration of the training step, ms.", "MS", "that of loading a batch"),
    ] = None,
    seconds: Annotated[float, _measurement("Time to measure each loop.", "SECONDS", True)] = 3.0,
    svg: options.SvgFile = None,
    json: options.JsonFile = None,
) -> None:
    """Measure and draw how workers overlap loading with training.

    Runs the same batches twice, without workers and with them, with a training step that sleeps.

    Example: feedline explain-overlap demo-data/train --workers 4 --svg overlap.svg
    """
    count = options.parse_workers(workers)
    if count == 0:
        raise UsageError("--workers must be at least 1, got 0: a loop without workers is measured")
    if step_ms is not None and not 0 < step_ms <= _LONGEST_STEP_MS:
        raise UsageError(
            f"--step-ms must be above 0 and at most {_LONGEST_STEP_MS:.0f}, got {step_ms}"
        )

    from feedline.cli.demo_set import DemoSet, write_demo_set
    from feedline.cli.progress import ProgressBar
    from feedline.engine.defaults import worker_count
    from feedline.images.folder import ImageFolder
    from feedline.profile.bench import check_options  # loads torch
    from feedline.profile.overlap import (
        measure_overlap,
        overlap_svg,
        overlap_view,
    )
    from feedline.profile.report import to_json
    from feedline.train.data import find_splits

    check_options(image_size, batch_size, seconds)
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(ProgressBar("starting", clock="elapsed"))
        if folder is None:
            demo = DemoSet(num_classes=4, train_per_class=8, val_per_class=1)
            scratch = tempfile.TemporaryDirectory(prefix="feedline-", ignore_cleanup_errors=True)
            root = Path(stack.enter_context(scratch)) / "demo"
            bar.update(what="generating images")
            write_demo_set(root, demo, progress=bar.update)
            used = root / "train"
        else:
            used = find_splits(folder).train
            use_folder(folder, used)
        found = measure_overlap(
            ImageFolder(used),
            image_size=image_size,
            batch_size=batch_size,
            workers=max(1, worker_count(count)),
            step_ms=step_ms,
            seconds=seconds,
            progress=bar.stage,
        )
    say(overlap_view(found))
    if svg is not None:
        write_text(svg, overlap_svg(found))
    write_json(json, to_json(found))
