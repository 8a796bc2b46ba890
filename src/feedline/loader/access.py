"""Access to a loader's engine, position and record, for tuning, watching, comparing and Lightning.

Code outside of this package reads nothing else of a loader than these functions and its public
attributes.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from feedline.loader.dataloader import DataLoader
from feedline.loader.engine_choice import EngineChoice
from feedline.loader.options import Arguments
from feedline.loader.position import PlannedPosition
from feedline.loader.recording import describe_feedline_loader
from feedline.order.schedule import Phase, Schedule
from feedline.timing.recorder import Recorder
from feedline.timing.run import Loader
from feedline.timing.stage_page import StageTimings


def engine_choice(loader: DataLoader[Any]) -> EngineChoice:
    """Engine for the current dataset, with the reasons."""
    return loader._runtime.stream.choice()


def is_iterable(loader: DataLoader[Any]) -> bool:
    """Return True if the dataset is an IterableDataset."""
    return loader._runtime.stream.options.iterable


def allocated_prefetch(loader: DataLoader[Any]) -> int:
    """Largest number of batches ahead for which memory is allocated."""
    return loader._runtime.stream.options.allocated_prefetch


def batches_in_flight(loader: DataLoader[Any]) -> int:
    """Number of batches that are made ahead, with the settings of their request."""
    return loader._runtime.stream.engine.in_flight


def cache(loader: DataLoader[Any]) -> tuple[Any, bool]:
    """Cache, and True if the next iteration reads copies from it."""
    stream = loader._runtime.stream
    root = stream.options.cache
    return root, root is not None and stream.filling.reads_copies(lambda: None)


def constructor_arguments(loader: DataLoader[Any]) -> Arguments:
    """Arguments that a copy of the loader is built with."""
    return loader._runtime.arguments


def index_sampler(loader: DataLoader[Any]) -> Iterable[Any]:
    """Sampler of the keys of batches, or of samples if there is no batch sampler, as in torch."""
    sampler: Iterable[Any] = loader._index_sampler
    return sampler


# Position


def phases(loader: DataLoader[Any]) -> tuple[Phase, ...]:
    """Phases of the schedule; one if the loader has none."""
    return loader._runtime.stream.options.effective_schedule.phases


def repeat_phase(loader: DataLoader[Any], phase: Phase | None) -> None:
    """Plan endless batches of one phase; None restores the order, for a state to be loaded.

    Without an end workers continue over epochs, as within a schedule.
    """
    stream = loader._runtime.stream
    order = stream.options.order
    if order is not None:
        if phase is not None:
            order = replace(order, schedule=Schedule((phase,)))
        position = stream.position
        assert isinstance(position, PlannedPosition), "the order is planned"
        position.set_order(order, None)
        position.endless = phase is not None or stream.options.schedule is None
        stream.engine.restart_prefetch()
    elif phase is not None and phase.image_size is not None:
        stream.set_image_size(phase.image_size)


# Record


def stage_timings(loader: DataLoader[Any]) -> dict[int, StageTimings]:
    """Time per stage of each worker so far, by worker id."""
    return loader._runtime.stream.stage_timings()


def describe(loader: DataLoader[Any]) -> Loader:
    """Describe a loader for the record of a run."""
    return describe_feedline_loader(loader._runtime.current_options(), engine_choice(loader))


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
