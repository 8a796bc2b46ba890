"""A run with phases of every kind, interrupted at random steps, ends with the same weights.

Every selected step is interrupted in every way. The last step of each phase and its neighbours are
always selected.
"""

import functools
import random
import shutil
import signal
from itertools import accumulate, product

import pytest
from interruption import job, said_in
from tiny_training import assert_same_training, write_tiny_set

from feedline.train.recipe import Recipe
from feedline.train.run_folder import load_checkpoint

IMAGES = {1: 40, 2: 60}
"""By ranks: so that there are more than 20 steps."""
PROGRESSIVE = {
    "model": "test_resnet.r160_in1k",
    "schedule": [
        {"size": 24, "epochs": 2, "batch_size": 4},
        {"size": 32, "epochs": 1, "batch_size": 3, "lr": 0.5, "smoothing": 0.0},
        {"size": 40, "epochs": 1, "batch_size": 6, "val_image_size": 32},
        {"size": 48, "epochs": 2, "batch_size": 5},
    ],
    "batch_size": 4,
    "mixup": 0.2,
    "cutmix": 1.0,
    "aa": "trivial",
    "reprob": 0.3,
    "drop_path": 0.1,
    "drop": 0.2,
    "grad_accum_steps": 2,
    "clip_grad": 1.0,
    "model_ema_decay": 0.9,
    "sched": "cosine",
}
WAYS = [
    signal.SIGKILL,
    signal.SIGINT,
    signal.SIGTERM,
    *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else []),
]


def last_steps(ranks):
    """The last step of each epoch, and of each phase."""
    recipe = Recipe(**PROGRESSIVE)
    phases = [recipe.phase_at(epoch) for epoch in range(recipe.epochs)]
    batches = (IMAGES[ranks] // ((phase.batch_size or 0) * ranks) for phase in phases)
    ends = list(accumulate(-(-each // recipe.grad_accum_steps) for each in batches))
    return ends, [ends[k - 1] for k in accumulate(phase.epochs for phase in recipe.phases)]


def drawn_steps(ranks, count):
    """This many steps: those around each end of a phase, and random ones."""
    *edges, last = last_steps(ranks)[1]
    near = {edge + k for edge in edges for k in (-1, 0, 1)}
    others = sorted(set(range(1, last + 1)) - near)
    return sorted(near | set(random.Random(0).sample(others, count - len(near))))


def gone_on_from(step, signum, every, ranks):
    """The step whose checkpoint an interrupted run leaves."""
    if signum != signal.SIGKILL:
        return step  # it ends after the step, with a checkpoint
    ends = last_steps(ranks)[0]
    return max(k for k in range(step) if k in ends or k % every == 0)


QUICK = (1, 9, signal.SIGKILL)
INTERRUPTED = [
    pytest.param(*case, marks=() if case == QUICK else pytest.mark.slow)
    for case in (
        *((1, step, way) for step, way in product(drawn_steps(1, 20), WAYS)),
        *((2, step, WAYS[step % len(WAYS)]) for step in drawn_steps(2, 20)),
    )
]


@pytest.fixture(scope="module")
def images(tiny_set, tmp_path_factory):
    """Images of a run, by its number of ranks."""
    # 7 images of a class to validate on: 14 cannot be shared evenly by batches of 6 on 2 ranks.
    folder = tmp_path_factory.mktemp("shared") / "set"
    return {1: tiny_set, 2: write_tiny_set(folder, train=30, val=7)}


@pytest.fixture(scope="module")
def uninterrupted(images, tmp_path_factory, forked):
    """Run on some ranks, once, what nothing stops. Return its folder."""

    @functools.cache
    def run(ranks):
        folder = tmp_path_factory.mktemp("uninterrupted")
        asked = job(PROGRESSIVE, images[ranks], folder, workers=ranks - 1)
        assert forked.run_ranks(asked, ranks) == [0] * ranks
        lead, *others = (said_in(folder, rank) for rank in range(ranks))
        assert lead["steps"] == list(range(1, last_steps(ranks)[0][-1] + 1))
        assert lead["sizes"] == [24, 24, 32, 40, 48, 48]
        assert [val for *_, val in lead["records"]] == [{1: 12, 2: 14}[ranks]] * 6
        assert lead["notes"]
        for other in others:
            assert lead["records"] == other["records"], "figures are of all ranks"
            assert not other["notes"], "rank 0 alone speaks"
        return folder

    return run


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("ranks", "step", "way"), INTERRUPTED)
def test_resumed_run_ends_with_same_weights(
    images, uninterrupted, forked, tmp_path, ranks, step, way
):
    """The last rank alone gets the signal."""
    draw, whole = random.Random(step * 100 + way), uninterrupted(ranks)
    every, before, behind = draw.randint(1, 4), draw.choice([0, 0, 1]), draw.choice([0, 0, 1])
    asked = job(
        *(PROGRESSIVE, images[ranks], tmp_path),
        after=step,
        signum=way,
        checkpoint_every=every,
        workers=before,
    )
    ended = forked.run_ranks(asked, ranks)
    left = gone_on_from(step, way, every, ranks)
    if way is signal.SIGKILL:
        assert ended == [1] * (ranks - 1) + [-way]
    else:
        assert ended == [0] * ranks
        assert said_in(tmp_path, ranks - 1)["stopped_by"] == way
    if left:
        assert load_checkpoint(tmp_path / "out")["state"]["step"] == left
    again = job(PROGRESSIVE, images[ranks], tmp_path, resume="auto", workers=behind)
    assert forked.run_ranks(again, ranks) == [0] * ranks
    said, expected = said_in(tmp_path), said_in(whole)
    assert said["steps"] == expected["steps"][left:]
    assert (said["records"], said["judged"]) == (expected["records"], expected["judged"])
    assert_same_training(tmp_path / "out", whole / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        path.name for path in (whole / "out").iterdir()
    )
    shutil.rmtree(tmp_path / "out")  # dozens of runs would fill a disk in memory
