"""What the randomness of each epoch follows from.

Guarantees: a seed that a user gave decides all epochs. Without one a seed is drawn as torch draws
it: for each epoch, or with persistent workers once, from which those of later epochs follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feedline.errors import StateError
from feedline.plan.seeds import mix
from feedline.plan.state import is_count

__all__ = ["EpochSeeds"]


class EpochSeeds:
    """The seeds of a loader's epochs.

    Args:
        given: by the user; None to draw.
        once: draw for the first epoch only, as torch does where workers live on.
    """

    def __init__(self, given: int | None, *, once: bool) -> None:
        self.given = given
        self.kept: int | None = None
        """What was drawn for the first epoch, if it is, or was, not drawn again."""
        self._once = once
        self._first: int | None = None  # the epoch that it was drawn for

    def of(self, epoch: int) -> int | None:
        """The seed of an epoch; None where it has to be drawn."""
        if self.given is not None:
            return mix(self.given, epoch)
        if self.kept is None or not self._once or epoch == self._first:
            return None
        return mix(self.kept, epoch)

    def opened(self, epoch: int, seed: int) -> None:
        """An epoch was opened, with this seed."""
        if self._once and self.given is None and self.kept is None:
            self.kept, self._first = seed, epoch

    def restored(self, state: Mapping[str, Any], epoch: int) -> int | None:
        """The seed of a state's epoch; None where it was drawn in that epoch, or is to be.

        Raises:
            StateError: the state is damaged.
        """
        kept = state.get("kept_seed")
        if not (kept is None or is_count(kept)):
            raise StateError(f"cannot resume: damaged position, the seed {kept!r}")
        if self.given is not None or kept is None:
            return None if self.given is None else mix(self.given, epoch)
        later = mix(kept, epoch)
        return later if state.get("drawn_seed") in (None, later) else None

    def go_on(self, state: Mapping[str, Any], epoch: int) -> None:
        """Follow a state from its epoch on."""
        self.kept = state.get("kept_seed")
        self._first = epoch if self.kept == state.get("drawn_seed") else None
