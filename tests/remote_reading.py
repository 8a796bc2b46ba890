"""What the tests of remote datasets share: batches, a clock without waiting, and faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from feedline import DataLoader
from range_server import Answer

__all__ = [
    "OPTIONS",
    "Clock",
    "altered",
    "batches",
    "copies",
    "cut_short",
    "no_http",
    "reset",
    "same",
    "shorter",
    "unavailable",
    "whole_file",
]

OPTIONS: dict[str, Any] = {"seed": 1, "shuffle": True, "image_size": 24, "num_workers": 0}


def batches(data: Any, **options: Any) -> list[Any]:
    """One epoch of 16 images per batch."""
    with DataLoader(data, 16, **{**OPTIONS, **options}) as loader:
        return [(images.clone(), labels.clone()) for images, labels in loader]


def same(ours: list[Any], theirs: list[Any]) -> bool:
    return len(ours) == len(theirs) and all(
        torch.equal(one, other)
        for pair in zip(ours, theirs, strict=True)
        for one, other in zip(*pair, strict=True)
    )


def copies(local: Path) -> list[Path]:
    """Files of local copies below a folder."""
    return sorted(local.rglob("*.part"))


class Clock:
    """A clock that only advances in pauses, which take no real time.

    Attributes:
        pauses: each pause, in seconds.
        passed_s: time passed in addition.
        then: called in a pause.
    """

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self.passed_s = 0.0
        self.then: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.passed_s + sum(self.pauses)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.then()


def unavailable(answer: Answer) -> bool:
    answer.give(503, b"overloaded")
    return True


def reset(answer: Answer) -> bool:
    answer.reset()
    return True


def cut_short(answer: Answer) -> bool:
    answer.give(206, answer.part[: len(answer.part) // 2], len(answer.part))
    return True


def no_http(answer: Answer) -> bool:
    answer.wfile.write(b"no HTTP\r\n\r\n")
    answer.close_connection = True
    return True


def altered(answer: Answer) -> bool:
    answer.give(206, bytes(byte ^ 1 for byte in answer.part))
    return True


def shorter(answer: Answer) -> bool:
    answer.give(206, answer.part[:-1])
    return True


def whole_file(answer: Answer) -> bool:
    answer.give(200, answer.whole)
    return True
