"""Process of a peer: reads requests as JSON lines and answers each with one line.

    python -m peers.serve NAME WORK

The first answer is {"first_batch_s", "import_s", "shape", "dtype", "pixels", "version"}. A request
{"lead_s", "seconds"} reads batches for `lead_s`, which consumes prefetched ones, answers
{"counting": true}, reads batches for `seconds` more, and answers {"images", "seconds"}. End of
input ends the process.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from peers.work import Work


def missing(needs: tuple[str, ...]) -> str:
    """Reason why a peer cannot run, or ""."""
    for name in needs:
        try:
            importlib.import_module(name)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""


def version(needs: tuple[str, ...]) -> str:
    """Version of the package that defines a peer: the last in NEEDS."""
    name = needs[-1]
    try:
        said = importlib.metadata.version(name.partition(".")[0])
    except importlib.metadata.PackageNotFoundError:  # the package name differs from the module name
        said = getattr(sys.modules[name], "__version__", "")
    return f"{name} {said}".rstrip()


class Turns:
    """Counts images of an endless iterator of batches, in turns."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def take(self, seconds: float) -> tuple[int, float]:
        """Read batches for `seconds`; return the images and the seconds."""
        start = now = time.perf_counter()
        images = 0
        while now - start < seconds:
            images += len(next(self._batches))
            now = time.perf_counter()
        return images, now - start


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries may print to stdout
    start = time.perf_counter()
    peer, work = importlib.import_module(f"peers.{sys.argv[1]}"), Work.of(sys.argv[2])

    def answer(**said: object) -> None:
        answers.write(json.dumps(said) + "\n")

    if reason := missing(peer.NEEDS):
        answer(name=peer.NAME, missing=f"not installed ({reason})")
        return
    if work.kind not in peer.KINDS:
        answer(name=peer.NAME, missing=f"does not read {work.kind} images")
        return
    import_s = time.perf_counter() - start
    if hasattr(peer, "prepare"):
        peer.prepare(work)
    start = time.perf_counter()
    if hasattr(peer, "bare"):
        bare = peer.bare(work)
        take = bare.rate
        first = {"shape": [work.batch_size, work.size, work.size, 3], "dtype": "uint8"}
    else:
        batches = peer.batches(work)
        batch = next(batches)
        first = {"shape": list(batch.shape), "dtype": str(batch.dtype).removeprefix("torch.")}
        del batch  # a peer may run without its shared memory
        take = Turns(batches).take
    first_s = time.perf_counter() - start
    answer(
        name=peer.NAME,
        first_batch_s=first_s,
        import_s=import_s,
        pixels=peer.PIXELS,
        version=version(peer.NEEDS),
        **first,
    )
    for line in sys.stdin:
        order = json.loads(line)
        take(order["lead_s"])
        answer(counting=True)
        images, seconds = take(order["seconds"])
        answer(images=images, seconds=seconds)


if __name__ == "__main__":
    main()
