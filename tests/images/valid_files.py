"""Valid image files of all formats of Pillow, orientations and chroma layouts, 64 x 32 px or
upright, and the pixels that Pillow reads from them.
"""

from __future__ import annotations

import functools
import io
import warnings
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image, ImageFile, ImageOps, PngImagePlugin

from image_files import chunk
from torchvision_folder import image

SIDE = 32
"""Shorter side of every image, in pixels."""

_XMP = (
    '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-'
    'syntax-ns#"><rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" {}</rdf:RDF>'
    "</x:xmpmeta>"
)


def picture(mode: str = "RGB") -> Image.Image:
    return image(3, 2 * SIDE, SIDE, mode)


def encoded(format: str, mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    picture(mode).save(file, format, **options)
    return file.getvalue()


def exif_of(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    exif[0x0112] = orientation
    return exif.tobytes()


def xmp_of(orientation: int) -> str:
    if orientation % 2:
        return _XMP.format(f"><tiff:Orientation>{orientation}</tiff:Orientation></rdf:Description>")
    return _XMP.format(f'tiff:Orientation="{orientation}"/>')


def with_segment(jpeg: bytes, content: bytes) -> bytes:
    """A JPEG with an application segment 1 (ITU T.81, B.2.4.6)."""
    return jpeg[:2] + b"\xff\xe1" + (len(content) + 2).to_bytes(2, "big") + content + jpeg[2:]


def with_chunk(png: bytes, name: bytes, content: bytes) -> bytes:
    """A PNG with a chunk after its header."""
    return png[:33] + chunk(name, content) + png[33:]


def resampled(jpeg: bytes, factors: int, height: int, width: int) -> bytes:
    """The same blocks, as another picture, with other sampling factors of the luminance."""
    at = jpeg.index(b"\xff\xc0")  # ITU T.81, B.2.2
    header = bytearray(jpeg[at : at + 19])
    header[5:9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    header[11] = factors
    return jpeg[:at] + bytes(header) + jpeg[at + 19 :]


def chroma_layouts() -> dict[str, bytes]:
    pixels = np.ascontiguousarray(picture())
    layouts = {
        name: simplejpeg.encode_jpeg(pixels, 90, "RGB", name)
        for name in ("444", "422", "420", "440", "411")
    }
    layouts["441"] = resampled(layouts["411"], 0x14, 2 * SIDE, SIDE)
    layouts["grey"] = encoded("JPEG", "L")
    layouts["rgb"] = encoded("JPEG", keep_rgb=True)
    layouts["cmyk"] = encoded("JPEG", "CMYK")
    layouts["progressive"] = encoded("JPEG", progressive=True)
    return layouts


def jpegs() -> dict[str, bytes]:
    """Every chroma layout in every orientation, by Exif or XMP."""
    files = {}
    for layout, jpeg in chroma_layouts().items():
        files[f"jpeg-{layout}.jpg"] = jpeg
        for turn in range(1, 9):
            exif = with_segment(jpeg, b"Exif\0\0" + exif_of(turn).removeprefix(b"Exif\0\0"))
            xmp = b"http://ns.adobe.com/xap/1.0/\0" + xmp_of(turn).encode()
            files[f"jpeg-{layout}-exif-{turn}.jpg"] = exif
            files[f"jpeg-{layout}-xmp-{turn}.jpg"] = with_segment(jpeg, xmp)
            files[f"jpeg-{layout}-xmp-other-exif-{turn}.jpg"] = with_segment(
                exif, xmp_of(6).encode()
            )
    return files


def turned() -> dict[str, bytes]:
    """Other formats with an orientation, in all of its places."""
    Image.init()
    files = {}
    for turn in range(1, 9):
        info = PngImagePlugin.PngInfo()
        info.add_itxt("XML:com.adobe.xmp", xmp_of(turn))
        raw = exif_of(turn)
        lines = "\n".join(raw.hex()[at : at + 72] for at in range(0, 2 * len(raw), 72))
        profile = zlib.compress(f"\nexif\n{len(raw):8}\n{lines}\n".encode())
        files |= {
            f"png-exif-{turn}.png": encoded("PNG", exif=raw),
            f"png-xmp-{turn}.png": encoded("PNG", pnginfo=info),
            f"png-profile-{turn}.png": with_chunk(
                encoded("PNG"), b"zTXt", b"Raw profile type exif\0\0" + profile
            ),
            f"webp-exif-{turn}.webp": encoded("WEBP", exif=raw),
            f"webp-xmp-{turn}.webp": encoded("WEBP", xmp=xmp_of(turn).encode(), lossless=True),
            f"tiff-exif-{turn}.tif": encoded("TIFF", tiffinfo={0x0112: turn}),
            f"tiff-xmp-{turn}.tif": encoded("TIFF", tiffinfo={700: xmp_of(turn).encode()}),
        }
        if "AVIF" in Image.SAVE:
            files |= {
                f"avif-exif-{turn}.avif": encoded("AVIF", exif=raw),
                f"avif-xmp-{turn}.avif": encoded("AVIF", xmp=xmp_of(turn).encode()),
            }
    return files


def formats() -> dict[str, bytes]:
    """Every format that Pillow both writes and reads without another program, in several modes."""
    Image.init()
    files = {}
    for format in set(Image.SAVE) & set(Image.OPEN) - {"EPS", "JXL", "HEIF"}:
        for mode in ("RGB", "L", "P", "RGBA", "LA", "1", "CMYK", "I;16"):
            try:
                data = encoded(format, mode)
                size = Image.open(io.BytesIO(data)).size
            except Exception:  # a mode that the format does not have
                continue
            if size == (2 * SIDE, SIDE):  # icons have fixed sizes
                files[f"format-{format}-{mode.replace(';', '')}.{format.lower()}"] = data
    files["dib.png"] = encoded("DIB")  # the name does not count
    if find_spec("pillow_heif"):
        import pillow_heif

        heic = io.BytesIO()
        pillow_heif.from_pillow(picture()).save(heic)
        files["camera.heic"] = heic.getvalue()
    return files


@functools.cache
def all_files() -> dict[str, bytes]:
    """Contents by sorted file name; without XMP, if this version of Pillow ignores it in JPEGs."""
    files = jpegs() | turned() | formats()
    reads_xmp = by_pillow(files["jpeg-444-xmp-6.jpg"], exif=True).shape[0] == 2 * SIDE
    names = sorted(name for name in files if reads_xmp or "-xmp-" not in name)
    return {name: files[name] for name in names}


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files into a class folder. Return the folder of that one."""
    (folder / "class").mkdir(parents=True)
    for name, data in files.items():
        (folder / "class" / name).write_bytes(data)
    return folder


@functools.cache
def by_pillow(data: bytes, *, exif: bool) -> np.ndarray[Any, Any]:
    """Pillow's pixels of a file, upright with `exif`: uint8 (height, width, 3)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if data[4:12] == b"ftypheic":  # read by another package
            import pillow_heif

            return np.asarray(pillow_heif.open_heif(data).to_pillow())
        image: Any = Image.open(io.BytesIO(data))
        if exif:
            image = ImageOps.exif_transpose(image)
        return np.asarray(image.convert("RGB"))


class OwnFormat(ImageFile.ImageFile):
    """A format of one file, all red."""

    format = "OWN"

    def _open(self) -> None:
        self._size, self._mode = (2 * SIDE, SIDE), "RGB"
        self.tile = []
        self.im = Image.new("RGB", self.size, "red").im


SIGNATURES = {"OWN": b"own format", "JXL": b"\xff\n"}


def is_own(first: bytes) -> bool:
    return first.startswith(tuple(SIGNATURES.values()))
