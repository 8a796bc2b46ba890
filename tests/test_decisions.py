"""Choice of the engine; no choice changes the meaning of a request."""

import logging
import os
import signal

import pytest
import torch
from torch.utils.data import BatchSampler, Subset, TensorDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional

import feedline
from feedline import DataLoader
from feedline.errors import StateError, UsageError
from row_sources import Rows
from sets import Made
from torchvision_folder import write_images

STEPS = [transforms.RandomResizedCrop(24), transforms.RandomHorizontalFlip(), transforms.ToTensor()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return ImageFolder(
        write_images(tmp_path_factory.mktemp("folder")), transforms.Compose(list(STEPS))
    )


def engine(loader):
    (line,) = (line for line in loader.explain().splitlines() if line.startswith("engine"))
    return line.split()[1]


def together(samples):
    """A collate_fn as people have it: it mixes the images."""
    images = torch.stack([image for image, _ in samples])
    return images + images.roll(1, 0), [label for _, label in samples]


def one(sample):
    return sample


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"batch_size": 4}, "image-row"),
        ({"batch_size": 4, "collate_fn": together}, "sample"),
        ({"batch_size": None, "collate_fn": one}, "sample"),
        ({"batch_sampler": [[0, 1], [2, 3, 4], [5]]}, "image-row"),
        ({"batch_size": 4, "worker_init_fn": lambda worker: print(end="")}, "sample"),
    ],
)
def test_recognised_pipeline_follows_the_schedule_for_any_use_of_samples(
    folder, options, expected, workers
):
    with DataLoader(folder, schedule="8x1,12x1", num_workers=workers, **options) as loader:
        assert engine(loader) == expected
        for size in (8, 12):
            for batch in loader:
                assert batch[0].shape[-1] == loader.phase.image_size == size


def test_batches_out_of_order_are_made_by_the_recognised_pipeline_too(folder):
    with DataLoader(folder, 4, image_size=8, in_order=False, num_workers=2) as loader:
        assert engine(loader) == "sample"
        assert {images.shape[-1] for images, _ in loader} == {8}


def test_size_set_later_must_be_requested_by_dataset():
    with DataLoader(Made(8, lambda index: torch.zeros(3, 24, 24)), 4) as loader:
        batches = iter(loader)
        assert next(batches).shape[-1] == 24
        loader.set_image_size(8)
        with pytest.raises(UsageError, match="asked for the size"):
            next(batches)
    rows = DataLoader(TensorDataset(torch.zeros(8, 2)), 4)
    with pytest.raises(UsageError, match=r"image size 8 .*tensor engine"):
        rows.set_image_size(8)


def test_unused_strength_raises(folder):
    weak = [feedline.Phase(image_size=8, epochs=1, strength=0.5)]
    central = [transforms.Resize(24), transforms.CenterCrop(24), transforms.ToTensor()]
    data = ImageFolder(folder.root, transforms.Compose(central))
    with pytest.raises(UsageError, match="strength other than 1"):
        iter(DataLoader(data, 4, schedule=weak))
    assert next(iter(DataLoader(folder, 4, schedule=weak)))[0].shape[-1] == 8


def test_replaced_function_of_torchvision_is_called(folder, monkeypatch):
    monkeypatch.setattr(functional, "to_tensor", lambda image: torch.full((3, 24, 24), 7.0))
    with DataLoader(folder, 4, num_workers=0) as loader:
        assert "to_tensor" in loader.explain().split("because")[1]
        assert next(iter(loader))[0].unique().tolist() == [7.0]


def test_a_state_of_an_image_size_that_does_not_fit_changes_nothing():
    big = DataLoader(Rows(23), 4, schedule="8x2", max_image_size=16, num_workers=0)
    batches = iter(big)
    next(batches)
    big.set_image_size(16)
    made = DataLoader(Rows(23), 4, schedule="8x2", max_image_size=8, num_workers=0)
    batches = iter(made)
    next(batches)
    before = made.state_dict()
    with pytest.raises(UsageError, match=r"the state's image size 16 .*max_image_size=8"):
        made.load_state_dict(big.state_dict())
    assert made.state_dict() == before
    assert len(list(batches)) == 5


