#!/usr/bin/env bash
# Run the loader's and compiler's tests with given versions in a scratch environment:
#   tools/torch_versions.sh torch==2.2.2 torchvision==0.17.2 'numpy<2'
# PYTHON: interpreter (python3).
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || { sed -n '2,4s/^# //p' "$0"; exit 2; }
SCRATCH=$(mktemp -d)
trap 'rm -rf "$SCRATCH"' EXIT
"${PYTHON:-python3}" -m venv "$SCRATCH/venv"
export PATH=$SCRATCH/venv/bin:$PATH
git clone -q . "$SCRATCH/feedline"
cd "$SCRATCH/feedline"
# No constraints: neither of the environment nor of pip's configuration files.
env -u PIP_CONSTRAINT -u PYTHONPATH PIP_CONFIG_FILE=/dev/null pip install -q "$@" . pytest pytest-timeout pytest-xdist hypothesis timm lmdb \
    simplejpeg safetensors webdataset 'setuptools>=77'
pip list 2>/dev/null | grep -iE "^(torch|torchvision|numpy|pillow|timm|feedline) "
python setup.py -q build_ext --inplace
PYTHONPATH=src python -m pytest -n 2 --dist loadfile -m "not slow" tests/compile tests/images tests/order \
    tests/loader tests/engine tests/sampling tests/test_iterators.py tests/test_worker_imports.py
