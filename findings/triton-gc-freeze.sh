#!/usr/bin/env bash
# Versions: triton 3.9.0.
# gc.freeze(), which Python's documentation recommends before a fork, leaves objects of triton that
# only the cyclic garbage collector frees to the end of the process. Its binding library reports
# them on stderr: "leaked 4 instances", "64 types", "514 functions", once for each process that ends
# with sys.exit. torch's wheels for CUDA install triton, and torchvision 0.29.2 with torch 2.15
# imports it, so a server that imports torchvision, freezes and forks prints this for each child.
# gc.unfreeze() before the end avoids it, and so does os._exit.
# Fails if the report does not depend on gc.freeze().
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet triton==3.9.0
cd "$folder"
run() {
    venv/bin/python -c "import gc, os, sys, triton
$1" 2>&1 | grep "^nanobind: leaked" || true
}
fork="if not (child := os.fork()): sys.exit()
os.waitpid(child, 0); os._exit(0)"
frozen=$(run "gc.freeze()
$fork")
echo "$frozen"
grep -q "leaked 4 instances" <<< "$frozen"
[ -z "$(run "$fork")" ]
[ -z "$(run "gc.freeze(); gc.unfreeze()")" ]
