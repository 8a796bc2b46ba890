"""Choice between originals and copies, for a cache that is filled while training.

Guarantees: the choice depends on the run's position and on the cache's state when it began, never
on how fast the cache is filled. A run that finds the cache finished reads copies from the start.
Any other reads originals until it has delivered an epoch's batches, and copies from the next
iteration on, for which it waits if needed. An epoch continued from a state keeps its choice.

Relies on: `filler` for the process that fills; `rank_agreement`, if ranks share a loader's samples,
for whether the cache was finished when they began.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from feedline.errors import StateError
from feedline.loader.position import LoaderPosition
from feedline.loader.rank_agreement import RankAgreement
from feedline.order.planned_order import Order
from feedline.order.schedule import is_count
from feedline.remote.filesystem import is_url
from feedline.stores.cache_layout import is_finished

if TYPE_CHECKING:
    from feedline.loader.filler import Filler
    from feedline.loader.to_fill import ToFill

__all__ = ["Filling"]


class Filling:
    """Choice of one loader between originals and copies.

    Args:
        cache: folder of the cache, which is filled; there is no choice with a URL, with an
            ImageFolder of a cache, or without a cache.
    """

    def __init__(self, cache: Any) -> None:
        root = cache if isinstance(cache, str) and not is_url(cache) else None
        self._root = root
        self.given = 0
        """Number of delivered batches made of originals."""
        self._ended = False  # an iteration over originals has come to its end
        self._chosen = False  # an iteration has begun, or a state said what is read
        self._filler: Filler | None = None  # that was just started
        self._copies = root is None or is_finished(root)

    def agree(self, agreement: RankAgreement, order: Order) -> None:
        """Begin with copies only if all ranks do."""
        if self._root is not None and not self._chosen:
            self._copies = agreement.all_say(self._copies, order)

    def begin(self, position: LoaderPosition) -> None:
        """Begin an iteration at the position of a loader."""
        self._chosen = True
        if self._copies or position.restored_step:  # the rest of an epoch
            return
        try:
            batches = position.steps(position.current.epoch)
        except TypeError:  # only the sampler's end tells
            batches = 0
        self._copies = self._ended or 0 < batches <= self.given

    def given_after_one_more(self) -> int:
        """Value of `given` after one more delivered batch."""
        return self.given + (not self._copies)

    def ended(self) -> None:
        """End an iteration."""
        self._ended = True

    def reads_copies(self, wanted: Callable[[], ToFill | None]) -> bool:
        """Return True if copies are read; waits until they exist.

        Raises:
            FeedlineError: they cannot be made; the message has the reason.
        """
        if self._copies and self._root is not None and not is_finished(self._root):
            from feedline.loader.filler import wait_until_filled  # of POSIX alone

            if (what := wanted()) is not None:
                wait_until_filled(what)
        return self._copies

    def start(self, wanted: ToFill | None) -> None:
        """Start the process that makes the copies, unless one is running or none are needed.

        Raises:
            FeedlineError: they cannot be made, as far as known at once.
        """
        if wanted is not None and not is_finished(wanted.root):
            from feedline.loader.filler import filler_of

            self._filler = filler_of(wanted)

    def check(self) -> None:
        """Check that the process has begun to make copies.

        Raises:
            FeedlineError: it cannot; the message has the reason.
        """
        filler, self._filler = self._filler, None
        if filler is not None:
            filler.wait_until_ready()

    def state(self) -> dict[str, Any]:
        """Entry of a state, JSON-able."""
        if self._root is None:
            return {}
        return {"cache": {"copies": self._copies, "batches": self.given}}

    def after(self, state: Mapping[str, Any]) -> Filling:
        """Restore it from a loaded state; the state of a loader without a cache has no entry.

        Raises:
            StateError: it is damaged.
        """
        other, said = copy.copy(self), state.get("cache")
        if self._root is None or said is None:
            return other
        if not (
            isinstance(said, Mapping)
            and isinstance(said.get("copies"), bool)
            and is_count(said.get("batches"))
        ):
            raise StateError("cannot resume: the state is damaged: invalid 'cache'")
        other._copies, other.given, other._ended = said["copies"], said["batches"], False
        other._chosen = True
        return other
