"""A simulated device that does everything as late as allowed, so that every missing wait shows.

It follows the rules of CUDA's streams, events and caching allocator, and guarantees no more order
than they do: queued work is done when something waits for it, or when the schedule says so. Its
memory is host memory and its tensors are torch's, so bytes can be compared.

- Work on one stream is done in order. `wait_event` and `wait_stream` order streams; nothing else
  does. A queried event has passed if its turn has come.
- Memory is filled with garbage when it is allocated, and again after it was freed: on its stream,
  after that stream's earlier work, and after the work that streams named by `record_stream` had
  when the last tensor was freed.
- A copy reads host memory when it is done, and fails if its tensor was freed before, unless the
  memory is permanent.
- Times are simulated, in ms: work begins when its stream, its events and the host that queued it
  have come that far. The schedule does not affect them.
"""

from __future__ import annotations

import contextlib
import random
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from feedline.engine.normalise import Constants, PixelConversion

FRESH, FREED = 0xA5, 0x5A


@dataclass(eq=False)
class _Work:
    """Something for a stream to do, once others are done."""

    stream: ModelStream
    queued_ms: float
    run: Callable[[], None]
    takes_ms: float = 0.0
    after: _Work | None = None
    ended_ms: float | None = None

    @property
    def done(self) -> bool:
        return self.ended_ms is not None


class ModelStream:
    """Work in order."""

    def __init__(self, device: ModelDevice) -> None:
        self.device = device
        self.queue: deque[_Work] = deque()
        self._now_ms = 0.0

    def give(
        self,
        run: Callable[[], None] = lambda: None,
        takes_ms: float = 0.0,
        after: _Work | None = None,
    ) -> _Work:
        """Queue work."""
        self.device.progress()
        work = _Work(self, self.device.host_ms, run, takes_ms, after)
        self.queue.append(work)
        return work

    def step(self) -> None:
        """Do the oldest work, and everything that it waits for."""
        work = self.queue[0]
        begins_ms = max(self._now_ms, work.queued_ms)
        if work.after is not None:
            while not work.after.done:
                work.after.stream.step()
            assert work.after.ended_ms is not None
            begins_ms = max(begins_ms, work.after.ended_ms)
        self.queue.popleft()
        work.run()
        self._now_ms = work.ended_ms = begins_ms + work.takes_ms

    def wait_event(self, event: ModelEvent) -> None:
        if event.mark is not None:  # waiting for an unrecorded event does nothing
            self.give(after=event.mark)

    def wait_stream(self, stream: ModelStream) -> None:
        self.give(after=stream.give())

    def synchronize(self) -> None:
        self.device.waited += bool(self.queue)
        while self.queue:
            self.step()
        self.device.host_ms = max(self.device.host_ms, self._now_ms)
        self.device.hand_back()


class ModelEvent:
    """A mark in a stream."""

    def __init__(self, device: ModelDevice) -> None:
        self._device = device
        self.mark: _Work | None = None

    def record(self, stream: ModelStream) -> None:
        self.mark = stream.give()

    def query(self) -> bool:
        self._device.progress()
        return self.mark is None or self.mark.done

    def synchronize(self) -> None:
        if self.mark is not None:
            self._device.waited += not self.mark.done
            while not self.mark.done:
                self.mark.stream.step()
            assert self.mark.ended_ms is not None
            self._device.host_ms = max(self._device.host_ms, self.mark.ended_ms)
            self._device.hand_back()

    def elapsed_time(self, end_event: ModelEvent) -> float:
        first, last = self.mark, end_event.mark
        assert first is not None, "the event was not recorded"
        assert last is not None, "the event was not recorded"
        assert first.ended_ms is not None, "the event has not occurred"
        assert last.ended_ms is not None, "the event has not occurred"
        return last.ended_ms - first.ended_ms


@dataclass(eq=False)
class _Block:
    """A piece of device memory."""

    memory: np.ndarray
    stream: ModelStream
    used_on: set[ModelStream] = field(default_factory=set)
    awaited: list[_Work] = field(default_factory=list)


