"""Two loops over the same batches: loading in the step's way, and loading behind it."""

from __future__ import annotations

from dataclasses import dataclass

from feedline.trace.run import Excerpt

__all__ = ["Overlap", "OverlapSettings", "Side"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlapSettings:
    """What is compared.

    Args:
        size_px: side of the images.
        batch_size: images in a batch.
        workers: processes of the second loop, at least one.
        step_ms: how long a step computes; None for as long as one process loads a batch.
        seconds: how long each loop is measured; some steps at least.
    """

    size_px: int = 224
    batch_size: int = 32
    workers: int = 2
    step_ms: float | None = None
    seconds: float = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """A loop that was measured.

    Args:
        workers: processes that loaded; 0 where the loop itself did.
        steps: that were counted.
        images_per_s: over these.
        step_ms: the mean step, waiting included.
        wait_ms: of which it waited for its batch.
        compute_ms: of which it computed.
        load_ms: the mean time that whoever loaded took for a batch.
        excerpt: some of the steps.
    """

    workers: int
    steps: int
    images_per_s: float
    step_ms: float
    wait_ms: float
    compute_ms: float
    load_ms: float
    excerpt: Excerpt


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlap:
    """What was compared, and both loops."""

    settings: OverlapSettings
    step_ms: float
    images: int
    sides: list[Side]
