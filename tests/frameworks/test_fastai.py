"""fastai: a Learner gets from feedline's loaders the very batches that torch's class gives it."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import feedline
from slow import slow

pytest.importorskip("fastai")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from fastai.callback.core import Callback
    from fastai.callback.mixup import MixUp
    from fastai.callback.progress import ProgressCallback
    from fastai.callback.schedule import Learner
    from fastai.callback.training import GradientAccumulation, ShortEpochCallback
    from fastai.data.core import DataLoaders
    from fastai.torch_core import set_seed

pytestmark = pytest.mark.filterwarnings("ignore:numpy.core is deprecated:DeprecationWarning")


def row(number: int) -> tuple[Tensor, Tensor, int]:
    inputs = torch.randn(3, generator=torch.Generator().manual_seed(number))
    return inputs, inputs.sum().reshape(1), number


class Rows(Dataset[Any]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor, int]:
        return row(number)


class Seen(Callback):  # type: ignore[misc]
    def __init__(self) -> None:
        self.steps: list[Any] = []

    def after_batch(self) -> None:
        inputs = [part.tolist() for part in self.xb]
        self.steps.append((self.training, self.n_iter, inputs, self.yb[-1].tolist()))


class Squares(nn.Module):
    reduction = "mean"

    def forward(self, outputs: Tensor, targets: Tensor, *_: Tensor) -> Tensor:
        losses = (outputs - targets) ** 2
        return losses.mean() if self.reduction == "mean" else losses.mean(1)


def learner(
    kind: Any,
    folder: Path,
    callbacks: Iterable[Any] = (),
    rows: Any = None,
    **options: Any,
) -> Any:
    set_seed(5)
    train = kind(rows or Rows(26), 4, shuffle=True, **options)
    loaders = DataLoaders(train, kind(Rows(10), 3, num_workers=options.get("num_workers", 0)))
    loaders.n_inp = 1
    learn = Learner(
        loaders, nn.Linear(3, 1), loss_func=Squares(), cbs=[Seen(), *callbacks], path=folder
    )
    learn.remove_cb(ProgressCallback)
    return learn


def told(learn: Any) -> Any:
    return learn.seen.steps, [weights.tolist() for weights in learn.model.parameters()]


def fit(kind: Any, folder: Path, **options: Any) -> Any:
    learn = learner(kind, folder, **options)
    with learn.no_logging():
        learn.fit(2, 0.01)
    return told(learn)


def validate(kind: Any, folder: Path) -> Any:
    learn = learner(kind, folder, num_workers=2)
    learn.create_opt()
    losses = [list(learn.validate()), list(learn.validate(dl=kind(Rows(7), 2)))]
    return losses, told(learn)


def predictions(kind: Any, folder: Path) -> Any:
    learn = learner(kind, folder)
    given = kind(Rows(7), 3, num_workers=1)
    found = learn.get_preds(dl=given, with_input=True, with_loss=True)
    return [str(part) for part in found], told(learn)


def lr_find(kind: Any, folder: Path) -> Any:
    learn = learner(kind, folder, num_workers=2)
    with learn.no_logging():
        found = learn.lr_find(num_it=17, show_plot=False)
    return found, told(learn)


def one_cycle_then_again(kind: Any, folder: Path) -> Any:
    learn = learner(kind, folder, [GradientAccumulation(8)], num_workers=2)
    with learn.no_logging():
        learn.fit_one_cycle(1, 0.01)
        learn.fit(3, 0.01, start_epoch=2)
    return told(learn), learn.recorder.lrs


def pickled(kind: Any, folder: Path) -> Any:
    learn = pickle.loads(pickle.dumps(learner(kind, folder)))
    with learn.no_logging():
        learn.fit(1, 0.01)
    return told(learn)


TENSORS = TensorDataset(torch.arange(66.0).reshape(22, 3) / 66, torch.ones(22, 1))
CASES: dict[str, Callable[[Any, Path], Any]] = {
    "no workers": fit,
    "workers": lambda kind, folder: fit(kind, folder, num_workers=2, drop_last=True),
    "lasting workers": lambda kind, folder: fit(
        kind, folder, num_workers=2, persistent_workers=True
    ),
    "tensors": lambda kind, folder: fit(kind, folder, rows=TENSORS),
    "mixup": lambda kind, folder: fit(
        kind, folder, callbacks=[MixUp()], rows=[row(number)[:2] for number in range(11)]
    ),
    "epochs cut short": lambda kind, folder: fit(
        kind, folder, callbacks=[ShortEpochCallback(0.5)], num_workers=1
    ),
    "validate": validate,
    "get_preds": predictions,
    "lr_find": lr_find,
    "one cycle, then a later epoch": one_cycle_then_again,
    "pickled": pickled,
}


SLOW = ("no workers", "lasting workers", "tensors", "validate", "pickled")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("case", [*(each for each in CASES if each not in SLOW), *slow(*SLOW)])
def test_a_learner_sees_what_torchs_class_gives(case: str, tmp_path: Path) -> None:
    theirs, ours = (CASES[case](kind, tmp_path) for kind in (DataLoader, feedline.DataLoader))
    assert theirs[0]
    assert ours == theirs


@pytest.mark.slow
def test_what_fastai_replaces_in_pillow_and_torch_leaves_pipelines_fast() -> None:
    """In a process of its own: the import changes classes of Pillow's and torch's."""
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
assert all(text.startswith("recognised") for text in told), told
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
