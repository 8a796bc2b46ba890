"""How long a feed waits for its workers: for one row, and for all of them together."""

from __future__ import annotations

from feedline.engine.crew import Crew
from feedline.errors import WorkerError

__all__ = ["CHECK_S", "Patience"]

CHECK_S = 1.0
"""How often the workers are looked at, in seconds."""

_OPEN_S = 60.0  # to import the libraries and open the source, beyond the timeout of a row


class Patience:
    """Has hung workers killed, and gives up where all stand still.

    Args:
        crew: the workers.
        timeout_s: how long a worker may stay on one row before it is taken for hung.
    """

    def __init__(self, crew: Crew, timeout_s: float) -> None:
        self._crew = crew
        self._timeout_s = timeout_s
        self.forget()

    def forget(self) -> None:
        """Begin anew, with workers that are new."""
        self._rows: dict[int, tuple[tuple[int, int], float]] = {}  # by seat: its row, for how long
        self._idle_s = 0.0

    def check(self, waited_s: float, reported: bool) -> None:
        """Look at the workers, as is to be done every `CHECK_S`.

        Args:
            waited_s: for how long they were waited for since the last look.
            reported: one of them has finished something since.

        Raises:
            WorkerError: no worker has begun or finished a row for very long.
        """
        was, self._rows = self._rows, {}
        busy = self._crew.busy()
        moved = reported or any(
            seat not in was or was[seat][0] != row for seat, row in busy.items()
        )
        self._idle_s = 0.0 if moved else self._idle_s + waited_s
        if self._idle_s >= self._timeout_s + _OPEN_S:
            idle_s, self._idle_s = self._idle_s, 0.0
            raise WorkerError(
                f"no worker has begun or finished a row for {idle_s:.0f} s. Does the dataset take "
                "so long to open (then pass a larger timeout), or was a worker or the fork server "
                f"stopped? Workers: {self._crew.pids}"
            )
        for seat, row in busy.items():
            before, held_s = was.get(seat, (row, 0.0))
            held_s = held_s + waited_s if before == row else 0.0
            if held_s >= self._timeout_s:
                self._crew.kill(seat, f"killed after {held_s:.0f} s without progress (timeout)")
                held_s = 0.0  # its death will be told
            self._rows[seat] = row, held_s
