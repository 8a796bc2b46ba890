"""Schedule of a training run: phases, each with an image size, batch size and strength.

Guarantees: a Schedule object is valid, and parsing its text form returns an equal schedule.
Strengths other than 1 have no text form: use `Phase` objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import TypeGuard

from feedline.errors import ScheduleError

MAX_IMAGE_SIZE = 16_384
"""Largest side of an image, in pixels."""

_OWN = "own"
_ITEM = re.compile(
    r"(?P<image_size>\d+|own)\s*[xX]\s*(?P<epochs>\d+)(?:\s*@\s*(?P<batch>\d+))?", re.ASCII
)
_FORM = 'SIZExEPOCHS[@BATCH], comma separated, e.g. "112x10@512,160x10@384,224x10@256"'


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """Part of a training with one image size, batch size and augmentation strength.

    Args:
        image_size: side of the square image, in pixels; None ("own" in text) leaves it to the
            dataset.
        epochs: length of the phase in epochs, at least 1.
        batch_size: rows per batch on each rank; None uses the loader's.
        strength: augmentation strength, 0 (none) to 1 (as configured in the transform).

    Raises:
        ScheduleError: a value is out of range.
    """

    image_size: int | None = None
    epochs: int
    batch_size: int | None = None
    strength: float = 1.0

    def __post_init__(self) -> None:
        bounds = [("epochs", self.epochs, 1_000_000)]
        if self.image_size is not None:
            bounds.append(("image_size", self.image_size, MAX_IMAGE_SIZE))
        if self.batch_size is not None:
            bounds.append(("batch_size", self.batch_size, 1 << 24))
        for name, value, limit in bounds:
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
                raise ScheduleError(
                    f"a phase's {name} must be a whole number from 1 to {limit}, got {value!r}"
                )
        if not isinstance(self.strength, int | float) or not 0.0 <= self.strength <= 1.0:
            raise ScheduleError(f"a phase's strength must be from 0 to 1, got {self.strength!r}")

    def __str__(self) -> str:
        batch = "" if self.batch_size is None else f"@{self.batch_size}"
        return f"{self.image_size or _OWN}x{self.epochs}{batch}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Phases in order. After the last one, training continues with its values.

    Args:
        phases: phases in order.

    Raises:
        ScheduleError: there is no phase, or only some phases have an image size.
    """

    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "phases", tuple(self.phases))
        if not self.phases:
            raise ScheduleError(f"a schedule needs at least one phase: {_FORM}")
        for phase in self.phases:
            if not isinstance(phase, Phase):
                raise ScheduleError(f"a schedule consists of feedline.Phase objects, got {phase!r}")
        if len({phase.image_size is None for phase in self.phases}) > 1:
            raise ScheduleError(f"either all phases or none must have an image_size, got {self}")

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Parse a schedule.

        Args:
            text: `SIZExEPOCHS[@BATCH]`, comma separated, e.g. `112x10@512,160x10@384`.

        Raises:
            ScheduleError: a part of the text cannot be parsed; the message names it.
        """
        phases = []
        for part in text.split(","):
            match = _ITEM.fullmatch(part.strip())
            if match is None:
                raise ScheduleError(
                    f"schedule {text!r}: cannot read {part.strip()!r}; expected {_FORM}"
                )
            batch = match["batch"]
            try:
                phase = Phase(
                    image_size=None if match["image_size"] == _OWN else int(match["image_size"]),
                    epochs=int(match["epochs"]),
                    batch_size=None if batch is None else int(batch),
                )
            except ValueError as error:
                raise ScheduleError(f"schedule {text!r}, at {part.strip()!r}: {error}") from None
            phases.append(phase)
        return cls(tuple(phases))

    @classmethod
    def of(cls, schedule: str | Schedule | Phase | Iterable[Phase]) -> Schedule:
        """Convert text, a sequence of phases or a Schedule to a Schedule."""
        if isinstance(schedule, Schedule):
            return schedule
        if isinstance(schedule, str):
            return cls.parse(schedule)
        if isinstance(schedule, Phase):
            return cls((schedule,))
        if not isinstance(schedule, Iterable):
            raise ScheduleError(
                "a schedule must be text, a feedline.Schedule or feedline.Phase objects, got "
                f"{schedule!r}"
            )
        return cls(tuple(schedule))

    @property
    def image_sizes(self) -> tuple[int, ...]:
        """Image size of each phase, in pixels; empty if no size is set."""
        return tuple(phase.image_size for phase in self.phases if phase.image_size is not None)

    @property
    def epochs(self) -> int:
        """Total number of epochs."""
        return sum(phase.epochs for phase in self.phases)

    def phase_at(self, epoch: int) -> Phase:
        """Return the phase of an epoch; after the end, the last phase."""
        for phase in self.phases:
            if epoch < phase.epochs:
                return phase
            epoch -= phase.epochs
        return self.phases[-1]

    def __str__(self) -> str:
        return ",".join(str(phase) for phase in self.phases)


def is_count(value: object) -> TypeGuard[int]:
    """Return True if a value is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_integer(value: object) -> TypeGuard[int]:
    """Return True if a value is a whole number, also of numpy, but not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_image_size(value: object) -> TypeGuard[int]:
    """Return True if a value is a valid image side in pixels."""
    return is_count(value) and 1 <= value <= MAX_IMAGE_SIZE
