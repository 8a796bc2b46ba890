"""Methods of changing the image size during training, one module each.

A contestant is a module with

    batches(work)   iterator of (images, labels) over the whole schedule: images of shape
                    (N, 3, size, size), every epoch shuffled and without its last, smaller batch

All draw a random crop of 25% to 100% of the area with an aspect ratio of 3/4 to 4/3, resize it to
a square and mirror half of them. Each run is a process of its own (`drive.py`).
"""

from __future__ import annotations

__all__ = ["CONTESTANTS"]

# Modules and their names in the table.
CONTESTANTS = {
    "feedline_exact": "feedline",
    "rebuilt_pillow": "torch, rebuilt, Pillow",
    "rebuilt_uint8": "torch, rebuilt, uint8",
    "sized_index": "torch, size with the index",
    "sized_stream": "torch, one sized stream",
    "timm_scheduled": "timm, scheduled sampler",
}
