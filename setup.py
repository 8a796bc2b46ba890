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
HEADERS = "src/feedline/images/c"
# No contraction to multiply-add instructions: bytes are torch's and Pillow's.
FLAGS = ["/std:c11", "/O2"] if os.name == "nt" else ["-O3", "-std=c11", "-ffp-contract=off"]
SOURCES = {
    "images._resample": ["images/c/_resample.c", "images/c/_rows.c"],
    "images._lut": ["images/c/_lut.c"],
    "images._photometric": ["images/c/_photometric.c"],
    "images._jpeg": ["images/c/_jpeg.c", "images/c/_entropy.c"],
    "images._png": ["images/c/_png.c"],
    "order._seeding": ["order/_seeding.c"],
}

setup(
    ext_modules=[
        Extension(
            f"feedline.{name}",
            [f"src/feedline/{source}" for source in sources],
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if ABI3 else [],
            depends=[f"{HEADERS}/{each}" for each in os.listdir(HEADERS) if each.endswith(".h")],
            extra_compile_args=FLAGS,
            optional=True,
            py_limited_api=ABI3,
            libraries=["dl"] if name == "images._jpeg" and sys.platform == "linux" else [],
        )
        for name, sources in SOURCES.items()
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if ABI3 else {},
)
