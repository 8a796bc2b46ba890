"""A recipe from wherever its settings are: a file, the run that goes on, the command line.

Guarantees: each setting has one value, the last one of: its default, the preset's, the earlier
run's, the file's, the one given here. A name that is not known is an error that names close ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from feedline.errors import UsageError
from feedline.stores.read_file import read_small
from feedline.train.known_names import refuse_unknown
from feedline.train.presets import preset_named
from feedline.train.recipe import Recipe
from feedline.train.run_settings import RunSettings

__all__ = ["as_toml", "read_settings", "recipe_of"]

_MOST_BYTES = 1 << 20
_SETTINGS = [each.name for each in fields(Recipe) if each.init]
_OF_PRESETS = ["preset", "epochs"]


def read_settings(file: Path) -> tuple[dict[str, Any], RunSettings]:
    """What a TOML file says: settings of a recipe by name, and where and how it is trained.

    Those of a `Recipe`, `preset` and `epochs` stand at the top; phases with settings of their own
    are tables, [[schedule]]; the table [run] has those of `RunSettings`, its places as seen from
    the current folder.

    Raises:
        UsageError: it cannot be read, is no TOML, or [run] has what is not known or out of range.
    """
    try:
        data = read_small(file, _MOST_BYTES)
    except (OSError, ValueError) as error:
        raise UsageError(f"--config {file} cannot be read: {error}") from None
    if len(data) > _MOST_BYTES:
        raise UsageError(f"--config {file} is larger than 1 MiB, so it is no recipe")
    try:
        said: dict[str, Any] = msgspec.toml.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"--config {file} is no TOML that can be read: {error}") from None
    run = said.pop("run", {})
    if not isinstance(run, dict):
        raise UsageError(f"--config {file}: run is a table, [run], got {run!r}")
    try:
        return said, RunSettings.read(run)
    except UsageError as error:
        raise UsageError(f"--config {file}: {error}") from None


def recipe_of(given: Mapping[str, Any], *under: Mapping[str, Any]) -> Recipe:
    """A recipe.

    Args:
        given: settings by name, of the command line, say; None stands for one that was left out.
        under: settings that count where those are left out, each before the next: a file's, an
            earlier run's.

    Raises:
        UsageError: a setting is not known or out of range, or settings exclude one another.
        ScheduleError: the schedule does not parse.
    """
    settings: dict[str, Any] = {}
    for layer in (*reversed(under), given):
        named = {name: value for name, value in layer.items() if value is not None}
        refuse_unknown(
            named,
            [*_SETTINGS, *_OF_PRESETS],
            "a recipe",
            elsewhere=[each.name for each in fields(RunSettings)],
            where="to the table [run]",
        )
        for one, others in (("schedule", _OF_PRESETS), ("preset", ["schedule"])):
            if one in named:  # in the place of what says the same otherwise
                settings = {name: value for name, value in settings.items() if name not in others}
        settings |= named
    preset, epochs = settings.pop("preset", None), settings.pop("epochs", None)
    if preset is None:
        if epochs is not None:
            raise UsageError("epochs is of a preset; a schedule says the epochs of each phase")
        return Recipe(**settings)
    if "schedule" in settings:
        raise UsageError(f"both a schedule and the preset {preset!r} are given; leave one out")
    if isinstance(epochs, bool) or not isinstance(epochs, int) or not 1 <= epochs <= 100_000:
        raise UsageError(
            f"for how many epochs is the preset {preset!r}? Give epochs (--epochs), a whole number "
            + ("from 1" if epochs is None else f"from 1, not {epochs!r}")
        )
    own = preset_named(preset)
    return Recipe(**(own.recipe | {"schedule": own.phases(epochs)} | settings))


def as_toml(recipe: Recipe, asked: RunSettings) -> str:
    """A file that reads back as this recipe, and where and how it is trained again.

    The folder that the run writes to is not in it, nor the run that it goes on from.
    """
    said = {name: value for name, value in recipe.as_dict().items() if value is not None}
    schedule = said.pop("schedule")
    lines = [f"{name} = {_value(value)}" for name, value in said.items()]
    if isinstance(schedule, str):
        lines.insert(1, f"schedule = {_value(schedule)}")
    else:
        for phase in schedule:
            lines += ["", "[[schedule]]", *(f"{k} = {_value(v)}" for k, v in phase.items())]
    if run := asked.as_dict():
        lines += ["", "[run]", *(f"{name} = {_value(value)}" for name, value in run.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """As TOML has it: text, numbers and lists of text are as in JSON, but for one character."""
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
