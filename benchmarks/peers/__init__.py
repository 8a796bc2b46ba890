"""Data loaders that feedline is compared with, one module each, and the upper limit.

A peer is a module with

    NAME      name in the table
    NEEDS     required modules; if one cannot be imported, the peer is "not installed"
    PIXELS    short description of its pixels: decoder, resize, dtype
    KINDS     supported kinds of work (see `work.Work.kind`)
    prepare(work)   optional: write its own format to work.scratch; not timed
    batches(work)   endless iterator of batches with `shape` and image size `work.size`; or
    bare(work)      if nothing is handed over: an object whose rate(seconds) returns images and
                    seconds

All draw a random crop of 25% to 100% of the area with an aspect ratio of 3/4 to 4/3, resize it to
a square and mirror half of them. Each runs in a process of its own (`serve.py`).
"""

from __future__ import annotations

__all__ = ["PEERS"]

PEERS = (
    "limit",
    "limit_own",
    "feedline_exact",
    "feedline_scaled",
    "torch_pillow",
    "torch_float",
    "torch_stock",
    "torch_uint8",
    "timm_prefetch",
    "dali",
    "ffcv",
    "spdl",
    "webdataset",
    "litdata",
    "streaming",
)
