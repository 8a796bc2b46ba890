#!/usr/bin/env bash
# Versions: pyarrow 26.0.1, pandas 3.1.1, polars 2.1.0, datasets 5.2.0.
# An ordered pandas Categorical of small < medium < large, saved and read again:
#   to_parquet(use_dictionary=False): pyarrow reads a dictionary that is still marked as ordered, but
#     in the order of first appearance and without the category that no row has;
#   polars.from_pandas and datasets.Dataset.from_pandas drop the order without a message.
# A model trained from one and evaluated from the other gets other class numbers. Class numbers
# have to come from the pandas metadata of the file, or from an explicit list.
# Fails if one of them keeps the declared order.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1 pandas==3.1.1 polars==2.1.0 datasets==5.2.0
cd "$folder"
venv/bin/python - <<'PYTHON'
import datasets
import pandas as pd
import polars
import pyarrow.parquet as pq

order = ["small", "medium", "large"]
frame = pd.DataFrame({"size": pd.Categorical(["large", "small"], order, ordered=True)})

frame.to_parquet("plain.parquet", use_dictionary=False)
column = pq.read_table("plain.parquet")["size"]
found = column.chunk(0).dictionary.to_pylist()
print("pyarrow:", column.type, found)
assert column.type.ordered and found == ["large", "small"]

series = polars.from_pandas(frame)["size"]
print("polars:", series.dtype, series.unique().sort().to_list())
assert series.dtype != polars.Enum(order)

split = datasets.Dataset.from_pandas(frame)
print("datasets:", split.features["size"], split["size"][:])
assert "medium" not in str(split.features)
PYTHON
