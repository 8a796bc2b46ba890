"""The recipe: every setting that decides what the trained weights become.

Guarantees: a recipe that exists is valid and complete (defaults that depend on other settings are
filled in), and reads back equal from `as_dict`. Device, workers and folders are not part of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from feedline.errors import StateError, UsageError
from feedline.plan.schedule import MAX_SIZE_PX, Schedule

__all__ = ["Recipe", "differences"]

# Peak rates of the one cycle. AdamW's does not follow the batch size; SGD's does, linearly, from
# 0.1 at 256 rows (Goyal et al., "Accurate, large minibatch SGD", 2017).
_ADAMW_LR = 0.002
_SGD_LR_PER_ROW = 0.1 / 256
_ADAMW_DECAY, _SGD_DECAY = 0.05, 5e-5
# Settings that may differ when a run goes on: they change what is measured, not the weights.
_FREE_ON_RESUME = ("val_size",)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained, and how.

    Args:
        model: a timm model's name.
        schedule: phases as text, `SIZExEPOCHS[@BATCH]`, comma separated.
        batch_size: rows of a batch where the schedule names none.
        optimizer: "adamw" or "sgd" (with Nesterov momentum 0.9).
        lr: the highest learning rate of the one cycle; None takes 0.002 for AdamW and
            0.1 x batch_size / 256 for SGD.
        weight_decay: None takes 0.05 for AdamW and 5e-5 for SGD.
        warmup: the share of all steps in which the rate rises, 0 to below 1.
        label_smoothing: 0 (none) to below 1.
        amp: mixed precision: "auto", "off", "bf16" or "fp16".
        seed: of initial weights, dropout, order and augmentation; 0 to 2**63 - 1.
        val_size: side of validation images in pixels; None takes the schedule's last size.
        on_error: "raise" or "skip", for images that cannot be decoded.

    Raises:
        UsageError: a value is out of range.
        ScheduleError: the schedule does not parse.
    """

    model: str = "resnet18"
    schedule: str = "112x2,160x2,224x2"
    batch_size: int = 64
    optimizer: str = "adamw"
    lr: float | None = None
    weight_decay: float | None = None
    warmup: float = 0.25
    label_smoothing: float = 0.1
    amp: str = "auto"
    seed: int = 0
    val_size: int | None = None
    on_error: str = "raise"

    def __post_init__(self) -> None:
        parsed = Schedule.parse(self.schedule)
        if not parsed.sizes:
            raise UsageError(f"each phase of the schedule needs an image size, got {parsed}")
        self._fill("schedule", str(parsed))
        for name, valid, expected in (
            ("optimizer", self.optimizer in ("adamw", "sgd"), "'adamw' or 'sgd'"),
            ("amp", self.amp in ("auto", "off", "bf16", "fp16"), "'auto', 'off', 'bf16' or 'fp16'"),
            ("on_error", self.on_error in ("raise", "skip"), "'raise' or 'skip'"),
            _whole("batch_size", self.batch_size, 1, 1 << 24),
            _whole("val_size", 1 if self.val_size is None else self.val_size, 1, MAX_SIZE_PX),
            _whole("seed", self.seed, 0, 2**63 - 1),
            ("lr", self.lr is None or 0 < _number(self.lr) < math.inf, "above 0"),
            (
                "weight_decay",
                self.weight_decay is None or 0 <= _number(self.weight_decay) < math.inf,
                "0 or above",
            ),
            ("warmup", 0 <= _number(self.warmup) < 1, "from 0 to below 1"),
            ("label_smoothing", 0 <= _number(self.label_smoothing) < 1, "from 0 to below 1"),
        ):
            if not valid:
                raise UsageError(f"{name} must be {expected}, got {getattr(self, name)!r}")
        adamw = self.optimizer == "adamw"
        if self.val_size is None:
            self._fill("val_size", parsed.sizes[-1])
        if self.lr is None:
            self._fill("lr", _ADAMW_LR if adamw else _SGD_LR_PER_ROW * self.batch_size)
        if self.weight_decay is None:
            self._fill("weight_decay", _ADAMW_DECAY if adamw else _SGD_DECAY)

    def _fill(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def peak_lr(self) -> float:
        """`lr`, filled in."""
        assert self.lr is not None
        return self.lr

    @property
    def decay(self) -> float:
        """`weight_decay`, filled in."""
        assert self.weight_decay is not None
        return self.weight_decay

    @property
    def val_px(self) -> int:
        """`val_size`, filled in, in pixels."""
        assert self.val_size is not None
        return self.val_size

    @property
    def phases(self) -> Schedule:
        """The schedule, parsed."""
        return Schedule.parse(self.schedule)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Every image size that the model will see, in pixels, ascending."""
        return tuple(sorted({*self.phases.sizes, self.val_px}))

    def size_px(self, epoch: int) -> int:
        """The size of the training images in an epoch, in pixels."""
        size = self.phases.phase_at(epoch).size
        assert size is not None, "checked at the beginning"
        return size

    @property
    def largest_batch(self) -> int:
        """Rows of the largest batch of any phase."""
        return max(phase.batch_size or self.batch_size for phase in self.phases.phases)

    def as_dict(self) -> dict[str, Any]:
        """The settings by name, JSON-able."""
        return asdict(self)

    def check_resumable(self, saved: Mapping[str, Any]) -> None:
        """Make sure that a run of the recipe `saved` may go on under this one.

        Raises:
            StateError: they differ; names every setting that does.
        """
        mine = {name: own for name, own in asdict(self).items() if name not in _FREE_ON_RESUME}
        found = differences(saved, mine, "was", "is")
        if found:
            raise StateError(
                f"cannot resume: the checkpoint is of another recipe ({found}). Repeat the "
                "settings it was made with, or start anew without --resume"
            )


def differences(saved: Mapping[str, Any], now: Mapping[str, Any], was: str, is_: str) -> str:
    """Which entries of `now` were saved with another value, as text; "" where none was."""
    return "; ".join(
        f"{name} {was} {saved.get(name)!r}, {is_} {value!r}"
        for name, value in now.items()
        if saved.get(name) != value
    )


def _whole(name: str, value: object, low: int, high: int) -> tuple[str, bool, str]:
    """Whether a setting is a whole number from low to high, with its name and what it should be."""
    valid = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    return name, valid, f"a whole number from {low} to {high}"


def _number(value: object) -> float:
    """A number as it is, NaN for anything else."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
