"""One epoch drawn from torch's samplers: its draws, the position among them, and its state.

Guarantees: the samplers and the random state are drawn from as torch's DataLoader does, in the same
order: first the pass over the sampler is created, then the workers' seed is drawn, then the first
batch. The sampler is asked for each batch once, however often upcoming batches are iterated; each
batch is delivered once, in order or early. If a sampler gives other batches on resume, an error is
raised and the sampler is left unchanged.

A state has a digest of the delivered keys. Different sequences of batches have different digests,
and equal ones have equal digests in every process: keys of any type that can be pickled are
compared by value. Sets of text differ from process to process, so a state with them is refused.
"""

from __future__ import annotations

import copy
import io
import pickle
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.engine.messages import error_message
from feedline.errors import StateError
from feedline.loader.random_states import RandomStates
from feedline.loader.state import Position
from feedline.loader.torch_samplers import (
    describe,
    draws_nothing,
    epoch_of,
    next_keys,
    set_epoch,
    stateful_part,
)
from feedline.order.batch_spec import NO_NUMBER
from feedline.order.schedule import is_count
from feedline.order.seeds import mix

__all__ = ["Draw", "EpochSource", "SampledEpoch"]

_END = object()
_PROTOCOL = 4


class _KeyPickler(pickle.Pickler):
    """Pickler whose output depends on values alone. It is only compared, never loaded."""

    def reducer_override(self, value: Any) -> Any:
        """Reduce a value to text if its pickle depends on more than its value, or it has none."""
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
    pickler.fast = True  # or equal objects would differ from one object twice
    with suppress(Exception):  # e.g. of a list within itself
        pickler.dump(keys)
    return zlib.crc32(output.getbuffer(), before)


@dataclass(frozen=True, slots=True)
class Draw:
    """Keys of one batch, and the pass over the sampler after it.

    Args:
        step: step of the batch.
        keys: keys from the sampler.
        indices: the same as sample indices, if all are integers.
        digest: digest of all keys of the epoch so far, 32 bits.
        sampler_state: state of the sampler after the batch, if it has one.
    """

    step: int
    keys: Any
    indices: NDArray[np.int64] | None
    digest: int
    sampler_state: dict[str, Any] | None

    @property
    def samples(self) -> NDArray[np.int64]:
        """Sample index of each key, NO_NUMBER for keys that are not indices, shape (keys,)."""
        if self.indices is not None:
            return self.indices
        keys = len(self.keys) if isinstance(self.keys, (list, tuple)) else 1
        return np.full(keys, NO_NUMBER, np.int64)


def _indices(keys: Any) -> NDArray[np.int64] | None:
    try:
        several = isinstance(keys, (list, tuple)) or getattr(keys, "ndim", 0) == 1
        array = np.asarray(keys if several else [keys])
    except ValueError:  # keys of different lengths
        return None
    whole = array.ndim == 1 and array.dtype.kind in "iu"
    return array.astype(np.int64, copy=False) if whole else None


