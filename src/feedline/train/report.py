"""Who is told how a run goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from feedline.train.journal import EpochRecord
from feedline.train.recipe import Recipe
from feedline.train.standing import Standing

__all__ = ["Report", "Silent"]


class Report(Protocol):
    """Who is told how a run goes. Called from the training process, between steps.

    What derives from it and leaves a method out says nothing there.
    """

    def note(self, text: str) -> None:
        """Something the user should know."""
        return

    def planned(
        self, recipe: Recipe, *, images: int, val_images: int, records: Sequence[EpochRecord]
    ) -> None:
        """The training begins, or goes on after these epochs; images are those of an epoch."""
        return

    def begin(self, now: Standing) -> None:
        """An epoch begins, or goes on."""
        return

    def stepped(self, now: Standing) -> None:
        """A step is done."""
        return

    def validating(self, *, rows: int) -> None:
        """`rows` more images are validated."""
        return

    def ended(self, record: EpochRecord, *, epochs: int) -> None:
        """An epoch of `epochs` is finished."""
        return

    def stopping(self, signum: int) -> None:
        """A signal asks for a stop; told from a thread of its own, while a step may go on."""
        return


class Silent(Report):
    """A report that says nothing: of ranks other than 0."""
