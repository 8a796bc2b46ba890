#!/usr/bin/env bash
# Versions: simplejpeg 1.9.0, Pillow 13.0.0, numpy 2.4.6; libjpeg-turbo's cjpeg and jpegtran 2.1.5.
# A photograph stored with 4:1:1 chroma and rotated without loss has 4:4:1 chroma (luma 1x4), which
# libjpeg-turbo names since 3.0. simplejpeg's decode_jpeg_header raises KeyError for this valid file,
# not the ValueError that it documents, so code that skips unreadable images does not catch it.
# decode_jpeg and Pillow read the same file.
set -euo pipefail
command -v cjpeg jpegtran > /dev/null || { echo "needs cjpeg and jpegtran (libjpeg-turbo-progs)"; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet simplejpeg==1.9.0 pillow==13.0.0 numpy==2.4.6
cd "$folder"
venv/bin/python -c "
import numpy as np
from PIL import Image
y, x = np.mgrid[0:64, 0:96]
Image.fromarray(np.stack([x * 2, y * 3, x + y], 2).astype(np.uint8)).save('image.ppm')"
cjpeg -sample 4x1 image.ppm > 411.jpg
jpegtran -rotate 90 -trim 411.jpg > 441.jpg
venv/bin/python - <<'PYTHON'
import simplejpeg
from PIL import Image

print("simplejpeg", simplejpeg.__version__)
data = open("441.jpg", "rb").read()
with Image.open("441.jpg") as image:
    print("Pillow:", image.size, [layer[:3] for layer in image.layer])
try:
    print("decode_jpeg:", simplejpeg.decode_jpeg(data).shape)
except Exception as error:
    print("decode_jpeg:", type(error).__name__, error)
try:
    header = simplejpeg.decode_jpeg_header(data)
except KeyError as error:
    print("decode_jpeg_header: KeyError", error)
else:
    raise SystemExit(f"changed: decode_jpeg_header returns {header}")
PYTHON
