"""Settings of a training from the command line, a TOML file and the run that it resumes.

Guarantees: the last one given counts, in the order: default, preset, resumed run, file, argument.
An unknown name is an error that suggests close ones. A checkpoint is read once.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from feedline.errors import StateError, UsageError
from feedline.sources.files import read_small
from feedline.train.checkpoint import (
    BEST_NAME,
    CHECKPOINT_NAME,
    EPOCHS,
    PREVIOUS_NAME,
    load_checkpoint,
)
from feedline.train.presets import preset_settings
from feedline.train.recipe import Recipe, check_names, setting_names
from feedline.train.run_folder import RECIPE_NAME, find_checkpoint
from feedline.train.run_settings import PLACES, RunSettings

__all__ = [
    "Assignment",
    "ResumedRun",
    "as_toml",
    "changed_on_resume",
    "check_resumable",
    "differences",
    "make_recipe",
    "new_run_hint",
    "read_config",
    "share_batches",
]

_MAX_BYTES = 1 << 20
_PRESET = ("preset", "epochs")
# Settings that replace others of the layers below.
_REPLACED = {
    "schedule": (*_PRESET, "warmup_epochs"),  # the warm-up was of other epochs
    "preset": ("schedule", "warmup_epochs"),
    "pretrained": ("initial_checkpoint",),
    "initial_checkpoint": ("pretrained",),
    "amp_dtype": ("amp",),
}
# Settings that may change on resume: they are measured, or rescue a training that diverges.
_FREE_ON_RESUME = ("val_image_size", "lr", "clip_grad", "amp", "amp_dtype")


@dataclass(frozen=True, slots=True)
class ResumedRun:
    """A run to resume, from its last checkpoint or the one that was named."""

    checkpoint: Path
    content: dict[str, Any]  # cleared once it is restored, as it is large
    note: str  # for the user, or ""

    @property
    def between_epochs(self) -> int | None:
        """Number of finished epochs, if the run stands between two."""
        history = self.content["history"]
        return None if history["current"]["steps"] else len(history["records"])

    @classmethod
    def read(cls, checkpoint: Path) -> ResumedRun:
        """Read a checkpoint, or the newest readable one of its run if it is damaged or missing."""
        out, candidates = checkpoint.parent, [checkpoint]
        if checkpoint.name == CHECKPOINT_NAME:
            others = [out / PREVIOUS_NAME, *sorted(out.glob(EPOCHS), reverse=True)]
            candidates += [path for path in others if path.is_file()]
        reasons: list[str] = []
        for path in candidates:
            try:
                content = load_checkpoint(path)
            except StateError as error:
                if path.is_file() and error.__cause__ is None:  # another kind of file
                    raise
                reasons.append(str(error) if path.is_file() else f"{path} is missing")
            else:
                note = f"{'; '.join(reasons)}; resuming from {path}" if reasons else ""
                return cls(checkpoint, content, note)
        best = out / BEST_NAME
        weights = f" --initial-checkpoint {shlex.quote(str(best))}" if best.is_file() else ""
        raise StateError("; ".join(reasons), hint=f"start a new run: {new_run_hint(out)}{weights}")


@dataclass(frozen=True, slots=True)
class Assignment:
    """Recipe and run settings of a training, and the run it resumes, if any."""

    recipe: Recipe
    run: RunSettings
    resumed: ResumedRun | None

    @classmethod
    def collect(
        cls, given: Mapping[str, Any] | Recipe, run: RunSettings, *, config: Path | None = None
    ) -> Assignment:
        """Collect the settings of a training from arguments, None if not given, and a TOML file.

        UsageError if a setting or the file cannot be used, StateError if no run can be resumed.
        """
        file, file_run = ({}, RunSettings()) if config is None else read_config(config)
        run = run.over(file_run)
        model = given.model if isinstance(given, Recipe) else given.get("model")
        checkpoint = find_checkpoint(run.resume, out=run.out, model=model or file.get("model"))
        resumed = None if checkpoint is None else ResumedRun.read(checkpoint)
        if not isinstance(given, Recipe):
            given = make_recipe(given, file, {} if resumed is None else resumed.content["recipe"])
        whole = run if resumed is None else run.over(RunSettings.read(resumed.content["run"]))
        whole = whole.resolved()
        for name, option in PLACES.items():
            place = getattr(whole, name)
            if resumed and place and getattr(run, name) is None and not place.exists():
                value = "" if name == "data" else " PATH, or none"
                again = f"feedline train --resume {shlex.quote(str(resumed.checkpoint.parent))}"
                raise StateError(
                    f"cannot resume: {option} of the run, {place}, is missing",
                    hint=f"{again} {option}{value}",
                )
        return cls(given, whole, resumed)


def read_config(file: Path) -> tuple[dict[str, Any], RunSettings]:
    """Read a TOML file of recipe and run settings.

    Recipe settings, `preset` and `epochs` are top-level keys; phases with their own settings are
    [[schedule]] tables; the [run] table has the fields of `RunSettings`, with paths relative to the
    current folder.
    """
    try:
        data = read_small(file, _MAX_BYTES)
        if len(data) > _MAX_BYTES:
            raise UsageError("it is larger than 1 MiB, the limit of a recipe")
        table: dict[str, Any] = msgspec.toml.decode(data)
        run = table.pop("run", {})
        if not isinstance(run, dict):
            raise UsageError(f"run must be a table, [run], got {run!r}")
        return table, RunSettings.read(run)
    except UsageError as error:
        raise UsageError(f"--config {file}: {error}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"--config {file} is not valid TOML: {error}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"--config {file} cannot be read: {error}") from None


def make_recipe(given: Mapping[str, Any], *under: Mapping[str, Any]) -> Recipe:
    """Make a recipe from layers of settings, the first before the next; None is not given."""
    known = [*setting_names(Recipe), *_PRESET]
    run = dict.fromkeys(setting_names(RunSettings), "in the table [run]")
    settings: dict[str, Any] = {}
    for layer in (*reversed(under), given):
        named = {name: value for name, value in layer.items() if value is not None}
        check_names(named, known, "a recipe", elsewhere=run)
        replaced = {name for one in named if named[one] for name in _REPLACED.get(one, ())}
        if named.get("amp") is False:
            replaced.add("amp_dtype")
        settings = {name: settings[name] for name in settings if name not in replaced}
        settings |= named
    preset, epochs = settings.pop("preset", None), settings.pop("epochs", None)
    if preset is None:
        if epochs is not None:
            raise UsageError(
                "epochs needs an image size or a preset; a schedule has the epochs of each phase",
                hint="--image-size 224 --epochs 30, --preset ffcv --epochs 30, or "
                "--schedule 112x10,160x20",
            )
        return Recipe(**settings)
    if "schedule" in settings:
        raise UsageError(f"schedule and preset {preset!r} exclude each other", hint="leave one out")
    if isinstance(epochs, bool) or not isinstance(epochs, int) or not 1 <= epochs <= 100_000:
        raise UsageError(
            f"preset {preset!r} needs epochs, a whole number from 1 to 100000, got {epochs!r}",
            hint="--epochs N",
        )
    return Recipe(**(preset_settings(preset, epochs) | settings))


def as_toml(recipe: Recipe, run: RunSettings) -> str:
    """Settings as TOML for `read_config`, without the folder of the run and the resumed run."""
    settings = recipe.as_dict()
    schedule = settings.pop("schedule")
    if isinstance(schedule, str):
        settings, schedule = {"schedule": schedule, **settings}, []
    tables = [("", settings), *(("[[schedule]]", phase) for phase in schedule)]
    lines: list[str] = []
    for name, table in (*tables, ("[run]", run.as_dict())):
        if table:
            lines += ["", name] if name else []
            # Text, numbers and lists are as in JSON, except for one character.
            given = {name: value for name, value in table.items() if value is not None}
            values = (msgspec.json.encode(value).decode() for value in given.values())
            lines += [f"{key} = {value}" for key, value in zip(given, values, strict=True)]
    return "\n".join(lines).replace("\x7f", "\\u007f") + "\n"


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Entries of `now` that have another value in `saved`, as text; "" for none."""
    return "; ".join(
        f"{name} was {saved.get(name)!r}, is {value!r}"
        for name, value in now.items()
        if saved.get(name) != value
    )


