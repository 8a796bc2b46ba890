"""Native modules; everything else about the build is in pyproject.toml.

All are optional: without a compiler, libraries do their work, slower, to the same bytes
(ARCHITECTURE.md lists the differences for broken files).
"""

import os
import sys
import sysconfig

from setuptools import Extension, setup

# One binary serves all versions of Python from 3.10 on, except free-threaded builds. 3.11 is the
# version of the limited API that has buffers; 3.10 exports the same functions.
ABI3 = not sysconfig.get_config_var("Py_GIL_DISABLED")
FOLDER = "src/feedline/images/c"
# No contraction to multiply-add instructions: bytes are torch's and Pillow's.
FLAGS = ["/std:c11", "/O2"] if os.name == "nt" else ["-O3", "-std=c11", "-ffp-contract=off"]
SOURCES = {
    "_resample": ["_resample.c", "_rows.c"],
    "_lut": ["_lut.c"],
    "_photometric": ["_photometric.c"],
    "_jpeg": ["_jpeg.c", "_entropy.c"],
    "_png": ["_png.c"],
}

setup(
    ext_modules=[
        Extension(
            f"feedline.images.{name}",
            [f"{FOLDER}/{source}" for source in sources],
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if ABI3 else [],
            depends=[f"{FOLDER}/{each}" for each in os.listdir(FOLDER) if each.endswith(".h")],
            extra_compile_args=FLAGS,
            optional=True,
            py_limited_api=ABI3,
            libraries=["dl"] if name == "_jpeg" and sys.platform == "linux" else [],
        )
        for name, sources in SOURCES.items()
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if ABI3 else {},
)
