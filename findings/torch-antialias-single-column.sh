#!/usr/bin/env bash
# Versions: torch 2.14.1 and 2.15.0, numpy 2.4.6; Python 3.10 to 3.13, CPU.
# torch.nn.functional.interpolate(antialias=True) of a float image to a single column: every row of
# the result is the first row. A column 10, 250 becomes 10, 10, 10 at size=(3, 1); right is 10, 130,
# 250, as two columns give. uint8 images of up to four channels are right on x86-64 with AVX2 (another
# code path), and wrong with ATEN_CPU_CAPABILITY=default and on aarch64. antialias=False is right.
# It can be met with the resize of a narrow crop, or of one-dimensional signals kept as images.
# Fails if the rows differ.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.14.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import torch

print("torch", torch.__version__, torch.backends.cpu.get_cpu_capability())
column = torch.tensor([10.0, 250.0]).reshape(1, 1, 2, 1)


def resized(columns, antialias):
    size = (3, columns)
    made = torch.nn.functional.interpolate(column, size, mode="bilinear", antialias=antialias)
    return made[0, 0, :, 0].tolist()


one, two, plain = resized(1, True), resized(2, True), resized(1, False)
print("one column:", one, "two columns:", two, "one column without antialias:", plain)
assert two == plain == [10.0, 130.0, 250.0]
assert one == [10.0, 10.0, 10.0], "fixed"
PYTHON
