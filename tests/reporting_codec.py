"""An image format whose decoder records the modules and the memory of the process that decodes it.

Imports only what a worker has anyway.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from feedline.images.codec_base import Codec, DecodedPixels, DecodeOptions
from feedline.images.crops import Part
from feedline.order.pixel_layout import MODES

SIGNATURE = b"report of a process"


@dataclass(frozen=True)
class ReportingCodec(Codec):
    folder: str = ""

    def decode(self, data: bytes, options: DecodeOptions, part: Part | None) -> DecodedPixels:
        modules = sorted(sys.modules)  # before this needs any
        rss_bytes = psutil.Process().memory_info().rss
        report = {"pid": os.getpid(), "modules": modules, "rss_bytes": rss_bytes}
        path = Path(self.folder, f"{len(os.listdir(self.folder)):04}.json")
        path.write_text(json.dumps(report))
        layout = MODES[options.mode]
        return DecodedPixels(np.zeros((8, 8, layout.channels), layout.dtype))
