"""The limit with feedline's own calls: bare processes without feedline's machinery."""

from __future__ import annotations

from peers import limit
from peers.work import Work

NAME = "bare processes, feedline's calls"
NEEDS = ("torch", "simplejpeg", "feedline")
PIXELS = "uint8, torchvision's pixels"
KINDS = ("jpeg", "raw")


def bare(work: Work) -> limit.Bare:
    return limit.bare(work, own=True)
