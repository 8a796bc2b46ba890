"""Like `sized_index`, but all epochs are one iteration, so that workers never pause.

The limit of torch's unmodified DataLoader. It has no epochs that could be skipped or resumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from progressive_peers.sized_index import Pair, SizedFolder, SizedSampler, loader_of
from progressive_peers.work import Work


def batches(work: Work) -> Iterator[Any]:
    data = SizedFolder(work)

    class Stream:
        """Batches of all epochs."""

        def __iter__(self) -> Iterator[list[Pair]]:
            for stage in work.stages:
                for _ in range(stage.epochs):
                    yield from SizedSampler(len(data), stage)

    yield from loader_of(work, data, Stream())
