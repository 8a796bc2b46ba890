"""A run with phases of every kind, interrupted at random steps, ends with the same weights.

Every selected step is interrupted in every way. The last step of each phase and its neighbours are
always selected.
"""

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


STEPS = drawn_steps(1, 20)
ON_RANKS = [(step, WAYS[step % len(WAYS)]) for step in drawn_steps(2, 20)]
QUICK = {(9, signal.SIGKILL)}
INTERRUPTED = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
    for case in product(STEPS, WAYS)
]


@pytest.fixture(scope="module")
def uninterrupted(tiny_set, tmp_path_factory, forked):
    """The folder of a run that nothing stopped."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert forked.run(job(PROGRESSIVE, tiny_set, folder)) == 0
    said = said_in(folder)
    assert said["steps"] == list(range(1, 29))
    assert said["sizes"] == [24, 24, 32, 40, 48, 48]
    return folder


@pytest.mark.parametrize(("step", "way"), INTERRUPTED)
def test_resumed_run_ends_with_same_weights(tiny_set, uninterrupted, forked, tmp_path, step, way):
    draw = random.Random(step * 100 + way)
    every, before, behind = draw.randint(1, 4), draw.choice([0, 0, 1]), draw.choice([0, 0, 1])
    asked = job(
        *(PROGRESSIVE, tiny_set, tmp_path),
        after=step,
        signum=way,
        checkpoint_every=every,
        workers=before,
    )
    ended = forked.run(asked)
    left = gone_on_from(step, way, every, ranks=1)
    if way is signal.SIGKILL:
        assert ended == -way
    else:
        assert ended == 0
        assert said_in(tmp_path)["stopped_by"] == way
    if left:
        assert load_checkpoint(tmp_path / "out")["state"]["step"] == left
    assert forked.run(job(PROGRESSIVE, tiny_set, tmp_path, resume="auto", workers=behind)) == 0
    said, whole = said_in(tmp_path), said_in(uninterrupted)
    assert said["steps"] == list(range(left + 1, 29))
    assert (said["records"], said["judged"]) == (whole["records"], whole["judged"])
    assert_same_training(tmp_path / "out", uninterrupted / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        path.name for path in (uninterrupted / "out").iterdir()
    )
    shutil.rmtree(tmp_path / "out")  # dozens of runs would fill a disk in memory


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    # 7 images of a class to validate on: 14 cannot be shared evenly by batches of 6 on 2 ranks.
    return write_tiny_set(tmp_path_factory.mktemp("shared") / "set", train=30, val=7)


@pytest.fixture(scope="module")
def uninterrupted_ranks(shared, tmp_path_factory, forked):
    folder = tmp_path_factory.mktemp("ranks")
    assert forked.run_ranks(job(PROGRESSIVE, shared, folder, workers=1), 2) == [0, 0]
    lead, other = said_in(folder, 0), said_in(folder, 1)
    assert lead["records"] == other["records"], "figures are of all ranks"
    assert [val for *_, val in lead["records"]] == [14] * 6
    assert lead["steps"] == list(range(1, last_steps(2)[0][-1] + 1))
    assert lead["notes"]
    assert not other["notes"], "rank 0 alone speaks"
    return folder


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("step", "way"),
    [pytest.param(*case, marks=pytest.mark.slow) for case in ON_RANKS],
)
def test_two_resumed_ranks_end_with_same_weights(
    shared, uninterrupted_ranks, forked, tmp_path, step, way
):
    """The last rank alone gets the signal."""
    every = random.Random(step).randint(1, 3)
    asked = job(
        *(PROGRESSIVE, shared, tmp_path),
        after=step,
        signum=way,
        checkpoint_every=every,
        workers=1,
    )
    ended = forked.run_ranks(asked, 2)
    left = gone_on_from(step, way, every, ranks=2)
    if way is signal.SIGKILL:
        assert ended == [1, -way]
    else:
        assert ended == [0, 0]
        assert said_in(tmp_path, 1)["stopped_by"] == way
    if left:
        assert load_checkpoint(tmp_path / "out")["state"]["step"] == left
    again = job(PROGRESSIVE, shared, tmp_path, resume="auto", workers=1)
    assert forked.run_ranks(again, 2) == [0, 0]
    said, whole = said_in(tmp_path), said_in(uninterrupted_ranks)
    assert said["steps"] == list(range(left + 1, last_steps(2)[0][-1] + 1))
    assert (said["records"], said["judged"]) == (whole["records"], whole["judged"])
    assert_same_training(tmp_path / "out", uninterrupted_ranks / "out")
    shutil.rmtree(tmp_path / "out")
