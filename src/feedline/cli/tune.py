"""`feedline tune`: the settings with which a training is as fast as it can be.

Imports torch only when it runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from feedline.cli.output import JsonFile, SettingsFile, SvgFile, complain, write_json, write_text
from feedline.errors import UsageError

if TYPE_CHECKING:
    from feedline.tuning.tune import Told
    from feedline.tuning.tuned import Tuned

__all__ = ["tune"]

_INTERRUPTED, _INCONCLUSIVE = 130, 3

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
        int | None, typer.Option(help="Images in a batch. [dim]Default: 64.[/dim]")
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
    device: Annotated[str, typer.Option(help="Where it trains: auto, cpu or cuda.")] = "auto",
    cache: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A cache with smaller copies of the images.")
    ] = None,
    decode: Annotated[Decode, typer.Option(help="How JPEGs are decoded.")] = Decode.exact,
    files: Annotated[
        Files,
        typer.Option(help="warm: some 1000 images, read before; as-is: all of them, as they are."),
    ] = Files.warm,
    budget: Annotated[float, typer.Option(help="Seconds that it may take.")] = 60.0,
    save: SettingsFile = None,
    svg: SvgFile = None,
    json: JsonFile = None,
) -> None:
    """Find the settings with which a training is as fast as it can be.

    A training is rehearsed at each size of the schedule: first over batches that
    are kept, as if data were for free, then with one setting after another: the
    number of workers, and where batches come unevenly, the depth of prefetch and
    the size of pieces. Workers live from trial to trial. Ctrl-C prints what is
    known so far.

    Example: feedline tune demo-data --schedule 112x1,224x1 --step-ms 40 --save tuned.json
    """
    if (step_ms is None) == (model is None):
        raise UsageError(
            "name either --step-ms, how long a step takes, or --model, of which steps are done; "
            "how many workers keep up depends on it"
        )

    from feedline.tuning.user_code import is_function_name

    folder = Path(source)
    if not folder.is_dir() and is_function_name(source):
        asked = {
            "--cache": cache is not None,
            "--decode": decode is not Decode.exact,
            "--files": files is not Files.warm,
        }
        if useless := [name for name, given in asked.items() if given]:
            raise UsageError(
                f"{', '.join(useless)} is about a folder of images, and {source!r} is a function: "
                "let it build its loader so, and leave it out here"
            )
        search = _of_function(source, schedule, batch_size, model)
    else:
        search = _of_folder(
            folder,
            schedule=schedule or "224x1",
            batch_size=64 if batch_size is None else batch_size,
            model=model,
            device=device,
            cache=cache,
            decode=decode.value,
            warm=files is Files.warm,
        )

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

        found = search(step_ms, budget, told)
    typer.echo(str(found))
    if svg is not None:
        write_text(svg, curve_svg(found))
    if save is not None and found.saved is not None:
        write_text(save, found.saved.as_text())
        typer.echo(f'feedline.DataLoader(..., settings="{save}")')
    write_json(json, found.as_dict())
    if any(phase.ended == "interrupted" for phase in found.phases):
        complain("interrupted", label="")
        raise typer.Exit(_INTERRUPTED)
    if any(phase.ended != "done" for phase in found.phases):
        raise typer.Exit(_INCONCLUSIVE)


_Search: TypeAlias = "Callable[[float | None, float, Told], Tuned]"
"""What tunes: takes the milliseconds of a step, the budget and who is told."""


def _of_folder(
    folder: Path,
    *,
    schedule: str,
    batch_size: int,
    model: str | None,
    device: str,
    cache: Path | None,
    decode: Any,
    warm: bool,
) -> _Search:
    from feedline.images.folder import ImageFolder
    from feedline.stores.cache_layout import is_cache
    from feedline.train.splits import find_splits
    from feedline.tuning.folder import FolderTuning, tune_folder
    from feedline.tuning.user_code import function_named, is_function_name

    root = folder if is_cache(str(folder)) else find_splits(folder).train
    step, where = None, None
    if model is not None and is_function_name(model):
        step = function_named(model)
    elif model is not None:
        from feedline.train.rehearsed import rehearsed_step

        classes = len(ImageFolder(root).classes)
        step, where = rehearsed_step(
            model, classes=classes, schedule=schedule, rows=batch_size, device=device
        )

    def search(step_ms: float | None, budget: float, told: Told) -> Tuned:
        asked = FolderTuning(
            root=root,
            schedule=schedule,
            batch_size=batch_size,
            cache=cache,
            decode=decode,
            device=where,
            warm=warm,
            budget_s=budget,
        )
        return tune_folder(asked, step, step_ms=step_ms, told=told)

    return search


def _of_function(
    source: str, schedule: str | None, batch_size: int | None, model: str | None
) -> _Search:
    from feedline.loader import DataLoader
    from feedline.tuning.tune import tune as search_loader
    from feedline.tuning.user_code import function_named, is_function_name, loader_of

    step = None
    if model is not None:
        if not is_function_name(model):
            raise UsageError(
                f"--model {model!r} would be trained on a folder of images; for the loader of "
                f"{source!r} name a step, as module:function, or --step-ms"
            )
        step = function_named(model)
    loader = loader_of(source, schedule=schedule, batch_size=batch_size)

    def search(step_ms: float | None, budget: float, told: Told) -> Tuned:
        with contextlib.ExitStack() as stack:
            if isinstance(loader, DataLoader):
                stack.enter_context(loader)
            return search_loader(loader, step, step_ms=step_ms, budget_s=budget, told=told)

    return search
