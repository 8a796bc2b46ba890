"""Protocol of sample stores: images and labels of a dataset.

A folder, a table of paths, an array in memory, an archive or a cache is a store; decoding, cropping
and resizing are done elsewhere.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np

from feedline.order.batch_spec import Field

__all__ = ["Pixels", "SampleStore"]

Pixels: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""An image (height, width, channels) of a source's `PixelLayout`, or several."""


class SampleStore(Protocol):
    """Indexed images with their labels. Pickled once and sent to every worker.

    `read`, `original_size` and `label` depend on their arguments alone; several threads may call
    them at once.

    A store may have a method `prepare(samples, side)`: these samples are about to be read at this
    side, so that remote ones can be fetched together. Its errors are ignored, because `read` raises
    them for the sample at fault.

    A store that caches remote images may have a method `anew(sample, refused)`: these bytes from
    `read` cannot be decoded. It drops its copy, and returns the remote bytes, or None if they are
    the same or unavailable.
    """

    @property
    def label_field(self) -> Field:
        """Dtype and shape of one label, under the name "label"."""
        ...

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def open(self) -> None:
        """Acquire what a process needs to read, e.g. a descriptor, in place of what it has.

        Called before it reads, in each worker again, and possibly several times.
        """
        ...

    def close(self) -> None:
        """Release it. Called when the process reads no more, even if nothing was opened."""
        ...

    def read(self, sample: int, side: int) -> bytes | Pixels:
        """Read an image: the bytes of an encoded file, or uint8 (height, width, 3), read only.

        Args:
            sample: sample index.
            side: required shorter side in pixels: a store with smaller copies of an image may
                return the smallest that has it.

        Raises:
            ImageError: it cannot be read; the message does not name it.
            IndexError: there is no such sample.
        """
        ...

    def original_size(self, sample: int) -> tuple[int, int] | None:
        """Height and width, in pixels, of the original of a copy; None if `read` returns the
        original.
        """
        ...

    def check_side(self, side: int) -> str:
        """Form in which images are read for this side, as text; "" for the originals.

        Raises:
            UsageError: none serves this side.
        """
        ...

    def label(self, sample: int) -> Any:
        """Label of a sample, as in `label_field`."""
        ...

    def name(self, sample: int) -> str:
        """Name of a sample in messages: its path, if it has one."""
        ...

    def fingerprint(self) -> str:
        """Short text that differs if the samples, their order or labels differ."""
        ...

    def form(self) -> str:
        """Form in which it holds the images, if that affects pixels; "" for the originals."""
        ...
