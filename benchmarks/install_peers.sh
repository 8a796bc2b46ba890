#!/usr/bin/env bash
# Installs feedline and what it is compared with:  benchmarks/install_peers.sh PYTHON
#
# PYTHON is that of a virtual environment. feedline and torch come first and are held at their
# versions while the peers follow, so that none of them changes what is measured. A peer that cannot
# be installed stops no other; the last lines say which, and why as far as it is known.
set -u
python=$1
cd "$(dirname "$0")/.." || exit 1
held=$(mktemp)
trap 'rm -f "$held"' EXIT
failed=()

pip() {
  "$python" -m pip install --quiet --constraint "$held" "$@"
}

peer() { # NAME COMMAND...
  echo "installing $1"
  "${@:2}" || failed+=("$1")
}

streaming() {
  # Its bounds on numpy, transformers and xxhash are below what the others run with; what it needs
  # to read and write local shards works with them all. Its clients for cloud storage are not
  # needed.
  pip brotli catalogue python-snappy requests transformers xxhash zstd &&
    pip --no-deps mosaicml-streaming
}

ffcv() {
  # It asks for opencv-python, which would be a second owner of the module cv2.
  if ! { pkg-config --exists opencv4 libturbojpeg && command -v g++ >/dev/null; }; then
    echo "FFCV is compiled, with Debian's g++ pkg-config libopencv-dev libturbojpeg0-dev" >&2
    return 1
  fi
  pip assertpy fastargs numba pytorch-pfn-extras terminaltables tqdm && pip --no-deps ffcv
}

spdl() {
  if ! command -v ffmpeg >/dev/null; then
    echo "SPDL uses the shared libraries of Debian's ffmpeg" >&2
    return 1
  fi
  pip spdl spdl-io
}

pip --upgrade pip || exit 1
# OpenCV is for the bare processes that resize by libraries alone, and for FFCV. LitData's boto3 does
# not go with python-dateutil 3 and later, which matplotlib would bring.
pip --editable '.[bench,cache,train]' opencv-python-headless 'python-dateutil<3' torchvision || exit 1
# DALI needs a version of packaging that is older than the newest. No figure depends on it.
"$python" -m pip freeze --exclude-editable | grep -v '^packaging==' >"$held"

peer DALI pip nvidia-dali-cuda130
peer FFCV ffcv
peer SPDL spdl
peer WebDataset pip webdataset
peer albumentations pip albumentations
peer "datasets of Hugging Face" pip datasets
# Without these bounds pip goes back through boto3 to one of 2014, which no longer imports, or
# through both for ten minutes and gives up.
peer LitData pip 'litdata>=0.2.70' 'boto3>=1.40'
peer "MosaicML Streaming" streaming

if ((${#failed[@]})); then
  printf 'could not be installed: %s\n' "${failed[@]}"
fi
