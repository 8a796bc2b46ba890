"""One epoch drawn from torch's samplers: batches, position, digest of the keys, random states.

Guarantees: the sampler is asked for each batch once, however often upcoming batches are iterated;
each batch is delivered once, in order or early. If an interrupt stops a request, the drawn batch
may be lost, and `broken` is True. Different sequences of batches have different digests, and equal
ones have equal digests in every process: keys (numbers, text, paths, enums, tensors and arrays,
also within lists, dictionaries, sets and dataclasses) are compared by value. At most 10,000 parts
of a batch's keys are read, and arrays enter as a checksum of their bytes.

The random states that samplers draw from are torch's global one, and every `torch.Generator` that a
sampler or the loader has as attribute `generator`. Recording only reads them; a replay draws from a
copy of the global state and leaves the state itself unchanged.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
import pickle
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import count
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.errors import StateError
from feedline.loader.samplers import ask, chain, epoch_mark, stateful_part
from feedline.order.batch_spec import NO_NUMBER
from feedline.order.position import Position
from feedline.order.schedule import is_count

__all__ = [
    "Draw",
    "Draws",
    "EpochProgress",
    "RandomStates",
    "SampledEpoch",
    "check_record",
    "key_bytes",
]


@dataclass(frozen=True)
class RandomStates:
    """Recorded random states: the global one, and those of the generators in order."""

    global_state: bytes
    generators: tuple[bytes, ...]
    _held: tuple[torch.Generator, ...]

    @classmethod
    def capture(cls, sampler: object, generator: torch.Generator | None) -> RandomStates:
        """Record the current states."""
        held = _generators(sampler, generator)
        states = tuple(_bytes(each.get_state()) for each in held)
        return cls(_bytes(torch.default_generator.get_state()), states, held)

    def set_generators(self) -> None:
        """Restore the generators. The global state is not changed."""
        for each, state in zip(self._held, self.generators, strict=True):
            each.set_state(_tensor(state))

    def as_json(self) -> dict[str, Any]:
        """Text form, some kilobytes per state."""
        return {
            "global": _text(self.global_state),
            "generators": [_text(state) for state in self.generators],
        }

    @classmethod
    def from_json(
        cls, said: Mapping[str, Any], sampler: object, generator: torch.Generator | None
    ) -> RandomStates:
        """Read the text form.

        Raises:
            StateError: the number of generators differs, or the text is damaged.
        """
        held = _generators(sampler, generator)
        try:
            global_state = _state(said["global"])
            states = tuple(_state(text) for text in said["generators"])
            devices = [torch.device("cpu"), *(each.device for each in held)]
            for device, state in zip(devices, (global_state, *states), strict=False):
                torch.Generator(device).set_state(_tensor(state))  # or it would fail in mid-epoch
        except (KeyError, TypeError, ValueError, RuntimeError, zlib.error) as error:
            raise StateError(f"cannot resume: damaged random state ({error})") from None
        if len(states) != len(held):
            raise StateError(
                f"cannot resume: the state holds {len(states)} generators for the order of the "
                f"samples, this loader has {len(held)}; pass the same generator= as before"
            )
        return cls(global_state, states, held)

    @contextmanager
    def replace_global_state(self) -> Iterator[None]:
        """Restore the global state for a `with`, and put the current one back at its end."""
        here = torch.default_generator.get_state()
        torch.default_generator.set_state(_tensor(self.global_state))
        try:
            yield
        finally:
            torch.default_generator.set_state(here)

    def replay(self, drawing: Iterator[Any], first: RandomStates | None = None) -> Iterator[Any]:
        """Draw from the recorded global state, without a change of the current one between draws.

        Args:
            drawing: yields a seed, then keys.
            first: states the first keys were drawn from, if other than those after the seed.
        """
        then = self
        for draw in count():
            if draw == 1 and first is not None:
                then = first
                first.set_generators()
            with then.replace_global_state():
                drawn = next(drawing, _END)
                then = replace(then, global_state=_bytes(torch.default_generator.get_state()))
            if drawn is _END:
                return
            yield drawn


_END = object()


def _generators(sampler: object, generator: torch.Generator | None) -> tuple[torch.Generator, ...]:
    found = [generator, *[getattr(part, "generator", None) for part in chain(sampler)]]
    unique: list[torch.Generator] = []
    for each in found:
        if isinstance(each, torch.Generator) and not any(each is other for other in unique):
            unique.append(each)
    return tuple(unique)


def _bytes(state: torch.Tensor) -> bytes:
    return state.numpy().tobytes()


def _tensor(state: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(state, np.uint8).copy())


def _text(state: bytes) -> str:
    return base64.b85encode(zlib.compress(state, 9)).decode()


def _state(text: str) -> bytes:
    return zlib.decompressobj().decompress(base64.b85decode(text), _MOST_BYTES)


_MOST_BYTES = 1 << 16
"""Upper limit of a generator's state: data that unpacks to more is not a state."""


