"""Settings that change how a working loader makes its batches, manually or automatically.

Guarantees: a setting takes effect at once, on batches that are not started; batches, their order
and the state stay the same. If it is invalid, or would have no effect, an error gives the reason,
and nothing has changed. A copy of the loader is built with the manual settings. Relies on:
`DataLoader`, which has the arguments and attributes that this mixin reads.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from feedline.control.decision import SettingChange, What
from feedline.errors import UsageError
from feedline.loader.adapting import Adapting
from feedline.loader.check_ahead import (
    check_no_factor,
    check_prefetch,
    check_prefetch_factor,
    task_ns_of,
)
from feedline.loader.checks import worker_count
from feedline.loader.session import Session
from feedline.loader.settings import Asked, prefetch_factor_of

__all__ = ["LiveControls"]


def _setter_of(loader: LiveControls) -> Callable[[What, float], None]:
    """Setter for a loader, which does not keep it alive."""
    method = weakref.WeakMethod(loader._set)

    def change(what: What, value: float) -> None:
        if (set_now := method()) is not None:
            set_now(what, value)

    return change


class LiveControls:
    """Workers, batches ahead and task size of a working loader."""

    _ahead: int
    _asked: Asked
    _arguments: dict[str, Any]
    _session: Session

    @property
    def num_workers(self) -> int:
        """Number of worker processes.

        Can be set at any time, but not between 0 and more.
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
                f"num_workers cannot change between {had} and {wanted} in a running loader; build "
                "a new one"
            )
        if wanted != had:
            self._set("workers", wanted)
        self.adapts = isinstance(workers, str)

    @property
    def prefetch(self) -> int | None:
        """Batches of rows made ahead; None for the number the loader was built with.

        Can be set at any time, up to the number the loader was built with, for which memory is
        allocated.

        Raises:
            UsageError: set to a larger number, or batches are not made of rows.
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
                f"prefetch={prefetch} is larger than {allocated}, for which memory was allocated "
                f"when the loader was built; build it with prefetch={prefetch}, then any smaller "
                "number can be set later"
            )
        prefetch = None if prefetch is None else int(prefetch)  # of numpy's, too
        self._session.backend.apply(prefetch=None if prefetch == allocated else prefetch)
        self.__dict__["prefetch"] = self._arguments["prefetch"] = prefetch

    @property
    def prefetch_factor(self) -> int | None:
        """Whole batches each worker makes ahead, as in torch; None for 2.

        Can be set at any time. If increased, more are started at once; if decreased, batches in
        flight are finished, and come first. With an IterableDataset it takes effect in the next
        iteration. Batches of rows use `prefetch`.

        Raises:
            UsageError: not a whole number from 1 to 1024, or without workers, or for feedline's own
                sources, whose workers share each batch.
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
                f"prefetch_factor={factor} has no effect without workers, because batches are made "
                "on request. Build the loader with num_workers"
            )
        if not self._asked.iterable:
            self._session.backend.apply(prefetch_factor=prefetch_factor_of(factor), ahead=0)
        self._ahead = 0
        self.__dict__["prefetch_factor"] = self._arguments["prefetch_factor"] = factor

    @property
    def task_ms(self) -> float | None:
        """Work per task of a batch of rows, in ms; None for 50.

        Can be set at any time, for batches started from then on.

        Raises:
            UsageError: not a number above 0, or batches are not made of rows.
        """
        task_ms: float | None = self.__dict__["task_ms"]
        return task_ms

    @task_ms.setter
    def task_ms(self, task_ms: float | None) -> None:
        if not self._is_built("task_ms", task_ms):
            return
        task_ns_of(task_ms)
        self._need_rows(f"task_ms={task_ms!r}", "A whole batch is one task of one worker")
        self._set("task_ms", task_ms)
        self._arguments["task_ms"] = task_ms

    def _set(self, what: What, value: float | None) -> None:
        """Set a value that adaptation may change, too; copies do not get it."""
        if what == "task_ms":
            self._session.backend.apply(task_ns=task_ns_of(value))
            self.__dict__["task_ms"] = value
        elif what == "prefetch":
            ahead = int(value or 0)
            self._session.backend.apply(ahead=ahead)
            self._ahead = ahead
        else:
            workers = int(value or 0)
            self._session.backend.apply(workers=workers)
            self.__dict__["num_workers"] = workers

    def _is_built(self, name: str, value: object) -> bool:
        """True once the loader is built; before that, a value is only stored."""
        if "_session" not in self.__dict__:  # torch's own constructor, or ours
            self.__dict__[name] = value
            return False
        self._session.ensure_usable()
        return True

    def _need_rows(self, asked: str, instead: str) -> None:
        decision = self._session.decision()
        if decision.rows is None:
            raise UsageError(
                f"{asked} has no effect on this loader, which uses the {decision}. {instead}"
            )

    @property
    def adapts(self) -> bool:
        """True if workers, batches ahead and task size adapt to the measured training.

        The default with `num_workers="auto"`. Set it to False to keep the current values, or to
        True to adapt any loader with workers; batches are the same in any case. The decisions and
        reasons are in `adaptations`, and logged by the logger "feedline" at level INFO.

        Raises:
            UsageError: set to True without workers, or for an IterableDataset, which is divided by
                their number.
        """
        adapting = self._session.adapting
        return adapting is not None and not adapting.off

    @adapts.setter
    def adapts(self, adapts: bool) -> None:
        adapting = self._session.adapting
        if adapts and (self.num_workers == 0 or self._asked.iterable):
            why = (
                "an IterableDataset is divided by it"
                if self._asked.iterable
                else "there are no workers"
            )
            raise UsageError(f"the number of workers cannot change in a running loader: {why}")
        if adapts and adapting is None:
            adapting = self._session.adapting = Adapting(self._session, _setter_of(self))
        if adapting is not None:
            adapting.off = not adapts
        # A copy of the loader is built of these.
        self._arguments["num_workers"] = "auto" if adapts else self.num_workers

    @property
    def adaptations(self) -> list[SettingChange]:
        """Changes with their reasons, as `control.decision.SettingChange`s, the latest 256."""
        adapting = self._session.adapting
        return [] if adapting is None else list(adapting.decisions)
