"""Where the images and labels of a set come from: what a row pipeline asks of it.

A folder, a table of paths, an array in memory, an archive or a cache is a store; how pixels are
decoded, cropped and resized is no concern of it.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np

from feedline.plan.row import Field

__all__ = ["Pixels", "SampleStore"]

Pixels: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"


class SampleStore(Protocol):
    """Numbered images with their labels. Pickled once and sent to every worker.

    `read`, `original_size` and `label` follow from their arguments alone; several threads may call
    them at once.

    A store may have a method `prepare(samples, side)`: these samples are about to be read at this
    side, so that those which lie far away can be fetched together. What fails there is passed over,
    as `read` says it of the sample at fault.

    A store that keeps copies of what lies far away may have a method `anew(sample, refused)`: these
    bytes of `read` cannot be decoded. It forgets its copy, and gives what lies there now, or None
    where that is the same or cannot be had.
    """

    @property
    def label_field(self) -> Field:
        """The dtype and shape of one label, under the name "label"."""
        ...

    def __len__(self) -> int:
        """How many samples there are."""
        ...

    def open(self) -> None:
        """Take what a process needs to read, e.g. a descriptor, instead of what it has.

        Called before it reads, in each worker again, and perhaps more than once.
        """
        ...

    def close(self) -> None:
        """Give that back. Called when the process reads no more, also where nothing was opened."""
        ...

    def read(self, sample: int, side: int) -> bytes | Pixels:
        """An image: the bytes of an encoded file, or uint8 (height, width, 3), read only.

        Args:
            sample: which one.
            side: the shorter side in pixels at which it is large enough: a store that holds smaller
                copies of an image may give the smallest of them that has it.

        Raises:
            ImageError: it cannot be read; the message does not name it.
            IndexError: there is no such sample.
        """
        ...

    def original_size(self, sample: int) -> tuple[int, int] | None:
        """The height and width, in pixels, of what `read` gives a copy of; None: of itself."""
        ...

    def check_side(self, side: int) -> str:
        """In which form images are read for this side, in words; "" for the originals.

        Raises:
            UsageError: it has none that serve.
        """
        ...

    def label(self, sample: int) -> Any:
        """What is written as the sample's label: fits `label_field`."""
        ...

    def name(self, sample: int) -> str:
        """What a user calls the sample, to print it: its path, where it has one."""
        ...

    def fingerprint(self) -> str:
        """A short text that differs where the samples, their order or labels differ."""
        ...

    def form(self) -> str:
        """In which form it holds the images, where that changes pixels; "" for the originals."""
        ...