_MOST_PARTS = 10_000
_PLAIN = (int, float, complex, str, bytes, bool, type(None))


def key_bytes(keys: Any) -> bytes:
    """Return the bytes of any keys."""
    return repr(_plain(keys, iter(range(_MOST_PARTS)))).encode()


def _plain(value: Any, parts: Iterator[int]) -> Any:
    """Convert a value to lists, numbers and text; `parts` limits their number."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    name = kind.__qualname__
    try:
        if next(parts, None) is None:
            return name
        if isinstance(value, Enum):
            return [name, value.name]
        if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
            return _of_array(value, parts)
        if isinstance(value, (list, tuple)):
            made = [_plain(part, parts) for part in value]
            return made if kind in (list, tuple) else [name, made]
        if isinstance(value, dict):
            pairs = [(_plain(key, parts), _plain(part, parts)) for key, part in value.items()]
            return [name, sorted(pairs, key=repr)]
        if isinstance(value, (set, frozenset)):  # of text, it has another order in each process
            return [name, sorted((_plain(part, parts) for part in value), key=repr)]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value) if field.compare]
            return [name, [(each, _plain(getattr(value, each), parts)) for each in names]]
        if isinstance(value, PurePath):
            return [name, str(value)]
        return pickle.dumps(value, protocol=4)
    except Exception:  # a generator, say: it cannot be told from another
        return name


def _of_array(value: Any, parts: Iterator[int]) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        if value.ndim:
            shape = tuple(value.shape)
            value = value.contiguous().reshape(-1).view(torch.uint8).numpy()
            return [shape, zlib.crc32(value.data)]
    elif value.ndim and value.dtype.kind != "O":
        return [value.shape, zlib.crc32(value.tobytes())]
    return _plain(value.tolist(), parts)


@dataclass(frozen=True, slots=True)
class Draw:
    """Keys of one batch, their sample indices if all are indices, and the sampler's state."""

    keys: Any
    numbers: NDArray[np.int64] | None
    state: dict[str, Any] | None

    @property
    def samples(self) -> NDArray[np.int64]:
        """Sample index of each key, NO_NUMBER for keys that are not indices, shape (keys,)."""
        if self.numbers is not None:
            return self.numbers
        keys = len(self.keys) if isinstance(self.keys, (list, tuple)) else 1
        return np.full(keys, NO_NUMBER, np.int64)

    def digest(self, before: int) -> int:
        """Digest of all keys so far, 32 bits."""
        if self.numbers is not None:
            return zlib.crc32(self.numbers.data, before + len(self.numbers) & 0xFFFFFFFF)
        return zlib.crc32(key_bytes(self.keys), before)


class Draws:
    """One pass over a sampler.

    Args:
        keys: yields the keys of each batch; after its end it stays exhausted.
        sampler: sampler of this pass; its state, if it has one, is read after each batch.
    """

    def __init__(self, keys: Iterator[Any], sampler: object) -> None:
        self._keys = keys
        self._sampler = sampler
        self._stateful = stateful_part(sampler)
        self.mark = epoch_mark(sampler)
        """SampledEpoch of the sampler. The sampler may increase it at its end."""
        self._waiting: dict[int, Draw] = {}  # by number in the pass
        self._drawn = self._forgotten = 0
        self.begun = False
        """True if the first batch was requested."""
        self.broken = False
        """True if the pass cannot continue because a request was interrupted."""
        self.sampler_state = self._state()
        """State of the sampler before the first batch."""

    def at(self, number: int) -> Draw | None:
        """Return a draw by its number, from 0 on, if not forgotten; None after the end."""
        while self._drawn <= number:
            self.begun = True
            try:
                draw = self._next()
                if draw is None:
                    return None
                self._waiting[self._drawn] = draw
                self._drawn += 1
            except Exception:  # the sampler's own: the pass is at its end
                raise
            except BaseException:
                self.broken = True
                raise
        return self._waiting[number]

    def has(self, number: int) -> bool:
        """Return True if this batch is drawn and not forgotten; never asks the sampler."""
        return number in self._waiting

    def _next(self) -> Draw | None:
        keys = ask(self._keys, _END)
        if self.mark is not None:
            self.mark = epoch_mark(self._sampler)
        if keys is _END:
            return None
        if type(keys) is list:  # a sampler may fill the same one again
            keys = keys.copy()
        elif isinstance(keys, (np.ndarray, torch.Tensor)):
            keys = copy.deepcopy(keys)
        return Draw(keys, _numbers(keys), self._state())

    def _state(self) -> dict[str, Any] | None:
        # A copy: it may be the sampler's own, which changes.
        return None if self._stateful is None else copy.deepcopy(self._stateful.state_dict())

    def forget(self, number: int) -> None:
        """Forget all draws before this one."""
        while self._forgotten < number:
            self._waiting.pop(self._forgotten, None)
            self._forgotten += 1


