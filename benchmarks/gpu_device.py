"""GPU side of `gpu_overlap.py`: training step, timeline events, copies and first steps."""

from __future__ import annotations

import time
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
import torchvision

from feedline.engine.devices import RegisteredMemory
from feedline.engine.shared_memory import SharedFile
from feedline.train.runtime import warm_up

__all__ = [
    "FIRST",
    "MODES",
    "Training",
    "copies",
    "first_steps",
    "mark",
    "ms",
    "random_batch",
    "synchronize",
]

CLASSES = 1000
FIRST, LATER = 5, 20
MODES = ("off", "on", "warmed")


class Training:
    """A model and its training step."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.device = device
        model = torchvision.models.get_model(name, num_classes=CLASSES).to(device)
        self.model = model.to(memory_format=torch.channels_last).train()
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def mark(device: torch.device) -> Any:
    """Record the current time: a CUDA event, or the clock on the CPU."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def ms(before: Any, after: Any) -> float:
    return 1000 * (after - before) if isinstance(before, float) else before.elapsed_time(after)


def random_batch(
    size: int, batch_size: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random batch on the device: bfloat16, channels_last."""
    images = torch.randn(batch_size, 3, size, size, device=device)
    labels = torch.randint(CLASSES, (batch_size,), device=device)
    return images.to(torch.bfloat16, memory_format=torch.channels_last), labels


def copies(device: torch.device, nbytes: int, times: int = 20) -> list[dict]:
    """Measure copies of a block to the device, pageable and registered."""
    block = SharedFile.create(nbytes)
    source = torch.from_numpy(block.array)
    target = torch.empty(nbytes, dtype=torch.uint8, device=device)
    side = torch.cuda.Stream(device)
    matrix = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)

    def timed(products: int, copied: int) -> tuple[float, float]:
        """Device and host time of both, in ms."""
        synchronize(device)
        start_s, began = mark(device), time.perf_counter()
        side.wait_stream(torch.cuda.current_stream(device))
        for _ in range(products):
            torch.mm(matrix, matrix)
        with torch.cuda.stream(side):
            for _ in range(copied):
                target.copy_(source, non_blocking=True)
        held_ms = 1000 * (time.perf_counter() - began)
        torch.cuda.current_stream(device).wait_stream(side)
        end_s = mark(device)
        synchronize(device)
        return ms(start_s, end_s), held_ms

    results = []
    for kind in ("pageable", "registered"):
        began = time.perf_counter()
        pinned = RegisteredMemory(block.array) if kind == "registered" else None
        registering_ms = 1000 * (time.perf_counter() - began)
        timed(2, 2)
        alone, held_ms = min(timed(0, times) for _ in range(3))
        work, _ = min(timed(2 * times, 0) for _ in range(3))
        both, _ = min(timed(2 * times, times) for _ in range(3))
        results.append(
            {
                "memory": kind,
                "mib": nbytes / 2**20,
                "gb_s": times * nbytes / alone / 1e6,
                "host_ms": held_ms / times,
                "behind_work": max(0.0, both - work) / alone,
                "registering_ms": registering_ms if pinned else 0.0,
            }
        )
        if pinned:
            pinned.release()
    block.close()
    return results


def first_steps(
    model: str, sizes: list[int], batch_size: int, device: torch.device, mode: str
) -> list[dict]:
    """Time the first steps at each size relative to later ones, in a new process.

    Args:
        mode: one of `MODES`; "warmed" is "on" after the warm-up of `feedline train`.
    """
    torch.backends.cudnn.benchmark = mode != "off"
    training, results = Training(model, device), []
    if mode == "warmed":
        warmed: Any = SimpleNamespace(
            model=training.model,
            forward=training.model,
            device=device,
            precision=torch.bfloat16,
        )
        warm_up(warmed, [(batch_size, size) for size in sorted(sizes)[::-1]], classes=CLASSES)
    for size in sizes:
        batch, times = random_batch(size, batch_size, device), []
        for _ in range(FIRST + LATER):
            synchronize(device)
            began = time.perf_counter()
            training.step(*batch)
            synchronize(device)
            times.append(1000 * (time.perf_counter() - began))
        later = median(times[FIRST:])
        results.append({"size": size, "cudnn": mode, "first": times[:FIRST], "later": later})
    return results
