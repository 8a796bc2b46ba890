"""What is changed, as a user writes it: "workers=8,cache=256,cores=16,gpu=2".

Guarantees: pure; what is not understood is an error that lists what may be written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

from feedline.engine.board import MAX_SEATS
from feedline.errors import UsageError

__all__ = ["Changes"]

_MOST_CORES = 4096
_LEAST_SIDE, _MOST_SIDE = 8, 8192  # of a cache's level
_LEAST_GPU, _MOST_GPU = 0.01, 1000.0

_FORM = (
    f"write any of workers=1..{MAX_SEATS}, cache={_LEAST_SIDE}..{_MOST_SIDE} (a level's side in "
    f"px) or cache=none, cores=1..{_MOST_CORES}, and gpu={_LEAST_GPU:g}..{_MOST_GPU:g} (how many "
    "times as fast the step computes), comma separated, e.g. "
    '"workers=8,cache=256,cores=16,gpu=2"'
)
_WHOLE = re.compile(r"[0-9]{1,9}", re.ASCII)
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """What is changed of a training; None: it stays as it is.

    Args:
        workers: processes that make batches.
        cache: the shorter side of the copies that are read, in pixels; "none": the originals.
        cores: that all processes may use.
        gpu: how many times as fast the step's own computing is.

    Raises:
        UsageError: a value is none that it can have.
    """

    workers: int | None = None
    cache: int | Literal["none"] | None = None
    cores: int | None = None
    gpu: float | None = None

    def __post_init__(self) -> None:
        for name, kind, said, least, most in (
            ("workers", Integral, "a whole number", 1, MAX_SEATS),
            ("cache", Integral, "a whole number", _LEAST_SIDE, _MOST_SIDE),
            ("cores", Integral, "a whole number", 1, _MOST_CORES),
            ("gpu", Real, "a number", _LEAST_GPU, _MOST_GPU),
        ):
            value: Any = getattr(self, name)
            if value is None or (name == "cache" and value == "none"):
                continue
            number = isinstance(value, kind) and not isinstance(value, bool)
            if not number or not least <= value <= most:
                raise UsageError(
                    f"what-if: {name} must be {said} from {least:g} to {most:g}, got {value!r}; "
                    f"{_FORM}"
                )

    @classmethod
    def parse(cls, text: str) -> Changes:
        """Read changes from text.

        Raises:
            UsageError: it is empty, a name is unknown or comes twice, or a value is none that it
                can have.

        Example:
            >>> Changes.parse("workers=8,gpu=2")
            Changes(workers=8, cache=None, cores=None, gpu=2.0)
        """
        if not isinstance(text, str):
            raise UsageError(f"a what-if is text, got {text!r}: {_FORM}")
        found: dict[str, str] = {}
        for part in text.split(","):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or name not in cls.__slots__:
                what = f"what-if {text!r}: cannot read {part.strip()!r}" if text.strip() else ""
                raise UsageError(f"{what or 'an empty what-if'}; {_FORM}")
            if name in found:
                raise UsageError(f"what-if {text!r}: {name} comes twice; {_FORM}")
            found[name] = value

        # What is no number stays text, which is refused with the rest that is out of range.
        values: dict[str, Any] = {
            name: int(value) if _WHOLE.fullmatch(value) else value for name, value in found.items()
        }
        if _DECIMAL.fullmatch(found.get("gpu", "")):
            values["gpu"] = float(found["gpu"])
        return cls(**values)

    @classmethod
    def of(cls, changes: str | Changes) -> Changes:
        """Take changes in either form."""
        return changes if isinstance(changes, Changes) else cls.parse(changes)

    def __str__(self) -> str:
        given = {name: getattr(self, name) for name in self.__slots__}
        return ", ".join(
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in given.items()
            if value is not None
        )
