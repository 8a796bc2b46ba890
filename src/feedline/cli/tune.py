"""`feedline tune`: the settings with which a training is as fast as it can be.

Imports torch only when it runs.
"""

from __future__ import annotations

import contextlib
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feedline.cli.output import JsonFile, SettingsFile, SvgFile, complain, write_json, write_text
from feedline.cli.what_if import WhatIfs, need_originals, parsed, predictions, refuse_cache
from feedline.errors import UsageError
from feedline.plan.schedule import Schedule
from feedline.tuning.arguments import check_budget, check_step_ms

if TYPE_CHECKING:
    from feedline.tuning.failure import Failure
    from feedline.tuning.tuned import Tuned

__all__ = ["tune"]

_INTERRUPTED, _INCONCLUSIVE, _FAILED = 130, 3, 1

Files = Enum("Files", {"warm": "warm", "as-is": "as-is"})
Decode = Enum("Decode", {"exact": "exact", "scaled": "scaled"})


def tune(
    source: Annotated[
        str,
        typer.Argument(
            metavar="DIR|MODULE:FUNCTION",
            help="Class folders with images, or train/ with those, or a cache; or a function that "
            "gives a DataLoader or a Dataset.",
        ),
    ],
    schedule: Annotated[
        str | None,
        typer.Option(
            help=r"Phases as SIZExEPOCHS\[@BATCH], comma separated. [dim]Default: 224x1.[/dim]"
        ),
    ] = None,
    batch_size: Annotated[
        str | None,
        typer.Option(
            metavar="auto|N",
            help="Images in a batch; auto: the most that a GPU holds, with --model. "
            "[dim]Default: 64.[/dim]",
        ),
    ] = None,
    gpu_memory: Annotated[
        float | None,
        typer.Option(help="GB of a GPU that is not here, for which auto estimates."),
    ] = None,
    step_ms: Annotated[
        float | None,
        typer.Option(help="How long a step takes at the largest size, in milliseconds."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|MODULE:FUNCTION",
            help="In its place: a timm model, whose steps are done; or a step, a function of a "
            "batch.",
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="Where a timm model trains: auto, cpu or cuda.")
    ] = "auto",
    cache: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A cache with smaller copies of the images.")
    ] = None,
    decode: Annotated[Decode, typer.Option(help="How JPEGs are decoded.")] = Decode.exact,
    files: Annotated[
        Files,
        typer.Option(help="warm: some 1000 images, read before; as-is: all of them, as they are."),
    ] = Files.warm,
    budget: Annotated[float, typer.Option(help="Seconds that it may take.")] = 60.0,
    what_if: WhatIfs = None,
    save: SettingsFile = None,
    svg: SvgFile = None,
    json: JsonFile = None,
) -> None:
    """Find the settings with which a training is as fast as it can be.

    A training is rehearsed at each size of the schedule: first over batches that
    are kept, as if data were for free, then with one setting after another: the
    number of workers, and where batches come unevenly, the depth of prefetch and
    the size of pieces. Workers live from trial to trial. Ctrl-C prints what is
    known so far. Of a folder it also says what each phase of the schedule will
    be, and would be with something changed. With --batch-size auto the largest
    batch that a GPU's memory holds is found before, for each size.

    Example: feedline tune demo-data --schedule 112x1,224x1 --step-ms 40 --save tuned.json
    """
    if (step_ms is None) == (model is None) and (batch_size != "auto" or step_ms is None):
        raise UsageError(
            "name either --step-ms, how long a step takes, or --model, of which steps are done; "
            "how many workers keep up depends on it"
        )

    check_step_ms(step_ms, "--step-ms")
    check_budget(budget, "--budget")
    if batch_size not in (None, "auto") and not (batch_size.isdecimal() and int(batch_size)):
        raise UsageError(
            f"--batch-size must be 'auto' or a whole number of at least 1, got {batch_size!r}"
        )
    if schedule is not None:
        Schedule.parse(schedule)
    changes = parsed(what_if)
    from feedline.cli.tune_search import of_folder, of_function
    from feedline.tuning.user_code import is_function_name

    folder = Path(source)
    if not folder.is_dir() and is_function_name(source):
        asked = {
            "--cache": cache is not None,
            "--decode": decode is not Decode.exact,
            "--files": files is not Files.warm,
            "--batch-size auto": batch_size == "auto",
            "--gpu-memory": gpu_memory is not None,
            "--device": device != "auto",
        }
        if useless := [name for name, given in asked.items() if given]:
            raise UsageError(
                f"{', '.join(useless)} is about a folder of images, and {source!r} is a function: "
                "let it build its loader so, and leave it out here"
            )
        refuse_cache(changes, source)
        search = of_function(source, schedule, batch_size, model)
    else:
        search = of_folder(
            folder,
            schedule="224x1" if schedule is None else schedule,
            batch_size="64" if batch_size is None else batch_size,
            gpu_memory=gpu_memory,
            model=model,
            step_ms=step_ms,
            device=device,
            cache=cache,
            decode=decode.value,
            warm=files is Files.warm,
        )
        assert search.folder is not None, "it is over one"
        images, batches = search.folder
        need_originals(changes, images)
        if batches.estimated and step_ms is None:
            write_json(json, batches.as_dict())
            complain(
                "workers were not tuned: steps of a GPU cannot be done here; name --step-ms, how "
                "long one takes there at the largest size",
                label="",
            )
            raise typer.Exit(_INCONCLUSIVE)

    from rich.progress import TimeElapsedColumn

    from feedline.cli.progress import progress_bar
    from feedline.tuning.curve import curve_svg
    from feedline.tuning.trial import Trial

    with progress_bar(TimeElapsedColumn()) as bar:
        task = bar.add_task("with data for free", total=None)

        def told(size: int | None, trial: Trial) -> None:
            at = f"{size} px: " if size else ""
            crew = f"{trial.workers} worker{'s' * (trial.workers > 1)}"
            bar.update(task, description=f"{at}{crew}, {trial.steps_per_s:.1f} steps/s")

        found = search.run(step_ms, budget, told)
    said = found.as_dict()
    with contextlib.ExitStack() as written:  # each of them, whatever becomes of the others
        written.callback(write_json, json, said)
        if svg is not None:
            written.callback(write_text, svg, curve_svg(found))
        if save is not None and found.saved is not None:
            written.callback(write_text, save, found.saved.as_text())
        typer.echo(str(found))
        if save is not None and found.saved is not None:
            typer.echo(f"feedline.DataLoader(..., settings={str(save)!r})")
        elif save is not None:
            complain(f"{save} was not written, as nothing was measured", label="")
        if search.folder is not None:
            images, batches = search.folder
            said |= batches.as_dict()
            said |= predictions(found, changes, images, batches.schedule)
        elif changes:
            said |= predictions(found, changes)
    if found.failure is not None:
        _say_failure(source, found, found.failure)
        raise typer.Exit(_FAILED)
    if any(phase.ended == "interrupted" for phase in found.phases):
        complain("interrupted", label="")
        raise typer.Exit(_INTERRUPTED)
    if any(phase.ended != "done" for phase in found.phases):
        if any(phase.ended == "budget" for phase in found.phases):
            complain(
                "the time was over before the search was; run it again with --budget "
                f"{found.needs_s:.0f}",
                label="",
            )
        raise typer.Exit(_INCONCLUSIVE)


def _say_failure(source: str, found: Tuned, failure: Failure) -> None:
    """Show what the user's code has raised, and say what becomes of it in a closing line."""
    typer.echo(failure.shown, err=True)
    trials = sum(len(phase.trials) for phase in found.phases)
    when = "before the first trial"
    if trials:
        when = f"after {trials} trial{'s' * (trials > 1)}, and what these gave is kept"
    complain(f"{source}: {failure.said}, {when}. Mend that, and run this again")
