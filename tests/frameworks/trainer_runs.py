"""Trainings by transformers' Trainer, with torch's loaders and with feedline's."""

import json
from typing import Any
from unittest.mock import patch

import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset

import feedline
from feedline.errors import UsageError
from feedline.integrations.accelerate import prepare
from feedline.integrations.transformers import Stepwise

ROWS, VALID, BATCH, STEPS = 24, 9, 2, 12


def text(number):
    return {"input_ids": [number] * (1 + number * 7 % 5), "labels": float(number)}


class Texts(Dataset[Any]):
    """Texts of several lengths that say their numbers."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, number):
        if number >= self.length:
            raise IndexError(number)
        return text(number)


class Stream(IterableDataset[Any]):
    def __iter__(self):
        return map(text, range(ROWS))


def collate(rows):
    tokens = [row["input_ids"] + [-1] * (5 - len(row["input_ids"])) for row in rows]
    return {"input_ids": torch.tensor(tokens), "labels": torch.tensor([r["labels"] for r in rows])}


class Net(nn.Module):
    """Notes the numbers of each batch; in training with a draw from the random state."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.seen = []

    def forward(self, input_ids, labels):
        drawn = float(torch.rand(())) if self.training else None
        self.seen.append((drawn, input_ids[:, 0].tolist()))
        guess = input_ids[:, 0] / ROWS * self.weight
        return {"loss": ((guess - labels / ROWS) ** 2).mean(), "logits": guess.detach()}


class Users(transformers.Trainer):
    """A Trainer with user-defined loaders: of a `kind`, with a `seed`, prepared by `put`."""

    def _own(self, dataset, **order):
        arguments = self.args
        if isinstance(dataset, IterableDataset):
            order = {}
        loader = self.kind(
            dataset,
            BATCH,
            collate_fn=self.data_collator,
            num_workers=arguments.dataloader_num_workers,
            persistent_workers=arguments.dataloader_persistent_workers,
            prefetch_factor=arguments.dataloader_prefetch_factor,
            drop_last=arguments.dataloader_drop_last,
            **order,
            **self.seed,
        )
        return type(self).put(self.accelerator, loader)

    def get_train_dataloader(self):
        return self._own(self.train_dataset, shuffle=True)

    def get_eval_dataloader(self, eval_dataset=None):
        return self._own(self.eval_dataset if eval_dataset is None else eval_dataset)

    get_test_dataloader = get_eval_dataloader


class Save(transformers.TrainerCallback):
    """Save one checkpoint after an update."""

    def __init__(self, update):
        self.update = update

    def on_step_end(self, _, state, control, **__):
        control.should_save = state.global_step == self.update


PUT = {
    "prepare": prepare,
    "Stepwise": lambda _, loader: Stepwise(loader),
    "bare": lambda _, loader: loader,
    "swapped": lambda accelerator, loader: accelerator.prepare(loader),
}


def users(kind, put, **seed):
    return type("Users", (Users,), {"kind": kind, "put": put, "seed": seed})


def trained(trainer_class, folder, *, data=None, resume=0, workers=0, **options):
    """Result of a training, and of another from the checkpoint after update `resume`."""
    found = []
    for again in range(1 + bool(resume)):
        arguments = transformers.TrainingArguments(
            str(folder),
            **{"num_train_epochs": 2, "save_strategy": "no", **options},
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=BATCH,
            dataloader_num_workers=workers,
            dataloader_pin_memory=False,
            ddp_find_unused_parameters=False,
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        net = Net()
        trainer = trainer_class(
            net, arguments, collate, data or Texts(ROWS), Texts(VALID), callbacks=[Save(resume)]
        )
        trainer.remove_callback(transformers.PrinterCallback)
        before = str(folder / f"checkpoint-{resume}") if again else None
        trainer.train(resume_from_checkpoint=before)
        seen, net.seen = net.seen, []
        predicted = None
        if "eval_steps" in options:
            predicted = (
                trainer.predict(Texts(VALID)).predictions.tolist(),
                trainer.evaluate()["eval_loss"],
            )
        found.append([seen, float(net.weight.detach()), trainer.state.global_step, predicted])
        trainer.accelerator.free_memory()
    return found


UNSEEDED = {"use_seedable_sampler": False}  # else the Trainer has Accelerate make stock loaders
CASES = {
    "defaults": {"resume": 5},
    "drop_last": {"data": Texts(21), "dataloader_drop_last": True, "workers": 2},
    "prefetch": {"dataloader_prefetch_factor": 4, "workers": 1, "accelerator_config": UNSEEDED},
    "persistent": {"dataloader_persistent_workers": True, "workers": 1, "resume": 2},
    "lengths": {"train_sampling_strategy": "group_by_length", "gradient_accumulation_steps": 5},
    "accumulation": {
        "gradient_accumulation_steps": 4,
        "resume": 1,
        "accelerator_config": UNSEEDED,
        "workers": 1,
    },
    "nothing skipped": {"ignore_data_skip": True, "resume": 2, "accelerator_config": UNSEEDED},
    "data_seed": {"data_seed": 11, "resume": 2},
    "split": {"accelerator_config": {"split_batches": True}, "resume": 2},
    "dispatched": {"accelerator_config": {"dispatch_batches": True}},
    "uneven": {"accelerator_config": {"even_batches": False}, "data": Texts(23)},
    "stream": {"data": Stream(), "max_steps": 8, "resume": 2},
    "evaluated": {"eval_strategy": "steps", "eval_steps": 5, "workers": 1},
}


def both(way, case, folder):
    """Results of torch's class and feedline's in a case."""
    found = []
    for kind in (TorchDataLoader, feedline.DataLoader):
        ours = kind is feedline.DataLoader
        put = PUT[way] if way == "bare" or ours else PUT["swapped"]
        trainer_class = transformers.Trainer if way == "swapped" else users(kind, put)
        with patch.object(transformers.trainer, "DataLoader", kind):
            found.append(trained(trainer_class, folder / f"{way} {case} {ours}", **CASES[case]))
    return found


def whole_and_rest(way, folder):
    """Numbers of two epochs of a seeded loader, and those after the second update."""
    trainer_class = users(feedline.DataLoader, PUT[way], seed=3)
    runs = trained(trainer_class, folder / f"seed {way}", workers=1, resume=2)
    return [[rows for _, rows in seen] for seen, *_ in runs]


def on_a_rank(folder):
    """Result of one of two ranks."""
    found = {case: both("prepare", case, folder) for case in CASES}
    found["Stepwise"] = whole_and_rest("Stepwise", folder)
    # The Trainer skips batches by a stock loader, which would divide the samples again.
    with pytest.raises(UsageError, match="Stepwise"):
        whole_and_rest("prepare", folder)
    torch.distributed.destroy_process_group()
    return json.dumps(found)
