#!/usr/bin/env bash
# Versions: torch 2.14.1, numpy 2.4.6; Python 3.11, CPU.
# The first optimizer of a process imports torch._dynamo, which replaces torch.manual_seed by a
# function of the same name and module. That one cannot be pickled: "it's not the same object as
# torch.random.manual_seed". So DataLoader(worker_init_fn=torch.manual_seed) with spawned workers, as
# on Windows and macOS, starts before an optimizer was created and raises PicklingError afterwards;
# torch.random.manual_seed works in both cases. Comparisons by identity with a torch.manual_seed that
# was imported before fail as well.
# Fails if the seeding function stays the same object, or can be pickled.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.14.1 numpy==2.4.6
cd "$folder"
cat >seeded.py <<'PYTHON'
import pickle
import sys

import torch
from torch.utils.data import DataLoader


def first_batch(init):
    loader = DataLoader(
        list(range(8)), 4, num_workers=1, worker_init_fn=init, multiprocessing_context="spawn"
    )
    return next(iter(loader)).tolist()


if __name__ == "__main__":
    seed = torch.manual_seed
    print("torch", torch.__version__, "Python", sys.version.split()[0])
    print("dynamo imported:", "torch._dynamo" in sys.modules)
    print("workers seeded by torch.manual_seed:", first_batch(torch.manual_seed))

    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    print("after an optimizer, dynamo imported:", "torch._dynamo" in sys.modules)
    print("torch.manual_seed is the same function:", torch.manual_seed is seed)
    assert torch.manual_seed is not seed
    assert torch.random.manual_seed is seed
    try:
        first_batch(torch.manual_seed)
    except pickle.PicklingError as error:
        print("workers seeded by torch.manual_seed:", type(error).__name__, error)
    else:
        raise SystemExit("torch.manual_seed was pickled")
    print("workers seeded by torch.random.manual_seed:", first_batch(torch.random.manual_seed))
PYTHON
venv/bin/python seeded.py
