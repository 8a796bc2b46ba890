"""Changes of a training and their text form: "workers=8,cores=16,gpu=2".

Guarantees: pure; invalid text raises an error that lists the valid forms.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from feedline.errors import UsageError
from feedline.throughput.limits import MAX_WORKERS

__all__ = ["Changes"]

_MAX_CORES = 4096
_MIN_GPU, _MAX_GPU = 0.01, 1000.0

_FORM = (
    f"write any of workers=1..{MAX_WORKERS}, cores=1..{_MAX_CORES} and "
    f"gpu={_MIN_GPU:g}..{_MAX_GPU:g} (factor of the step's speed), comma separated, e.g. "
    '"workers=8,cores=16,gpu=2"'
)
_WHOLE = re.compile(r"[0-9]{1,9}", re.ASCII)
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """Changes of a training; None keeps a value.

    Args:
        workers: number of worker processes.
        cores: number of cores available to all processes.
        gpu: factor of the step's compute speed.

    Raises:
        UsageError: a value is out of range.
    """

    workers: int | None = None
    cores: int | None = None
    gpu: float | None = None

    def __post_init__(self) -> None:
        for name, kind, expected, low, high in (
            ("workers", Integral, "a whole number", 1, MAX_WORKERS),
            ("cores", Integral, "a whole number", 1, _MAX_CORES),
            ("gpu", Real, "a number", _MIN_GPU, _MAX_GPU),
        ):
            value: Any = getattr(self, name)
            if value is None:
                continue
            number = isinstance(value, kind) and not isinstance(value, bool)
            if not number or not low <= value <= high:
                raise UsageError(
                    f"what-if: {name} must be {expected} from {low:g} to {high:g}, got {value!r}",
                    hint=_FORM,
                )

    @classmethod
    def parse(cls, text: str) -> Changes:
        """Parse changes from text.

        Raises:
            UsageError: the text is empty, a name is unknown or repeated, or a value is invalid.

        Example:
            >>> Changes.parse("workers=8,gpu=2")
            Changes(workers=8, cores=None, gpu=2.0)
        """
        if not isinstance(text, str):
            raise UsageError(f"what-if must be text, got {text!r}", hint=_FORM)
        found: dict[str, str] = {}
        for part in text.split(","):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or name not in cls.__slots__:
                problem = f"what-if {text!r}: cannot read {part.strip()!r}"
                raise UsageError(problem if text.strip() else "empty what-if", hint=_FORM)
            if name in found:
                raise UsageError(f"what-if {text!r}: {name} is given twice", hint=_FORM)
            found[name] = value

        # An invalid number stays text and is rejected by the range check.
        values: dict[str, Any] = {
            name: int(value) if _WHOLE.fullmatch(value) else value for name, value in found.items()
        }
        if _DECIMAL.fullmatch(found.get("gpu", "")):
            values["gpu"] = float(found["gpu"])
        return cls(**values)

    @classmethod
    def of(cls, changes: str | Changes) -> Changes:
        """Return changes that may be given as text."""
        return changes if isinstance(changes, Changes) else cls.parse(changes)

    def __str__(self) -> str:
        given = {name: getattr(self, name) for name in self.__slots__}
        return ", ".join(
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in given.items()
            if value is not None
        )
