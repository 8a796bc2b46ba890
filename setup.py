"""Native modules; everything else about the build is in pyproject.toml.

All are optional: without a compiler, libraries do their work, slower, to the same bytes
(ARCHITECTURE.md lists the differences for broken files).
"""

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import Extension, setup

# One binary serves all versions of Python from 3.11 on, whose limited API has buffers, except
# free-threaded builds.
ABI3 = sys.version_info >= (3, 11) and not sysconfig.get_config_var("Py_GIL_DISABLED")
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

# Folder of a static libjpeg-turbo 3 to be linked into _jpeg, as in wheels (tools/libjpeg.py). Else
# _jpeg looks for Pillow's library when it is used.
LIBJPEG = os.environ.get("FEEDLINE_LIBJPEG")


def jpeg_options() -> dict[str, Any]:
    """Arguments of the Extension `_jpeg`."""
    if not LIBJPEG:
        return {"libraries": ["dl"]} if sys.platform == "linux" else {}
    library = "jpeg-static.lib" if os.name == "nt" else "libjpeg.a"
    header = Path(LIBJPEG, "include", "jconfig.h").read_text()
    version = header.split("LIBJPEG_TURBO_VERSION ")[1].split()[0]
    return {
        "define_macros": [("FEEDLINE_STATIC_JPEG", f'"{version}"')],
        "extra_objects": [os.path.join(LIBJPEG, "lib", library)],
        # Another libjpeg of the process must not replace its functions.
        "extra_link_args": ["-Wl,--exclude-libs,ALL"] if sys.platform == "linux" else [],
        "optional": False,
    }


def extension(name: str, sources: list[str]) -> Extension:
    """A native module."""
    options = jpeg_options() if name == "images._jpeg" else {}
    if ABI3:
        options.setdefault("define_macros", []).append(("Py_LIMITED_API", "0x030B0000"))
    return Extension(
        f"feedline.{name}",
        [f"src/feedline/{source}" for source in sources],
        depends=[f"{HEADERS}/{each}" for each in os.listdir(HEADERS) if each.endswith(".h")],
        extra_compile_args=FLAGS,
        py_limited_api=ABI3,
        **{"optional": True, **options},
    )


# The repository that a workflow of GitHub builds in.
HOME = "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}"
URLS = {
    "Source": HOME,
    "Documentation": f"{HOME}/tree/main/docs",
    "Changelog": f"{HOME}/blob/main/CHANGELOG.md",
    "Issues": f"{HOME}/issues",
}
IS_WORKFLOW = "GITHUB_REPOSITORY" in os.environ

setup(
    project_urls={k: v.format_map(os.environ) for k, v in URLS.items()} if IS_WORKFLOW else {},
    ext_modules=[extension(name, sources) for name, sources in SOURCES.items()],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if ABI3 else {},
)
