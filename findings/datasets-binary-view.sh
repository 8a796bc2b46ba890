#!/usr/bin/env bash
# Versions: datasets 5.2.0, pyarrow 26.0.1, Pillow 13.0.0.
# A column of encoded images becomes images by cast_column("image", Image()) if its Arrow type is
# binary or large_binary. If it is binary_view, which pyarrow.table(frame) gives for the bytes of a
# Polars frame, the dataset opens, but the cast raises ArrowNotImplementedError: "Unsupported cast
# from binary_view to struct". frame.to_arrow() gives large_binary.
# Fails if the cast of a binary_view works, or that of another type does not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datasets==5.2.0 pyarrow==26.0.1 pillow==13.0.0
cd "$folder"
HF_HOME="$folder" venv/bin/python - <<'PYTHON'
import io

import pyarrow as pa
from datasets import Dataset, Image
from PIL import Image as PillowImage

file = io.BytesIO()
PillowImage.new("RGB", (8, 8)).save(file, "PNG")
for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
    data = Dataset(pa.table({"image": pa.array([file.getvalue()], kind)}))
    try:
        outcome = data.cast_column("image", Image())[0]["image"].size
    except pa.ArrowNotImplementedError as error:
        outcome = str(error)
    print(f"{kind}: {outcome}")
    assert (outcome == (8, 8)) == (kind != pa.binary_view())
PYTHON
