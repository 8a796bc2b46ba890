"""Settings of a training in layers, with presets, as TOML, and compared with those of a checkpoint.

Guarantees: the last one given counts, in the order: default, preset, resumed run, file, argument.
An unknown name is an error that suggests close ones. The epochs of a preset's phases add up, for
any number of epochs; sizes are multiples of 32 px, which all common networks accept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from feedline.errors import StateError, UsageError
from feedline.sources.files import read_small
from feedline.text import encodable, shell_command
from feedline.train.recipe import Recipe, RunSettings, TrainPhase
from feedline.train.run_folder import RECIPE_NAME
from feedline.train.settings import check_names, setting_names

GRID_PX = 32
"""Total stride of common networks; their patch sizes divide it."""

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
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"--config {file} cannot be read: {why}") from None


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
                "needs an image size or a preset; a schedule has the epochs of each phase",
                argument="epochs",
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
    """Settings as TOML for `read_config`, without the folder of the run and the resumed run.

    Bytes of a path that are not UTF-8 are escaped: TOML cannot have them.
    """
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
            given = {
                name: encodable(value) if isinstance(value, str) else value
                for name, value in table.items()
                if value is not None
            }
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
    these epochs may follow: return True. A StateError names other settings that differ.
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
    again = f"--config {shell_command(str(config))}" if config.is_file() else "DIR"
    return f"feedline train {again}"


def round_size(size: float) -> int:
    """The nearest multiple of 32 px, at least 32."""
    return max(GRID_PX, int(size / GRID_PX + 0.5) * GRID_PX)


def _phases(sizes: Iterable[float]) -> list[TrainPhase]:
    """Phases from the size of each epoch."""
    return [
        TrainPhase(size=size, epochs=len(list(epochs)))
        for size, epochs in groupby(map(round_size, sizes))
    ]


def _ramp(at: float, begin: float, end: float) -> float:
    """0 before `begin`, 1 after `end`, linear in between."""
    return min(1.0, max(0.0, (at - begin) / (end - begin)))


def _efficientnetv2(epochs: int) -> dict[str, Any]:
    """Tan and Le, "EfficientNetV2", 2021, table 6, for its S: four stages, 128 to 300 px.

    Dropout from 0.1 to 0.3, no mixup. RandAugment grows threefold, as in the paper from magnitude 5
    to 15, but from 3 to 9 on torchvision's scale of 30.
    """
    stages = min(4, epochs)
    stage = [((epoch + 1) * stages - 1) // epochs for epoch in range(epochs)]
    sizes = (128 + (300 - 128) * k / max(1, stages - 1) for k in stage)
    # The table has a third of the last stage's dropout and magnitude in the first one.
    return {"schedule": _phases(sizes), "aa": "rand", "drop": 0.3, "ramp_from": 1 / 3}


def _ffcv(epochs: int) -> dict[str, Any]:
    """ImageNet run of 88 epochs by the FFCV authors (github.com/libffcv/ffcv-imagenet).

    160 px, from epoch 65 to 76 up to 192 px, validated at 256 px. The step from 160 to 192 px is in
    the middle of the ramp.
    """
    sizes = (160 + 32 * _ramp(88 * epoch / epochs, 65, 76) for epoch in range(epochs))
    return {"schedule": _phases(sizes), "opt": "sgd", "smoothing": 0.1, "val_image_size": 256}


def _mosaicml(epochs: int) -> dict[str, Any]:
    """ProgressiveResizing of MosaicML Composer: half of the size for half of the epochs.

    Then growing to the full size, which the last fifth has.
    """
    sizes = (224 * (0.5 + 0.5 * _ramp(epoch / epochs, 0.5, 0.8)) for epoch in range(epochs))
    return {"schedule": _phases(sizes), "val_image_size": 224}


def _fixres(epochs: int) -> dict[str, Any]:
    """Touvron et al., "Fixing the train-test resolution discrepancy", 2019: 224 px, then 288."""
    return {"schedule": _phases([224] * epochs), "val_image_size": 288}


PRESETS = {
    "efficientnetv2": _efficientnetv2,
    "ffcv": _ffcv,
    "mosaicml": _mosaicml,
    "fixres": _fixres,
}


def preset_settings(name: str, epochs: int) -> dict[str, Any]:
    """Recipe settings of a preset (UsageError if the name is unknown)."""
    if name not in PRESETS:
        raise UsageError(f"unknown preset {name!r}", hint=f"presets: {', '.join(PRESETS)}")
    return PRESETS[name](epochs)
