"""State of a loader, as returned by `state_dict`: its entries, and the checks when it is loaded.

`BatchStream.state` builds the dict. Its entries, by the module that adds them:
    state.py             `version`, `epoch`, `step`, `image_size` (`Position.as_state`), and the
                         values that must be equal in the resuming loader (`identity_of`)
    position.py          for an order defined by samplers: rank, number of ranks and seed
    sampled_epoch.py     for an order defined by samplers: digest of the delivered keys, steps
                         delivered early, the sampler's own state, and random states
    iterable_engine.py   for an IterableDataset: random states, steps replaced by an exception, and
                         the dataset's own state
    torch_samplers.py    the text form of random states
    engine_choice.py     `made_by`: values that determine the pixels (`EngineChoice.made_by`)
    cache_filling.py     `cache`: whether originals or copies are read

The keys depend on the loader's arguments only, not on its position: torch.distributed.checkpoint
loads a state into the entries that a new loader has.
"""

from __future__ import annotations

import contextlib
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset

from feedline.errors import StateError
from feedline.images.compile.library_steps import CompileError
from feedline.loader.dataset_kind import find_feedline_source
from feedline.loader.options import Options
from feedline.loader.torch_samplers import describe, sampler_rank_and_world_size
from feedline.order.schedule import is_count, is_image_size
from feedline.system import find_attribute

_VERSION = 3
_MAX_UNDRAWN = 1_000_000
_ARGUMENTS = (
    "Build the loader with the arguments the state was saved with (with several ranks, batch_size "
    "times world_size must stay the same), or start from the beginning"
)
_WORKERS = "An IterableDataset is divided among its workers, so their number must be the same"


class Position(NamedTuple):
    """Position of the next batch: `step` batches of `epoch` have been delivered.

    `image_size` overrides the schedule's size for all following batches; None follows the schedule.
    """

    epoch: int = 0
    step: int = 0
    image_size: int | None = None

    def at_step(self, step: int) -> Position:
        """Same position at another step of the epoch."""
        return Position(self.epoch, step, self.image_size)

    def at_epoch(self, epoch: int) -> Position:
        """Beginning of another epoch."""
        return Position(epoch, 0, self.image_size)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Position:
        """Position in a checked state."""
        return cls(epoch=state["epoch"], step=state["step"], image_size=state.get("image_size"))

    def as_state(self) -> dict[str, Any]:
        """Entries of a state, with the version."""
        return {
            "version": _VERSION,
            "epoch": self.epoch,
            "step": self.step,
            "image_size": self.image_size,
        }


def _is_counts(value: object) -> bool:
    return isinstance(value, list) and all(map(is_count, value))


def _is_optional_count(value: object) -> bool:
    return value is None or is_count(value)


def _is_packed(value: object) -> bool:
    return value is None or (isinstance(value, (tuple, list)) and len(value) == 1)


_ENTRIES: dict[str, Callable[[Any], bool]] = {
    "epoch": is_count,
    "step": is_count,
    "image_size": lambda size: size is None or is_image_size(size),
    "steps_to_skip": is_count,
    "early": _is_counts,
    "drawn_seed": _is_optional_count,
    "undrawn_seeds": lambda seeds: _is_optional_count(seeds) and (seeds or 0) <= _MAX_UNDRAWN,
    "start": lambda start: (
        isinstance(start, Mapping)
        and start.keys() == {"epoch", "random", "first", "seeded_states", "sampler"}
        and _is_optional_count(start["epoch"])
        and _is_packed(start["sampler"])
    ),
    "sampler_state": _is_packed,
    "iterator_state": _is_packed,
    "dataset_state": _is_packed,
    "random": lambda states: isinstance(states, list),
    "raised": _is_counts,
    "made_by": lambda made_by: (
        isinstance(made_by, Mapping)
        and made_by.keys() == {"pixels", "engine"}
        and all(isinstance(text, str) for text in made_by.values())
    ),
    "cache": lambda cache: (
        isinstance(cache, Mapping)
        and isinstance(cache.get("copies"), bool)
        and is_count(cache.get("batches"))
    ),
}
"""Checks of the entries that a state may have; it always has `epoch` and `step`."""


