"""The compiled parts; everything else about the build is in pyproject.toml.

All are optional: without a compiler libraries do their work, slower, to the same bytes
(ARCHITECTURE.md says where that makes a difference to broken files).
"""

import sys

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "feedline.images._resample",
            ["src/feedline/images/_resample.c"],
            # No contraction: the weights are torch's to the bit.
            extra_compile_args=["-O3", "-ffp-contract=off"],
            optional=True,
        ),
        Extension(
            "feedline.images._lut",
            ["src/feedline/images/_lut.c"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
        Extension(
            "feedline.images._photometric",
            ["src/feedline/images/_photometric.c"],
            # No contraction: the bytes are Pillow's. The compiler may take what AVX2 has.
            extra_compile_args=["-O3", "-ffp-contract=off"],
            optional=True,
        ),
        Extension(
            "feedline.images._jpeg",
            ["src/feedline/images/_jpeg.c", "src/feedline/images/_entropy.c"],
            depends=["src/feedline/images/_entropy.h", "src/feedline/images/_libjpeg.h"],
            libraries=["dl"] if sys.platform == "linux" else [],
            optional=True,
        ),
    ]
)
