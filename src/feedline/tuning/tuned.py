"""What a search has found: for each phase its trials, the best of them, and why it ended.

Guarantees: pure; what is printed, drawn and written is said from this alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from feedline.errors import UsageError
from feedline.forecast.changes import Changes
from feedline.forecast.rates import Rates
from feedline.forecast.schedule import Forecast, forecast
from feedline.forecast.what_if import LevelRates, WhatIf, what_if
from feedline.loader.saved_settings import SavedSettings
from feedline.plan.schedule import Schedule
from feedline.tuning.failure import Failure
from feedline.tuning.setting import Setting
from feedline.tuning.table import table
from feedline.tuning.tuned_phase import TunedPhase, phase_dict

__all__ = ["ONE_FOR_ALL", "Tuned"]

ONE_FOR_ALL = (
    "one setting for all phases, enough for the busiest; num_workers='auto' follows each phase"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """What was found.

    Args:
        phases: in the order of the schedule.
        seconds: that it took.
        batch_size: samples of a batch where a phase has no other; None where it varies.
        loader: "feedline" or "torch".
        start: the setting that the search began with.
        rates: of the phases that were measured, what else is predicted from.
        failure: what the step or the loader has raised, which ended the search; None where nothing.
        files: how the images' files were, as "in the page cache".
    """

    phases: tuple[TunedPhase, ...]
    seconds: float
    batch_size: int | None
    loader: Literal["feedline", "torch"] = "feedline"
    start: Setting
    rates: tuple[Rates, ...] = ()
    failure: Failure | None = None
    files: str = "as they were"

    @property
    def num_workers(self) -> int | None:
        """The workers that suffice for every phase; None where nothing was measured."""
        return None if self.setting is None else self.setting.workers

    @property
    def needs_s(self) -> float:
        """About how many seconds a whole search takes at all sizes, of which each has its share."""
        return len(self.phases) * max((phase.needs_s for phase in self.phases), default=0.0)

    @property
    def setting(self) -> Setting | None:
        """What suffices for every phase; None where nothing was measured."""
        found = [phase.best.setting for phase in self.phases if phase.best is not None]
        if not found:
            return None
        pieces = [setting.piece_ms for setting in found if setting.piece_ms is not None]
        return Setting(
            workers=max(setting.workers for setting in found),
            prefetch=max(setting.prefetch for setting in found),
            piece_ms=min(pieces, default=None),
            pin=found[0].pin,
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the loader that are to be given; empty where nothing was measured."""
        found, start = self.setting, self.start
        if found is None:
            return {}
        arguments: dict[str, Any] = {"num_workers": found.workers}
        if found.piece_ms is None:
            if self.loader == "torch" or found.prefetch != start.prefetch:
                arguments["prefetch_factor"] = found.prefetch
            if self.loader == "torch":
                arguments["persistent_workers"] = True
                arguments["pin_memory"] = bool(found.pin)
            return arguments
        if found.prefetch != start.prefetch:
            arguments["prefetch"] = found.prefetch
        if found.piece_ms != start.piece_ms:
            arguments["piece_ms"] = found.piece_ms
        return arguments

    @property
    def snippet(self) -> str:
        """The call to paste; "" where nothing was measured."""
        said = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        name = "torch.utils.data.DataLoader" if self.loader == "torch" else "feedline.DataLoader"
        lines = [f"{name}(..., {said})"] if said else []
        if said and len(self.phases) > 1:
            lines.append(f"# {ONE_FOR_ALL}")
        return "\n".join([*lines, *self._recommendations])

    @property
    def _recommendations(self) -> list[str]:
        """Faster ways to make the images, as comments behind a snippet: they change pixels."""
        said: dict[str, list[str]] = {}
        for phase in self.phases:
            other = phase.recommended
            if other is not None and phase.best is not None:
                at = f"at {phase.size} px " if phase.size else ""
                said.setdefault(other.how or other.name, []).append(at + other.said(phase.best))
        return [f"# or with {how}: {'; '.join(why)}" for how, why in said.items()]

    @property
    def saved(self) -> SavedSettings | None:
        """What a file of settings says; None where nothing was measured."""
        arguments = dict(self.arguments)
        arguments.pop("persistent_workers", None)  # a file of settings has none
        return SavedSettings(**arguments) if arguments else None

    def what_if(self, changes: str | Changes, levels: LevelRates | None = None) -> WhatIf:
        """Predict each phase with something changed.

        Args:
            changes: any of workers, cache, cores and gpu: "workers=8,cache=256,cores=16,gpu=2".
                `cache` is the side of a level in pixels or "none", `gpu` how many times as fast the
                step computes.
            levels: rates of a cache's levels, where another one is asked for:
                `feedline.plan_cache(folder, schedule).measured.rates`.

        Raises:
            UsageError: changes that are not understood; a level that was not measured; nothing was.

        Example:
            >>> print(found.what_if("workers=8,gpu=2"))                         # doctest: +SKIP
        """
        self._need_rates()
        return what_if(self.rates, changes, levels)

    def forecast(
        self,
        schedule: str | Schedule,
        *,
        images: int | None = None,
        workers: int | None = None,
        levels: LevelRates | None = None,
    ) -> Forecast:
        """Predict each phase of a schedule, and its time against one fixed size.

        Args:
            schedule: the phases, also of sizes that were not tuned: that is said.
            images: of an epoch; None: times are left out.
            workers: with which all of it runs; None: those that suffice for every phase.
            levels: as of `what_if`: one of them may be advised.

        Raises:
            UsageError: nothing was measured; what was has sizes and the schedule has none, or the
                reverse; images or workers that are no number of them.

        Example:
            >>> print(found.forecast("112x10,224x10", images=1_281_167))        # doctest: +SKIP
        """
        self._need_rates()
        crew = self.num_workers if workers is None else workers
        return forecast(self.rates, schedule, images=images, workers=crew, levels=levels)

    def _need_rates(self) -> None:
        """Refuse to predict from nothing.

        Raises:
            UsageError: nothing was measured, or nothing of what workers did.
        """
        if not self.rates and self.setting is None:
            raise UsageError(
                f"nothing was measured, so nothing can be predicted ({self.phases[0].reason})"
                if self.phases
                else "nothing was measured, so nothing can be predicted; give it more time"
            )
        if not self.rates:
            raise UsageError(
                "torch's workers did not tell what they spent their time on, so nothing can be "
                "predicted from it; tune feedline.DataLoader over the same dataset, whose workers "
                "do"
            )

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values: rates in batches per second, shares from 0 to 1."""
        return {
            "num_workers": self.num_workers,
            "arguments": self.arguments,
            "snippet": self.snippet,
            "scope": "all phases",
            "loader": self.loader,
            "batch_size": self.batch_size,
            "files": self.files,
            "seconds": self.seconds,
            "phases": [phase_dict(phase) for phase in self.phases],
        }

    def __str__(self) -> str:
        """A table for each phase, the reasons, and the call to paste."""
        return table(self.phases, self.start, self.files, self.seconds, self.snippet)
