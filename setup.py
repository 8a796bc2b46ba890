"""The one compiled part; everything else about the build is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "feedline.images._resample",
            ["src/feedline/images/_resample.c"],
            # No contraction: the weights are torch's to the bit.
            extra_compile_args=["-O3", "-ffp-contract=off"],
            optional=True,  # without a compiler torch does its work, slower, to the same bytes
        )
    ]
)
