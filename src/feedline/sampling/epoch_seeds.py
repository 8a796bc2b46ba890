"""Seeds of a loader's epochs.

Guarantees: a seed set by the user determines all epochs. Without one, seeds are drawn as torch
draws them: for each epoch, or with persistent workers once, from which later ones are derived.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feedline.errors import StateError
from feedline.plan.seeds import mix
from feedline.plan.state import is_count

__all__ = ["EpochSeeds"]


class EpochSeeds:
    """Seeds of a loader's epochs.

    Args:
        given: seed set by the user; None to draw.
        once: draw for the first epoch only, like torch with persistent workers.
    """

    def __init__(self, given: int | None, *, once: bool) -> None:
        self.given = given
        self.kept: int | None = None
        """Seed drawn for the first epoch, if it is used for later ones too."""
        self._once = once
        self._first: int | None = None  # the epoch that it was drawn for

    def of(self, epoch: int) -> int | None:
        """Return the seed of an epoch; None if it must be drawn."""
        if self.given is not None:
            return mix(self.given, epoch)
        if self.kept is None or not self._once or epoch == self._first:
            return None
        return mix(self.kept, epoch)

    def opened(self, epoch: int, seed: int) -> None:
        """Record the seed of an opened epoch."""
        if self._once and self.given is None and self.kept is None:
            self.kept, self._first = seed, epoch

    def restored(self, state: Mapping[str, Any], epoch: int) -> int | None:
        """Return the seed of a state's epoch; None if it was, or must be, drawn in that epoch.

        Raises:
            StateError: the state is damaged.
        """
        kept = state.get("kept_seed")
        if not (kept is None or is_count(kept)):
            raise StateError(f"cannot resume: damaged position: seed {kept!r}")
        if self.given is not None or kept is None:
            return None if self.given is None else mix(self.given, epoch)
        later = mix(kept, epoch)
        return later if state.get("drawn_seed") in (None, later) else None

    def go_on(self, state: Mapping[str, Any], epoch: int) -> None:
        """Continue from a state's epoch."""
        self.kept = state.get("kept_seed")
        self._first = epoch if self.kept == state.get("drawn_seed") else None
