"""What to do where a training cannot go on as it is: commands that do go on.

Guarantees: a file that is said to be whole was read, and a command that is said is taken.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import torch

from feedline.errors import StateError
from feedline.train.checkpoint import BEFORE_NAME, CHECKPOINT_NAME, EPOCHS, WEIGHTS, load_checkpoint
from feedline.train.recipe import Recipe
from feedline.train.run_files import RECIPE_NAME
from feedline.train.run_folder import BEST_NAME

__all__ = ["way_out", "whole_ones"]


def way_out(recipe: Recipe, precision: torch.dtype, out: Path) -> str:
    """What to do where the loss is lost.

    Args:
        recipe: that is trained.
        precision: that it computes in.
        out: the run's folder.
    """
    less = f"--lr {recipe.peak_lr / 3:.2g}"
    other = "--clip 1" if not recipe.clip else f"--clip {recipe.clip / 3:.2g}"
    if precision is torch.float16:
        other += ", --amp off, or bf16 where the GPU has it,"
    cause = "The learning rate is probably too high"
    if not (out / CHECKPOINT_NAME).is_file():
        return (
            f"{cause}, and no checkpoint was written yet. Start anew with a third of it: "
            f"{_anew(out)} {less}; {other} or a longer --warmup may help, too"
        )
    if earlier := [path for path in _earlier(out) if path.is_file()]:
        spoilt = (
            f"go on from an earlier one ({', '.join(path.name for path in earlier)}), in another "
            f"folder: feedline train --resume {_quoted(earlier[0])} --out {_quoted(_free(out))} "
            f"{less}"
        )
    else:
        spoilt = f"start anew: {_anew(out)} {less}"
    return (
        f"{cause}. The checkpoint before this is untouched; go on from it with a third of the "
        f"rate: feedline train --resume {_quoted(out)} {less}; {other} may help, too. If the loss "
        f"is lost at once again, that checkpoint is spoilt already: {spoilt}"
    )


def whole_ones(out: Path, damaged: list[Path]) -> str:
    """What to do where checkpoints of a run are damaged: what else is whole, and how to use it.

    Args:
        out: the run's folder.
        damaged: those that are.
    """
    before, *epochs = _earlier(out)
    others = [out / CHECKPOINT_NAME, *reversed(epochs), before]
    whole = [path for path in others if path not in damaged and path.is_file() and _reads(path)]
    best = out / BEST_NAME
    weights = best.is_file() and _reads(best, kind=WEIGHTS)
    good = ", ".join(path.name for path in [*whole, *([best] if weights else [])])
    if whole and whole[0].name == CHECKPOINT_NAME:
        how = f"go on from the last: feedline train --resume {_quoted(out)}"
    elif whole:
        how = (
            "go on from the latest, in another folder: feedline train --resume "
            f"{_quoted(whole[0])} --out {_quoted(_free(out))}"
        )
    elif weights:
        how = (
            "its weights work with feedline evaluate, predict and export, and a training can "
            f"begin with them: {_anew(out)} --pretrained {_quoted(best)}"
        )
    else:
        return f"nothing else in {out} can be gone on from; start anew: {_anew(out)}"
    return f"beside it {good} can be read; {how}"


def _anew(out: Path) -> str:
    """A command that begins anew with the run's settings, where they are there."""
    config = out / RECIPE_NAME
    return (
        f"feedline train --config {_quoted(config)}" if config.is_file() else "feedline train DIR"
    )


def _earlier(out: Path) -> list[Path]:
    """A run's checkpoints besides the last one: the one before it, whether it is there or not, and
    those of epochs, oldest first."""
    return [out / BEFORE_NAME, *sorted(out.glob(EPOCHS))]


def _reads(path: Path, **of: str) -> bool:
    try:
        load_checkpoint(path, **of)
    except StateError:
        return False
    return True


def _free(out: Path) -> Path:
    """A folder beside a run's that is not there yet."""
    number = 2
    while (there := out.with_name(f"{out.name}-again{number}")).exists():
        number += 1
    return there


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
