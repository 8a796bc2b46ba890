"""One epoch of torch samplers: the keys of its batches, the position in it, and its state.

Terms: the keys of a batch are the values the sampler yields for it, i.e. indices or other arguments
of the dataset's `__getitem__`. A pass is one iterator of the sampler, from `iter(sampler)`. A draw
has the keys of one batch, and the sampler's state after them.

Guarantees: the sampler and torch's random state are used in the same order as by torch's
DataLoader: first `iter(sampler)`, then the workers' seed, then the keys of the first batch. The
sampler yields the keys of each batch once, even if upcoming batches are iterated several times.
Each batch is delivered once, in order or early. If a sampler yields other batches on resume, an
error is raised and the sampler is restored.

A state has a digest of the delivered keys. Different sequences of batches have different digests,
and equal ones have equal digests in every process: keys of any type that can be pickled are
compared by value, sets and dicts in any order of their entries.
"""

from __future__ import annotations

import copy
import io
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.engine.messages import error_message
from feedline.errors import StateError
from feedline.loader.state import Position, pack, unpack
from feedline.loader.torch_samplers import (
    RandomStates,
    describe,
    draw,
    draws_nothing,
    epoch_of,
    set_epoch,
    stateful_part,
)
from feedline.order.batch_spec import NO_SAMPLE_INDEX
from feedline.order.schedule import is_count
from feedline.order.seeds import mix
from feedline.randomness import seeded_states_digest

_END = object()
_INT64 = np.dtype(np.int64)
_PROTOCOL = 4


class _KeyPickler(pickle.Pickler):
    """Pickler whose output depends on values alone. It is only compared, never loaded."""

    def reducer_override(self, value: Any) -> Any:
        """Reduce a value to text if it cannot be pickled, or its pickle depends on other things."""
        if value is str:
            return NotImplemented
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind != "O":
            return str, (f"{value.dtype} {value.shape} {zlib.crc32(value.tobytes())}",)
        if isinstance(value, torch.Tensor):
            data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            return str, (f"{value.dtype} {tuple(value.shape)} {zlib.crc32(data.data)}",)
        if isinstance(value, type):
            return str, (value.__qualname__,)
        if isinstance(value, (set, frozenset)):  # of a subclass
            return str, (type(value).__qualname__,), _in_order(frozenset(value))
        try:
            reduced = value.__reduce_ex__(_PROTOCOL)
            # The function, its arguments, the state of the object, and iterators of its entries.
            return reduced if isinstance(reduced, str) else _in_order(reduced[:3]) + reduced[3:]
        except Exception:  # e.g. a generator, which cannot be distinguished from another
            return str, (type(value).__qualname__,)


def _in_order(value: Any) -> Any:
    """Replace sets and dicts, also in lists and tuples, by their pickled entries in sorted order.

    The order in a set of text differs from process to process. pickle asks no pickler about them.
    """
    kind = type(value)
    if kind in (list, tuple):
        return kind(map(_in_order, value))
    if kind in (set, frozenset):
        return kind.__name__, sorted(map(_pickled, value))
    return (kind.__name__, sorted(map(_pickled, value.items()))) if kind is dict else value


def _pickled(keys: Any) -> bytes:
    output = io.BytesIO()
    pickler = _KeyPickler(output, _PROTOCOL)
    # Disable the pickle memo. With it, `[a, a]` and `[a, copy_of_a]` would have different digests.
    pickler.fast = True
    with suppress(Exception):  # e.g. of a list within itself
        pickler.dump(_in_order(keys))
    return output.getvalue()


def _digest(before: int, keys: Any, indices: NDArray[np.int64] | None) -> int:
    if indices is not None:
        return zlib.crc32(indices.data, before + len(indices) & 0xFFFFFFFF)
    return zlib.crc32(_pickled(keys), before)


