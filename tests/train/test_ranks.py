"""Trainings on several processes of one machine: killed, stopped, and resumed on others."""

import signal

import pytest
from interruption import job, said_in

from feedline.errors import StateError
from feedline.train.config import share_batches
from feedline.train.recipe import Recipe
from feedline.train.run_folder import load_checkpoint
from ranks import said_by_ranks


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_have_the_same_size_and_the_same_weights_at_every_step(
    tiny_set, tmp_path, forked, ranks
):
    recipe = {"model": "test_resnet", "schedule": "24x1,32x1,40x1@5", "batch_size": 4}
    assert forked.run_ranks(job(recipe, tiny_set, tmp_path), ranks) == [0] * ranks
    lead, *others = (said_in(tmp_path, rank) for rank in range(ranks))
    for other in others:
        assert other["seen"] == lead["seen"], "size, rows and weights"
        assert other["records"] == lead["records"], "figures are of all ranks"
    batches = [40 // (rows * ranks) for rows in (4, 4, 5)]
    shapes = [(24, 4)] * batches[0] + [(32, 4)] * batches[1] + [(40, 5)] * batches[2]
    assert [(size, rows) for size, rows, _ in lead["seen"]] == shapes
    weights = [each for *_, each in lead["seen"]]
    assert len(set(weights)) == len(weights), "each step moves them"
    assert [samples for _, samples, *_ in lead["records"]] == [
        rows * ranks * count for rows, count in zip((4, 4, 5), batches, strict=True)
    ]
    assert [val for *_, val in lead["records"]] == [12, 12, 12]
    assert load_checkpoint(tmp_path / "out")["ranks"] == ranks


@pytest.mark.parametrize("dies", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_killed_rank_ends_others_and_run_resumes(tiny_set, tmp_path, forked, dies):
    recipe = {"model": "test_resnet", "schedule": "24x1,32x1", "batch_size": 4}
    asked = job(recipe, tiny_set, tmp_path, after=7, signum=signal.SIGKILL, signalled=dies)
    other, statuses = 1 - dies, [1, 1]
    statuses[dies] = -signal.SIGKILL
    assert forked.run_ranks(asked, 2) == statuses
    assert f"another rank does not respond; rank {other} ends" in said_in(tmp_path, other)["error"]
    assert load_checkpoint(tmp_path / "out")["state"]["step"] == 5
    assert forked.run_ranks(job(recipe, tiny_set, tmp_path, resume="auto"), 2) == [0, 0]
    assert said_in(tmp_path)["steps"] == [6, 7, 8, 9, 10]


def test_signal_to_one_rank_stops_all(tiny_set, tmp_path, forked):
    recipe = {"model": "test_resnet", "schedule": "24x1,32x1", "batch_size": 4}
    asked = job(recipe, tiny_set, tmp_path, after=7, signum=signal.SIGTERM)  # to the last one
    assert forked.run_ranks(asked, 2) == [0, 0]
    assert [said_in(tmp_path, rank)["stopped_by"] for rank in range(2)] == [signal.SIGTERM] * 2
    assert load_checkpoint(tmp_path / "out")["state"]["step"] == 7


@pytest.mark.slow
def test_ranks_with_rare_checks_stop_at_same_step(tiny_set, tmp_path, forked):
    recipe = {"model": "test_resnet", "schedule": "24x3", "batch_size": 4}
    asked = job(recipe, tiny_set, tmp_path, after=2, signum=signal.SIGTERM, check_s=3600.0)
    assert forked.run_ranks(asked, 2) == [0, 0]
    lead, other = (said_in(tmp_path, rank) for rank in range(2))
    assert lead["stopped_by"] == other["stopped_by"] == signal.SIGTERM
    assert len(lead["seen"]) == len(other["seen"]) == 5, "at the epoch's end at the latest"
    assert lead["seen"] == other["seen"]


_OWN_GROUP = """
import json, os, signal, sys
import torch
from torch import distributed
from feedline.train.ranks import AgreedStop, StopRequest, join_ranks
distributed.init_process_group("cuda:gloo")  # like nccl, it has no backend for CPU tensors
with join_ranks() as ranks, StopRequest() as request:
    stop = AgreedStop(request, ranks)
    before = [stop.requested(), stop.requested(at_end=True)]
    if ranks.rank:
        signal.raise_signal(signal.SIGTERM)
    model = torch.nn.BatchNorm1d(2)
    model.running_mean.fill_(ranks.rank + 1)
    ranks.share_buffers(model)
    print(json.dumps({
        "sum": float(ranks.summed(torch.tensor(ranks.rank + 1.0))),
        "stop": [*before, stop.requested()],  # the first call after an end looks
        "all": ranks.gathered(ranks.rank),
        "mean": model.running_mean.tolist(),
    }))
assert distributed.is_initialized(), "the program's own group stays"
"""


@pytest.mark.slow
def test_a_process_group_for_cuda_alone_gets_one_for_the_cpu():
    expected = {"sum": 3.0, "stop": [None, None, 15], "all": [0, 1], "mean": [1.0, 1.0]}
    assert said_by_ranks(_OWN_GROUP) == [expected, expected]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_run_resumes_on_another_number_of_ranks(tiny_set, tmp_path, forked):
    recipe = {"model": "test_resnet", "schedule": "32x1,48x2", "batch_size": 4}
    asked = job(recipe, tiny_set, tmp_path, workers=1, after=7, signum=signal.SIGTERM)
    assert forked.run_ranks(asked, 2) == [0, 0]
    assert forked.run(job(recipe, tiny_set, tmp_path, workers=1, resume="auto")) == 0
    assert [samples for _, samples, *_ in said_in(tmp_path)["records"]] == [40, 40, 40]
    saved = load_checkpoint(tmp_path / "out")
    assert (saved["ranks"], saved["recipe"]["batch_size"]) == (1, 8)


def test_batches_that_cannot_be_divided_are_rejected():
    recipe = Recipe(schedule="32x1,48x1@6", batch_size=8)
    other = share_batches(recipe, 2, 4)
    assert (other.batch_size, other.phases[1].batch_size) == (4, 3)
    assert share_batches(recipe, 3, 3) is recipe
    with pytest.raises(StateError, match=r"batch of 12 images .* cannot be divided"):
        share_batches(recipe, 2, 8)