def test_state_records_how_pixels_were_made(folder):
    state = DataLoader(folder, 4, seed=1).state_dict()
    other = ImageFolder(folder.root, transforms.Compose([transforms.RandomCrop(24), *STEPS[1:]]))
    loader = DataLoader(other, 4, seed=1)
    with pytest.warns(RuntimeWarning, match="made in another way.*pixels was"):
        loader.load_state_dict(state)
    with pytest.warns(RuntimeWarning, match="engine was 'feedline', is 'dataset'") as warned:
        loader.load_state_dict(state)
    assert warned[0].filename == __file__
    fewer = Subset(folder, range(len(folder) - 1))
    with pytest.raises(StateError, match=r"dataset was .*; length was"):
        DataLoader(fewer, 4, seed=1).load_state_dict(state)


@pytest.mark.parametrize("dataset", [Rows(20), list(range(20))])
def test_defaults_equal_torch_for_any_dataset(dataset):
    size = {"image_size": 8} if isinstance(dataset, Rows) else {}
    loader = DataLoader(dataset, 4, **size)
    assert (loader.num_workers, loader.order, type(loader.batch_sampler)) == (0, None, BatchSampler)
    batches = [batch[1] if size else batch for batch in loader]
    assert torch.cat(batches).tolist() == list(range(20))


def test_schedule_implies_training(folder, monkeypatch):
    monkeypatch.setattr("feedline.engine.defaults.usable_cores", lambda: 1)
    for dataset in (Rows(20), folder):
        with DataLoader(dataset, 4, schedule="8x1") as loader:
            assert loader.num_workers == 1
            labels = torch.cat([labels for _, labels in loader]).tolist()
            assert labels != sorted(labels)
            with DataLoader(dataset, 4, schedule="8x1", seed=0, shuffle=True) as said:
                assert torch.cat([labels for _, labels in said]).tolist() == labels


def test_engine_choice_is_logged_once_and_repeated_after_changes(folder, caplog):
    data = ImageFolder(folder.root, transforms.Compose(list(STEPS)))
    with caplog.at_level(logging.INFO, "feedline"), DataLoader(data, 4) as loader:
        for _ in range(3):
            list(loader)
            loader.explain()
        assert [record.levelname for record in caplog.records] == ["INFO"]
        assert "engine for ImageFolder: image-row engine" in caplog.text
        data.transform.transforms[0].size = (12, 12)
        assert next(iter(loader))[0].shape[-1] == 12
        data.transform = transforms.Compose([*STEPS, lambda image: image[:, :5, :5]])
        assert engine(loader) == "sample"
        assert next(iter(loader))[0].shape[-1] == 5


def test_choosing_an_engine_changes_nothing(folder):
    loader, other = (DataLoader(folder, 4, shuffle=True) for _ in range(2))
    state = loader.state_dict()
    assert state["made_by"]["pixels"]
    assert loader.explain() == other.explain()
    assert loader.state_dict() == other.state_dict() == state


def test_len_plans_nothing():
    data = list(range(8))
    loader = DataLoader(data, 4, seed=1)
    data += range(4)
    order = loader.order
    assert len(loader) == 3
    assert loader.order is order
    assert len(list(loader)) == 3


def test_the_death_of_a_worker_is_logged(caplog):
    with DataLoader(Rows(64), 4, image_size=8, seed=0, num_workers=1) as loader:
        batches = iter(loader)
        next(batches)
        os.kill(loader.worker_pids[0], signal.SIGKILL)
        assert sum(1 for _ in batches) == 15
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "SIGKILL" in caplog.text


def test_schedule_without_sizes_only_sets_batch_sizes():
    own = {"schedule": "ownx1@2,ownx1@4", "shuffle": False, "num_workers": 0}
    with DataLoader(list(range(4)), **own) as loader:
        assert [[len(batch) for batch in loader] for _ in range(2)] == [[2, 2], [4]]
        assert loader.phase.image_size is None
        assert "1 epoch at the dataset's own size, batch size 2, then" in loader.explain()
        state = loader.state_dict()
    with DataLoader(list(range(4)), **own) as loader:
        loader.load_state_dict(state)
    with pytest.raises(UsageError, match="Rows needs an image size"):
        DataLoader(Rows(8), schedule="ownx1@2")