class SampledEpoch:
    """An opened epoch: a pass over the sampler, and the position in it.

    Args:
        keys: yields the keys of each batch.
        sampler: sampler of this pass; its state, if it has one, is read after each batch.
        seed: seed of random transforms.
        random: random states before the pass.
        start: state entry from which the epoch is opened again.
    """

    def __init__(
        self,
        keys: Iterator[Any],
        sampler: object,
        *,
        seed: int,
        random: RandomStates,
        start: dict[str, Any],
    ) -> None:
        self._keys = keys
        self._sampler = sampler
        self._stateful = stateful_part(sampler)
        self.seed = seed
        self.random = random
        self.start = start
        self.sampler_epoch = epoch_of(sampler)
        """Epoch number of the sampler, which the sampler may increase at its end."""
        self.early: frozenset[int] = frozenset()
        """Later steps that were delivered early."""
        self.start_at(0, 0)
        self._waiting: dict[int, Draw] = {}  # by step
        self._is_asked = False  # for its first batch
        self.broken = False
        """True if the pass cannot continue because a request was interrupted."""

    def start_at(self, step: int, digest: int) -> None:
        """Set the first step of the pass, and the digest of the keys before it."""
        self.last = self._newest = Draw(step - 1, None, None, digest, self._sampler_state())
        """Draw before the position: it and those before were delivered or skipped."""

    @property
    def step(self) -> int:
        """Number of consecutive batches delivered or skipped."""
        return self.last.step + 1

    def draw(self, step: int) -> Draw | None:
        """Return the draw of a step from the position on; None after the end."""
        while self._newest.step < step:
            self._is_asked = True
            try:
                draw = self._next()
                if draw is None:
                    return None
                self._waiting[draw.step] = draw
                self._newest = draw
            except Exception:  # the sampler's own: the pass is at its end
                raise
            except BaseException:
                self.broken = True
                raise
        return self._waiting[step]

    def _next(self) -> Draw | None:
        keys = next_keys(self._keys, _END)
        if self.sampler_epoch is not None:
            self.sampler_epoch = epoch_of(self._sampler)
        if keys is _END:
            return None
        if type(keys) is list:  # a sampler may fill the same one again
            keys = keys.copy()
        elif isinstance(keys, (np.ndarray, torch.Tensor)):
            keys = copy.deepcopy(keys)
        indices, before = _indices(keys), self._newest
        digest = _digest(before.digest, keys, indices)
        return Draw(before.step + 1, keys, indices, digest, self._sampler_state())

    def _sampler_state(self) -> dict[str, Any] | None:
        # A copy: it may be the sampler's own, which changes.
        return None if self._stateful is None else copy.deepcopy(self._stateful.state_dict())

    def after(self, step: int) -> tuple[Draw, frozenset[int]]:
        """Values of `last` and `early` after one more batch is delivered, in order or early.

        Forgets draws before the current position.
        """
        for old in [old for old in self._waiting if old < self.step]:
            del self._waiting[old]
        if step != self.step:
            return self.last, self.early | {step}
        while step + 1 in self.early:
            step += 1
        draw = self.draw(step)
        assert draw is not None, "no batch after the end of the epoch"
        return draw, self.early and frozenset(early for early in self.early if early > step)

    def skip_to(self, step: int) -> None:
        """Skip to a step, or to the end."""
        while self.step < step and self.draw(self.step) is not None:
            self.last, self.early = self.after(self.step)

    def is_at_end(self) -> bool:
        """Return True if no batches are left; asks the sampler if that is unknown."""
        step = self.step
        while step in self.early:
            step += 1
        return self.draw(step) is None

    def ahead(self) -> Iterator[Draw]:
        """Remaining draws; continues while batches are delivered."""
        step = self.step
        while (draw := self.draw(step)) is not None:
            if step not in self.early:
                yield draw
            step += 1

    def upcoming_digest(self) -> int | None:
        """Digest of the next draw alone; None at the end."""
        draw = self.draw(self.step)
        return None if draw is None else _digest(0, draw.keys, draw.indices)

    def state(self) -> dict[str, Any]:
        """Entries of a state about this epoch, JSON-able if the sampler's own state is."""
        # Drawing the next batch here would change the order if others draw from the random state.
        # A sampler that keeps its own state is asked: only its next batch shows its position.
        is_asked = self._is_asked and not self.broken
        has_state = self.last.sampler_state is not None
        has_next = is_asked and (has_state or self.step in self._waiting)
        return {
            "drawn": self.last.digest,
            "early": sorted(self.early),
            "drawn_seed": self.seed,
            "start": self.start,
            "sampler_state": self.last.sampler_state,
            **({"upcoming": self.upcoming_digest()} if has_next else {}),
        }