def changed_on_resume(recipe: Recipe, saved: Mapping[str, Any]) -> str:
    """Settings that differ from `saved`, and may; "" for none."""
    own = recipe.as_dict()
    return differences(saved, {name: own[name] for name in _FREE_ON_RESUME})


def check_resumable(recipe: Recipe, saved: Mapping[str, Any], *, done: int | None = None) -> bool:
    """Check that a run with the recipe settings `saved` can continue under another recipe.

    If `done` epochs are finished and the run stands between two, another schedule that begins with
    these epochs may follow. Return True if it is another one.

    Raises:
        StateError: settings differ. The message names them.
    """
    own, free = recipe.as_dict(), set(_FREE_ON_RESUME)
    extended = done is not None and own["schedule"] != saved["schedule"] and recipe.epochs > done
    if done is not None and extended:
        before = Recipe(**{name: saved[name] for name in setting_names(Recipe) if name in saved})
        shapes = (
            [(phase.size, phase.batch_size) for phase in map(each.phase_at, range(done))]
            for each in (before, recipe)
        )
        extended = next(shapes) == next(shapes)
    if extended:
        free |= {"schedule", "warmup_epochs"}
    if found := differences(saved, {name: own[name] for name in own if name not in free}):
        raise StateError(
            f"cannot resume: the checkpoint has another recipe ({found})",
            hint="leave these settings out: --resume takes them from the run. Another schedule "
            "is possible only between two epochs, and has to begin with the finished ones",
        )
    return extended


def share_batches(recipe: Recipe, before: int, now: int) -> Recipe:
    """The same recipe on another number of ranks, with the same global batches (StateError)."""
    if before == now:
        return recipe

    def share(rows: int) -> int:
        if rows * before % now:
            raise StateError(
                f"cannot resume on {now} processes: the global batch of {rows * before} images "
                f"({rows} on each of {before}) cannot be divided by {now}",
                hint="use a number of processes that divides it",
            )
        return rows * before // now

    phases = [
        replace(phase, batch_size=phase.batch_size and share(phase.batch_size))
        for phase in recipe.own_phases()
    ]
    shared = {"schedule": phases, "batch_size": share(recipe.batch_size)}
    return Recipe(**(recipe.as_dict() | shared))


def new_run_hint(out: Path) -> str:
    """A command that starts a new run with the settings of this one."""
    config = out / RECIPE_NAME
    again = f"--config {shlex.quote(str(config))}" if config.is_file() else "DIR"
    return f"feedline train {again}"
