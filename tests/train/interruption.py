"""A training that receives a signal after one of its steps, in a process of its own.

This script runs a training for each line of its input, each in forks, one a rank, and answers with
their exit statuses: torch and timm are imported only once.
"""

import json
import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tiny_training import Recorder

from feedline.errors import FeedlineError
from feedline.system import rank_and_world
from feedline.train import ranks
from feedline.train import run as training
from feedline.train.recipe import Recipe, RunSettings
from feedline.train.run import train_model

__all__ = ["Forks", "forks", "job", "said_in"]


def job(recipe, data, folder, **of):
    """Request for a process, JSON-serialisable.

    Args:
        recipe: the recipe.
        data: the images.
        folder: parent of the run folder `out` and of the reports of the ranks.
        of: `after` and `signum`, to signal a rank after a step; `signalled`, which rank, by default
            the last one; `check_s`, how often ranks agree on a stop, by default at each step; and
            fields of `RunSettings`.
    """
    folder.mkdir(exist_ok=True)
    defaults = {"after": 0, "signum": 0, "signalled": None, "check_s": 0.0}
    return {
        "recipe": recipe,
        "root": str(data),
        "folder": str(folder),
        **{name: of.pop(name, default) for name, default in defaults.items()},
        "settings": {"device": "cpu", "workers": 0, **of},
    }


def said_in(folder, rank=0):
    """Report of a rank that was not killed."""
    return json.loads((folder / f"rank{rank}.json").read_text())


@dataclass(frozen=True)
class Forks:
    """The script, which forks for each job."""

    script: subprocess.Popen[str]

    def run(self, asked):
        """Train in a fork; return its exit status, negative for a signal."""
        return self.run_ranks(asked, 1)[0]

    def run_ranks(self, asked, ranks):
        """Train on several processes, connected as by torchrun."""
        print(json.dumps([ranks, asked]), file=self.script.stdin, flush=True)
        return json.loads(self.script.stdout.readline())


@contextmanager
def forks():
    import preloaded  # which a script that torchrun starts does not find

    with preloaded.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as script:
        yield Forks(script)


def _noted(seen, step, signum):
    """Record each batch with the weights after it; send a signal after an optimizer step."""
    real = training.train_step

    def train_step(learner, images, *batch, **part):
        before = learner.step
        loss = real(learner, images, *batch, **part)
        weights = sum(float(each.detach().double().sum()) for each in learner.model.parameters())
        seen.append([images.shape[-1], len(images), weights])
        if before < learner.step == step:
            os.kill(os.getpid(), signum)
        return loss

    training.train_step = train_step


def _trained(asked):
    rank, world = rank_and_world()
    ranks.CHECK_S = asked["check_s"]
    seen = []
    signalled = world - 1 if asked["signalled"] is None else asked["signalled"]
    _noted(seen, asked["after"] if rank == signalled else 0, asked["signum"])
    report, folder = Recorder(), Path(asked["folder"])
    place = {"data": Path(asked["root"]), "out": folder / "out"}
    recipe, settings = Recipe(**asked["recipe"]), RunSettings(**place, **asked["settings"])
    file = folder / f"rank{rank}.json"
    try:
        result = train_model(recipe, settings, report=report)
    except FeedlineError as error:
        file.write_text(json.dumps({"error": str(error), "pid": os.getpid()}))
        raise SystemExit(1) from None
    said = {
        "seen": seen,
        "notes": report.notes,
        "steps": report.steps,
        "stopped_by": result.stopped_by,
        "records": [[r.epoch, r.samples, r.train_loss, r.val_samples] for r in result.records],
        "judged": [[r.val_loss, r.val_top1] for r in result.records],
        "sizes": [size for _, size, _ in report.begun],
    }
    file.write_text(json.dumps(said))


def _main():
    import timm  # noqa: F401  before the forks, each of which would take 3 s to load it

    for line in sys.stdin:
        ranks, asked = json.loads(line)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        pids = []
        for rank in range(ranks):
            if (pid := os.fork()) == 0:
                if ranks > 1:
                    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}
                    there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                    os.environ.update(
                        {name: str(value) for name, value in {**own, **there}.items()}
                    )
                _trained(asked)
                return
            pids.append(pid)
        ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps(ended), flush=True)


if __name__ == "__main__":
    _main()