class EpochSource:
    """Source of epochs, and of their seeds.

    A seed set by the user determines all epochs. Otherwise seeds are drawn as in torch: one per
    epoch, or, with persistent workers, only the first, from which later seeds are derived.

    Args:
        sampler: yields the keys of each batch; a new pass for each epoch.
        generator: generator for the workers' seeds; None for torch's global random state.
        seed: seed set by the user; None to draw.
        persistent: draw one seed for all epochs, like torch with persistent workers.
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

    def start(self, random: RandomStates | None = None) -> dict[str, Any]:
        """State entry that an epoch opened now depends on; `random` if it draws from them."""
        stateful = stateful_part(self.sampler)
        start: dict[str, Any] = {"epoch": epoch_of(self.sampler)}
        if random is not None:
            start["random"] = random.as_json()
        if stateful is not None:
            start["sampler"] = copy.deepcopy(stateful.state_dict())
        return start

    def random_states(self) -> RandomStates:
        """Current random states."""
        return RandomStates.capture(self.sampler, self.generator)

    def open(self, number: int, random: RandomStates | None = None) -> SampledEpoch:
        """Begin the pass of an epoch, drawn from the current random states if none are given."""
        seed = None
        if self._seed is not None:
            seed = mix(self._seed, number)
        elif self.base_seed is not None and self._persistent and number != self._base_epoch:
            seed = mix(self.base_seed, number)
        epoch = self._open(seed, random)
        self._record_seed(number, epoch.seed)
        return epoch

    def _record_seed(self, number: int, seed: int) -> None:
        if self._persistent and self._seed is None and self.base_seed is None:
            self.base_seed, self._base_epoch = seed, number

    def _open(
        self,
        seed: int | None,
        random: RandomStates | None,
        first: RandomStates | None = None,
    ) -> SampledEpoch:
        """Begin a pass. Without a seed, it is drawn, as in torch.

        Args:
            seed: seed of the epoch.
            random: random states to draw from; None for the current ones.
            first: states to draw from after the seed is drawn; None to continue with `random`.
        """
        before = self.random_states() if random is None else random
        # A seed that was drawn is part of a state itself.
        start = self.start(None if draws_nothing(self.sampler) else before)
        keys = self._pass(seed)
        if random is not None:
            keys = random.replay(keys, first)
        elif "random" in start:
            keys = self._record_first_states(keys, start)
        drawn = next_keys(keys)
        return SampledEpoch(keys, self.sampler, seed=drawn, random=before, start=start)

    def _record_first_states(self, keys: Iterator[Any], start: dict[str, Any]) -> Iterator[Any]:
        """Pass that records the random states of its first keys, if others drew from them before.

        Without workers these are drawn by the first `next`, which may be long after `iter`.
        """
        seed = next(keys)
        after = self.random_states()
        yield seed
        if (first := self.random_states()) != after:
            start["first"] = first.as_json()
        yield from keys

    def _pass(self, seed: int | None) -> Iterator[Any]:
        """Yield the epoch's seed, then the keys of each batch."""
        keys = iter(self.sampler)  # which may draw already
        if seed is None:
            # By name, because torch.set_default_device is for the user's tensors.
            device = "cpu" if self.generator is None else self.generator.device
            drawn = torch.empty((), dtype=torch.int64, device=device)
            seed = int(drawn.random_(generator=self.generator).item())
        yield seed
        # `yield from` would close a generator that the next epoch continues.
        for batch in keys:  # noqa: UP028
            yield batch

    def load_seeds(self, state: Mapping[str, Any], number: int) -> None:
        """Continue with the seeds of a state in an epoch."""
        self.base_seed = state.get("kept_seed")
        self._base_epoch = number if self.base_seed == state.get("drawn_seed") else None

    def _seed_in(self, state: Mapping[str, Any], number: int) -> int | None:
        """Seed of a state's epoch; None if it was, or must be, drawn in that epoch."""
        base = state.get("kept_seed")
        if not (base is None or is_count(base)):
            raise StateError(f"cannot resume: damaged position: seed {base!r}")
        if self._seed is not None:
            return mix(self._seed, number)
        if base is None:
            return None
        derived = mix(base, number)
        return derived if state.get("drawn_seed") in (None, derived) else None

    def reopen(
        self,
        state: Mapping[str, Any],
        position: Position,
        *,
        comparable: bool,
        begin: bool = False,
    ) -> SampledEpoch:
        """Reopen the epoch of a state at its step, from the sampler's state or by drawing again.

        Args:
            state: state of a SampledPosition.
            position: position in the state.
            comparable: the state is of the same share of the epoch, so digests must be equal.
            begin: an iteration begins with it: the sampler has its final settings, and if the
                random states are still those of the state, they are drawn from directly, not from a
                copy.

        Raises:
            StateError: the sampler gives other batches, or the state is damaged.
        """
        step, seed = position.step, self._seed_in(state, position.epoch)
        digest, sampler_state = state.get("drawn"), state.get("sampler_state")
        early = frozenset(state.get("early", ()))
        with self._unchanged_by_errors():
            sampler_epoch = state["start"].get("epoch")
            if sampler_epoch is not None and not begin:
                if not is_count(sampler_epoch):
                    raise StateError(
                        f"cannot resume: damaged position: the sampler's epoch is {sampler_epoch!r}"
                    )
                set_epoch(self.sampler, sampler_epoch)
            has_state = stateful_part(self.sampler) is not None and sampler_state is not None
            if step and has_state and is_count(digest):
                epoch = self._reopen(state, sampler_state, seed, begin)
                epoch.start_at(step, digest)
                if _continues_as_saved(epoch, state):
                    epoch.early = early
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
            epoch.early = early
            return epoch

    def _reopen(
        self, state: Mapping[str, Any], sampler_state: Any, seed: int | None, begin: bool
    ) -> SampledEpoch:
        """Reopen the epoch of a state, with its random states.

        A sampler with a state of its own continues from `sampler_state`, its generator included.
        """
        random, first = (
            None if saved is None else RandomStates.from_json(saved, self.sampler, self.generator)
            for saved in map(state["start"].get, ("random", "first"))
        )
        if random is not None:
            random.set_generators()
        elif seed is None:
            seed = state["drawn_seed"]
        self._load(sampler_state)
        now = self.random_states().global_state
        if begin and first is None and random is not None and random.global_state == now:
            random = None  # else the next epoch would be this one again
        epoch = self._open(seed, random, first)
        epoch.start = dict(state["start"])
        return epoch

    @contextmanager
    def _unchanged_by_errors(self) -> Iterator[None]:
        """Restore the sampler and the generators after an error, and raise it as a StateError."""
        random, before = self.random_states(), self.start()
        try:
            yield
        except Exception as error:
            random.set_generators()
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
