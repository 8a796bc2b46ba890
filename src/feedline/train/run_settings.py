"""Where and how a recipe is trained: all that does not decide what the weights become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from feedline.errors import UsageError
from feedline.train.known_names import refuse_unknown
from feedline.train.recipe import Recipe

__all__ = ["PLACES", "RunSettings"]

PLACES = {"data": "DIR", "val": "--val", "cache": "--cache", "settings": "--settings"}
"""Settings that are files or folders which a run reads, with how the command line is told them."""

_NOTHING = Path("none")
_OF_ONE_START = ("out", "resume")  # another start has others
_COUNTS = ("checkpoint_every", "keep")
_SWITCHES = ("warm", "tensorboard")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """What a run is asked for besides its recipe.

    None leaves a setting to the file that is given, then to the run that is gone on from, then to
    its default. Places may be text; "none" as one is no place, also where the earlier run had some.

    Args:
        data: the images: a folder with train/ and val/, or of class folders.
        val: validation images, where they are not under `data`.
        cache: with smaller copies of the training images; see `DataLoader`.
        device: see `choose_device`; by default "auto".
        workers: "auto" or how many worker processes load images; by default what `settings` say,
            or else "auto".
        settings: a file of `feedline tune --save`; see `DataLoader`.
        out: the run's folder; by default `runs/MODEL-N`.
        resume: a checkpoint, a run's folder, or "auto".
        checkpoint_every: steps between checkpoints within an epoch; 0, the default, saves after
            epochs only.
        keep: checkpoints of finished epochs that are kept besides the last one; by default 0.
        warm: run each shape of the schedule before the training begins, see `warm_up`; by default
            where that helps: on a GPU, or with torch.compile.
        tensorboard: write figures for TensorBoard into the run's folder; by default false.

    Raises:
        UsageError: a value is out of range or of another kind.
    """

    data: Path | None = None
    val: Path | None = None
    cache: Path | None = None
    device: str | None = None
    workers: int | Literal["auto"] | None = None
    settings: Path | None = None
    out: Path | None = None
    resume: str | None = None
    checkpoint_every: int | None = None
    keep: int | None = None
    warm: bool | None = None
    tensorboard: bool | None = None

    def __post_init__(self) -> None:
        for name in (*PLACES, "out"):
            place = getattr(self, name)
            _need(name, place, isinstance(place, str | Path), "a path")
            object.__setattr__(self, name, None if place is None else Path(place))
        _need("resume", self.resume, isinstance(self.resume, str | Path), "a path, or 'auto'")
        if self.resume is not None:
            object.__setattr__(self, "resume", str(self.resume))
        _need("device", self.device, isinstance(self.device, str), "text")
        for name in _COUNTS:
            value = getattr(self, name)
            _need(name, value, _whole(value), "a whole number from 0")
        for name in _SWITCHES:
            value = getattr(self, name)
            _need(name, value, isinstance(value, bool), "true or false")
        valid = self.workers == "auto" or _whole(self.workers)
        _need("workers", self.workers, valid, "'auto' or 0 or above")

    def over(self, under: RunSettings) -> RunSettings:
        """These settings, and the others' where these say nothing."""
        more = {name: value for name, value in under._said().items() if name not in self._said()}
        if self.settings not in (None, _NOTHING):  # which say how many, where nothing else does
            more.pop("workers", None)
        return replace(self, **more)

    def settled(self) -> RunSettings:
        """The same, where "none" is none."""
        return replace(self, **{name: None for name in PLACES if getattr(self, name) == _NOTHING})

    def as_dict(self) -> dict[str, Any]:
        """What another start of the run needs of them, JSON-able: places are absolute."""
        said = {name: value for name, value in self._said().items() if name not in _OF_ONE_START}
        places = {name: str(said[name].absolute()) for name in PLACES if name in said}
        return said | places

    def _said(self) -> dict[str, Any]:
        named = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in named if value is not None}

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> RunSettings:
        """Settings from plain values, as a TOML table has them.

        Raises:
            UsageError: a setting is not known, or a value is of another kind or out of range.
        """
        refuse_unknown(
            said,
            [each.name for each in fields(cls)],
            "[run]",
            elsewhere=[each.name for each in fields(Recipe) if each.init],
            where="above [run], to the recipe",
        )
        return cls(**said)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _need(name: str, value: object, valid: bool, expected: str) -> None:
    if value is not None and not valid:
        raise UsageError(f"{name} must be {expected}, got {value!r}")
