"""A phase's augmentation on the CPU and on the device: what each costs, and which is faster.

Guarantees: pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from feedline.train.augment_costs import AugmentCosts
from feedline.tuning.trial import Trial

__all__ = ["AugmentPlaces", "place_rows", "places_note"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AugmentPlaces:
    """What was measured of both.

    Args:
        costs: of the augmentation by itself.
        rows: of a batch.
        cpu: steps over a loader whose workers augment.
        device: steps over one that has the device do it.
    """

    costs: AugmentCosts
    rows: int
    cpu: Trial
    device: Trial

    @property
    def unknown(self) -> bool:
        """Whether there were too few steps over one of the loaders to compare them."""
        return self.cpu.interval is None or self.device.interval is None

    @property
    def faster(self) -> str:
        """The place with the shorter step; "" where the two 95% intervals meet, or are unknown."""
        cpu, device = self.cpu.interval, self.device.interval
        if cpu is None or device is None or (cpu[0] <= device[1] and device[0] <= cpu[1]):
            return ""
        return "cpu" if cpu[0] > device[1] else "device"

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values: milliseconds, and images/s."""
        return {
            "cpu": {
                "image_ms": self.costs.image_ms,
                "images_timed": self.costs.images,
                "images_per_s": self.rows * self.cpu.steps_per_s,
            },
            "device": {
                "step_ms": self.costs.step_ms,
                "steps_timed": self.costs.steps,
                "images_per_s": self.rows * self.device.steps_per_s,
            },
            "faster": self.faster or None,
        }


def place_rows(phases: Sequence[tuple[str, AugmentPlaces]]) -> list[tuple[str, ...]]:
    """The rows of a table.

    Args:
        phases: what they are called, and their places.
    """
    rows: list[tuple[str, ...]] = [
        ("", "cpu: ms an image", "images/s", "device: ms a step", "images/s", "faster")
    ]
    for name, each in phases:
        said = each.as_dict()
        rows.append(
            (
                name,
                f"{each.costs.image_ms:.2f}",
                f"{said['cpu']['images_per_s']:.1f}",
                f"{each.costs.step_ms:.1f}",
                f"{said['device']['images_per_s']:.1f}",
                each.faster or ("too few steps" if each.unknown else "no difference seen"),
            )
        )
    return rows


def places_note(augment_on: str) -> str:
    """How the figures of the table are known.

    Args:
        augment_on: of the run.
    """
    return (
        "policy and erasing: an image's time is processor time of one worker, a step's that of a "
        "batch alone; images/s are of steps over a loader with --augment-on cpu and over one with "
        f"device, of which this run has {augment_on}; mixing is done on the device with both"
    )
