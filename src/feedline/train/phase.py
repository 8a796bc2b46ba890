"""One phase of a recipe: a stretch of training at one image size, with its own regularisation.

Guarantees: a phase that exists is valid; one that is `whole` says everything, and follows from the
recipe's own values by the rule that `grown` states.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from feedline.errors import UsageError
from feedline.plan.schedule import MAX_SIZE_PX, Phase, Schedule

__all__ = ["REGULARISATION", "TrainPhase", "grown", "of_schedule", "schedule_of"]

REGULARISATION = ("mixup", "cutmix", "erasing", "augment", "dropout", "drop_path")
"""What is weak while images are small: a network that sees less of an image needs less of it."""

_MOST_EPOCHS, _MOST_ROWS = 1_000_000, 1 << 24


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainPhase:
    """A stretch of training at one image size. None takes the recipe's own value; see `grown`.

    Args:
        size: side of the images, in pixels.
        epochs: how many it lasts.
        batch_size: rows of a batch on each rank.
        lr: the learning rate of the one curve is multiplied by it.
        mixup, cutmix: alpha of the Beta distribution from which their share is drawn (Zhang et
            al., 2018; Yun et al., 2019); 0 for none. Where both are above 0, each batch gets one of
            them, with equal chance.
        label_smoothing: share of the target that all classes get, 0 to below 1.
        augment: how strong the recipe's policy is, 0 (none) to 1 (all of it).
        erasing: the chance that a rectangle of an image is erased (Zhong et al., 2020), 0 to 1.
        dropout: before the head, 0 to below 1.
        drop_path: stochastic depth at the last block (Huang et al., 2016), 0 to below 1.
        val_size: side of the validation images, in pixels.

    Raises:
        UsageError: a value is out of range.
    """

    size: int
    epochs: int
    batch_size: int | None = None
    lr: float = 1.0
    mixup: float | None = None
    cutmix: float | None = None
    label_smoothing: float | None = None
    augment: float | None = None
    erasing: float | None = None
    dropout: float | None = None
    drop_path: float | None = None
    val_size: int | None = None

    def __post_init__(self) -> None:
        for name, most in (
            ("size", MAX_SIZE_PX),
            ("epochs", _MOST_EPOCHS),
            ("batch_size", _MOST_ROWS),
            ("val_size", MAX_SIZE_PX),
        ):
            _check(name, getattr(self, name), whole=True, least=1, most=most)
        _check("lr", self.lr, above=0.0)
        for name in ("mixup", "cutmix"):
            _check(name, getattr(self, name))
        for name in ("augment", "erasing"):
            _check(name, getattr(self, name), most=1.0)
        for name in ("label_smoothing", "dropout", "drop_path"):
            _check(name, getattr(self, name), below=1.0)

    @classmethod
    def read(cls, said: object) -> TrainPhase:
        """A phase from plain values, as a TOML table has them.

        Raises:
            UsageError: a setting is not known, or a value is out of range.
        """
        if not isinstance(said, Mapping):
            raise UsageError(f"a phase is a table with size and epochs, got {said!r}")
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(said) - set(known))
        missing = [name for name in ("size", "epochs") if name not in said]
        if unknown or missing:
            what = f"has no {missing[0]}" if missing else f"has {', '.join(map(repr, unknown))}"
            raise UsageError(f"the phase {dict(said)!r} {what}; it may have: {', '.join(known)}")
        return cls(**said)

    def as_dict(self) -> dict[str, Any]:
        """Its settings by name, without those that are left to the recipe."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def loads(self) -> Phase:
        """What the loader has to know of it."""
        return Phase(size=self.size, epochs=self.epochs, batch_size=self.batch_size)

    def __str__(self) -> str:
        return str(self.loads)


def _check(
    name: str,
    value: object,
    *,
    whole: bool = False,
    least: float = 0.0,
    most: float = math.inf,
    below: float = math.inf,
    above: float = -math.inf,
) -> None:
    """Check a value of a phase; None is always fine.

    Raises:
        UsageError: it is not of its kind, or out of range.
    """
    if value is None and name not in ("size", "epochs", "lr"):
        return
    number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    at = float(value) if number else math.nan  # type: ignore[arg-type]
    if max(least, above) <= at <= most and at < below and at != above:
        return
    kind = "a whole number" if whole else "a number"
    limits = f"from {least:g}" if above == -math.inf else f"above {above:g}"
    if most != math.inf:
        limits += f" to {most:g}"
    elif below != math.inf:
        limits += f" to below {below:g}"
    raise UsageError(f"a phase's {name} must be {kind} {limits}, got {value!r}")


def of_schedule(text: str) -> tuple[TrainPhase, ...]:
    """The phases of a schedule as text; see `plan.schedule`.

    Raises:
        ScheduleError: it does not parse.
        UsageError: a phase has no size.
    """
    parsed = Schedule.parse(text)
    if not parsed.sizes:
        raise UsageError(f"each phase of the schedule needs an image size, got {parsed}")
    return tuple(
        TrainPhase(size=phase.size, epochs=phase.epochs, batch_size=phase.batch_size)
        for phase in parsed.phases
        if phase.size is not None
    )


def schedule_of(phases: Iterable[TrainPhase]) -> Schedule:
    """What the loader has to know of the phases."""
    return Schedule(tuple(phase.loads for phase in phases))


def grown(
    phases: Sequence[TrainPhase], full: Mapping[str, Any], *, begin: float
) -> list[TrainPhase]:
    """Phases that say everything.

    What a phase leaves to the recipe is the recipe's value; of regularisation, a share of it that
    grows evenly from `begin` in the first phase to all in the last one, as in EfficientNetV2 (Tan
    and Le, 2021, section 4.2). A single phase has all.

    Args:
        phases: in order.
        full: the recipe's values, by the names of a phase's.
        begin: the first phase's share of regularisation, 0 to 1.
    """
    last = len(phases) - 1
    found = []
    for k, phase in enumerate(phases):
        share = min(1.0, begin + (1.0 - begin) * (k / last)) if last else 1.0
        filled = {
            name: value * share if name in REGULARISATION else value
            for name, value in full.items()
            if getattr(phase, name) is None
        }
        found.append(replace(phase, **filled))
    return found
