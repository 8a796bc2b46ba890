"""What was found: a cause, its evidence, what to do, and what that gains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Bound", "Ceiling", "Finding", "Gain", "PhaseSplit", "Thresholds", "Verdict"]

Bound = Literal[
    "not input-bound",
    "moderately input-bound",
    "highly input-bound",
    "inconclusive",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """From which share of waiting on a run counts as bound by its input.

    5% and 20% are those of the input-pipeline analyzer of TensorFlow's profiler.

    Args:
        moderate_pct: exposed wait in percent of the step, from which it is moderate.
        high_pct: from which it is high.
        least_steps: with fewer steps nothing is said.
        worth: advice is given from this gain on.
    """

    moderate_pct: float = 5.0
    high_pct: float = 20.0
    least_steps: int = 20
    worth: float = 1.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """How many times as fast training would be, with an interval.

    Args:
        predicted: 1.0 is as now.
        low: what it is at least, as far as the spread of the measurement says.
        high: at most.
    """

    predicted: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that holds training back, or one thing worth knowing.

    Args:
        rule: its stable id, which is the name of its page in the documentation.
        cause: what is the matter, in a sentence.
        evidence: the figures it follows from.
        fix: what to do, in a sentence that can be followed on this machine; "" for nothing.
        gain: of the fix; None where it cannot be predicted.
    """

    rule: str
    cause: str
    evidence: str
    fix: str = ""
    gain: Gain | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseSplit:
    """The steps of one phase, in ms a batch: median, 95th percentile, longest.

    None stands for what was not measured.

    Args:
        image_size: of the phase, in pixels.
        batch_size: samples of a batch.
        epochs: the first and the last of it.
        steps: how many were measured.
        images_per_s: over the phase, start-ups left out.
        wait_ms: exposed waiting.
        copy_ms: exposed copying.
        compute_ms: the rest.
        hidden_ms: work of the workers for a batch that happened behind the steps, per worker lane.
        wait_pct: exposed waiting in percent of all steps.
    """

    image_size: int | None
    batch_size: int | None
    epochs: tuple[int, int]
    steps: int
    images_per_s: float | None
    wait_ms: tuple[float, float, float] | None
    copy_ms: tuple[float, float, float] | None
    compute_ms: tuple[float, float, float] | None
    hidden_ms: float | None
    wait_pct: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ceiling:
    """What training would do with data for free, and what it is made of, in images/s.

    Args:
        how: "from the steps" (their time without waiting), or "replayed" (batches that lie on the
            device already, one after another).
        free_images_per_s: the ceiling.
        now_images_per_s: what was measured.
        fetch_images_per_s: what the storage gives; None where it was not measured.
        prepare_images_per_s: what workers make of bytes that are there.
    """

    how: str
    free_images_per_s: float
    now_images_per_s: float
    fetch_images_per_s: float | None = None
    prepare_images_per_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What binds a run, by how much, and what to do about it.

    Args:
        bound: how far its input is what holds it back.
        split_ms: the mean step, in ms: "wait", "copy", "compute"; None for what was not measured.
        wait_pct: exposed wait in percent of the time, in steps and where later passes start.
        phases: the same phase by phase.
        epochs: likewise, pass by pass.
        ceiling: None where nothing can be said.
        findings: most important first; never empty: "healthy", "compute-bound" or "inconclusive"
            stand where there is nothing to mend.
    """

    bound: Bound
    split_ms: dict[str, float | None]
    wait_pct: float | None
    phases: list[PhaseSplit] = field(default_factory=list)
    epochs: list[PhaseSplit] = field(default_factory=list)
    ceiling: Ceiling | None = None
    findings: list[Finding] = field(default_factory=list)
