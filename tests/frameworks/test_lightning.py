"""Lightning with two processes: with replaced and original samplers each sample occurs once, and
checkpoints contain the loader's state.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from packages import needs

pytestmark = needs("lightning")

SCRIPT = """
import json, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import lightning, torch
from torch.utils.data import DistributedSampler
import feedline

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 22
    def __getitem__(self, index):
        return torch.tensor([float(index)])

class Learner(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
        self.seen = []
    def training_step(self, batch, _):
        self.seen[-1] += batch[:, 0].int().tolist()
        return self.net(batch).mean()
    def on_train_epoch_start(self):
        self.seen.append([])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.0)

class HookLearner(Learner):
    def train_dataloader(self):
        loader = load(on_error="skip")
        loader.note = "set in the hook"
        return loader

def load(**options):
    return feedline.DataLoader(Numbers(), batch_size=4, shuffle=True, num_workers=1, **options)

def main():
    options = json.loads(sys.argv[1])
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )
    if options == "in a hook":  # where the class is imported, too
        learner, loader = HookLearner(), None
    else:
        learner, loader = Learner(), load(**options)
    trainer.fit(learner, loader)
    used = trainer.train_dataloader
    # A file each: lines that two processes print can come out as one.
    Path(f"rank{trainer.global_rank}.json").write_text(json.dumps({
        "same": used is loader,
        "class": type(used).__module__,
        "distributed": isinstance(used.sampler, DistributedSampler),
        "seed": used.seed,
        "workers": used.num_workers,
        "on_error": used.on_error,
        "note": getattr(used, "note", None),
        "seen": learner.seen,
    }))

if __name__ == "__main__":
    main()
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "options",
    [{}, {"seed": 7}, "in a hook"],
    ids=["torch's order", "feedline's order", "imported in a hook"],
)
@pytest.mark.slow
def test_two_processes_share_each_epoch_out(options: dict[str, int] | str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=170,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    for each in said:
        assert each["class"] == "feedline.loader.dataloader"
        assert each["distributed"]
        # Otherwise rebuilt with a DistributedSampler.
        assert each["same"] == (each["seed"] is not None)
        assert each["seed"] == (7 if options == {"seed": 7} else None)
        assert each["workers"] == 1
        assert (each["on_error"], each["note"]) == (
            ("skip", "set in the hook") if options == "in a hook" else ("raise", None)
        )
    for epoch in range(2):
        halves = [each["seen"][epoch] for each in said]
        assert [len(half) for half in halves] == [11, 11]
        assert sorted(halves[0] + halves[1]) == list(range(22))
    assert said[0]["seen"][0] != said[0]["seen"][1]