def _numbers(keys: Any) -> NDArray[np.int64] | None:
    try:
        several = isinstance(keys, (list, tuple)) or getattr(keys, "ndim", 0) == 1
        found = np.asarray(keys if several else [keys])
    except ValueError:  # they are themselves of several lengths
        return None
    whole = found.ndim == 1 and found.dtype.kind in "iu"
    return found.astype(np.int64, copy=False) if whole else None


class EpochProgress(NamedTuple):
    """Position within an epoch.

    Args:
        step: number of consecutive batches delivered or skipped.
        digest: digest of their keys.
        early: later steps that were delivered early.
        sampler_state: the sampler's state after the last of these batches, if it has one.
    """

    step: int = 0
    digest: int = 0
    early: frozenset[int] = frozenset()
    sampler_state: dict[str, Any] | None = None


@dataclass
class SampledEpoch:
    """An opened epoch: its draws, its position, and what it depends on.

    Args:
        draws: pass over the sampler.
        seed: seed of random transforms.
        random: random states before the pass.
        start: what is needed to open it again, JSON-able.
        first: first step of the pass.
    """

    draws: Draws
    seed: int
    random: RandomStates
    start: dict[str, Any]
    first: int = 0
    progress: EpochProgress = field(init=False)

    def __post_init__(self) -> None:
        self.progress = EpochProgress(self.first, sampler_state=self.draws.sampler_state)

    @property
    def step(self) -> int:
        """Number of consecutive batches delivered or skipped."""
        return self.progress.step

    def after(self, step: int) -> EpochProgress:
        """Position after one more batch is delivered, in order or early.

        Forgets draws before the current position.
        """
        now = self.progress
        self.draws.forget(now.step - self.first)
        if step != now.step:
            return now._replace(early=now.early | {step})
        digest, early, state = now.digest, now.early, now.sampler_state
        while step == now.step or step in early:
            draw = self.draws.at(step - self.first)
            assert draw is not None, "no batch after the end of the epoch"
            step, digest, state = step + 1, draw.digest(digest), draw.state
        return EpochProgress(step, digest, early and frozenset(e for e in early if e > step), state)

    def skip_to(self, until: int) -> None:
        """Skip to a step, or to the end."""
        while self.step < until and self.draws.at(self.step - self.first) is not None:
            self.progress = self.after(self.step)

    def at_end(self) -> bool:
        """Return True if no batches are left; asks the sampler if that is unknown."""
        step, early = self.progress.step, self.progress.early
        while step in early:
            step += 1
        return self.draws.at(step - self.first) is None

    def ahead(self) -> Iterator[tuple[int, Draw]]:
        """Remaining steps and their draws; continues while batches are delivered."""
        step = self.step
        while (draw := self.draws.at(step - self.first)) is not None:
            if step not in self.progress.early:
                yield step, draw
            step += 1

    def upcoming(self) -> int | None:
        """Digest of the next draw; None at the end."""
        draw = self.draws.at(self.step - self.first)
        return None if draw is None else draw.digest(0)

    def record(self) -> dict[str, Any]:
        """Entries of a state about this epoch, JSON-able if the sampler's own state is."""
        # Drawing the next batch here would change the order if others draw from the random state.
        # A sampler that keeps its own state is asked: only its next batch tells where it stands.
        asked = self.draws.begun and not self.draws.broken
        keeps_state = self.progress.sampler_state is not None
        known = asked and (keeps_state or self.draws.has(self.step - self.first))
        return {
            "drawn": self.progress.digest,
            "early": sorted(self.progress.early),
            "drawn_seed": self.seed,
            "start": self.start,
            "sampler_state": self.progress.sampler_state,
            **({"upcoming": self.upcoming()} if known else {}),
        }


def check_record(state: Mapping[str, Any], position: Position) -> bool:
    """Return True if a state's record belongs to an opened epoch.

    Raises:
        StateError: the state is damaged.
    """
    early = state.get("early", [])
    whole = isinstance(early, list) and all(map(is_count, early))
    whole = whole and isinstance(state["start"], Mapping)
    whole = whole and is_count(state.get("steps_to_skip", 0))
    opened = is_count(state.get("drawn_seed"))
    unopened = state.get("drawn_seed", 0) is None and position.step == 0 and not early
    if not (whole and (opened or unopened)):
        raise StateError(
            "cannot resume: the state is damaged: invalid 'early', 'drawn_seed' or 'start'"
        )
    return opened
