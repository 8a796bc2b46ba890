"""What changes how a loader's batches are made while it works, by hand or by itself, and no byte.

Guarantees: what is set takes effect at once, on batches that are not begun; batches, their order
and the state stay the same. Where it cannot be, or would have no effect, an error says why, and
nothing has changed. A copy of the loader is built with what was set by hand.
Relies on: `DataLoader`, which has the arguments and the attributes that this mixin reads.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from feedline.control.decision import Decision, What
from feedline.errors import UsageError
from feedline.loader.adapting import Adapting
from feedline.loader.check_ahead import (
    check_no_factor,
    check_prefetch,
    check_prefetch_factor,
    piece_ns_of,
)
from feedline.loader.checks import worker_count
from feedline.loader.session import Session
from feedline.loader.settings import Asked, prefetch_factor_of

__all__ = ["LiveControls"]


def _setter_of(loader: LiveControls) -> Callable[[What, float], None]:
    """What sets something on a loader, and does not keep it alive."""
    method = weakref.WeakMethod(loader._set)

    def change(what: What, value: float) -> None:
        if (set_now := method()) is not None:
            set_now(what, value)

    return change


class LiveControls:
    """Workers, batches ahead and pieces."""

    _ahead: int
    _asked: Asked
    _arguments: dict[str, Any]
    _session: Session

    @property
    def num_workers(self) -> int:
        """How many worker processes make the batches.

        Can be set at any time, but not between none and some.
        """
        workers: int = self.__dict__["num_workers"]
        return workers

    @num_workers.setter
    def num_workers(self, workers: int | str) -> None:
        if not self._is_built("num_workers", workers):
            return
        wanted, had = worker_count(workers), self.num_workers
        if (wanted == 0) != (had == 0):
            raise UsageError(
                f"num_workers cannot change between {had} and {wanted} while the loader lives; "
                "build a new one"
            )
        if wanted != had:
            self._set("workers", wanted)
        self.adapts = isinstance(workers, str)

    @property
    def prefetch(self) -> int | None:
        """How many batches of rows are made ahead; None for as many as there is memory for.

        Can be set at any time, up to what the loader was built with: there is memory for as many.

        Raises:
            UsageError: set to more than that, or where batches are not made of rows.
        """
        prefetch: int | None = self.__dict__["prefetch"]
        return prefetch

    @prefetch.setter
    def prefetch(self, prefetch: int | None) -> None:
        if not self._is_built("prefetch", prefetch):
            return
        check_prefetch(prefetch)
        self._need_rows(f"prefetch={prefetch!r}", "Set prefetch_factor instead")
        allocated = self._asked.prefetch
        if prefetch is not None and prefetch > allocated:
            raise UsageError(
                f"prefetch={prefetch} was asked for, and when the loader was built memory for "
                f"{allocated} batches ahead was allocated; build it with prefetch={prefetch}, "
                "then any smaller number can be set while it works"
            )
        prefetch = None if prefetch is None else int(prefetch)  # of numpy's, too
        self._session.backend.apply(prefetch=None if prefetch == allocated else prefetch)
        self.__dict__["prefetch"] = self._arguments["prefetch"] = prefetch

    @property
    def prefetch_factor(self) -> int | None:
        """How many whole batches each worker makes ahead, as torch's; None for 2.

        Can be set at any time. More are begun at once; where it was more, those that are under way
        are finished, and come first. Over an IterableDataset the next iteration begins with it.
        Batches of rows see `prefetch`.

        Raises:
            UsageError: set to what is no whole number from 1 to 1024, or where there are no
                workers, or for a source of feedline's own, whose workers share each batch.
        """
        factor: int | None = self.__dict__["prefetch_factor"]
        return factor

    @prefetch_factor.setter
    def prefetch_factor(self, factor: int | None) -> None:
        if not self._is_built("prefetch_factor", factor):
            return
        check_prefetch_factor(factor)
        if self._asked.native:
            check_no_factor(factor)
        if factor is not None and self.num_workers == 0:
            raise UsageError(
                f"prefetch_factor={factor} has no effect without workers: a batch is made when it "
                "is asked for. Build the loader with num_workers"
            )
        if not self._asked.iterable:
            self._session.backend.apply(prefetch_factor=prefetch_factor_of(factor), ahead=0)
        self._ahead = 0
        self.__dict__["prefetch_factor"] = self._arguments["prefetch_factor"] = factor

    @property
    def piece_ms(self) -> float | None:
        """How much work a worker takes at a time from a batch of rows, in ms; None for 50.

        Can be set at any time, and holds for batches that are begun from then on.

        Raises:
            UsageError: set to what is no number above 0, or where batches are not made of rows.
        """
        piece_ms: float | None = self.__dict__["piece_ms"]
        return piece_ms

    @piece_ms.setter
    def piece_ms(self, piece_ms: float | None) -> None:
        if not self._is_built("piece_ms", piece_ms):
            return
        piece_ns_of(piece_ms)
        self._need_rows(f"piece_ms={piece_ms!r}", "A whole batch is one worker's, in one piece")
        self._set("piece_ms", piece_ms)
        self._arguments["piece_ms"] = piece_ms

    def _set(self, what: What, value: float | None) -> None:
        """Set what can also be found while the loader works; a copy does not hear of it."""
        if what == "piece_ms":
            self._session.backend.apply(piece_ns=piece_ns_of(value))
            self.__dict__["piece_ms"] = value
        elif what == "prefetch":
            ahead = int(value or 0)
            self._session.backend.apply(ahead=ahead)
            self._ahead = ahead
        else:
            workers = int(value or 0)
            self._session.backend.apply(workers=workers)
            self.__dict__["num_workers"] = workers

    def _is_built(self, name: str, value: object) -> bool:
        """Whether the loader can be asked to change; while it is built, only take a value down."""
        if "_session" not in self.__dict__:  # torch's own constructor, or ours
            self.__dict__[name] = value
            return False
        self._session.ensure_usable()
        return True

    def _need_rows(self, asked: str, instead: str) -> None:
        decision = self._session.decision()
        if decision.rows is None:
            raise UsageError(
                f"{asked} has no effect on this loader, whose batches are {decision}. {instead}"
            )

    @property
    def adapts(self) -> bool:
        """Whether workers, batches ahead and pieces follow what is seen of the training.

        So it is with `num_workers="auto"`. Set it to False to keep all of it as it is, and to True
        to have any loader with workers find its own; batches are the same in any case. What was
        decided, and why, is in `adaptations`, and logged by the logger "feedline" at level INFO.

        Raises:
            UsageError: set to True without workers, or for an IterableDataset, whose data is
                divided by their number.
        """
        adapting = self._session.adapting
        return adapting is not None and not adapting.off

    @adapts.setter
    def adapts(self, adapts: bool) -> None:
        adapting = self._session.adapting
        if adapts and (self.num_workers == 0 or self._asked.iterable):
            why = "it divides an IterableDataset" if self._asked.iterable else "there are none"
            raise UsageError(f"the number of workers cannot change while the loader lives: {why}")
        if adapts and adapting is None:
            adapting = self._session.adapting = Adapting(self._session, _setter_of(self))
        if adapting is not None:
            adapting.off = not adapts
        # A copy of the loader is built of these.
        self._arguments["num_workers"] = "auto" if adapts else self.num_workers

    @property
    def adaptations(self) -> list[Decision]:
        """What was changed, each time with its reason: `control.Decision`s, the latest 256."""
        adapting = self._session.adapting
        return [] if adapting is None else list(adapting.decisions)