class Draw(NamedTuple):
    """Keys of one batch, and the state of the sampler after them."""

    step: int
    keys: Any
    indices: NDArray[np.int64] | None  # keys as sample indices, if all are integers
    digest: int  # of all keys of the epoch so far, 32 bits
    sampler_state: dict[str, Any] | None  # after the batch, if the sampler has a state

    @property
    def samples(self) -> NDArray[np.int64]:
        """Sample index of each key; NO_SAMPLE_INDEX if a key is not an index. Shape (keys,)."""
        if self.indices is not None:
            return self.indices
        keys = len(self.keys) if isinstance(self.keys, (list, tuple)) else 1
        return np.full(keys, NO_SAMPLE_INDEX, np.int64)


def _indices(keys: Any) -> NDArray[np.int64] | None:
    try:
        several = isinstance(keys, (list, tuple)) or getattr(keys, "ndim", 0) == 1
        array = np.asarray(keys if several else [keys])
    except ValueError:  # keys of different lengths
        return None
    if array.ndim != 1:
        return None
    if array.dtype is _INT64:  # the usual case first
        return array
    return array.astype(np.int64, copy=False) if array.dtype.kind in "iu" else None


class SampledEpoch:
    """Open epoch: one pass over the sampler, and the position in it.

    As in torch, an exception of the sampler does not end the pass.

    Args:
        source: sampler and generator.
        seed: seed of the epoch; None uses the drawn one.
        undrawn: 0 draws a seed. With persistent workers: number of seeds since the last one that
            was drawn; the seed is the latest of these, drawn from a copy. None draws nothing.
        rng_states: recorded random states to repeat; None uses the current ones.
        first: recorded random states that replace them from the first batch on.
        start: recorded state entry; None creates one.
    """

    def __init__(
        self,
        source: EpochSource,
        seed: int | None,
        undrawn: int | None,
        rng_states: RandomStates | None = None,
        first: RandomStates | None = None,
        start: dict[str, Any] | None = None,
    ) -> None:
        self._source, self._sampler = source, source.sampler
        self._stateful = stateful_part(source.sampler)
        self.undrawn = undrawn
        self.rng_states = source.capture_rng_states() if rng_states is None else rng_states
        """Random states before the pass."""
        # If only the epoch's seed is drawn, and from the global state, the seed itself is saved.
        seed_only = draws_nothing(source.sampler) and source.generator is None
        self.start = start or source.start(None if seed_only else self.rng_states)
        """State entry from which the epoch can be opened again. It gets the random states before
        the first batch if other code has drawn random numbers since `iter()`: without workers the
        first `next()` reads the sampler."""
        self._replayed = rng_states  # continues with each request
        self._replayed_first = first
        self._keys, drawn = self._call(self._begin_pass)
        if seed is None:
            digest = self.start["seeded_states"]
            seed = drawn if digest is None else mix(drawn, digest)
        self.seed = seed  # of random transforms
        records_first = rng_states is None and self.start["random"] is not None
        self._before_first = source.capture_rng_states() if records_first else None
        self.sampler_epoch = epoch_of(source.sampler)
        """Epoch number of the sampler, which some samplers increase at the end of the epoch."""
        self.early_steps: frozenset[int] = frozenset()  # later steps that were delivered early
        self.start_at(0, 0)
        self._draws: dict[int, Draw] = {}  # by step
        self._has_requested = False  # True if keys were requested from the sampler
        self._has_ended = False  # True if the sampler had no more keys
        self.broken = False
        """True if the pass cannot continue, because Ctrl-C interrupted the sampler."""

    def _begin_pass(self) -> tuple[Iterator[Any], int]:
        """Return an iterator of the sampler, and the seed drawn after its creation, or 0."""
        keys, seed = iter(self._sampler), 0  # the sampler first: it may draw random numbers
        if self.undrawn is None:
            return keys, seed
        generator = self._source.generator
        source = torch.default_generator if generator is None else generator
        if self.undrawn:
            source = torch.Generator(source.device).set_state(source.get_state())
        # Set explicitly, because torch.set_default_device may have set another.
        number = torch.empty((), dtype=torch.int64, device=source.device)
        for _ in range(self.undrawn or 1):
            seed = int(number.random_(generator=source).item())
        return keys, seed

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._replayed is not None:
            return draw(self._replay, self._replayed, function, *arguments)
        return draw(function, *arguments)

    def _replay(
        self, rng_states: RandomStates, function: Callable[..., Any], *arguments: Any
    ) -> Any:
        """Call a function with recorded random states, and record the states after it."""
        with rng_states.replace_global_state():
            try:
                return function(*arguments)
            finally:
                self._replayed = rng_states.with_current_global_state()

    def _request_keys(self) -> Any:
        """Return the keys of the next batch; _END at the end."""
        if self._replayed is not None:
            if self._replayed_first is not None:
                self._replayed_first.set_generators()
                self._replayed, self._replayed_first = self._replayed_first, None
        elif self._before_first is not None:
            first = self._source.capture_rng_states()
            if first != self._before_first:
                self.start["first"] = first.as_json()
            self._before_first = None
        return self._call(next, self._keys, _END)

    def start_at(self, step: int, digest: int) -> None:
        """Set the step of the next draw, and the digest of all earlier keys of the epoch."""
        self.last = self._newest = Draw(step - 1, None, None, digest, self._sampler_state())
        """Latest draw before the position: all draws up to it were delivered or skipped."""

    @property
    def step(self) -> int:
        """Number of consecutive batches delivered or skipped."""
        return self.last.step + 1

    def draw(self, step: int) -> Draw | None:
        """Return the draw of a step at or after the position; None after the end."""
        while self._newest.step < step:
            if self._has_ended:
                return None
            self._has_requested = True
            try:
                draw = self._next()
                if draw is None:
                    return None
                self._draws[draw.step] = draw
                self._newest = draw
            except Exception:  # raised by the sampler
                raise
            except BaseException:
                self.broken = True
                raise
        return self._draws[step]

    def _next(self) -> Draw | None:
        keys = self._request_keys()
        if self.sampler_epoch is not None:
            self.sampler_epoch = epoch_of(self._sampler)
        if keys is _END:
            self._has_ended = True
            return None
        if type(keys) is list:  # copied, because a sampler may yield one list again and again
            keys = keys.copy()
        elif isinstance(keys, (np.ndarray, torch.Tensor)):
            keys = copy.deepcopy(keys)
        indices, before = _indices(keys), self._newest
        digest = _digest(before.digest, keys, indices)
        return Draw(before.step + 1, keys, indices, digest, self._sampler_state())

    def _sampler_state(self) -> dict[str, Any] | None:
        # Copied, because a sampler may return a dict that it changes later.
        return None if self._stateful is None else copy.deepcopy(self._stateful.state_dict())

    def compute_delivery(self, step: int) -> tuple[Draw, frozenset[int]]:
        """Compute `last` and `early_steps` for the delivery of a batch; the caller assigns them.

        A batch at the position advances `last`, also past steps that were delivered early.
        """
        draws, next_step, early_steps = self._draws, self.last.step + 1, self.early_steps
        while (past := next(iter(draws))) < next_step:
            del draws[past]
        if step != next_step:
            return self.last, early_steps | {step}
        while step + 1 in early_steps:
            step += 1
        return draws[step], early_steps and frozenset(
            early for early in early_steps if early > step
        )

    def skip_to(self, step: int) -> None:
        """Skip to a step, or to the end."""
        while self.step < step and self.draw(self.step) is not None:
            self.last, self.early_steps = self.compute_delivery(self.step)

    def is_at_end(self) -> bool:
        """Return True if no batches are left. Draws from the sampler if that is unknown."""
        step = self.step
        while step in self.early_steps:
            step += 1
        return self.draw(step) is None

    def undelivered_draws(self) -> Iterator[Draw]:
        """Draws of the batches not yet delivered. Batches may be delivered during the iteration."""
        step = self.step
        while (draw := self.draw(step)) is not None:
            if step not in self.early_steps:
                yield draw
            step += 1

    def upcoming_digest(self) -> int | str:
        """Digest of the keys at the position, without earlier ones; "end" at the end."""
        draw = self.draw(self.step)
        return "end" if draw is None else _digest(0, draw.keys, draw.indices)

    def state(self) -> dict[str, Any]:
        """Entries of a state about this epoch, JSON-able if the sampler's own state is.

        `upcoming` is the digest of the next batch, "end" after the last one, None if unknown.
        """
        # Drawing the next batch here could change the order, because other code may use the same
        # random state. Draw it only if the sampler has its own state: its digest then verifies
        # that state on resume.
        has_requested = self._has_requested and not self.broken
        has_state = self.last.sampler_state is not None
        has_next = has_requested and (has_state or self.step in self._draws)
        return {
            "drawn": self.last.digest,
            "early": sorted(self.early_steps),
            "drawn_seed": self.seed,
            "undrawn_seeds": self.undrawn,
            "start": self.start,
            "sampler_state": pack(self.last.sampler_state),
            "upcoming": self.upcoming_digest() if has_next else None,
        }


