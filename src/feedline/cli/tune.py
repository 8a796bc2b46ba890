"""`feedline tune`: find the fastest loader settings."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from feedline.cli import options
from feedline.cli.output import complain, echo, echo_text, write_json, write_text
from feedline.errors import UsageError
from feedline.order.schedule import Schedule
from feedline.text import as_seconds, plural

if TYPE_CHECKING:
    from feedline.cli.tune_search import TuneSearch
    from feedline.images.folder import ImageFolder
    from feedline.throughput.what_if import Changes
    from feedline.tuning.result import TuningResult
    from feedline.tuning.tune import SearchProgress

_INTERRUPTED, _INCONCLUSIVE, _FAILED = 130, 3, 1

_FUNCTION = "MODULE:FUNCTION"

_step, _measurement = options.panel("Training step"), options.panel(options.MEASUREMENT)


def tune(
    source: Annotated[
        str,
        typer.Argument(
            metavar=f"DIR|{_FUNCTION}",
            help="Class folders of images, a folder with train/, or a cache; or a function that "
            "returns a DataLoader or a Dataset.",
        ),
    ],
    model: Annotated[
        str | None, _step("timm model, or a function that trains one batch.", f"NAME|{_FUNCTION}")
    ] = None,
    step_ms: Annotated[
        float | None, _step("Instead: duration of a step at the largest size, ms.", "MS")
    ] = None,
    schedule: Annotated[
        str | None, _step("Image sizes and epochs; @N: batch size.", options.SCHEDULE, "224x1")
    ] = None,
    batch_size: Annotated[
        str | None,
        _step("Images in a batch; auto: the most that fit.", "N|auto", "64", "--batch-size", "-b"),
    ] = None,
    device: options.Device = None,
    cache: options.CacheFolder = None,
    decode: Annotated[
        Literal["exact", "scaled"],
        options.panel(options.LOADER)("JPEG decoding; scaled is faster.", "exact|scaled", True),
    ] = "exact",
    all_files: Annotated[
        bool, _measurement("Read all images from disk, not 1000 from memory.")
    ] = False,
    budget: Annotated[float, _measurement("Time limit of the search.", "SECONDS", True)] = 60.0,
    what_if: Annotated[
        list[str] | None,
        _measurement("Predict a change; repeatable.", "workers=N,cores=N,gpu=FACTOR"),
    ] = None,
    save: options.SettingsFile = None,
    svg: options.SvgFile = None,
    json: options.JsonFile = None,
) -> None:
    """Find the fastest loader settings for this machine, model and dataset.

    At each image size of the schedule, times the training step alone and then with different
    numbers of workers and, if batches arrive unevenly, prefetch depths and task sizes. Ctrl-C
    prints what is known so far.

    Example: feedline tune demo-data --schedule 112x1,224x1 --step-ms 40 --save tuned.json
    """
    if (step_ms is None) == (model is None):
        raise UsageError(
            "name --model or --step-ms", hint="the number of workers depends on the step"
        )
    from feedline.tuning.search import check_times  # loads numpy

    check_times(budget, step_ms)
    rows = None
    if batch_size is not None:
        rows = options.parse_auto(batch_size, "--batch-size", least=1)
    if schedule is not None:
        Schedule.parse(schedule)
    from feedline.throughput.what_if import Changes

    changes = [Changes.parse(text) for text in what_if or ()]

    from feedline.cli.tune_search import (  # loads torch
        folder_search,
        function_search,
        is_function_name,
    )

    if not Path(source).is_dir() and is_function_name(source):
        folder_only = {
            "--cache": cache is not None,
            "--decode": decode != "exact",
            "--all-files": all_files,
            "--batch-size auto": rows == "auto",
            "--device": device is not None,
        }
        if names := ", ".join(name for name, given in folder_only.items() if given):
            raise UsageError(
                f"{names} has no effect on a function, {source!r}",
                hint="configure the loader in the function",
            )
        assert rows != "auto"
        search = function_search(source, schedule=schedule, batch_size=rows, model=model)
    else:
        search = folder_search(
            Path(source),
            schedule=schedule or "224x1",
            batch_size=rows or 64,
            model=model,
            device=device,
            cache=cache,
            decode=decode,
            all_files=all_files,
        )
    found = _run(search, step_ms, budget)
    _print_result(found, search, changes, save=save, svg=svg, json=json)
    raise typer.Exit(_status(found, source))


def _run(search: TuneSearch, step_ms: float | None, budget_s: float) -> TuningResult:
    """Search, and end the workers of feedline's loaders."""
    from feedline.cli.progress import ProgressBar
    from feedline.loader import DataLoader
    from feedline.tuning.result import worker_name
    from feedline.tuning.tune import search_settings

    loader = search.loader
    own = loader if isinstance(loader, DataLoader) else contextlib.nullcontext()
    # The bar would use the cores that are being measured.
    with own, ProgressBar("training step without loading", clock="text", steady=True) as bar:

        def on_progress(now: SearchProgress) -> None:
            where = f"{now.size} px: " if now.size else ""
            what = "training step without loading"
            if now.setting is not None:
                what = worker_name(now.setting.workers)
            if now.latest is not None:
                what += f" (last {now.latest.steps_per_s:.1f} steps/s)"
            end = f"{as_seconds(now.seconds)}, about {as_seconds(now.seconds_left)} left"
            total = now.trials + now.trials_left
            bar.update(now.trials, total=total, what=f"{where}{what}", end=end)

        found = search_settings(
            loader,
            search.step,
            step_ms=step_ms,
            budget_s=budget_s,
            on_progress=on_progress,
            warmup_batches=search.warmup_batches,
        )
    return replace(found, files=search.files) if search.files else found


