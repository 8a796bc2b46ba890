#!/usr/bin/env bash
# Versions: timm 1.0.31, Pillow 13.0.0, torch 2.14.1, torchvision 0.29.1; CPU.
# timm's recipe rand-m9-mstd0.5-inc1 draws magnitudes around 9 and clips them at 10, where its
# increasing posterize keeps 0 bits of each channel. Pillow 13 refuses 0 bits, so 8 of 5,000 images
# raise "ValueError: bits must be between or equal to 1 and 8", which ends the epoch.
# Fails if none of 5,000 images raises, or an image raises something else.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet \
    timm==1.0.31 Pillow==13.0.0 torch==2.14.1 torchvision==0.29.1
cd "$folder"
venv/bin/python - <<'PYTHON'
import random

import numpy as np
from PIL import Image
from timm.data import create_transform

random.seed(0)
np.random.seed(0)
pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3)).astype(np.uint8)
image = Image.fromarray(pixels)
steps = create_transform(32, is_training=True, auto_augment="rand-m9-mstd0.5-inc1")
errors = []
for _ in range(5000):
    try:
        steps(image)
    except ValueError as error:
        errors.append(str(error))
print(f"{len(errors)} of 5000 images raise: {sorted(set(errors))}")
assert set(errors) == {"bits must be between or equal to 1 and 8"}
PYTHON
