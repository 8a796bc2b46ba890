"""What decodes JPEGs, and whether the compiled parts are in use."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from feedline.doctor.check import Check
from feedline.doctor.libraries import version_of

__all__ = ["look_at_decoder"]

_PARTS = {
    "_jpeg": "simplejpeg decodes all of an image for a crop of it",
    "_resample": "torch crops and resizes, in about twice the time",
    "_lut": "numpy makes floats of pixels",
    "_photometric": "torchvision changes colours, blurs and maps",
}
"""The compiled parts, and what is done without them: the pixels are the same."""


def look_at_decoder() -> Iterator[Check]:
    """The checks "jpeg-decoder" and "compiled-parts"."""
    missing = {name: why for name in _PARTS if (why := _why_not(name))}
    crop_only = "_jpeg" not in missing
    yield _jpeg_decoder(crop_only=crop_only, reads_codes=crop_only and _reads_codes())
    details: dict[str, object] = {name.removeprefix("_"): name not in missing for name in _PARTS}
    if not missing:
        yield Check(
            id="compiled-parts",
            status="ok",
            summary=f"all {len(_PARTS)} are in use: {', '.join(details)}",
            details=details,
        )
        return
    said = "; ".join(f"{_PARTS[name]}, as {why}" for name, why in missing.items())
    yield Check(
        id="compiled-parts",
        status="warn",
        summary=f"{len(missing)} of {len(_PARTS)} are not in use, so the same pixels come slower: "
        f"{said}",
        details={**details, "why_not": missing},
        fix="install a C compiler (gcc or clang), then feedline anew; for Pillow, its own wheels "
        "(pip install --force-reinstall pillow)",
    )


def _why_not(name: str) -> str:
    """Why a compiled part is not in use; "" if it is."""
    try:
        part = importlib.import_module(f"feedline.images.{name}")
    except ModuleNotFoundError:
        return f"{name} was not compiled"
    except ImportError as error:
        return f"{name} cannot be loaded: {error}"
    if name == "_jpeg":
        from PIL import _imaging

        try:
            part.Decoder(_imaging.__file__)
        except OSError as error:
            return f"Pillow's libjpeg is of no use to {name}: {error}"
    # As `images.resize` asks it.
    return "" if getattr(part, "supported", True) else f"this processor lacks AVX2 for {name}"


def _reads_codes() -> bool:
    """Whether `_jpeg` can have libjpeg's Huffman codes read by feedline."""
    from PIL import _imaging

    part = importlib.import_module("feedline.images._jpeg")
    return bool(part.Decoder(_imaging.__file__).reads_codes)


def _jpeg_decoder(*, crop_only: bool, reads_codes: bool) -> Check:
    """What decodes a JPEG here: `_jpeg` by Pillow's library, else simplejpeg by its own."""
    import PIL
    from PIL import features

    turbo = features.version_feature("libjpeg_turbo") if features.check("libjpeg_turbo") else None
    simplejpeg = version_of("simplejpeg")
    details = {
        "crop_only": crop_only,
        "reads_codes": reads_codes,
        "pillow": PIL.__version__,
        "libjpeg_turbo": turbo,
        "simplejpeg": simplejpeg,
    }
    library = f"Pillow {PIL.__version__} with "
    library += f"libjpeg-turbo {turbo}" if turbo else "another libjpeg than libjpeg-turbo"
    if crop_only:
        line = f"only the crop of an image is decoded, by {library}"
        if not reads_codes:
            line += (
                ", which reads Huffman codes itself, and more slowly than feedline: this version's "
                "internal structures are not known to feedline"
            )
    else:
        line = f"simplejpeg {simplejpeg} decodes whole images; what it leaves, {library}"
    # That a part is missing is told of, with its remedy, by "compiled-parts".
    return Check(
        id="jpeg-decoder", status="ok" if reads_codes else "note", summary=line, details=details
    )
