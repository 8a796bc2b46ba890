"""A cache's manifest as it goes into a JSON file, alike in every command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feedline.stores.cache_layout import Manifest

__all__ = ["described"]


def described(root: object, manifest: Manifest) -> dict[str, Any]:
    """A manifest as it goes into a JSON file."""
    kind, path = manifest.source
    return {
        "folder": str(root),
        "format": manifest.format,
        "images": manifest.samples,
        "levels": [
            {"size_px": level.side, "quality": level.quality, "bytes": level.bytes}
            for level in manifest.levels
        ],
        "classes": manifest.classes,
        "exif": manifest.exif,
        "source": {"kind": kind, "path": path, "images": manifest.samples_in_source},
        "skipped": [
            {"sample": key, "name": name, "why": why} for key, name, why in manifest.skipped
        ],
        "fingerprint": manifest.fingerprint,
        "feedline": manifest.feedline,
    }
