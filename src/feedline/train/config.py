"""Settings of a training from the command line, a TOML file and the resumed run.

Guarantees: the last one given counts, in the order: default, preset, resumed run, file, argument.
An unknown name is an error that suggests close ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from feedline.errors import UsageError
from feedline.stores.read_file import read_small
from feedline.train.phases import check_names, setting_names
from feedline.train.presets import preset_settings
from feedline.train.recipe import Recipe
from feedline.train.resume import ResumedRun
from feedline.train.run_settings import RunSettings

__all__ = ["Assignment", "as_toml", "make_recipe", "read_config"]

_MAX_BYTES = 1 << 20
_PRESET = ("preset", "epochs")


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """Recipe and run settings of a training, and the run it resumes, if any."""

    recipe: Recipe
    run: RunSettings
    resumed: ResumedRun | None

    @classmethod
    def collect(
        cls, given: Mapping[str, Any] | Recipe, run: RunSettings, *, config: Path | None = None
    ) -> Assignment:
        """Collect the settings of a training.

        Args:
            given: a recipe, or recipe settings by name; None for one that was not given.
            run: run settings.
            config: a TOML file with settings that were not given.

        Raises:
            UsageError: the file cannot be read, a setting is unknown or out of range, or settings
                exclude each other.
            ScheduleError: the schedule does not parse.
            StateError: the resumed run has no readable checkpoint.
        """
        file, file_run = ({}, RunSettings()) if config is None else read_config(config)
        run = run.over(file_run)
        model = given.model if isinstance(given, Recipe) else given.get("model")
        resumed = ResumedRun.find(run, model=model or file.get("model"))
        if not isinstance(given, Recipe):
            given = make_recipe(given, file, {} if resumed is None else resumed.recipe)
        return cls(recipe=given, run=run, resumed=resumed)


def read_config(file: Path) -> tuple[dict[str, Any], RunSettings]:
    """Read a TOML file of settings.

    Recipe settings, `preset` and `epochs` are top-level keys; phases with their own settings are
    [[schedule]] tables; the [run] table has the fields of `RunSettings`, with paths relative to the
    current folder.

    Raises:
        UsageError: the file cannot be read or parsed, or a run setting is invalid.
    """
    try:
        data = read_small(file, _MAX_BYTES)
    except (OSError, ValueError) as error:
        raise UsageError(f"--config {file} cannot be read: {error}") from None
    if len(data) > _MAX_BYTES:
        raise UsageError(f"--config {file} is larger than 1 MiB, the limit of a recipe")
    try:
        table: dict[str, Any] = msgspec.toml.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"--config {file} is not valid TOML: {error}") from None
    run = table.pop("run", {})
    if not isinstance(run, dict):
        raise UsageError(f"--config {file}: run must be a table, [run], got {run!r}")
    try:
        return table, RunSettings.read(run)
    except UsageError as error:
        raise UsageError(f"--config {file}: {error}") from None


def make_recipe(given: Mapping[str, Any], *under: Mapping[str, Any]) -> Recipe:
    """Make a recipe from layers of settings.

    Args:
        given: settings by name; None for one that was not given.
        under: settings for names that were not given, the first layer before the next.

    Raises:
        UsageError: a setting is unknown or out of range, or settings exclude each other.
        ScheduleError: the schedule does not parse.
    """
    known = [*setting_names(Recipe), *_PRESET]
    run = dict.fromkeys(setting_names(RunSettings), "in the table [run]")
    settings: dict[str, Any] = {}
    for layer in (*reversed(under), given):
        named = {name: value for name, value in layer.items() if value is not None}
        check_names(named, known, "a recipe", elsewhere=run)
        for one, replaced in (("schedule", _PRESET), ("preset", ("schedule",))):
            if one in named:  # the warm-up was of other epochs
                for name in (*replaced, "warmup_epochs"):
                    settings.pop(name, None)
        settings |= named
    preset, epochs = settings.pop("preset", None), settings.pop("epochs", None)
    if preset is None:
        if epochs is not None:
            raise UsageError(
                "epochs needs a preset; a schedule has the epochs of each phase",
                hint='use preset ("--preset ffcv --epochs 30"), or schedule ("112x10,160x20")',
            )
        return Recipe(**settings)
    if "schedule" in settings:
        raise UsageError(f"both schedule and preset {preset!r} are given; use one of them")
    if isinstance(epochs, bool) or not isinstance(epochs, int) or not 1 <= epochs <= 100_000:
        raise UsageError(
            f"preset {preset!r} needs epochs, a whole number from 1 to 100000"
            + ("" if epochs is None else f", got {epochs!r}"),
            hint="--epochs N",
        )
    return Recipe(**(preset_settings(preset, epochs) | settings))


def as_toml(recipe: Recipe, run: RunSettings) -> str:
    """Settings as TOML for `read_config`, without the folder of the run and the resumed run."""
    settings = recipe.as_dict()
    schedule = settings.pop("schedule")
    if isinstance(schedule, str):
        settings = {"schedule": schedule, **settings}
        schedule = []
    tables = [("", settings), *(("[[schedule]]", phase) for phase in schedule)]
    tables.append(("[run]", run.as_dict()))
    lines: list[str] = []
    for name, table in tables:
        if table:
            lines += ["", name] if name else []
            lines += [f"{key} = {_value(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """A TOML value. Text, numbers and lists are as in JSON, except for one character."""
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
