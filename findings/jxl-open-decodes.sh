#!/usr/bin/env bash
# Versions: pillow-jxl-plugin 1.3.8, Pillow 13.0.0, numpy 2.4.6.
# Image.open of a JPEG XL file decodes the whole image, and load() only copies it. So code that
# reads no more than image.size, such as a check of a dataset or the choice of a resolution, takes
# the time of decoding each image: 0.14 s of CPU time for 6 MP, and 0.01 s in load(). Image.open of a
# WebP file of the same size takes 0.002 s, and load() 0.07 s.
# Fails unless open takes more CPU time than load for JPEG XL, and less for WebP.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pillow-jxl-plugin==1.3.8 pillow==13.0.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PYTHON'
import io
import time

import numpy as np
import pillow_jxl  # registers the format
from PIL import Image

small = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
image = Image.fromarray(small).resize((3000, 2000))


def cpu_s(function):
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


for name in ("JXL", "WEBP"):
    file = io.BytesIO()
    image.save(file, name)
    open_s, opened = cpu_s(lambda: Image.open(io.BytesIO(file.getvalue())))
    load_s, _ = cpu_s(opened.load)
    print(f"{name}: open {open_s:.4f} s, load {load_s:.4f} s of CPU time")
    assert (open_s > load_s) == (name == "JXL")
PYTHON
