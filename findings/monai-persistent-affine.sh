#!/usr/bin/env bash
# Versions: monai 1.6.1, nibabel 5.4.2, torch 2.14.1, numpy 2.4.6; CPU.
# MONAI's PersistentDataset, with the default track_meta=False, returns a sample whose steps before
# the first random one were just computed with its affine matrix, and one that it reads from its
# folder without. Steps after the random one that use the affine, such as Spacingd, then change: a
# scan of 0.5 mm voxels resampled to 1 mm has 16 voxels a side the first time and 32 from then on,
# as its voxels count as 1 mm. There is no warning. Dataset and CacheDataset return 16 each time, and
# so does PersistentDataset with track_meta=True, weights_only=False.
# Fails if the second read of PersistentDataset has the size of the first.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet monai==1.6.1 nibabel==5.4.2 torch==2.14.1 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PYTHON'
import nibabel
import numpy as np
from monai.data import CacheDataset, Dataset, PersistentDataset
from monai.transforms import Compose, EnsureChannelFirstd, LoadImaged, RandFlipd, Spacingd

scan = np.random.default_rng(0).normal(size=(32, 32, 32)).astype(np.float32)
nibabel.save(nibabel.Nifti1Image(scan, np.diag([0.5, 0.5, 0.5, 1.0])), "scan.nii.gz")
items = [{"image": "scan.nii.gz"}]
steps = Compose(
    [
        LoadImaged("image"),
        EnsureChannelFirstd("image"),
        RandFlipd("image", prob=0.5),
        Spacingd("image", pixdim=(1.0, 1.0, 1.0)),
    ]
)
datasets = {
    "Dataset": Dataset(items, steps),
    "CacheDataset": CacheDataset(items, steps, progress=False),
    "PersistentDataset": PersistentDataset(items, steps, cache_dir="cache"),
    "PersistentDataset, track_meta=True": PersistentDataset(
        items, steps, cache_dir="tracked", track_meta=True, weights_only=False
    ),
}
sides = {name: [data[0]["image"].shape[-1] for _ in range(3)] for name, data in datasets.items()}
for name, found in sides.items():
    print(f"{name}: {found}")
assert sides.pop("PersistentDataset") == [16, 32, 32]
assert all(found == [16, 16, 16] for found in sides.values())
PYTHON
