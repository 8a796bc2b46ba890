"""A recipe from wherever its settings are: a file, the run that goes on, the command line.

Guarantees: each setting has one value, the last one of: its default, the preset's, the file's or
the earlier run's, the one given here. A name that is not known is an error that names close ones.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from feedline.errors import UsageError
from feedline.stores.read_file import read_small
from feedline.train.presets import preset_named
from feedline.train.recipe import Recipe

__all__ = ["as_toml", "read_settings", "recipe_of"]

_MOST_BYTES = 1 << 20
_SETTINGS = [each.name for each in fields(Recipe) if each.init]
_OF_PRESETS = ["preset", "epochs"]


def read_settings(file: Path) -> dict[str, Any]:
    """The settings that a TOML file says: those of a `Recipe` by their names, `preset`, `epochs`.

    Phases with settings of their own are tables: [[schedule]].

    Raises:
        UsageError: it cannot be read, or is no TOML.
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
    return said


def recipe_of(given: Mapping[str, Any], under: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe.

    Args:
        given: settings by name, of the command line, say; None stands for one that was left out.
        under: settings that count where those are left out: a file's, or an earlier run's.

    Raises:
        UsageError: a setting is not known or out of range, or settings exclude one another.
        ScheduleError: the schedule does not parse.
    """
    named = {name: value for name, value in given.items() if value is not None}
    known = [*_SETTINGS, *_OF_PRESETS]
    for name in (*(under or {}), *named):
        if name not in known:
            close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            hint = f"; close ones: {', '.join(close)}" if close else f"; known: {', '.join(known)}"
            raise UsageError(f"a recipe has no setting {name!r}{hint}")
    below = dict(under or {})
    for one, others in (("schedule", _OF_PRESETS), ("preset", ["schedule"])):
        if one in named:  # in the place of what says the same otherwise
            below = {name: value for name, value in below.items() if name not in others}
    settings = below | named
    preset, epochs = settings.pop("preset", None), settings.pop("epochs", None)
    if preset is None:
        if epochs is not None:
            raise UsageError("epochs is of a preset; a schedule says the epochs of each phase")
        return Recipe(**settings)
    if "schedule" in settings:
        raise UsageError(f"both a schedule and the preset {preset!r} are given; leave one out")
    if isinstance(epochs, bool) or not isinstance(epochs, int) or not 1 <= epochs <= 100_000:
        raise UsageError(
            f"for how many epochs is the preset {preset!r}? Give epochs, a whole number from 1, "
            f"got {epochs!r}"
        )
    own = preset_named(preset)
    return Recipe(**(own.recipe | {"schedule": own.phases(epochs)} | settings))


def as_toml(recipe: Recipe) -> str:
    """A recipe as a file that reads back equal."""
    said = {name: value for name, value in recipe.as_dict().items() if value is not None}
    schedule = said.pop("schedule")
    lines = [f"{name} = {_value(value)}" for name, value in said.items()]
    if isinstance(schedule, str):
        lines.insert(1, f"schedule = {_value(schedule)}")
    else:
        for phase in schedule:
            lines += ["", "[[schedule]]", *(f"{k} = {_value(v)}" for k, v in phase.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """As TOML has it: text, numbers and lists of text are as in JSON, but for one character."""
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
