"""A loader's own record of its runs: always kept, in fixed memory, some microseconds a step.

Guarantees: batches and their order are not touched; where the record fails, training goes on.
Relies on: being told of each iteration and of each batch by `iteration.Iteration`.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

from feedline.loader.backends.torch_engine import TorchBackend
from feedline.loader.decide import Decision, workers_live_on
from feedline.loader.settings import Settings
from feedline.trace.look import look_at
from feedline.trace.recorder import Recorder, Workers
from feedline.trace.run import Loader
from feedline.trace.stage_page import Spent

__all__ = ["Recording", "described"]


class _Session(Protocol):
    """Of `session.Session`, what is looked at."""

    settings: Settings
    timing: Any
    cursor: Any

    @property
    def backend(self) -> Any: ...

    @property
    def deaths(self) -> list[str]: ...

    def decision(self) -> Decision: ...

    def spent(self) -> dict[int, Spent]: ...


class Recording:
    """Joins a session and a recorder.

    Args:
        session: whose batches are recorded.
    """

    def __init__(self, session: _Session) -> None:
        self._session = session
        self.recorder = Recorder()
        # Its carriers know the copies, and the device's clock; torch's own engine knows neither.
        self.recorder.timed_elsewhere = not isinstance(session.cursor, TorchBackend)
        session.timing.listener = self.recorder.measured
        self._said: Loader | None = None
        self._number = 0

    def begin(self, began_ns: int) -> None:
        """An iteration has begun, which has taken since `began_ns`, on the monotonic clock."""
        session = self._session
        self.recorder.end("left")  # the one before it, if nobody has said that it is over
        said = described(session.settings, session.decision())
        if said != self._said:
            workers = Workers(
                pids=lambda: list(session.backend.pids),
                spent=session.spent,
                name=self._name,
                deaths=lambda: len(session.deaths),
            )
            self._number, self._said = self.recorder.loader(said, workers), said
        self.recorder.begin(self._number, session.cursor.position.epoch, began_ns)

    def handed_out(self, batch: Any, asked_ns: int, asked_cpu_ns: int) -> None:
        """A batch is handed out that was asked for at these times: monotonic, and the thread's."""
        got_ns = time.monotonic_ns()
        self.recorder.handed_out(look_at(batch), asked_ns, got_ns, asked_cpu_ns)

    def end(self, how: str) -> None:
        """The iteration is over; see `Pass.ended`."""
        self.recorder.end(how)

    def _name(self, sample: int) -> str:
        decision = self._session.decision()
        named = getattr(decision.rows or decision.samples, "name", None)
        return str(named(sample)) if named and sample >= 0 else f"sample {sample}"


def described(settings: Settings, decision: Decision) -> Loader:
    """A loader as a run tells of it."""
    dataset = settings.dataset
    rows = decision.rows or decision.samples
    return Loader(
        kind="feedline",
        name="feedline.DataLoader",
        dataset=f"{type(dataset).__module__}.{type(dataset).__qualname__}",
        samples=_length(dataset),
        workers=settings.workers,
        prefetch_factor=settings.prefetch_factor,
        persistent_workers=workers_live_on(settings, decision),
        pin_memory=bool(settings.pin),
        batch_size=settings.batch_size,
        start_method=settings.start_method or "",
        collate=getattr(settings.collate_fn, "__qualname__", ""),
        made_by=decision.kind,
        copies=str(getattr(rows, "copies_from", "")),
    )


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None
