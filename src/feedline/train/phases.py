"""Phases of a training: stretches at one image size, with settings of their own; and their checks.

Values are checked against annotations: `Annotated[float, Meta(ge=0)]` is a range, `Literal[...]` a
choice.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from feedline.errors import UsageError
from feedline.plan.schedule import MAX_SIZE_PX, Phase, Schedule

__all__ = [
    "REGULARISATION",
    "TrainPhase",
    "as_text",
    "check_names",
    "check_values",
    "parse",
    "ramp",
    "setting_names",
]

REGULARISATION = ("mixup", "cutmix", "reprob", "aa_strength", "drop", "drop_path")
"""Settings that grow with the image size: a network that sees fewer pixels needs less of them."""

Share = Annotated[float, Meta(ge=0, le=1)]
ShareBelow1 = Annotated[float, Meta(ge=0, lt=1)]
Positive = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
NotNegative = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
Count = Annotated[int, Meta(ge=0, le=1 << 24)]
Rows = Annotated[int, Meta(ge=1, le=1 << 24)]
Pixels = Annotated[int, Meta(ge=1, le=MAX_SIZE_PX)]
Epochs = Annotated[int, Meta(ge=1, le=1_000_000)]


def setting_names(settings: Any) -> list[str]:
    """Names of the arguments of a dataclass."""
    return [each.name for each in fields(settings) if each.init]


def check_values(settings: Any, names: Iterable[str], what: str = "") -> None:
    """Check values of a dataclass against its annotations.

    Raises:
        UsageError: a value is out of range or of another type.
    """
    hints = get_type_hints(type(settings), include_extras=True)
    for name in names:
        value, hint = getattr(settings, name), hints[name]
        try:
            msgspec.convert(value, hint)
        except msgspec.ValidationError as error:
            literals = [part for part in (hint, *get_args(hint)) if get_origin(part) is Literal]
            expected = [repr(choice) for part in literals for choice in get_args(part)]
            limit = str(error).partition(", got ")[0]  # such as: Expected `float` >= 0.0
            if limit.startswith("Expected"):
                expected.append(re.sub(r"Expected |`| \| null", "", limit))
            text = f"must be {' or '.join(expected)}, got {value!r}"
            if what:
                raise UsageError(f"{what}{name} {text}") from None
            raise UsageError(text, argument=name) from None


def check_names(
    names: Iterable[str], known: Sequence[str], what: str, *, elsewhere: Mapping[str, str] = {}
) -> None:
    """Check that all names are settings.

    Args:
        names: names to check.
        known: valid names.
        what: owner of these settings, for the message.
        elsewhere: names that belong somewhere else, and where.

    Raises:
        UsageError: a name is unknown. The message suggests close ones.
    """
    for name in set(names).difference(known):
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"; close ones: {', '.join(close)}" if close else f"; known: {', '.join(known)}"
        if name in elsewhere:
            hint = f"; it belongs {elsewhere[name]}"
        raise UsageError(f"{what} has no setting {name!r}{hint}")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainPhase:
    """A stretch of training at one image size. None means the recipe's value.

    Args:
        size: side of the images, in pixels.
        epochs: number of epochs.
        batch_size: images in a batch on each rank.
        lr: factor on the learning rate of the schedule.
        mixup, cutmix: alpha of the Beta distribution of the mixed share (Zhang et al., 2018; Yun et
            al., 2019); 0 for none. If both are above 0, each batch gets one of them, with equal
            probability.
        smoothing: label smoothing, 0 to below 1.
        aa_strength: strength of the recipe's `aa` policy, 0 to 1: factor on the magnitude of
            RandAugment, share of the images that TrivialAugment changes.
        reprob: probability of random erasing (Zhong et al., 2020), 0 to 1.
        drop: dropout before the head, 0 to below 1.
        drop_path: stochastic depth at the last block (Huang et al., 2016), 0 to below 1.
        val_image_size: side of the validation images, in pixels.

    Raises:
        UsageError: a value is out of range.
    """

    size: Pixels
    epochs: Epochs
    batch_size: Rows | None = None
    lr: Positive = 1.0
    mixup: NotNegative | None = None
    cutmix: NotNegative | None = None
    smoothing: ShareBelow1 | None = None
    aa_strength: Share | None = None
    reprob: Share | None = None
    drop: ShareBelow1 | None = None
    drop_path: ShareBelow1 | None = None
    val_image_size: Pixels | None = None

    def __post_init__(self) -> None:
        check_values(self, setting_names(self), "a phase's ")

    @classmethod
    def read(cls, table: object) -> TrainPhase:
        """Make a phase from plain values, such as a TOML table.

        Raises:
            UsageError: a setting is unknown or missing, or a value is out of range.
        """
        if not isinstance(table, Mapping):
            raise UsageError(f"a phase is a table with size and epochs, got {table!r}")
        check_names(table, setting_names(cls), "a phase")
        for name in ("size", "epochs"):
            if name not in table:
                raise UsageError(f"the phase {dict(table)!r} has no {name}")
        return cls(**table)

    def as_dict(self) -> dict[str, Any]:
        """Settings by name, without those left to the recipe."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def loader_phase(self) -> Phase:
        """The loader's view of the phase."""
        return Phase(size=self.size, epochs=self.epochs, batch_size=self.batch_size)

    def __str__(self) -> str:
        return str(self.loader_phase)


def parse(schedule: object) -> tuple[TrainPhase, ...]:
    """Make phases from text (see `plan.schedule`), or from a list of phases and tables.

    Raises:
        ScheduleError: the text does not parse.
        UsageError: it is something else, or a phase has no size.
    """
    if isinstance(schedule, str):
        parsed = Schedule.parse(schedule)
        if not parsed.sizes:
            raise UsageError(f"each phase of the schedule needs an image size, got {parsed}")
        return tuple(
            TrainPhase(size=size, epochs=phase.epochs, batch_size=phase.batch_size)
            for size, phase in zip(parsed.sizes, parsed.phases, strict=True)
        )
    if not isinstance(schedule, Sequence):
        raise UsageError(
            f"schedule must be text, such as '112x10,160x5', or a list of phases, got {schedule!r}"
        )
    return tuple(
        phase if isinstance(phase, TrainPhase) else TrainPhase.read(phase) for phase in schedule
    )


def as_text(phases: Sequence[TrainPhase]) -> str:
    """A schedule as text; "" if a phase has settings that the text form lacks."""
    plain = {"size", "epochs", "batch_size", "lr"}
    if any(set(phase.as_dict()) - plain or phase.lr != 1.0 for phase in phases):
        return ""
    return str(Schedule(tuple(phase.loader_phase for phase in phases)))


def ramp(
    phases: Sequence[TrainPhase], full: Mapping[str, Any], begin: float
) -> tuple[TrainPhase, ...]:
    """Fill in every setting of every phase.

    A setting that a phase leaves out has the recipe's value. Regularisation grows evenly from a
    share of it in the first phase to all of it in the last one (Tan and Le, "EfficientNetV2", 2021,
    section 4.2); a single phase has all of it.

    Args:
        phases: in order.
        full: the recipe's values, by name.
        begin: share of the regularisation in the first phase, 0 to 1.
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
    return tuple(found)
