"""Lightning and Fabric on two processes: the batches, in order, that torch's class gives each rank,
and exactly the rest of an epoch after a checkpoint."""

import json
import subprocess
import sys

import pytest

from packages import needs

pytestmark = needs("lightning")

SCRIPT = """
import contextlib, gc, json, logging, os, warnings
from functools import partial
from pathlib import Path

warnings.simplefilter("ignore")
import lightning, psutil, torch
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import (
    BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler, Sampler
)

import feedline

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

class Numbers(Dataset):
    def __init__(self, count):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        return torch.tensor([float(index)])

class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(9.0)[:, None])

class Turning(Sampler):
    epoch = 0
    def __len__(self):
        return 17
    def __iter__(self):
        return iter([(5 * place + self.epoch) % 17 for place in range(17)])
    def set_epoch(self, epoch):
        self.epoch = epoch

class Turned(BatchSampler):
    def __iter__(self):
        yield from reversed(list(super().__iter__()))

class Learner(lightning.LightningModule):
    def __init__(self, train=None, val=list):
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
        self.make, self.seen = (train, val), []
    def train_dataloader(self):
        return self.make[0]()
    def val_dataloader(self):
        return self.make[1]()
    def note(self, what, number, loader, batch):
        self.seen.append([what, self.current_epoch, self.global_step, number, loader, plain(batch)])
    def training_step(self, batch, batch_idx):
        self.note("train", batch_idx, 0, batch)
        return self.net(torch.ones(1)).sum()
    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        what = "sanity" if self.trainer.sanity_checking else "val"
        self.note(what, batch_idx, dataloader_idx, batch)
    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return batch
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.0)

def plain(batch):
    if isinstance(batch, dict):
        return {name: plain(part) for name, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [plain(part) for part in batch]
    return batch if batch is None else batch.flatten().tolist()

def processes():
    gc.collect()
    count = 0
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            alive = each.status() != psutil.STATUS_ZOMBIE
            count += alive and "resource_tracker" not in " ".join(each.cmdline())
    return count

def trainer(**options):
    return lightning.Trainer(**{
        "accelerator": "cpu", "devices": 2, "strategy": "ddp", "max_epochs": 2, "logger": False,
        "enable_progress_bar": False, "enable_model_summary": False,
        "enable_checkpointing": False, "num_sanity_val_steps": 0, **options,
    })

def load(kind, count, batch_size=4, **options):
    if kind is DataLoader:
        # torch forks its workers beside gloo's threads: a lock that one of these holds at that
        # moment stays locked in a worker, which then hangs. Its batches are the same without.
        options.pop("num_workers", None), options.pop("persistent_workers", None)
    return kind(Numbers(count), batch_size=batch_size, **options)

def shuffled(kind, **options):
    return load(kind, 23, shuffle=True, **options)

def halved(kind):
    class Halved(kind):
        def __init__(self, dataset, label, batch_size=8, **options):
            self.label = label
            super().__init__(dataset, batch_size=batch_size // 2, **options)
        def __iter__(self):
            return (batch + self.label for batch in super().__iter__())
    return Halved

KINDS = {kind: halved(kind) for kind in (DataLoader, feedline.DataLoader)}

def halving(kind):
    return KINDS[kind](Numbers(23), label=100, shuffle=True, drop_last=True)

def fit(train, val=None, in_hooks=False, **options):
    def run(kind):
        learner = Learner(partial(train, kind), list if val is None else partial(val, kind))
        given = () if in_hooks else (learner.train_dataloader(), learner.val_dataloader())
        used = trainer(**options)
        used.fit(learner, *given)
        return [learner.seen, isinstance(used.train_dataloader, (kind, dict))]
    return run

def combined(mode):
    def train(kind):
        rest = {"b": load(kind, 9, 2, shuffle=True), "c": [load(kind, 40)]}
        return CombinedLoader({"a": shuffled(kind), **rest}, mode)
    return fit(train)

def reloaded(kind):
    made = partial(shuffled, kind, num_workers=1, persistent_workers=True)
    learner, counts = Learner(made, partial(load, kind, 9, 2, num_workers=1)), []
    count = LambdaCallback(on_train_epoch_end=lambda *_: counts.append(processes()))
    trainer(max_epochs=3, reload_dataloaders_every_n_epochs=1, callbacks=count).fit(learner)
    COUNTS[kind] = max(counts)
    return learner.seen

def evaluated(kind):
    learner = Learner()
    loaders = CombinedLoader([shuffled(kind), load(kind, 9, 2), kind(Stream(), 2)], "sequential")
    trainer(limit_val_batches=4).validate(learner, loaders, verbose=False)
    loaders = [load(kind, 23, drop_last=True), load(kind, 7, 2, num_workers=1)]
    return [learner.seen, plain(trainer(limit_predict_batches=3).predict(learner, loaders))]

def in_fabric(kind):
    made = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp")
    made.launch()
    found = []
    for options in ({}, {"use_distributed_sampler": False, "move_to_device": False}):
        loaders = made.setup_dataloaders(
            shuffled(kind), load(kind, 9, 2, num_workers=1), halving(kind),
            kind(Numbers(17), 3, sampler=Turning()), kind(Stream(), 2), **options,
        )
        found += [[plain(list(loader)) for _ in range(2)] for loader in loaders]
        found.append(plain(list(zip(loaders[0], loaders[0]))))
    return found

def kept(**options):
    # What becomes of a loader that a hook makes.
    made = []
    def train():
        made.append(shuffled(feedline.DataLoader, num_workers=1, on_error="skip", **options))
        made[0].note = "set in the hook"
        return made[0]
    fitted = trainer(max_epochs=1)
    fitted.fit(Learner(train))
    used = fitted.train_dataloader
    is_shared = isinstance(used.sampler, DistributedSampler)
    settings = [used.seed, used.num_workers, used.on_error, used.note]
    return [type(used) is feedline.DataLoader, used is made[0], is_shared, *settings]

def resumed(name, **options):
    def run(checkpoint, **more):
        learner = Learner()
        loader = load(feedline.DataLoader, 44, shuffle=True, num_workers=1, **options)
        trainer(**more).fit(learner, loader, ckpt_path=checkpoint)
        return learner.seen
    keep = ModelCheckpoint(name, "{step}", save_top_k=-1, every_n_train_steps=4)
    whole = run(None, callbacks=keep, enable_checkpointing=True)
    return [whole, {step: run(f"{name}/step={step}.ckpt") for step in (4, 8)}]

CASES = {
    "injected": fit(
        partial(shuffled, num_workers=2), partial(load, count=9, batch_size=2),
        val_check_interval=0.5, num_sanity_val_steps=1,
    ),
    "not injected": fit(
        partial(shuffled, drop_last=True), in_hooks=True, use_distributed_sampler=False
    ),
    "sampler": fit(
        lambda kind: load(kind, 17, 3, sampler=Turning()), in_hooks=True, accumulate_grad_batches=2
    ),
    "batch sampler": fit(
        lambda kind: load(kind, 23, 1, batch_sampler=Turned(RandomSampler(Numbers(23)), 2, True))
    ),
    "subclass": fit(halving),
    "subclass in a hook": fit(halving, in_hooks=True),
    "limits": fit(shuffled, shuffled, limit_train_batches=0.7, limit_val_batches=1),
    "interval": fit(
        shuffled, shuffled, max_epochs=3, val_check_interval=4, check_val_every_n_epoch=None
    ),
    "reloaded": reloaded,
    "evaluated": evaluated,
    "in Fabric": in_fabric,
    **{mode: combined(mode) for mode in ("min_size", "max_size", "max_size_cycle")},
}
COUNTS = {}

if __name__ == "__main__":
    found = {}
    for name, case in CASES.items():
        found[name] = []
        for kind in KINDS:
            lightning.seed_everything(3, verbose=False)
            found[name].append(case(kind))
    said = {
        "cases": found,
        "processes": COUNTS[feedline.DataLoader],
        "kept": [kept(), kept(seed=7)],
        "resumed": [resumed("drawn"), resumed("planned", seed=5)],
    }
    # A file each: lines that two processes print can come out as one.
    Path("rank" + os.environ["LOCAL_RANK"] + ".json").write_text(json.dumps(said))
"""


@pytest.mark.timeout(180)
@pytest.mark.slow
def test_two_processes_match_torch_dataloader(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=170, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    for each in said:
        # Rebuilt with a DistributedSampler, unless the order is feedline's.
        assert each["kept"] == [
            [True, seed is not None, True, seed, 1, "skip", "set in the hook"] for seed in (None, 7)
        ]
        for name, (theirs, ours) in each["cases"].items():
            assert theirs, name
            assert ours == theirs, name
    # Workers and fork servers of two loaders; the count of the first rank includes the second.
    assert said[1]["processes"] <= 4
    for runs in zip(*(each["resumed"] for each in said), strict=True):
        for whole, rests in runs:
            assert len(whole) == 12
            for step, rest in rests.items():
                assert rest == whole[int(step) :]
        for epoch in range(2):
            seen = [
                row for whole, _ in runs for step in whole if step[1] == epoch for row in step[5]
            ]
            assert sorted(seen) == list(range(44))
            halves = [[step[5] for step in whole if step[1] == epoch] for whole, _ in runs]
            assert halves[0] != halves[1]
