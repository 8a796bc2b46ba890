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

_CHOICES = {
    "optimizer": ("adamw", "sgd"),
    "amp": ("auto", "off", "bf16", "fp16"),
    "on_error": ("raise", "skip"),
}
# Peak rates of the one cycle. AdamW's does not follow the batch size; SGD's does, linearly, from
# 0.1 at 256 rows (Goyal et al., "Accurate, large minibatch SGD", 2017).
_ADAMW_LR = 0.002
_SGD_LR_PER_ROW = 0.1 / 256
_WEIGHT_DECAY = {"adamw": 0.05, "sgd": 5e-5}
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
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise UsageError(f"{name} must be {_either(choices)}, got {getattr(self, name)!r}")
        if self.val_size is None:
            self._fill("val_size", parsed.sizes[-1])
        for name, low, high in (
            ("batch_size", 1, 1 << 24),
            ("val_size", 1, MAX_SIZE_PX),
            ("seed", 0, 2**63 - 1),
        ):
            whole = getattr(self, name)
            if not isinstance(whole, int) or isinstance(whole, bool) or not low <= whole <= high:
                raise UsageError(
                    f"{name} must be a whole number from {low} to {high}, got {whole!r}"
                )
        if self.lr is None:
            sgd_lr = _SGD_LR_PER_ROW * self.batch_size
            self._fill("lr", _ADAMW_LR if self.optimizer == "adamw" else sgd_lr)
        if self.weight_decay is None:
            self._fill("weight_decay", _WEIGHT_DECAY[self.optimizer])
        if not (_is_finite(self.lr) and self.peak_lr > 0):
            raise UsageError(f"lr must be above 0, got {self.lr!r}")
        if not (_is_finite(self.weight_decay) and self.decay >= 0):
            raise UsageError(f"weight_decay must be 0 or above, got {self.weight_decay!r}")
        for name in ("warmup", "label_smoothing"):
            share = getattr(self, name)
            if not (_is_finite(share) and 0 <= share < 1):
                raise UsageError(f"{name} must be from 0 to below 1, got {share!r}")

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


def _is_finite(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)  # type: ignore[arg-type]


def _either(choices: tuple[str, ...]) -> str:
    return ", ".join(repr(choice) for choice in choices[:-1]) + f" or {choices[-1]!r}"