class EpochSource:
    """Opens the epochs of a sampler, each a pass over it, and defines their seeds.

    A seed set by the user determines the seeds of all epochs. Otherwise seeds are drawn from the
    generator as in torch: one per epoch, or, with persistent workers, only the first. Later seeds
    are then those that a loader without persistent workers would draw, from a copy.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        generator: torch.Generator | None,
        *,
        seed: int | None = None,
        persistent: bool = False,
    ) -> None:
        self.sampler = sampler
        self.generator = generator
        self._seed = seed
        self._persistent = persistent
        self.next_undrawn: int | None = 0 if seed is None else None
        """For the next epoch, as for `SampledEpoch`."""

    def start(self, rng_states: RandomStates | None = None) -> dict[str, Any]:
        """State entry from which an epoch that begins now, with these states, can be reopened."""
        stateful = stateful_part(self.sampler)
        # Without workers torch's loader draws from numpy's and Python's random states, too. Here
        # any number of workers gives the same.
        is_seeded = self._seed is not None or self.generator is not None
        return {
            "epoch": epoch_of(self.sampler),
            "random": None if rng_states is None else rng_states.as_json(),
            "first": None,  # see `SampledEpoch.start`
            "seeded_states": None if is_seeded else seeded_states_digest(),
            "sampler": None if stateful is None else pack(copy.deepcopy(stateful.state_dict())),
        }

    def capture_rng_states(self) -> RandomStates:
        """Record the current random states."""
        return RandomStates.capture(self.sampler, self.generator)

    def open(self, number: int) -> SampledEpoch:
        """Begin an epoch."""
        epoch = SampledEpoch(self, self._user_seed(number), self.next_undrawn)
        self._count(epoch.undrawn)
        return epoch

    def _user_seed(self, number: int) -> int | None:
        """Seed of an epoch from the user's seed; None without one."""
        return None if self._seed is None else mix(self._seed, number)

    def _count(self, undrawn: int | None) -> None:
        """Set `next_undrawn` after an epoch began."""
        if self._seed is None:
            self.next_undrawn = (undrawn or 0) + 1 if self._persistent else 0

    def load_seeds(self, state: Mapping[str, Any]) -> None:
        """Continue with the seeds after those of a state, in the current form."""
        if self._seed is None:
            self.next_undrawn = (state["undrawn_seeds"] or 0) if self._persistent else 0
            if state["drawn_seed"] is not None:
                self._count(self.next_undrawn)

    def reopen(
        self,
        state: Mapping[str, Any],
        position: Position,
        *,
        comparable: bool,
        begin: bool = False,
    ) -> SampledEpoch:
        """Reopen the epoch of a state at its step, from the sampler's state or by drawing again.

        If the state has the same rank and number of ranks, it is `comparable`: digests must be
        equal. If an iteration begins here, the sampler keeps its current epoch number.
        """
        step, digest = position.step, state["drawn"]
        sampler_state = unpack(state["sampler_state"])
        seed = state["drawn_seed"] if self._seed is None else self._user_seed(position.epoch)
        early = frozenset(state["early"])
        with self._unchanged_by_errors():
            sampler_epoch = state["start"]["epoch"]
            if sampler_epoch is not None and not begin:
                set_epoch(self.sampler, sampler_epoch)
            has_state = stateful_part(self.sampler) is not None and sampler_state is not None
            if step and has_state and is_count(digest):
                epoch = self._reopen(state, sampler_state, seed, begin)
                epoch.start_at(step, digest)
                if _continues_as_saved(epoch, state):
                    epoch.early_steps = early
                    return epoch
            epoch = self._reopen(state, unpack(state["start"]["sampler"]), seed, begin)
            if begin:
                self._count(epoch.undrawn)
            epoch.skip_to(step)
            if epoch.step < step:
                raise StateError(
                    f"cannot resume: the sampler gave only {epoch.step} batches, but {step} had "
                    "been delivered. Use the dataset and sampler of the saved run"
                )
            same = epoch.last.digest == digest and _continues_as_saved(epoch, state)
            if comparable and not same:
                raise StateError(
                    f"cannot resume: {describe(self.sampler)['type']} gives other samples than "
                    "when the state was saved. A sampler must be deterministic, draw from torch's "
                    "random state or from a torch.Generator in its attribute `generator`, or have "
                    "state_dict() and load_state_dict(). Check that its seed is the same"
                )
            epoch.early_steps = early
            return epoch

    def _reopen(
        self, state: Mapping[str, Any], sampler_state: Any, seed: int | None, begin: bool
    ) -> SampledEpoch:
        """Reopen the epoch of a state, with its random states and a state of the sampler."""
        rng_states, first = (
            None if saved is None else RandomStates.from_json(saved, self.sampler, self.generator)
            for saved in (state["start"]["random"], state["start"]["first"])
        )
        undrawn = state["undrawn_seeds"]
        if rng_states is not None:
            rng_states.set_generators()
        self._load(sampler_state)
        now = self.capture_rng_states().global_rng_state
        if begin and first is None and rng_states and rng_states.global_rng_state == now:
            # Drawing from a copy would not advance it, and the next epoch would repeat this one.
            rng_states = None
        # Without random states the state has the only number that was drawn.
        draws = seed is None or state["start"]["random"] is not None
        epoch = SampledEpoch(
            self, seed, undrawn if draws else None, rng_states, first, dict(state["start"])
        )
        epoch.undrawn = undrawn
        return epoch

    @contextmanager
    def _unchanged_by_errors(self) -> Iterator[None]:
        """Context manager: after an error, restore sampler and generators; raise a StateError."""
        rng_states, before = self.capture_rng_states(), self.start()
        try:
            yield
        except Exception as error:
            rng_states.set_generators()
            if before["epoch"] is not None:
                set_epoch(self.sampler, before["epoch"])
            self._load(unpack(before["sampler"]))
            if isinstance(error, StateError):
                raise
            raise StateError(  # any error that a user's sampler raises for a damaged state
                f"cannot resume: {describe(self.sampler)['type']} raised {type(error).__name__}: "
                f"{error_message(error)}. The state may be damaged"
            ) from error

    def _load(self, sampler_state: Any) -> None:
        stateful = stateful_part(self.sampler)
        if stateful is not None and sampler_state is not None:
            stateful.load_state_dict(sampler_state)


def _continues_as_saved(epoch: SampledEpoch, state: Mapping[str, Any]) -> bool:
    """Return True if a reopened epoch continues with the batch that the state names, if any."""
    return state["upcoming"] is None or epoch.upcoming_digest() == state["upcoming"]
