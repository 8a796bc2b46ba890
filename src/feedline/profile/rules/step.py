"""The step itself: new shapes, a host slower than its device, and compute-bound runs."""

from __future__ import annotations

from feedline.profile.facts import RunFacts
from feedline.profile.finding import Finding
from feedline.profile.gains import gain_of_saved
from feedline.text import as_ms, as_share, plural

__all__ = ["compute_bound", "host_bound", "inconclusive", "new_shape"]

_BUSY_HOST = 0.9


def new_shape(facts: RunFacts) -> Finding | None:
    """The first steps at another image size take far longer than those after them."""
    late = [phase for phase in facts.phases if phase.first_pass > 0 and phase.first_excess_steps]
    excess = sum(phase.first_excess_ms for phase in late)
    if not late:
        return None
    gain = gain_of_saved(facts, excess)
    if gain.predicted < facts.thresholds.worth:
        return None
    worst = max(late, key=lambda phase: phase.first_excess_ms)
    size = f"{worst.image_size} px" if worst.image_size else f"batches of {worst.batch_size}"
    steps = sum(phase.first_excess_steps for phase in late)
    return Finding(
        rule="new-shape",
        cause="The first steps at a new image size take long: kernels are selected or compiled.",
        evidence=f"{plural(steps, 'step')} at {plural(len(late), 'change')} took "
        f"{as_ms(excess)} longer "
        f"than the usual ones; worst at {size}, {as_ms(worst.first_excess_ms)}",
        fix="Run each shape once before training, or use fewer shapes: few sizes in the schedule, "
        "drop_last=True, torch.compile(dynamic=True), cudnn.benchmark only if shapes are "
        "constant.",
        gain=gain,
    )


def host_bound(facts: RunFacts) -> Finding | None:
    """The device waits for the host: for Python, and for kernels to be launched."""
    if not facts.device or facts.waits:
        return None
    busy = facts.use.gpu_busy
    own = facts.compute_cpu_ms
    host = own / facts.compute_ms if own is not None and facts.compute_ms > 0 else None
    # A thread that waits for its device spins on a core, as in .item(): only an idle device
    # distinguishes launching from that.
    if busy is None or facts.device_busy or host is None or host < _BUSY_HOST:
        return None
    return Finding(
        rule="host-bound",
        cause="The training thread itself is the bottleneck: Python, and launching kernels.",
        evidence=f"of each step's {as_ms(facts.compute_ms)} the thread is on a core "
        f"{as_share(host)}"
        f"; the device is busy {as_share(busy)} of the time; a step waits "
        f"{as_ms(facts.wait_ms)} for "
        "its batch",
        fix="Launch fewer and larger kernels: a larger batch, torch.compile, CUDA graphs, fused "
        "optimizers; move .item(), printing and logging out of the step.",
    )


def compute_bound(facts: RunFacts) -> Finding:
    """The step is the bottleneck, and data loading keeps up with it: there is nothing to fix."""
    lanes = facts.lanes
    busy = (
        f"; workers are busy {as_share(lanes.busy)} of the time" if lanes and facts.workers else ""
    )
    return Finding(
        rule="compute-bound",
        cause="The training step is the bottleneck: data loading keeps up with it.",
        evidence=f"a step computes for {as_ms(facts.compute_ms)} and waits "
        f"{as_ms(facts.wait_ms)}; data "
        f"wait is {facts.wait_pct:.1f}% of the time, including the starts of epochs{busy}",
    )


def inconclusive(facts: RunFacts) -> Finding | None:
    """There are too few measurements for a diagnosis."""
    least = facts.thresholds.least_steps
    if not facts.passes:
        return _nothing("No batch was requested.", "no pass was recorded", f"Run {least} steps.")
    if not any(each.batches for each in facts.passes):
        how = facts.passes[-1].ended
        reason = (
            "the loader raised before its first batch"
            if how == "raised"
            else "the loader yielded no batch"
        )
        return _nothing(
            "There was no batch.",
            f"{plural(len(facts.passes), 'pass')}; {reason}",
            "Check that the dataset is not empty, and that drop_last=True does not drop its only "
            "batch."
            if how != "raised"
            else "Fix the error, then run it again.",
        )
    if facts.steps < least:
        how = {"left": "the loop ended early", "raised": "the loader raised"}.get(
            facts.passes[-1].ended, "the loader is short"
        )
        return _nothing(
            "There are too few steps for a diagnosis.",
            f"{plural(facts.steps, 'step')} measured; {how}",
            f"Run at least {least} steps.",
        )
    if facts.step_ms <= 0:
        return _nothing(
            "The steps took no measurable time.",
            f"{plural(facts.steps, 'step')}",
            "Run the training step in the loop.",
        )
    return None


def _nothing(cause: str, evidence: str, fix: str) -> Finding:
    return Finding(rule="inconclusive", cause=cause, evidence=evidence, fix=fix)
