"""Who is told how a run goes."""

from __future__ import annotations

from typing import Protocol

from feedline.train.journal import EpochRecord

__all__ = ["Report", "Silent"]


class Report(Protocol):
    """Who is told how a run goes. Called from the training process, between steps."""

    def note(self, text: str) -> None:
        """Something the user should know."""

    def begin(self, *, epoch: int, size_px: int, done: int, total: int) -> None:
        """An epoch (from 1) begins, or goes on, after `done` of the run's `total` steps."""

    def stepped(self, *, done: int, loss: float | None) -> None:
        """A step is done; `loss` is the epoch's mean so far, None where it was not read."""

    def validating(self, *, rows: int) -> None:
        """`rows` more images are validated."""

    def ended(self, record: EpochRecord, *, epochs: int) -> None:
        """An epoch of `epochs` is finished."""


class Silent:
    """A report that says nothing: of ranks other than 0."""

    def note(self, text: str) -> None:
        """Nothing."""

    def begin(self, *, epoch: int, size_px: int, done: int, total: int) -> None:
        """Nothing."""

    def stepped(self, *, done: int, loss: float | None) -> None:
        """Nothing."""

    def validating(self, *, rows: int) -> None:
        """Nothing."""

    def ended(self, record: EpochRecord, *, epochs: int) -> None:
        """Nothing."""
