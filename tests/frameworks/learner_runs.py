"""Trainings by fastai's Learner, with torch's loaders and with feedline's."""

import pickle
import warnings
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from fastai.callback.core import Callback
    from fastai.callback.progress import ProgressCallback
    from fastai.callback.schedule import Learner
    from fastai.data.core import DataLoaders
    from fastai.torch_core import set_seed


class Rows(Dataset[Any]):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, number):
        inputs = torch.randn(3, generator=torch.Generator().manual_seed(number))
        return inputs, inputs.sum().reshape(1), number


class Seen(Callback):
    def __init__(self):
        self.steps = []

    def after_batch(self):
        inputs = [part.tolist() for part in self.xb]
        self.steps.append((self.training, self.n_iter, inputs, self.yb[-1].tolist()))


def squares(outputs, targets, *_):
    return ((outputs - targets) ** 2).mean()


def learner(kind, folder, **options):
    set_seed(5)
    train = kind(Rows(26), 4, shuffle=True, **options)
    loaders = DataLoaders(train, kind(Rows(10), 3, num_workers=options.get("num_workers", 0)))
    loaders.n_inp = 1
    learn = Learner(loaders, nn.Linear(3, 1), loss_func=squares, cbs=[Seen()], path=folder)
    learn.remove_cb(ProgressCallback)
    return learn


def told(learn):
    return learn.seen.steps, [weights.tolist() for weights in learn.model.parameters()]


def fit(kind, folder, **options):
    learn = learner(kind, folder, **options)
    with learn.no_logging():
        learn.fit(2, 0.01)
    return told(learn)


def lr_find(kind, folder):
    learn = learner(kind, folder, num_workers=2)
    with learn.no_logging():
        found = learn.lr_find(num_it=17, show_plot=False)
    return found, told(learn)


def pickled(kind, folder):
    learn = pickle.loads(pickle.dumps(learner(kind, folder)))
    with learn.no_logging():
        learn.fit(1, 0.01)
    return told(learn)


CASES = {
    "workers": lambda kind, folder: fit(kind, folder, num_workers=2, drop_last=True),
    "lr_find": lr_find,
    "pickled": pickled,
}
