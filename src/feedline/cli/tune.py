"""`feedline tune`: the fewest workers with which a training is as fast as it can be.

Imports torch only when it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from feedline.cli.output import JsonFile, complain, write_json
from feedline.errors import UsageError

__all__ = ["tune"]

_INTERRUPTED, _INCONCLUSIVE = 130, 3


def tune(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Class folders with images, or train/ with those.")
    ],
    schedule: Annotated[
        str, typer.Option(help="Phases as SIZExEPOCHS[@BATCH], comma separated.")
    ] = "224x1",
    batch_size: Annotated[
        str,
        typer.Option(
            metavar="auto|N",
            help="Images in a batch; auto: the most that a GPU holds, with --model.",
        ),
    ] = "64",
    gpu_memory: Annotated[
        float | None,
        typer.Option(help="GB of a GPU that is not here, for which auto estimates."),
    ] = None,
    step_ms: Annotated[
        float | None,
        typer.Option(help="How long a step takes at the largest size, in milliseconds."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A timm model, whose training steps are done, in its place.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where it trains: auto, cpu or cuda.")] = "auto",
    budget: Annotated[float, typer.Option(help="Seconds that it may take.")] = 60.0,
    json: JsonFile = None,
) -> None:
    """Find the fewest workers with which a training is as fast as it can be.

    A training is rehearsed at each size of the schedule: first over batches that
    are kept, as if data were for free, then with one crew after another. Workers
    live from trial to trial. Ctrl-C prints what is known so far. With --batch-size
    auto the largest batch that a GPU's memory holds is found before, for each size.

    Example: feedline tune demo-data --schedule 112x1,224x1 --step-ms 40
    """
    if (step_ms is None) == (model is None) and (batch_size != "auto" or step_ms is None):
        raise UsageError(
            "name either --step-ms, how long a step takes, or --model, of which steps are done; "
            "how many workers keep up depends on it"
        )

    from rich.progress import TimeElapsedColumn

    from feedline.cli.batch_sizes import batches
    from feedline.cli.progress import progress_bar
    from feedline.images.crops import TrainCrop
    from feedline.images.folder import ImageFolder
    from feedline.loader import DataLoader
    from feedline.train.splits import find_splits
    from feedline.tuning.trial import Trial
    from feedline.tuning.tune import tune as search

    data: Any = ImageFolder(find_splits(folder).train, transform=TrainCrop())
    asked = batches(
        batch_size,
        schedule,
        model=model,
        classes=len(data.classes),
        images=len(data),
        device=device,
        gpu_memory=gpu_memory,
    )
    rows, schedule = asked.rows, asked.schedule
    if asked.estimated and step_ms is None:
        write_json(json, asked.as_dict())
        complain(
            "workers were not tuned: steps of a GPU cannot be done here; name --step-ms, how long "
            "one takes there at the largest size",
            label="",
        )
        raise typer.Exit(_INCONCLUSIVE)
    step, where = None, None
    if model is not None and step_ms is None:
        from feedline.train.rehearsed import rehearsed_step

        step, where = rehearsed_step(
            model, classes=len(data.classes), schedule=schedule, rows=rows, device=device
        )
    options: dict[str, Any] = {} if where is None else {"device": where}
    with (
        DataLoader(
            data, rows, schedule=schedule, num_workers="auto", drop_last=True, **options
        ) as loader,
        progress_bar(TimeElapsedColumn()) as bar,
    ):
        task = bar.add_task("with data for free", total=None)

        def told(size: int | None, trial: Trial) -> None:
            rate = asked.at(size) * trial.steps_per_s
            bar.update(task, description=f"{size} px: {trial.workers} workers, {rate:.0f} images/s")

        found = search(loader, step, step_ms=step_ms, budget_s=budget, told=told)
    typer.echo(str(found))
    write_json(json, {**found.as_dict(), **asked.as_dict()})
    if any(phase.ended == "interrupted" for phase in found.phases):
        complain("interrupted", label="")
        raise typer.Exit(_INTERRUPTED)
    if any(phase.ended != "done" for phase in found.phases):
        raise typer.Exit(_INCONCLUSIVE)
