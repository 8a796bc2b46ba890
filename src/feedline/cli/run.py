"""`feedline run`: an unmodified program with feedline's loader."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feedline.running.launch import PatchSettings, start_program

OPTIONS_FIRST = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""Settings of the parser: options end at the program, of which -m is a part."""


def run(
    program: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT ARGS",
            help="Script, -m MODULE, -c CODE or - (stdin), and its arguments.",
        ),
    ],
    watch: Annotated[bool, typer.Option(help="Measure torch's own loaders; replace none.")] = False,
    off: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Class of a dataset or loader to leave to torch."),
    ] = None,
    workers: Annotated[
        str | None, typer.Option(metavar="auto", help="auto: adapt the number of workers.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for caches of resized copies.")
    ] = None,
    compare: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="First read N batches of each loader by torch and by feedline in turn, and print "
            "both rates and which parts are equal. Restores random states and the sampler, but not "
            "what the dataset stores in itself without workers, or in memory shared with them.",
        ),
    ] = 0,
    folder: Annotated[
        Path | None,
        typer.Option("--run", metavar="DIR", help="Folder of the run. Default: runs/SCRIPT-TIME."),
    ] = None,
) -> None:
    """Run a training script, unmodified, with feedline's loader in place of torch's DataLoader.

    At the end, prints the engine of each loader, images per second, where the time of the steps
    went, and the fix with the largest gain. The exit status is the script's.

    Example: feedline run train.py --epochs 2
    """
    settings = PatchSettings(
        folder=None if folder is None else str(folder.absolute()),
        watch=watch,
        off=tuple(off or ()),
        workers=workers,
        cache=None if cache is None else str(cache.absolute()),
        compare=compare,
    )
    start_program(program, settings)
