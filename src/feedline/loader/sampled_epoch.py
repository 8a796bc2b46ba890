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
compared by value. Sets of text differ from process to process, so a state with them is refused.
"""

from __future__ import annotations

import copy
import io
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.engine.messages import error_message
from feedline.errors import StateError
from feedline.loader.random_states import RandomStates, ReplayedStates
from feedline.loader.state import Position
from feedline.loader.torch_samplers import (
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

__all__ = ["Draw", "EpochSource", "SampledEpoch"]

_END = object()
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
        try:
            return value.__reduce_ex__(_PROTOCOL)
        except Exception:  # e.g. a generator, which cannot be distinguished from another
            return str, (type(value).__qualname__,)


def _digest(before: int, keys: Any, indices: NDArray[np.int64] | None) -> int:
    if indices is not None:
        return zlib.crc32(indices.data, before + len(indices) & 0xFFFFFFFF)
    output = io.BytesIO()
    pickler = _KeyPickler(output, _PROTOCOL)
    # Disable the pickle memo. With it, `[a, a]` and `[a, copy_of_a]` would have different digests.
    pickler.fast = True
    with suppress(Exception):  # e.g. of a list within itself
        pickler.dump(keys)
    return zlib.crc32(output.getbuffer(), before)


@dataclass(frozen=True, slots=True)
class Draw:
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
    whole = array.ndim == 1 and array.dtype.kind in "iu"
    return array.astype(np.int64, copy=False) if whole else None


class SamplerPass:
    """One pass over a sampler. As in torch, an exception of the sampler does not end it.

    Args:
        source: begins the pass.
        seed: seed of the epoch; None draws one.
        start: state entry. It gets the random states before the first batch if other code has drawn
            random numbers since `iter()`: without workers the first `next()` reads the sampler.
        replayed: recorded random states to use; None uses the current ones.
    """

    def __init__(
        self,
        source: EpochSource,
        seed: int | None,
        start: dict[str, Any],
        replayed: ReplayedStates | None,
    ) -> None:
        self._source, self._start, self._replayed = source, start, replayed
        self._keys, self.seed = self._call(source.begin_pass, seed)
        records_first = replayed is None and "random" in start
        self._before_first = source.capture_rng_states() if records_first else None

    def next(self) -> Any:
        """Return the keys of the next batch; _END at the end."""
        if self._replayed is not None:
            self._replayed.use_later()
        elif self._before_first is not None:
            first = self._source.capture_rng_states()
            if first != self._before_first:
                self._start["first"] = first.as_json()
            self._before_first = None
        return self._call(next, self._keys, _END)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._replayed is not None:
            return draw(self._replayed.call, function, *arguments)
        return draw(function, *arguments)


class SampledEpoch:
    """Open epoch: one pass over the sampler, and the position in it."""

    def __init__(
        self,
        keys: SamplerPass,
        sampler: object,
        *,
        seed: int,
        rng_states: RandomStates,
        start: dict[str, Any],
    ) -> None:
        self._keys = keys
        self._sampler = sampler
        self._stateful = stateful_part(sampler)
        self.seed = seed  # of random transforms
        self.rng_states = rng_states  # before the pass
        self.start = start  # state entry from which the epoch can be opened again
        self.sampler_epoch = epoch_of(sampler)
        """Epoch number of the sampler, which some samplers increase at the end of the epoch."""
        self.early_steps: frozenset[int] = frozenset()  # later steps that were delivered early
        self.start_at(0, 0)
        self._draws: dict[int, Draw] = {}  # by step
        self._has_requested = False  # True if keys were requested from the sampler
        self.broken = False
        """True if the pass cannot continue, because Ctrl-C interrupted the sampler."""

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
        keys = self._keys.next()
        if self.sampler_epoch is not None:
            self.sampler_epoch = epoch_of(self._sampler)
        if keys is _END:
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
        for past in [past for past in self._draws if past < self.step]:
            del self._draws[past]
        if step != self.step:
            return self.last, self.early_steps | {step}
        while step + 1 in self.early_steps:
            step += 1
        draw = self.draw(step)
        assert draw is not None, "no batch after the end of the epoch"
        return draw, self.early_steps and frozenset(
            early for early in self.early_steps if early > step
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

    def upcoming_digest(self) -> int | None:
        """Digest of the keys at the position, without earlier ones; None at the end."""
        draw = self.draw(self.step)
        return None if draw is None else _digest(0, draw.keys, draw.indices)

    def state(self) -> dict[str, Any]:
        """Entries of a state about this epoch, JSON-able if the sampler's own state is."""
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
            "start": self.start,
            "sampler_state": self.last.sampler_state,
            **({"upcoming": self.upcoming_digest()} if has_next else {}),
        }


