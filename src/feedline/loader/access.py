"""Access to a loader's stream and record, for tuning, watching, comparing and Lightning.

Code outside of this package reads nothing else of a loader than the values of these functions and
its public attributes.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from feedline.loader.batch_stream import BatchStream
from feedline.loader.dataloader import DataLoader
from feedline.loader.options import Arguments
from feedline.loader.position import PlannedPosition
from feedline.loader.recording import describe_feedline_loader
from feedline.order.schedule import Phase, Schedule
from feedline.timing.recorder import Recorder
from feedline.timing.run import Loader


def stream(loader: DataLoader[Any]) -> BatchStream:
    """Position, engine and options of the next iteration, or of the one in progress."""
    return loader._runtime.stream


def cache(loader: DataLoader[Any]) -> tuple[Any, bool]:
    """Cache, and True if the next iteration reads copies from it."""
    root, filling = stream(loader).options.cache, stream(loader).filling
    return root, root is not None and filling.reads_copies(lambda: None)


def constructor_arguments(loader: DataLoader[Any]) -> Arguments:
    """Arguments that a copy of the loader is built with."""
    return loader._runtime.arguments


def index_sampler(loader: DataLoader[Any]) -> Iterable[Any]:
    """Sampler of the keys of batches, or of samples if there is no batch sampler, as in torch."""
    sampler: Iterable[Any] = loader._index_sampler
    return sampler


def repeat_phase(loader: DataLoader[Any], phase: Phase | None) -> None:
    """Plan endless batches of one phase; None restores the order, for a state to be loaded.

    Without an end workers continue over epochs, as within a schedule.
    """
    batches = stream(loader)
    order, position = batches.options.order, batches.position
    if order is not None:
        if phase is not None:
            order = replace(order, schedule=Schedule((phase,)))
        assert isinstance(position, PlannedPosition), "the order is planned"
        position.set_order(order, None)
        position.endless = phase is not None or batches.options.schedule is None
        batches.engine.restart_prefetch()
    elif phase is not None and phase.image_size is not None:
        batches.set_image_size(phase.image_size)


def describe(loader: DataLoader[Any]) -> Loader:
    """Describe a loader for the record of a run."""
    return describe_feedline_loader(loader._runtime.current_options(), stream(loader).choice())


def share_recorder(loader: DataLoader[Any], recorder: Recorder, class_name: str) -> None:
    """Record a loader in this recorder, before its first pass, under the name of a class.

    When the loader is freed, its workers are read once more, before they end.
    """
    recording = loader._runtime.recording
    recording.recorder, recording.class_name = recorder, class_name
    weakref.finalize(loader, recording.leave_run)


def end_pass(loader: DataLoader[Any], how: str) -> None:
    """End the record of the pass: "exhausted", "left" or "raised".

    For frameworks that know the length and request no batch after the last one.
    """
    loader._runtime.recording.end(how)
