"""Parts of JPEGs, decoded without the rest of them: compiled, see _jpeg.c."""

import os
from typing import final

import numpy as np
from typing_extensions import Buffer

MARGINS: tuple[int, int]
"""How many rows and columns more than the part `read` may need."""

@final
class Decoder:
    """Decodes parts of JPEGs, one after the other, in one thread at a time.

    Args:
        library: a shared library that links to libjpeg-turbo 3.

    Raises:
        OSError: it cannot be loaded, or links to no libjpeg-turbo of a known interface.
    """

    reads_codes: bool
    """Whether the Huffman codes of baseline JPEGs are read here and not by libjpeg: False where its
    internal structures are others than expected. Setting it to False has libjpeg read them, which
    takes longer and gives the same pixels; True then undoes that."""

    def __new__(cls, library: str | os.PathLike[str], /) -> Decoder: ...
    def open(self, data: Buffer, /) -> tuple[int, int] | None:
        """Read the header of a JPEG file's bytes, held until `read` or another `open`.

        Returns:
            Its height and width in pixels; None where it has to be decoded otherwise.
        """

    def read(
        self,
        into: np.ndarray[tuple[int], np.dtype[np.uint8]],
        by: int,
        top: int,
        left: int,
        height: int,
        width: int,
        /,
    ) -> tuple[int, int] | None:
        """Decode a part of the opened image, which is closed then.

        Args:
            into: uint8, for an RGB image of the part's size and `MARGINS`.
            by: 1, 2, 4 or 8: the image comes out smaller by that, each side rounded up; only 1 for
                a lossless one.
            top: the part's first row, in pixels of what comes out; the other three likewise.

        Returns:
            Where in `into` the part's RGB pixels begin and how far its rows are apart, in bytes;
            None where it has to be decoded otherwise.

        Raises:
            ValueError: nothing is open, the part is not in the image, or `into` is too small.
        """
