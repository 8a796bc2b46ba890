"""Versions of libraries. Nothing is imported."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import platform
import sys
from collections.abc import Iterator

from feedline import __version__
from feedline.images.native import COMPILE_HINT, NATIVE_MODULES
from feedline.machine import package_version
from feedline.profile.doctor.check import CheckResult

__all__ = ["check_decoder", "check_libraries", "check_png_decoder"]


# Package names, with the module's name.
_NEEDED = {
    "numpy": "numpy",
    "pillow": "PIL",
    "simplejpeg": "simplejpeg",
    "psutil": "psutil",
    "rich": "rich",
    "typer": "typer",
    "xxhash": "xxhash",
}
_OPTIONAL = (
    "isal",
    "torchvision",
    "timm",
    "lmdb",
    "pyarrow",
    "fsspec",
    "s3fs",
    "ray",
    "nvidia-ml-py",
)


def check_libraries() -> CheckResult:
    """Run the check "libraries"."""
    found: dict[str, str | None] = {"feedline": __version__, "python": platform.python_version()}
    found |= {name: package_version(name) for name in (*_NEEDED, *_OPTIONAL)}
    line = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    missing = [name for name, module in _NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        return CheckResult(
            id="libraries",
            status="fail",
            summary=f"not installed, but required: {', '.join(missing)}; {line}",
            details=found,
            fix=f"pip install {' '.join(missing)}",
        )
    return CheckResult(id="libraries", status="ok", summary=line, details=found)


def check_decoder() -> Iterator[CheckResult]:
    """Run the checks "jpeg-decoder" and "compiled-parts"."""
    found = {name: _why_not(name) for name in NATIVE_MODULES}
    missing = {name: why for name, (why, _) in found.items() if why}
    fixes = dict.fromkeys(fix for _, fix in found.values() if fix)
    crop_only = "_jpeg" not in missing
    yield _jpeg_decoder(crop_only=crop_only, reads_codes=crop_only and _reads_codes())
    details: dict[str, object] = {
        name.removeprefix("_"): name not in missing for name in NATIVE_MODULES
    }
    if not missing:
        yield CheckResult(
            id="compiled-parts",
            status="ok",
            summary=f"all {len(NATIVE_MODULES)} are in use: {', '.join(details)}",
            details=details,
        )
        return
    reasons = "; ".join(f"{NATIVE_MODULES[name]} ({why})" for name, why in missing.items())
    yield CheckResult(
        id="compiled-parts",
        status="warn" if fixes else "note",
        summary=f"{len(missing)} of {len(NATIVE_MODULES)} are not in use, so the same pixels take "
        f"longer: {reasons}",
        details={**details, "why_not": missing},
        fix="; ".join(fixes),
    )


def check_png_decoder() -> CheckResult:
    """Run the check "png-decoder"."""
    isal = package_version("isal")
    is_compiled = not _why_not("_png")[0]
    if not is_compiled:
        # The missing part and its fix are reported by "compiled-parts".
        line = "Pillow decodes the rows down to the crop's end"
    elif isal:
        line = f"inflates only the rows down to the crop's end, with ISA-L (isal {isal})"
    else:
        line = (
            "inflates only the rows down to the crop's end, with Python's zlib; ISA-L takes half "
        )
        line += "the time, if isal can be installed"
    return CheckResult(
        id="png-decoder",
        status="ok" if is_compiled and isal else "note",
        summary=line,
        details={"compiled": is_compiled, "isal": isal},
    )


def _why_not(name: str) -> tuple[str, str]:
    """Reason a compiled part is not in use, and the fix; "" if it is in use, or has no fix."""
    try:
        part = importlib.import_module(f"feedline.images.{name}")
    except ModuleNotFoundError:
        return f"{name} was not compiled", COMPILE_HINT
    except ImportError as error:
        return f"{name} cannot be loaded: {error}", COMPILE_HINT
    if name == "_jpeg":
        from PIL import _imaging

        try:
            part.Decoder(_imaging.__file__)
        except OSError as error:
            # Pillow's wheels for Windows contain libjpeg, and no other build can be used either.
            windows = sys.platform == "win32"
            fix = "use Pillow's own wheels (pip install --force-reinstall pillow)"
            return f"{name} cannot use Pillow's libjpeg: {error}", "" if windows else fix
    return "", ""


def _reads_codes() -> bool:
    """Return True if feedline can read the Huffman codes for `_jpeg`'s libjpeg."""
    from PIL import _imaging

    part = importlib.import_module("feedline.images._jpeg")
    return bool(part.Decoder(_imaging.__file__).reads_codes)


def _jpeg_decoder(*, crop_only: bool, reads_codes: bool) -> CheckResult:
    """Describe the JPEG decoder: `_jpeg` with Pillow's library, or simplejpeg with its own."""
    import PIL
    from PIL import features

    turbo = features.version_feature("libjpeg_turbo") if features.check("libjpeg_turbo") else None
    simplejpeg = package_version("simplejpeg")
    details = {
        "crop_only": crop_only,
        "reads_codes": reads_codes,
        "pillow": PIL.__version__,
        "libjpeg_turbo": turbo,
        "simplejpeg": simplejpeg,
    }
    library = f"Pillow {PIL.__version__} with "
    library += f"libjpeg-turbo {turbo}" if turbo else "a libjpeg other than libjpeg-turbo"
    if crop_only:
        line = f"decodes only the crop of an image, with {library}"
        if not reads_codes:
            line += (
                ", which reads the Huffman codes itself, more slowly than feedline would: feedline "
                "does not know the internal structures of this version"
            )
    else:
        line = f"simplejpeg {simplejpeg} decodes whole images, and {library} the formats it lacks"
    # The missing part and its fix are reported by "compiled-parts".
    return CheckResult(
        id="jpeg-decoder", status="ok" if reads_codes else "note", summary=line, details=details
    )
