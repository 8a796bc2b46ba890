"""Broken image files below a folder: truncated, empty, or not images at all.

Relies on: `cache.damage` for the worker processes; the decoder of `images`, so that a file is
broken here exactly if a loader that decodes all of it fails.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from feedline.cache.damage import BrokenSamples, SampleRange, check_ranges
from feedline.engine.defaults import worker_count
from feedline.errors import ImageError
from feedline.images.codec_registry import Decoder

__all__ = ["broken_images"]

_IN_PIECE = 32  # images that a worker decodes at a time


def broken_images(
    files: Sequence[Path],
    *,
    workers: int | str = "auto",
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> list[tuple[Path, str]]:
    """Decode all images and return the files that are broken, with the reasons, in their order.

    Args:
        files: image files.
        workers: number of processes, at least one; "auto" for the cores this process may use.
        progress: called with the number of images decoded, and of all.

    Raises:
        UsageError: the number of workers is invalid.
    """
    count = worker_count(workers)
    pieces = [
        SampleRange(0, start, min(start + _IN_PIECE, len(files)))
        for start in range(0, len(files), _IN_PIECE)
    ]
    broken, done = dict[int, str](), 0
    for piece, found in check_ranges(functools.partial(_check, files), pieces, count):
        broken |= found
        done += piece.stop - piece.start
        progress(done, len(files))
    return [(files[sample], broken[sample]) for sample in sorted(broken)]


def _check(files: Sequence[Path], piece: SampleRange) -> BrokenSamples:
    decoder = Decoder()
    broken = []
    for sample in range(piece.start, piece.stop):
        try:
            decoder.open(files[sample].read_bytes())
            decoder.read()
        except ImageError as error:
            broken.append((sample, "; ".join(filter(None, (error.message, error.advice)))))
        except OSError as error:
            broken.append((sample, error.strerror or str(error)))
    return broken