class ModelDevice:
    """A simulated accelerator.

    Args:
        schedule: decides which work is done before anything waits for it; None: none.
        copy_ms: duration of each copy.
        lasting: permanent host memory, such as that of the slots.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        schedule: random.Random | None = None,
        copy_ms: float = 1.0,
        lasting: np.ndarray | None = None,
    ) -> None:
        self._lasting = np.empty(0, np.uint8) if lasting is None else lasting
        self._schedule = schedule
        self._eager = schedule.choice([0.02, 0.2]) if schedule else 0.0
        self._copy_ms = copy_ms
        self.waited = 0  # how often the host had to wait
        self.reading = 0  # copies that have still to read the host's memory
        self.host_ms = 0.0
        self.default = ModelStream(self)
        self.streams = [self.default]
        self.current = self.default
        self._blocks: dict[int, _Block] = {}
        self._unowned: list[_Block] = []

    # What an Accelerator does

    def stream(self) -> ModelStream:
        self.streams.append(ModelStream(self))
        return self.streams[-1]

    def current_stream(self) -> ModelStream:
        return self.current

    @contextlib.contextmanager
    def on(self, stream: ModelStream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def event(self) -> ModelEvent:
        return ModelEvent(self)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        first = tensor.data_ptr() - self._lasting.ctypes.data
        lasts = 0 <= first < self._lasting.nbytes
        source = tensor.detach if lasts else weakref.ref(tensor)
        made = self.empty(tensor.shape, tensor.stride(), tensor.dtype)
        target = self.memory(made)

        def run() -> None:
            self.reading -= 1
            found = source()
            assert found is not None, "the host's memory was gone before its copy ran"
            target.copy_(found)

        self.reading += 1
        self.current.give(run, self._copy_ms)
        return made

    def record_stream(self, tensor: torch.Tensor, stream: ModelStream) -> None:
        self._blocks[tensor.data_ptr()].used_on.add(stream)

    # What a test does besides

    def progress(self) -> None:
        """Do some work, now and then, on whichever streams."""
        if self._schedule is not None and self._schedule.random() < self._eager:
            for _ in range(self._schedule.randint(1, 8)):
                busy = [stream for stream in self.streams if stream.queue]
                if busy:
                    self._schedule.choice(busy).step()
        self.hand_back()

    def synchronize(self) -> None:
        """Do everything."""
        while any(stream.queue for stream in self.streams):
            for stream in self.streams:
                stream.synchronize()

    def empty(
        self, shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """A tensor of rubbish, allocated on the current stream. Dense in memory."""
        count = int(np.prod(shape))
        memory = np.full(count * dtype.itemsize, FRESH, np.uint8)
        owner = np.frombuffer(memory.data, np.uint8)  # lives as long as any tensor on it
        block = _Block(memory, self.current)
        self._blocks[memory.ctypes.data] = block
        weakref.finalize(owner, self._let_go, memory.ctypes.data).atexit = False
        return torch.frombuffer(owner, dtype=dtype).as_strided(shape, strides)

    def memory(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same elements as a tensor that does not own its memory, for queued work."""
        memory = self._blocks[tensor.data_ptr()].memory
        return torch.frombuffer(memory, dtype=tensor.dtype).as_strided(
            tensor.shape, tensor.stride()
        )

    def read(self, tensor: torch.Tensor, takes_ms: float = 0.0) -> Callable[[], torch.Tensor]:
        """Queue a read on the current stream; the result is available once it is done."""
        found: list[torch.Tensor] = []
        source = self.memory(tensor)
        self.current.give(lambda: found.append(source.clone()), takes_ms)
        return lambda: found[0]

    def _let_go(self, address: int) -> None:
        """The last tensor on some memory is garbage."""
        block = self._blocks.pop(address)
        block.awaited = [_last(stream) for stream in block.used_on]
        self._unowned.append(block)

    def hand_back(self) -> None:
        """Let memory be used for something else, on its stream, once its other streams are done."""
        ready = [b for b in self._unowned if all(work.done for work in b.awaited)]
        self._unowned = [block for block in self._unowned if block not in ready]
        for block in ready:
            fill = block.memory.fill
            block.stream.queue.append(
                _Work(block.stream, self.host_ms, lambda fill=fill: fill(FREED))
            )


def _last(stream: ModelStream) -> _Work:
    """Last work queued on a stream."""
    if stream.queue:
        return stream.queue[-1]
    return _Work(stream, 0.0, lambda: None, ended_ms=0.0)


class ModelValues:
    """Function that computes values as work of a model's current stream.

    Args:
        model: the device.
        values: computes the values.
        takes_ms: duration.
    """

    def __init__(self, model: ModelDevice, values: PixelConversion, takes_ms: float = 0.5) -> None:
        self._model, self._values, self._takes_ms = model, values, takes_ms
        self._plain = values.constants(torch.device("cpu"))

    def constants(self, device: torch.device) -> Constants:
        model = self._model
        placed = tuple(model.empty(t.shape, t.stride(), t.dtype) for t in self._plain)
        for target, tensor in zip(placed, self._plain, strict=True):
            memory = model.memory(target)
            model.current_stream().give(lambda m=memory, t=tensor: m.copy_(t))  # type: ignore[misc]
        return placed

    def __call__(self, images: torch.Tensor, constants: Constants) -> torch.Tensor:
        model, values = self._model, self._values
        form = values(torch.zeros_like(images), self._plain)
        made = model.empty(form.shape, form.stride(), form.dtype)
        target, source = model.memory(made), model.memory(images)
        there = tuple(map(model.memory, constants))
        model.current_stream().give(lambda: target.copy_(values(source, there)), self._takes_ms)
        return made
