"""Decoding of a part of a JPEG without the rest: compiled, see _jpeg.c."""

import os
from typing import final

import numpy as np
from typing_extensions import Buffer

MARGINS: tuple[int, int]
"""Rows and columns that `read` may need in addition to the part."""

CONTAINED_LIBJPEG: str | None
"""Version of the libjpeg-turbo inside the module; None if it uses another library's."""

@final
class Decoder:
    """Decodes parts of JPEGs, one after the other, in one thread at a time.

    Args:
        library: a shared library that links to libjpeg-turbo 3; not used if the module contains it.

    Raises:
        OSError: it cannot be loaded, or does not link to a libjpeg-turbo with a known interface.
    """

    reads_codes: bool
    """True if feedline reads the Huffman codes of baseline JPEGs; False if libjpeg does, because
    its internal structures are not the expected ones. Set it to False to let libjpeg read them,
    which takes longer and gives the same pixels; True undoes that."""

    warning: str
    """libjpeg's first warning of the image that was opened last; "" if it has none."""

    _bmi2: bool
    """True if the BMI2 code reads them; False switches to the other, with the same pixels."""

    def __new__(cls, library: str | os.PathLike[str], /) -> Decoder: ...
    def open(self, data: Buffer, /) -> tuple[int, int] | None:
        """Read the header of a JPEG file's bytes, held until `read` or another `open`.

        Returns:
            Its height and width in pixels; None if another decoder must decode it.
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
            into: uint8, enough for an RGB image of the part's size plus `MARGINS`.
            by: reduction factor, 1, 2, 4 or 8, each side rounded up; only 1 for a lossless image.
            top, left, height, width: the part, in pixels of the reduced image.

        Returns:
            Offset of the part's RGB pixels in `into`, and the stride of its rows, in bytes; None if
            another decoder must decode it.

        Raises:
            ValueError: nothing is open, the part is not in the image, or `into` is too small.
        """
