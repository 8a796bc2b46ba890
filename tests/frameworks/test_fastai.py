"""fastai: a Learner gets from feedline's loaders the very batches that torch's class gives it."""

import subprocess
import sys

import pytest
from torch.utils.data import DataLoader

import feedline
from packages import needs
from slow import slow

pytestmark = [
    needs("fastai"),
    pytest.mark.filterwarnings("ignore:numpy.core is deprecated:DeprecationWarning"),
]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("case", ["workers", "lr_find", *slow("pickled")])
def test_learner_matches_torch_dataloader(case, tmp_path):
    from learner_runs import CASES

    theirs, ours = (CASES[case](kind, tmp_path) for kind in (DataLoader, feedline.DataLoader))
    assert theirs[0]
    assert ours == theirs


@pytest.mark.slow
def test_fastai_patches_of_pillow_and_torch_keep_pipelines_fused():
    """In a new process, because the import changes classes of Pillow and torch."""
    script = """
import warnings
warnings.simplefilter("ignore")
import numpy as np, torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2
import feedline

noise = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
pipelines = [
    v1.Compose([v1.RandomResizedCrop(32), v1.ColorJitter(0.4), v1.RandAugment(), v1.ToTensor()]),
    v1.Compose([v1.Resize((30, 30)), v1.RandomChoice([v1.RandomSolarize(9)]), v1.ToTensor()]),
    v2.Compose([v2.Resize((30, 30)), v2.RandomCrop(24), v2.ToImage(), v2.ToDtype(torch.float32)]),
]

def made(pipeline):
    torch.manual_seed(1)
    np.random.seed(1)
    return [torch.as_tensor(pipeline(Image.fromarray(noise))).tolist() for _ in range(4)]

plain = [made(pipeline) for pipeline in pipelines]
told = [feedline.compile(pipeline).explain() for pipeline in pipelines]
import fastai.vision.all
assert Image.Image.size.fget.__module__ == "fastai.vision.core"
assert [made(pipeline) for pipeline in pipelines] == plain
assert [feedline.compile(pipeline).explain() for pipeline in pipelines] == told
assert all(text.startswith("fused") for text in told), told
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
