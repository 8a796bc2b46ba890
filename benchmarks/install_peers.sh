#!/usr/bin/env bash
# Install feedline and the data loaders that it is compared with.
#
#   benchmarks/install_peers.sh PYTHON        PYTHON of a virtual environment
#
# feedline and torch are installed first and pinned, so that no peer changes the measured versions. If
# a peer cannot be installed, the others still are; the last lines list the failed ones.
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
  # Its upper bounds on numpy, transformers and xxhash conflict with other peers, but local shards
  # work with newer versions. Its cloud storage clients are not needed.
  pip brotli catalogue python-snappy requests transformers xxhash zstd &&
    pip --no-deps mosaicml-streaming
}

ffcv() {
  # Without dependencies: opencv-python would conflict with opencv-python-headless.
  if ! { pkg-config --exists opencv4 libturbojpeg && command -v g++ >/dev/null; }; then
    echo "FFCV is compiled and needs Debian's g++ pkg-config libopencv-dev libturbojpeg0-dev" >&2
    return 1
  fi
  pip assertpy fastargs numba pytorch-pfn-extras terminaltables tqdm && pip --no-deps ffcv
}

spdl() {
  if ! command -v ffmpeg >/dev/null; then
    echo "SPDL needs the shared libraries of Debian's ffmpeg" >&2
    return 1
  fi
  pip spdl spdl-io
}

pip --upgrade pip || exit 1
# OpenCV is used by the bare processes and by FFCV. LitData's boto3 is incompatible with
# python-dateutil 3, which matplotlib would install.
pip --editable '.[bench,cache,train]' opencv-python-headless 'python-dateutil<3' torchvision || exit 1
# DALI needs an older version of packaging. No result depends on it.
"$python" -m pip freeze --exclude-editable | grep -v '^packaging==' >"$held"

peer DALI pip nvidia-dali-cuda130
peer FFCV ffcv
peer SPDL spdl
peer WebDataset pip webdataset
peer albumentations pip albumentations
peer "datasets of Hugging Face" pip datasets
# Without these bounds pip backtracks to a boto3 of 2014, which no longer imports, or gives up
# after ten minutes.
peer LitData pip 'litdata>=0.2.70' 'boto3>=1.40'
peer "MosaicML Streaming" streaming

if ((${#failed[@]})); then
  printf 'failed to install: %s\n' "${failed[@]}"
fi
