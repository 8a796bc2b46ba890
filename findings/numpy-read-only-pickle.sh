#!/usr/bin/env bash
# Versions: numpy 2.4.6.
# A contiguous read-only array (setflags(write=False), np.frombuffer of bytes) that goes
# through pickle arrives writable by protocols up to 4, and read-only by protocol 5, the default of
# pickle, and so of multiprocessing and of torch's workers, from Python 3.14 on (4 before). The same
# dataset then returns arrays that a collate_fn may change in place with one version of Python and
# not with the next: "output array is read-only".
# Fails if both protocols agree.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PYTHON'
import pickle
import sys
from multiprocessing.reduction import ForkingPickler

import numpy as np

labels = np.arange(4.0)
labels.setflags(write=False)
writable = {
    protocol: pickle.loads(pickle.dumps(labels, protocol)).flags.writeable for protocol in (4, 5)
}
print(f"Python {sys.version.split()[0]}, default protocol {pickle.DEFAULT_PROTOCOL}: {writable}")
assert writable == {4: True, 5: False}

received = pickle.loads(pickle.dumps(labels, 5))
try:
    received += 1
except ValueError as error:
    print(error)
else:
    raise SystemExit("a read-only array was changed")

# As multiprocessing sends it to another process: with Python's default protocol.
sent = pickle.loads(ForkingPickler.dumps(labels))
print("from a worker:", "writable" if sent.flags.writeable else "read-only")
assert sent.flags.writeable == (pickle.DEFAULT_PROTOCOL < 5)
PYTHON
