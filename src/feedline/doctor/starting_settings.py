"""What to begin with on this machine, and why: the loader's own defaults, where they fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.filesize import decimal

from feedline.doctor import batch
from feedline.doctor.cores import cores_line
from feedline.engine.defaults import DEFAULT_PREFETCH, WORKER_BYTES, auto_workers
from feedline.engine.start_method import default_start_method
from feedline.system import CoreLimits

__all__ = ["Setting", "starting_settings"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """An argument of feedline.DataLoader, or a fact about it, with the reason for its value."""

    name: str
    value: int | str | bool
    reason: str


def starting_settings(
    limits: CoreLimits, available_bytes: int | None, workers: int, *, gpu: bool
) -> Iterator[Setting]:
    """What to begin with.

    Args:
        limits: of the cores.
        available_bytes: memory that can be had; None where that is not known.
        workers: what `num_workers="auto"` means here, for the batch that memory is reckoned for.
        gpu: there is one that torch can use.
    """
    slots_bytes = batch.SLOTS * batch.slot_bytes()
    left_free = {0: "one for each core", 1: "one core is left to the training loop"}.get(
        limits.usable - workers, "some cores are left to the training loop and its threads"
    )
    reason = f'what num_workers="auto" begins with: {left_free}: {cores_line(limits)}'
    if workers < auto_workers(limits.usable):
        reason = (
            'what num_workers="auto" begins with for such batches: each takes up to '
            f"{decimal(WORKER_BYTES)}, and with the batches they are to have half of the "
            f"{decimal(available_bytes or 0)} that are available, at least one of them"
        )
    yield Setting(name="num_workers", value=workers, reason=reason)
    yield Setting(
        name="prefetch",
        value=DEFAULT_PREFETCH,
        reason="the default: one batch is with the training step, and two keep any number of "
        "workers busy, as all of them share each batch",
    )
    yield Setting(
        name="batch memory",
        value=decimal(slots_bytes),
        reason=f"{batch.SLOTS} batches of {batch.ROWS} images at {batch.SIZE_PX} px, as bytes "
        f"({decimal(batch.slot_bytes())} each): those made ahead, and the one in use",
    )
    yield Setting(
        name="start_method",
        value=default_start_method(),
        reason="the default for feedline's own sources; for any other Dataset it is Python's",
    )
    if gpu:
        yield Setting(
            name="device",
            value="cuda",
            reason="batches of feedline's own sources are then pinned and copied a step ahead; for "
            "any other Dataset pin_memory=True",
        )
    else:
        yield Setting(
            name="pin_memory",
            value=False,
            reason="pinned memory speeds up copies to a GPU, and there is none that torch can use",
        )
