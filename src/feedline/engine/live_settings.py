"""Settings that may change while a loader works. None changes the bytes or the order of batches."""

from __future__ import annotations

from dataclasses import dataclass

from feedline.engine.board import MAX_SEATS
from feedline.engine.defaults import DEFAULT_PREFETCH_FACTOR
from feedline.errors import UsageError
from feedline.order.batch_spec import TASK_NS

__all__ = ["LiveSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveSettings:
    """Settings of a feed.

    Args:
        workers: number of workers; 0 if the training process makes batches.
        prefetch: maximum number of batches in flight, made or not, besides those already taken. For
            rows at most the number of slots; for whole batches slots are added. None: for rows the
            number of slots, for whole batches `usual`.
        prefetch_factor: whole batches that each worker makes ahead.
        ahead: minimum of whole batches made ahead by all workers together.
        task_ns: target work of a task of a batch of rows, in ns.

    Raises:
        UsageError: a value is out of range.
    """

    workers: int
    prefetch: int | None = None
    prefetch_factor: int = DEFAULT_PREFETCH_FACTOR
    ahead: int = 0
    task_ns: int = TASK_NS

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("num_workers", self.workers, 0, MAX_SEATS),
            ("prefetch", 1 if self.prefetch is None else self.prefetch, 1, None),
            ("prefetch_factor", self.prefetch_factor, 1, None),
            ("ahead", self.ahead, 0, None),
            ("task_ns", self.task_ns, 1, None),
        ):
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole or value < least or (most is not None and value > most):
                limits = f"at least {least}" if most is None else f"from {least} to {most}"
                raise UsageError(f"{name} must be a whole number, {limits}, got {value!r}")

    @property
    def usual(self) -> int:
        """Default number of whole batches made ahead."""
        return max(self.prefetch_factor * self.workers, self.ahead)

    def depth(self, slots: int) -> int:
        """Maximum number of batches in flight for a number of slots."""
        return slots if self.prefetch is None else min(self.prefetch, slots)
