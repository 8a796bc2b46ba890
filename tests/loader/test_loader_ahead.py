"""A device transfer that sends batches ahead, like the one for CUDA; here without CUDA."""

import shutil
from collections import deque
from pathlib import Path

import pytest
from torchvision.datasets import ImageFolder
from torchvision.transforms import CenterCrop, Compose, Resize, ToTensor

import feedline
from feedline.engine.device_transfer import HostTransfer
from feedline.engine.feed import Feed
from feedline.errors import SampleError
from feedline.loader import DataLoader
from loader_machine import assert_follows_its_plan
from loader_reading import planned_epoch, seen
from row_sources import Breaking, Rows


class AheadTransfer(HostTransfer):
    """Copies each batch when it is sent; hands them out in the order they came."""

    can_send_early = True
    most = 0  # batches that were on their way at once, over all transfers

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._waiting = deque()

    def send(self, in_flight):
        super().send(in_flight)
        self._waiting.append(tuple(tensor.clone() for tensor in super().receive()))
        AheadTransfer.most = max(AheadTransfer.most, len(self._waiting))

    def receive(self):
        return self._waiting.popleft()

    def discard_sent(self):
        super().discard_sent()
        self._waiting.clear()


@pytest.fixture(autouse=True)
def always_ahead(monkeypatch):
    """Make every loader prefetch the next batch at every step."""
    monkeypatch.setattr("feedline.loader.start_engine.HostTransfer", AheadTransfer)
    monkeypatch.setattr(Feed, "ready", lambda feed: bool(feed.num_in_flight))


def loader(source=None, **options):
    chosen = {"schedule": "8x1@5,12x2@7", "num_workers": 0, **options}
    return DataLoader(source or Rows(23), 4, **chosen)


def test_batches_sent_ahead_follow_the_plan():
    assert_follows_its_plan(loader(max_image_size=16))
    assert AheadTransfer.most == 1


def test_failing_prefetched_batch_does_not_affect_previous_one():
    made = loader(Breaking(23, {12}), shuffle=False)
    iteration = iter(made)
    assert [seen(next(iteration)) for _ in range(2)] == planned_epoch(made, 0)[:2]
    for _ in range(2):
        with pytest.raises(SampleError, match=r"(?s)sample 12,.*\(epoch 1, step 3\)"):
            next(iteration)
    assert (made.state_dict()["epoch"], made.state_dict()["step"]) == (0, 2)


def test_skipped_sample_is_listed_once_when_its_batch_is_delivered():
    made = loader(Breaking(23, {12}), shuffle=False, on_error="skip")
    for step, (_, labels) in enumerate(made):
        made.set_image_size(3 + step)  # the batch taken ahead is dropped and made again
        assert len(labels) == [5, 5, 4, 5, 3][step]
        assert [name for name, _ in made.skipped] == ["row-12"] * (step >= 2)


def test_an_image_folders_failing_batch_taken_ahead_is_raised_in_its_turn(jpeg_folder, tmp_path):
    """After it, the next call comes to the next batch, as torch's does."""
    root = Path(shutil.copytree(jpeg_folder, tmp_path / "copy"))
    data = ImageFolder(root, Compose([Resize(24), CenterCrop(16), ToTensor()]))
    broken, labels = data.samples[4][0], [label for _, label in data.samples]
    Path(broken).write_bytes(b"no picture")
    AheadTransfer.most = 0
    given = []
    with feedline.DataLoader(data, 2, num_workers=1) as made:
        batches = iter(made)
        for _ in range(6):
            try:
                given.append(next(batches)[1].tolist())
            except SampleError as error:
                given.append(broken in str(error))
        assert next(batches, None) is None
    assert AheadTransfer.most == 1
    expected = [labels[at : at + 2] for at in range(0, 12, 2)]
    expected[2] = True  # for the batch with the broken one
    assert given == expected
