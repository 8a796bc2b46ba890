"""Options of a benchmark."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from feedline.errors import UsageError
from feedline.order.schedule import MAX_IMAGE_SIZE

__all__ = ["BenchmarkOptions"]


_MAX_BATCH_SIZE = 1 << 24
_MAX_SECONDS = 24 * 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkOptions:
    """Options of a benchmark, checked.

    Args:
        folder: the images, one sub-folder per class.
        size_px: side of the batches' images.
        batch_size: images in a batch.
        workers: "auto", or the number of processes that load images; 0 loads in this one.
        against: "torch" also measures torch's DataLoader with torchvision; None does not.
        seconds: total time of counting images.
        seed: selects the images if there are more than needed, and all crops.

    Raises:
        UsageError: a value is out of range.
    """

    folder: Path
    size_px: int = 224
    batch_size: int = 64
    workers: int | Literal["auto"] = "auto"
    against: Literal["torch"] | None = None
    seconds: float = 30.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, most in (
            ("image_size", self.size_px, MAX_IMAGE_SIZE),
            ("batch_size", self.batch_size, _MAX_BATCH_SIZE),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise UsageError(
                    f"must be a whole number from 1 to {most}, got {value!r}", argument=name
                )
        if not (math.isfinite(self.seconds) and 0 < self.seconds <= _MAX_SECONDS):
            raise UsageError(
                f"must be above 0 and at most {_MAX_SECONDS:.0f}, got {self.seconds!r}",
                argument="seconds",
            )
        if self.against not in (None, "torch"):
            raise UsageError(f"must be 'torch' or None, got {self.against!r}", argument="against")

    def as_dict(self) -> dict[str, Any]:
        """Return the options, JSON-able."""
        return {**asdict(self), "folder": str(self.folder)}
