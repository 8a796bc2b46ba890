"""The limit without feedline's own resize: bare processes and the quickest exact library calls."""

from __future__ import annotations

from peers import limit
from peers.work import Work

NAME = "bare processes, library resize"
NEEDS = ("torch", "simplejpeg", "feedline", "cv2")
PIXELS = "uint8, torchvision's pixels"
KINDS = ("jpeg", "raw")


def bare(work: Work) -> limit.Bare:
    return limit.bare(work, by_libraries=True)
