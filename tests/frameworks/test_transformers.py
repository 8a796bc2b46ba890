"""transformers' Trainer: batches equal those of torch's class, and a resume continues with the
rest, with feedline's class swapped in or in a user-defined Trainer, on one process and on two.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest

from ranks import said_by_ranks
from slow import slow

# transformers is imported by the tests alone: a large process forks slowly.
pytestmark = [
    pytest.mark.skipif(
        not (find_spec("transformers") and find_spec("accelerate")),
        reason="transformers and accelerate are not installed",
    ),
    pytest.mark.filterwarnings("ignore"),  # the frameworks' own
]


@pytest.mark.parametrize(
    ("way", "case"),
    [
        ("prepare", "data_seed"),
        ("swapped", "defaults"),
        *slow(
            ("bare", "nothing skipped"),
            *(("prepare", case) for case in ("evaluated", "drop_last", "prefetch", "lengths")),
            *(("prepare", case) for case in ("nothing skipped", "persistent", "accumulation")),
            *(("prepare", case) for case in ("split", "stream")),
            *(("swapped", case) for case in ("prefetch", "accumulation", "evaluated")),
            *(("bare", case) for case in ("persistent", "stream")),
        ),
    ],
)
def test_each_case_matches_torch_dataloader(way, case, tmp_path):
    from trainer_runs import both

    theirs, ours = both(way, case, tmp_path)
    assert all(seen for seen, *_ in theirs)
    assert ours == theirs


@pytest.mark.parametrize("way", ["prepare", *slow("Stepwise")])
def test_resume_with_seed_continues_with_remaining_batches(way, tmp_path):
    from trainer_runs import ROWS, STEPS, whole_and_rest

    whole, rest = whole_and_rest(way, tmp_path)
    assert rest == whole[2:]
    for epoch in (whole[:STEPS], whole[STEPS:]):
        assert sorted(number for rows in epoch for number in rows) == list(range(ROWS))
    assert whole[:STEPS] != whole[STEPS:]


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_two_processes_match_and_resume(tmp_path):
    from trainer_runs import CASES, ROWS, STEPS

    here = Path(__file__).parent
    script = """
import pathlib, sys, warnings
warnings.simplefilter("ignore")
sys.path[:0] = sys.argv[1:3]
import trainer_runs
print(trainer_runs.on_a_rank(pathlib.Path(sys.argv[3])))
"""
    said = said_by_ranks(script, 2, str(here), str(here.parent), str(tmp_path))
    for case in CASES:
        for theirs, ours in (each[case] for each in said):
            assert all(seen for seen, *_ in theirs), case
            assert ours == theirs, case
    for whole, rest in (each["Stepwise"] for each in said):
        assert rest == whole[2:]
    for first in (0, STEPS // 2):
        epoch = [rows for each in said for rows in each["Stepwise"][0][first : first + STEPS // 2]]
        assert sorted(number for rows in epoch for number in rows) == list(range(ROWS))
