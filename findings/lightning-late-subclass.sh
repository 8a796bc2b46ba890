#!/usr/bin/env bash
# Versions: lightning 2.6.6, torch 2.14.1; Python 3.10 to 3.13, CPU, two processes.
# Under DDP Lightning rebuilds each DataLoader with a DistributedSampler. It records the arguments of
# constructors only in subclasses of DataLoader that exist when the train_dataloader hook starts. A
# subclass defined or first imported inside the hook is rebuilt with the arguments that torch's
# class got: the subclass's own arguments are lost, and the default is used, without a message.
# Fails if both subclasses keep their argument.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.14.1 lightning==2.6.6
cat > "$folder/script.py" <<'PYTHON'
import logging
import sys
import warnings

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def define():
    class Tagged(DataLoader):
        def __init__(self, dataset, batch_size=1, tag="default", **others):
            self.tag = tag
            super().__init__(dataset, batch_size, **others)

    return Tagged


EARLY = define() if sys.argv[1] == "early" else None


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def train_dataloader(self):
        kind = EARLY or define()
        return kind(TensorDataset(torch.rand(8, 1)), 2, tag="mine")

    def on_train_start(self):
        loader = self.trainer.train_dataloader
        # One write, as both processes write to one file.
        sys.stdout.write(f"{sys.argv[1]}: rank {self.global_rank}, tag {loader.tag}\n")
        sys.stdout.flush()

    def training_step(self, batch, index):
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


if __name__ == "__main__":
    lightning.Trainer(
        accelerator="cpu", strategy="ddp", devices=2, max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    ).fit(Model())
PYTHON
cd "$folder"
for when in early late; do venv/bin/python script.py "$when" 2> error.txt || { cat error.txt; exit 2; }; done | grep tag | sort | tee seen.txt
test "$(grep -c 'early: .*tag mine' seen.txt)" = 2
test "$(grep -c 'late: .*tag default' seen.txt)" = 2
