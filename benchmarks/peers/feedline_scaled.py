"""feedline with scaled decoding: JPEGs at 1/2, 1/4 or 1/8 if the crop is large enough."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peers import feedline_exact
from peers.work import Work

NAME = "feedline, scaled decoding"
NEEDS = ("torch", "feedline")
PIXELS = "uint8, up to 2.7 grey levels off on average"
KINDS = ("jpeg",)


def batches(work: Work) -> Iterator[Any]:
    return feedline_exact.batches(work, decode="scaled")