def _print_result(
    found: TuningResult,
    search: TuneSearch,
    changes: list[Changes],
    *,
    save: Path | None,
    svg: Path | None,
    json: Path | None,
) -> None:
    from feedline.tuning.result import curve_svg

    payload: dict[str, Any] = found.as_dict()
    with contextlib.ExitStack() as files:  # each is written, even if another one fails
        files.callback(write_json, json, payload)
        if svg is not None:
            files.callback(write_text, svg, curve_svg(found))
        if save is not None and found.saved is not None:
            files.callback(write_text, save, found.saved.as_text())
        echo_text(str(found))
        if save is not None and found.saved is not None:
            echo(f"feedline.DataLoader(..., settings={str(save)!r})")
            if found.busy_machine:
                complain(f"{save}: {found.busy_machine}", "warning", "run it on an idle machine")
        elif save is not None:
            complain(f"{save} was not written: nothing was measured", "note")
        if search.batch_sizes is not None:
            payload["batch_sizes"] = search.batch_sizes.as_dict()
        if search.images is not None or changes:
            payload |= _predict_changes(found, changes, search.images, search.schedule)


def _predict_changes(
    found: TuningResult,
    changes: Sequence[Changes],
    images: ImageFolder | None,
    schedule: str | None,
) -> dict[str, Any]:
    """Print the forecast of the schedule and of each change, and return them JSON-able.

    Changes that cannot be predicted are printed to stderr and in "not_predicted", with the reason.
    """
    missing: list[dict[str, str]] = []

    def not_predicted(subject: str, reason: str) -> None:
        missing.append({"asked": subject, "reason": reason})
        complain(f"not predicted: {subject}: {reason}")

    stopped = [phase for phase in found.phases if phase.status in ("interrupted", "error")]
    if stopped:
        reason = stopped[0].error or "Ctrl-C ended the search"
        for subject in (*["the schedule"] * (schedule is not None), *map(str, changes)):
            not_predicted(subject, reason)
        return {"what_if": [], "not_predicted": missing}
    if found.rates:
        for phase in found.phases:
            if phase.best is None and phase.size:
                not_predicted(f"{phase.size} px", phase.reason)
    result: dict[str, Any] = {"what_if": []}
    if schedule is not None and images is not None:
        try:
            forecast = found.forecast(schedule, images=len(images))
            echo_text(f"\n{forecast}")
            result["forecast"] = forecast.as_dict()
        except UsageError as error:
            not_predicted("the schedule", str(error))
    for each in changes:
        try:
            predicted = found.what_if(each)
            echo_text(f"\n{predicted}")
            result["what_if"].append(predicted.as_dict())
        except UsageError as error:
            not_predicted(str(each), str(error))
    return {**result, "not_predicted": missing}


def _status(found: TuningResult, source: str) -> int:
    """Print why a search did not finish, and return the exit status."""
    ends = {phase.status for phase in found.phases}
    if found.failure is not None:
        echo_text(found.failure.traceback, err=True)
        trials = sum(len(phase.trials) for phase in found.phases)
        complain(
            f"{source}: {found.failure.summary} (after {plural(trials, 'trial')})",
            "error",
        )
        return _FAILED
    if "interrupted" in ends:
        complain("interrupted")
        return _INTERRUPTED
    if "budget" in ends:
        complain(
            "the time limit ended the search",
            "warning",
            f"--budget {found.full_search_s:.0f} is enough",
        )
    return 0 if ends <= {"done"} else _INCONCLUSIVE