class EpochSource:
    """Opens the epochs of a sampler, each a pass over it, and defines their seeds.

    A seed set by the user determines the seeds of all epochs. Otherwise seeds are drawn from the
    generator as in torch: one per epoch, or, with persistent workers, only the first, from which
    later seeds are derived.
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
        self.base_seed: int | None = None
        """Seed drawn for the first epoch, if later seeds are derived from it."""
        self._base_epoch: int | None = None

    def start(self, rng_states: RandomStates | None = None) -> dict[str, Any]:
        """State entry from which an epoch that begins now, with these states, can be reopened."""
        stateful = stateful_part(self.sampler)
        start: dict[str, Any] = {"epoch": epoch_of(self.sampler)}
        if rng_states is not None:
            start["random"] = rng_states.as_json()
        if stateful is not None:
            start["sampler"] = copy.deepcopy(stateful.state_dict())
        return start

    def capture_rng_states(self) -> RandomStates:
        """Record the current random states."""
        return RandomStates.capture(self.sampler, self.generator)

    def open(self, number: int, rng_states: RandomStates | None = None) -> SampledEpoch:
        """Begin an epoch with recorded random states, by default with the current ones."""
        derives = self._persistent and number != self._base_epoch
        seed = self._derived_seed(number, self.base_seed if derives else None)
        epoch = self._open(seed, rng_states)
        self._record_seed(number, epoch.seed)
        return epoch

    def _derived_seed(self, number: int, base_seed: int | None) -> int | None:
        """Seed of an epoch from the user's seed or a base seed; None if the epoch draws it."""
        base = base_seed if self._seed is None else self._seed
        return None if base is None else mix(base, number)

    def _record_seed(self, number: int, seed: int) -> None:
        if self._persistent and self._seed is None and self.base_seed is None:
            self.base_seed, self._base_epoch = seed, number

    def _open(
        self,
        seed: int | None,
        rng_states: RandomStates | None,
        first: RandomStates | None = None,
    ) -> SampledEpoch:
        """Begin a pass over the sampler.

        Args:
            seed: seed of the epoch; None draws one, as torch does.
            rng_states: recorded random states to repeat; None uses the current ones.
            first: recorded random states that replace them from the first batch on.
        """
        before = self.capture_rng_states() if rng_states is None else rng_states
        # If only the epoch's seed is drawn, and from the global state, the seed itself is saved.
        seed_only = draws_nothing(self.sampler) and self.generator is None
        start = self.start(None if seed_only else before)
        replayed = None if rng_states is None else ReplayedStates(rng_states, first)
        keys = SamplerPass(self, seed, start, replayed)
        return SampledEpoch(keys, self.sampler, seed=keys.seed, rng_states=before, start=start)

    def begin_pass(self, seed: int | None) -> tuple[Iterator[Any], int]:
        """Return an iterator of the sampler, and the epoch's seed, drawn if None."""
        keys = iter(self.sampler)  # before the seed: it may draw random numbers
        if seed is None:
            # Set explicitly, because torch.set_default_device may have set another.
            device = "cpu" if self.generator is None else self.generator.device
            number = torch.empty((), dtype=torch.int64, device=device)
            seed = int(number.random_(generator=self.generator).item())
        return keys, seed

    def load_seeds(self, state: Mapping[str, Any], number: int) -> None:
        """Continue with the seeds of a state, which is in epoch `number`."""
        self.base_seed = state.get("base_seed")
        self._base_epoch = number if self.base_seed == state.get("drawn_seed") else None

    def _seed_in(self, state: Mapping[str, Any], number: int) -> int | None:
        """Seed of a state's epoch; None if the epoch draws its seed."""
        derived = self._derived_seed(number, state.get("base_seed"))
        is_derived = self._seed is not None or state.get("drawn_seed") in (None, derived)
        return derived if is_derived else None

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
        step, seed = position.step, self._seed_in(state, position.epoch)
        digest, sampler_state = state.get("drawn"), state.get("sampler_state")
        early = frozenset(state.get("early", ()))
        with self._unchanged_by_errors():
            sampler_epoch = state["start"].get("epoch")
            if sampler_epoch is not None and not begin:
                set_epoch(self.sampler, sampler_epoch)
            has_state = stateful_part(self.sampler) is not None and sampler_state is not None
            if step and has_state and is_count(digest):
                epoch = self._reopen(state, sampler_state, seed, begin)
                epoch.start_at(step, digest)
                if _continues_as_saved(epoch, state):
                    epoch.early_steps = early
                    return epoch
            epoch = self._reopen(state, state["start"].get("sampler"), seed, begin)
            if begin:
                self._record_seed(position.epoch, epoch.seed)
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
            for saved in map(state["start"].get, ("random", "first"))
        )
        if rng_states is not None:
            rng_states.set_generators()
        elif seed is None:
            seed = state["drawn_seed"]
        self._load(sampler_state)
        now = self.capture_rng_states().global_rng_state
        if begin and first is None and rng_states and rng_states.global_rng_state == now:
            # Drawing from a copy would not advance it, and the next epoch would repeat this one.
            rng_states = None
        epoch = self._open(seed, rng_states, first)
        epoch.start = dict(state["start"])
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
            self._load(before.get("sampler"))
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
    return "upcoming" not in state or epoch.upcoming_digest() == state["upcoming"]
