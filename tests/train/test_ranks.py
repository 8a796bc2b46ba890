"""Trainings on several processes of one machine, over gloo."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import write_tiny_set

from feedline.errors import StateError
from feedline.train.checkpoint import load_checkpoint
from feedline.train.recipe import Recipe

SCRIPT = """
import json, os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tiny_training import Recorder
from feedline.train.recipe import Recipe
from feedline.train.run import run_training
from feedline.train.run_settings import RunSettings

asked = json.loads(sys.argv[2])
rank = int(os.environ.get("RANK", 0))
report = Recorder()
if asked["stop_after"] and rank == int(os.environ.get("WORLD_SIZE", 1)) - 1:
    # The last rank alone is told to stop: after so many of its steps.
    from feedline.train import training
    real, steps = training.train_step, []

    def step(*args, **options):
        steps.append(1)
        if len(steps) == asked["stop_after"]:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*args, **options)

    training.train_step = step
result = run_training(
    Recipe(**asked["recipe"]), report, RunSettings(
        root=Path(asked["root"]), out=Path(asked["out"]), device="cpu", workers=1,
        resume=asked["resume"],
    )
)
said = {
    "rank": rank, "notes": report.notes, "stopped_by": result.stopped_by,
    "records": [[r.epoch, r.samples, r.val_samples, r.train_loss] for r in result.records],
    "sizes": [size for _, size, _ in report.begun],
}
(Path(asked["said"]) / f"rank{rank}.json").write_text(json.dumps(said))
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # 7 images of a class to validate on: 14 cannot be shared evenly by 2 batches of 4 on 2 ranks.
    return write_tiny_set(tmp_path_factory.mktemp("ranks") / "set", val=7)


def train(
    data: Path,
    folder: Path,
    ranks: int,
    *,
    stop_after: int = 0,
    resume: str | None = None,
    **of: Any,
) -> list[dict[str, Any]]:
    """What each rank says at the end."""
    recipe = {"model": "test_resnet", "schedule": "32x1,48x2", "batch_size": 4, **of}
    said = folder / "said"
    said.mkdir(parents=True, exist_ok=True)
    for old in said.iterdir():
        old.unlink()
    asked = {
        "recipe": recipe,
        "root": str(data),
        "out": str(folder / "out"),
        "said": str(said),
        "stop_after": stop_after,
        "resume": resume,
    }
    script = folder / "train.py"
    script.write_text(SCRIPT)
    arguments = [str(script), str(Path(__file__).parent), json.dumps(asked)]
    run = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [sys.executable, *(run if ranks > 1 else []), *arguments],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((said / f"rank{rank}.json").read_text()) for rank in range(ranks)]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_checkpoint(folder / "out")["learner"]["model"]
    return found


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    lead, other = train(data, folder, 2, dropout=0.2, ema=0.9, mixup=0.2)
    assert lead["records"] == other["records"], "figures are of all ranks"
    assert [(epoch, samples, val) for epoch, samples, val, _ in lead["records"]] == [
        (1, 40, 14),
        (2, 40, 14),
        (3, 40, 14),
    ]
    assert lead["sizes"] == [32, 48, 48]
    assert lead["notes"]
    assert not other["notes"], "rank 0 alone speaks"
    names = {path.name for path in (folder / "out").iterdir()}
    assert {"last.pt", "best.pt", "metrics.csv", "trace.json"} <= names
    return folder


@pytest.mark.timeout(600)
@pytest.mark.slow
@pytest.mark.parametrize("step", [3, 7])
def test_two_ranks_stop_together_and_go_on_to_the_same_weights(
    data: Path, whole: Path, tmp_path: Path, step: int
) -> None:
    of = {"dropout": 0.2, "ema": 0.9, "mixup": 0.2}
    stopped = train(data, tmp_path, 2, stop_after=step, **of)
    assert stopped[1]["stopped_by"] == signal.SIGTERM
    assert load_checkpoint(tmp_path / "out")["learner"]["step"] == step
    lead, _ = train(data, tmp_path, 2, resume="auto", **of)
    assert [samples for _, samples, _, _ in lead["records"]] == [40, 40, 40]
    expected = weights(whole)
    for name, value in weights(tmp_path).items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.timeout(600)
def test_a_run_goes_on_on_another_number_of_ranks(data: Path, tmp_path: Path) -> None:
    train(data, tmp_path, 2, stop_after=7)
    (alone,) = train(data, tmp_path, 1, resume="auto")
    assert [samples for _, samples, _, _ in alone["records"]] == [40, 40, 40]
    saved = load_checkpoint(tmp_path / "out")
    assert (saved["ranks"], saved["recipe"]["batch_size"]) == (1, 8)


def test_batches_that_cannot_be_divided_are_refused() -> None:
    recipe = Recipe(schedule="32x1,48x1@6", batch_size=8)
    other = recipe.for_ranks(2, 4)
    assert (other.batch_size, other.phases[1].batch_size) == (4, 3)
    assert recipe.for_ranks(3, 3) is recipe
    with pytest.raises(StateError, match="12 cannot be divided by 8"):
        recipe.for_ranks(2, 8)
