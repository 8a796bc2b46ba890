"""What users could pick instead, one file each, and what nobody can beat.

A peer is a module with

    NAME      what the table calls it
    NEEDS     modules that must import, else it is "not installed"
    PIXELS    what its pixels are, in a few words: which decoder, which resize, which dtype
    KINDS     kinds of work it does (see `work.Work.kind`)
    prepare(work)   optional: write a format of its own into work.scratch; not timed
    batches(work)   an endless iterator of batches, each with `shape`, size `work.size`; or
    bare(work)      where nothing is handed over: an object whose rate(seconds) gives images and
                    the seconds they took

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