def damaged_state_error(state: Mapping[str, Any], name: str) -> StateError:
    """Error about an invalid entry of a state."""
    value = reprlib.repr(state.get(name))
    return StateError(f"cannot resume: the state is damaged: invalid {name!r}: {value}")


def check_state(state: Mapping[str, Any]) -> None:
    """Raise StateError if a value is not a loader state, has another version, or is damaged."""
    version = state.get("version") if isinstance(state, Mapping) else type(state).__name__
    if _differs(version, _VERSION):
        raise StateError(
            f"cannot resume: expected a loader state of version {_VERSION}, got {version!r}; "
            "pass the value of DataLoader.state_dict()"
        )
    for name, is_valid in _ENTRIES.items():
        if (name in state or name in ("epoch", "step")) and not is_valid(state.get(name)):
            raise damaged_state_error(state, name)


def require_entries(state: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise StateError if a checked state has no entry of one of these names."""
    for name in names:
        if name not in state:
            raise damaged_state_error(state, name)


def check_identity(state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Raise StateError if a checked state has other values than those of `identity_of`."""
    if "sampler" in identity and "start" not in state:
        raise StateError(
            "cannot resume: the state is of a loader with its own order (seed= or schedule=), "
            "and samplers define the order of this loader; build it with the same arguments"
        )
    differences = [
        f"{name} was {state.get(name)!r}, is {value!r}"
        for name, value in identity.items()
        if _differs(state.get(name), value)
    ]
    if differences:
        raise StateError(
            f"cannot resume: the state belongs to another run ({'; '.join(differences)}). "
            f"{_WORKERS if 'num_workers' in identity else _ARGUMENTS}"
        )


def _differs(value: object, expected: object) -> bool:
    """Return True if two values differ or cannot be compared."""
    try:
        return type(value) is not type(expected) or bool(value != expected)
    except Exception:  # e.g. the comparison of an array is not a single bool
        return True


def identity_of(options: Options, dataset: str) -> dict[str, Any]:
    """Values that a state and the resuming loader must have in common, JSON-able."""
    if options.order is not None:
        return options.order.identity(dataset)
    if options.iterable:
        return {
            "dataset": dataset,
            "batch_size": options.batch_size,
            "drop_last": options.drop_last,
            "num_workers": options.num_workers,
        }
    _, ranks = sampler_rank_and_world_size(options.index_sampler)
    phases = options.effective_schedule
    return {
        "dataset": dataset,
        "length": len(options.dataset) if hasattr(type(options.dataset), "__len__") else None,
        "global_batch_size": None if options.batch_size is None else options.batch_size * ranks,
        "drop_last": options.drop_last,
        "schedule": str(phases) if phases.image_sizes or options.schedule else None,
        "seed": options.seed,
        "sampler": describe(options.index_sampler),
    }


def fingerprint_of(dataset: object) -> str:
    """`fingerprint()` of a dataset, a hash of a torchvision folder, or the name of its class."""
    source = find_feedline_source(dataset)
    if source is not None and source is not dataset:  # a Subset
        from feedline.images.compile.compile_dataset import find_source  # loads decoders

        with contextlib.suppress(CompileError):
            dataset = find_source(dataset)
    own = find_attribute(dataset, "fingerprint")
    if callable(own) and not isinstance(dataset, IterableDataset):
        return str(own())
    if "torchvision" in sys.modules:
        from feedline.images.compile.datasets import folder_fingerprint  # loads decoders

        folder = folder_fingerprint(dataset)
        if folder is not None:
            return folder
    kind = type(dataset)
    return f"{kind.__module__}.{kind.__qualname__}"


def pack(value: Any) -> tuple[Any] | None:
    """Pack a state of user code, as one value for torch.distributed.checkpoint.

    That loads values by their keys, and the keys of such a state may change with the position.
    """
    return None if value is None else (value,)


def unpack(packed: Any) -> Any:
    """Unpack a state of user code, which is in a list if the state was stored as JSON."""
    return None if packed is None else packed[0]


def compare_made_by(state: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """Differences between how a state's batches were made and `EngineChoice.made_by`, as texts."""
    saved = state.get("made_by", now)
    different = [name for name in now if saved[name] != now[name]]
    return [f"{name} was {saved[name]!r}, is {now[name]!r}" for name in different]
