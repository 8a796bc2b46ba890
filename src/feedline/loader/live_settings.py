"""Settings that change how a working loader makes its batches, manually or automatically.

Guarantees: a setting takes effect at once, on batches that are not started; batches, their order
and the state stay the same. If it is invalid, or would have no effect, an error gives the reason,
and nothing has changed. A copy of the loader is built with the manual settings.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from feedline.control.decision import SettingChange, What
from feedline.errors import UsageError
from feedline.loader.adaptation import Adaptation
from feedline.loader.argument_checks import (
    check_no_factor,
    check_prefetch,
    check_prefetch_factor,
    task_ns_of,
    worker_count,
)
from feedline.loader.epoch_iterator import LoaderState
from feedline.loader.options import prefetch_factor_of

__all__ = ["LiveAttributes"]


class LiveAttributes:
    """Workers, batches ahead and task size of a working loader.

    Args:
        loader: the loader, whose attributes have the values; referenced weakly.
        state: its running state.
    """

    NAMES = ("num_workers", "prefetch", "prefetch_factor", "task_ms")
    """Attributes of a loader that can be set while it works."""

    def __init__(self, loader: Any, state: LoaderState) -> None:
        self._loader_ref = weakref.ref(loader)
        self._state = state

    @property
    def _loader(self) -> Any:
        loader = self._loader_ref()
        assert loader is not None, "only its loader is set"
        return loader

    def change(self, name: str, value: Any) -> Any:
        """Set one of NAMES. Return the value to store in the loader's attribute.

        Raises:
            UsageError: it is invalid, or has no effect on this loader.
        """
        self._state.ensure_usable()
        if name == "num_workers":
            return self._change_workers(value)
        if name == "prefetch":
            value = self._change_prefetch(value)
        elif name == "prefetch_factor":
            self._change_prefetch_factor(value)
        else:
            task_ns_of(value)
            self._require_rows(f"task_ms={value!r}", "A whole batch is one task of one worker")
            self._apply("task_ms", value)
        self._state.arguments = replace(self._state.arguments, **{name: value})
        return value

    def _change_workers(self, workers: int | str) -> int:
        wanted, had = worker_count(workers), self._loader.num_workers
        if (wanted == 0) != (had == 0):
            raise UsageError(
                f"num_workers cannot change between {had} and {wanted} in a running loader; build "
                "a new one"
            )
        if wanted != had:
            self._apply("workers", wanted)
        self.adapts = isinstance(workers, str)
        return wanted

    def _change_prefetch(self, prefetch: int | None) -> int | None:
        check_prefetch(prefetch)
        self._require_rows(f"prefetch={prefetch!r}", "Set prefetch_factor instead")
        allocated = self._state.options.allocated_prefetch
        if prefetch is not None and prefetch > allocated:
            raise UsageError(
                f"prefetch={prefetch} is larger than {allocated}, for which memory was allocated "
                f"when the loader was built; build it with prefetch={prefetch}, then any smaller "
                "number can be set later"
            )
        prefetch = None if prefetch is None else int(prefetch)  # of numpy's, too
        self._state.stream.engine.apply(prefetch=None if prefetch == allocated else prefetch)
        return prefetch

    def _change_prefetch_factor(self, factor: int | None) -> None:
        check_prefetch_factor(factor)
        options = self._state.options
        if options.native:
            check_no_factor(factor)
        if factor is not None and self._loader.num_workers == 0:
            raise UsageError(
                f"prefetch_factor={factor} has no effect without workers, because batches are made "
                "on request. Build the loader with num_workers"
            )
        if not options.iterable:
            self._state.stream.engine.apply(prefetch_factor=prefetch_factor_of(factor), ahead=0)
        self._state.ahead = 0

    def _require_rows(self, setting: str, instead: str) -> None:
        choice = self._state.stream.choice()
        if choice.rows is None:
            raise UsageError(
                f"{setting} has no effect on this loader, which uses the {choice}. {instead}"
            )

    def _apply(self, what: What, value: float | None) -> None:
        """Set a value that adaptation may change, too; copies do not get it."""
        engine = self._state.stream.engine
        if what == "task_ms":
            engine.apply(task_ns=task_ns_of(value))
            self._store("task_ms", value)
        elif what == "prefetch":
            engine.apply(ahead=int(value or 0))
            self._state.ahead = int(value or 0)
        else:
            engine.apply(workers=int(value or 0))
            self._store("num_workers", int(value or 0))

    def _store(self, name: str, value: object) -> None:
        """Set an attribute of the loader that is applied already."""
        object.__setattr__(self._loader, name, value)

    @property
    def adapts(self) -> bool:
        """True if workers, batches ahead and task size adapt to the measured training."""
        adaptation = self._state.adaptation
        return adaptation is not None and not adaptation.off

    @adapts.setter
    def adapts(self, adapts: bool) -> None:
        state, iterable = self._state, self._state.options.iterable
        if adapts and (self._loader.num_workers == 0 or iterable):
            why = "an IterableDataset is divided by it" if iterable else "there are no workers"
            raise UsageError(f"the number of workers cannot change in a running loader: {why}")
        if adapts and state.adaptation is None:
            state.adaptation = Adaptation(state.stream, _weak_apply(self))
        if state.adaptation is not None:
            state.adaptation.off = not adapts
        # A copy of the loader is built of these.
        workers = "auto" if adapts else self._loader.num_workers
        state.arguments = replace(state.arguments, num_workers=workers)

    @property
    def adaptations(self) -> list[SettingChange]:
        """Changes with their reasons, the latest 256."""
        adaptation = self._state.adaptation
        return [] if adaptation is None else list(adaptation.decisions)


def _weak_apply(settings: LiveAttributes) -> Callable[[What, float], None]:
    """Function that applies a change, and does not keep the loader alive."""
    method = weakref.WeakMethod(settings._apply)

    def change(what: What, value: float) -> None:
        if (apply := method()) is not None:
            apply(what, value)

    return change
