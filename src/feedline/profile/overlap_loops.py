"""Results of two loops over the same batches: loading before each step, and loading in workers."""

from __future__ import annotations

from dataclasses import dataclass

from feedline.timing.run import TimelineSample

__all__ = ["LoopTimes", "Overlap", "OverlapSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlapSettings:
    """Options of the comparison.

    Args:
        size_px: side of the images.
        batch_size: images in a batch.
        workers: processes of the second loop, at least one.
        step_ms: computing time of a step; None: the time of one process to load a batch.
        seconds: measuring time of each loop; some steps at least.
    """

    size_px: int = 224
    batch_size: int = 32
    workers: int = 2
    step_ms: float | None = None
    seconds: float = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopTimes:
    """Measurements of one loop.

    Args:
        workers: processes that loaded; 0 if the loop itself loaded.
        steps: number of counted steps.
        images_per_s: over these.
        step_ms: mean step, including waiting.
        wait_ms: part in which it waited for its batch.
        compute_ms: part in which it computed.
        load_ms: mean time to load a batch, in one process.
        excerpt: timeline sample of some steps.
    """

    workers: int
    steps: int
    images_per_s: float
    step_ms: float
    wait_ms: float
    compute_ms: float
    load_ms: float
    excerpt: TimelineSample


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlap:
    """Options of the comparison, and both loops."""

    settings: OverlapSettings
    step_ms: float
    images: int
    sides: list[LoopTimes]
