"""A loader's state, saved at any moment, resumes with exactly the remaining batches."""

import pytest

from feedline.errors import StateError
from feedline.loader import DataLoader
from loader_machine import assert_follows_its_plan
from loader_reading import planned, read, seen
from row_sources import Rows
from sets import Drawing, Sized, through_json

SCHEDULE = "8x1@5,12x1@7,6x1"
EPOCHS = 3


def loader(workers=0, **options):
    chosen = {"schedule": SCHEDULE, "seed": 5, "num_workers": workers, "prefetch": 4, **options}
    return DataLoader(chosen.pop("dataset", Rows(23)), 4, **chosen)


WINDOWS = {"schedule": "4x1@128,6x2@100", "shuffle": "window:512", "dataset": Rows(1100)}


@pytest.mark.parametrize(
    ("options", "size"),
    [({}, None), ({}, 7), (WINDOWS, None)],
    ids=["shuffled", "of a size that is set", "windows"],
)
def test_state_saved_at_any_step_gives_remainder_with_any_number_of_workers(options, size):
    whole = []
    states = []
    with loader(2, **options) as first:
        first.set_image_size(size)
        for _ in range(EPOCHS):
            states.append((len(whole), through_json(first.state_dict())))
            for batch in first:
                whole.append(seen(batch))
                states.append((len(whole), through_json(first.state_dict())))
        states.append((len(whole), through_json(first.state_dict())))
        steps = [(epoch, step) for epoch in range(EPOCHS) for step in range(first.steps_in(epoch))]
        assert whole == [planned(first.order, epoch, step, size) for epoch, step in steps]
    for number, (done, state) in enumerate(states):
        with loader((0, 2, 3, 1)[number % 4], **options) as fresh:
            fresh.load_state_dict(state)
            assert fresh.state_dict() == state
            rest = [batch for _ in range(fresh.epoch, EPOCHS) for batch in read(fresh)]
            assert rest == whole[done:]


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"schedule": "2x1@4,2x1@3"}])
def test_an_epoch_is_finished_after_its_last_batch(options):
    data = Sized(12) if "schedule" in options else Drawing(12)
    made = DataLoader(data, 4, **options)
    for _ in range(2):
        assert not made.epoch_finished
        steps = len(made)
        for step, _ in enumerate(made, 1):
            assert made.epoch_finished == (step == steps)
            other = DataLoader(data, 4, **options)
            other.load_state_dict(made.state_dict())
            assert other.epoch_finished == (step == steps)
        assert not made.epoch_finished


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 6}, "seed was 6, is 5"),
        ({"shuffle": False}, "order was 'sequential', is 'shuffled'"),
        ({"drop_last": True}, "drop_last was True, is False"),
        ({"schedule": "8x1@5,12x1@7"}, "schedule was"),
        ({"schedule": None, "image_size": 8}, "schedule was"),
    ],
)
def test_state_of_another_run_is_rejected_and_nothing_changes(change, said):
    made = loader()
    next(iter(made))
    before = made.state_dict()
    with pytest.raises(StateError, match=said):
        made.load_state_dict(loader(**change).state_dict())
    assert made.state_dict() == before
    other = DataLoader(Rows(22), 4, schedule=SCHEDULE, seed=5, num_workers=0)
    with pytest.raises(StateError, match="dataset was 'rows-22', is 'rows-23'; length was 22"):
        made.load_state_dict(other.state_dict())


@pytest.mark.parametrize("workers", [2, 0])
def test_a_loader_used_in_any_order_follows_its_plan(workers):
    with loader(workers, max_image_size=16) as made:
        assert_follows_its_plan(made)
        assert not made.worker_deaths
