"""User-defined datasets in feedline's loader: engines and batches."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, Subset, get_worker_info
from torchvision import transforms
from torchvision.datasets import ImageFolder

import feedline
from feedline.errors import SampleError, StateError, UsageError
from processes import all_workers
from sets import Counting
from slow import slow

EVAL = transforms.Compose([transforms.Resize(32), transforms.CenterCrop(24), transforms.ToTensor()])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    draw = np.random.default_rng(0)
    for number in range(22):
        small = draw.integers(0, 255, (6, 8, 3), dtype=np.uint8)
        image = Image.fromarray(small).resize((64 + number, 50), Image.Resampling.BICUBIC)
        path = root / f"class-{number % 3}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        image.save(path, quality=92)
    return root


def loader(dataset, **options):
    return feedline.DataLoader(dataset, **{"batch_size": 4, "num_workers": 2, **options})


# torchvision pipelines


@pytest.mark.parametrize("workers", [0, 2])
def test_recognised_folder_matches_torch(folder, workers):
    data = ImageFolder(folder, EVAL)
    torch.manual_seed(3)
    theirs = list(TorchDataLoader(data, 4, shuffle=True))
    torch.manual_seed(3)
    with loader(data, shuffle=True, num_workers=workers) as made:
        ours = list(made)
        assert "image-row engine" in made.explain()
    assert len(ours) == len(theirs) == len(made)
    for mine, its in zip(ours, theirs, strict=True):
        assert type(mine) is list
        assert torch.equal(mine[1], its[1])
        assert mine[0].dtype == its[0].dtype
        assert mine[0].shape == its[0].shape
        assert mine[0].stride() == its[0].stride()
        assert (mine[0] - its[0]).abs().mean() * 255 < 0.05


def test_functions_on_single_samples_use_the_sample_engine(folder):
    for options in ({"collate_fn": list}, {"in_order": False}):
        said = loader(ImageFolder(folder, EVAL), **options).explain()
        assert "sample engine" in said
        assert next(iter(options)) in said.split("because")[1]


def seed_worker(worker):
    """As in PyTorch's notes on reproducibility."""
    np.random.seed(torch.initial_seed() % 2**32)


class Among:
    """A transform that queries the worker, and was configured by a worker_init_fn."""

    told = 0.0

    def __call__(self, image):
        info = get_worker_info()
        if info is None:  # at home, on a made-up image
            return image
        assert (info.num_workers, type(info.dataset)) == (2, ImageFolder)
        return torch.full_like(image, info.id + self.told)


def tell(worker):
    get_worker_info().dataset.transform.transforms[-1].told = 10.0


def shrink(worker):
    get_worker_info().dataset.transform = lambda image: torch.full((3, 8, 8), 7.0)


def values_in(made):
    return {float(value) for images, _ in made for value in images.unique()}


@pytest.mark.parametrize("method", ["fork", *slow("forkserver", "spawn")])
def test_workers_of_recognised_pipeline_start_like_torch_workers(folder, method):
    data = ImageFolder(folder, transforms.Compose([*EVAL.transforms, Among()]))
    with loader(data, worker_init_fn=tell, start_method=method) as made:
        assert values_in(made) <= {10.0, 11.0}
        assert "sample engine" in made.explain()
    if method == "fork":
        for begin in (None, seed_worker):
            with loader(data, worker_init_fn=begin) as made:
                assert [values_in(made) <= {0.0, 1.0} for _ in range(2)] == [True] * 2
                assert "sample engine" in made.explain()


def test_a_worker_init_fn_that_changes_a_recognised_dataset_is_followed(folder):
    with loader(ImageFolder(folder, EVAL), worker_init_fn=shrink) as made:
        assert [values_in(made) for _ in range(2)] == [{7.0}] * 2
        assert "worker_init_fn may change" in made.explain().split("because")[1]


def test_a_pipeline_that_is_changed_between_epochs_is_followed(folder):
    data = ImageFolder(folder, EVAL)
    with loader(data) as made:
        before = torch.cat([images for images, _ in made])
        pids = all_workers(made, 2)
        assert torch.equal(torch.cat([images for images, _ in made]), before)
        assert made.worker_pids == pids
        data.transform.transforms[1].size = (20, 20)
        after = torch.cat([images for images, _ in made])
        assert after.shape[-1] == 20
        assert made.worker_pids != pids
        data.samples.reverse()
        labels = torch.cat([labels for _, labels in made])
        assert labels.tolist() == sorted(data.targets, reverse=True)


# Sizes


class Sized(Dataset[Any]):
    length = 24

    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.transform(index), feedline.image_size(default=-1)


class Fill:
    def __init__(self, size):
        self.size = size

    def __call__(self, index):
        return torch.full((self.size, self.size), float(index))


class Rows(list[Any]):
    """A batch sampler with a reported batch size."""

    batch_size = 2


@pytest.mark.parametrize("workers", [0, 2])
def test_keys_of_any_kind_find_their_rows_or_are_named(folder, workers):
    data = ImageFolder(folder, EVAL)
    wanted = [
        batch[1].tolist() for batch in TorchDataLoader(data, batch_sampler=[[20, 3], [-1, 5]])
    ]
    alike = [
        [[20, 3], [-1, 5]],
        [torch.tensor([20, 3]), torch.tensor([-1, 5])],
        [np.array([20, 3]), (np.int32(-1), torch.tensor(5))],
    ]
    for batches in alike:
        with loader(data, batch_size=1, num_workers=workers, batch_sampler=Rows(batches)) as made:
            assert "image-row engine" in made.explain()
            assert [labels.tolist() for _, labels in made] == wanted
    for batch, said in (
        (["a", "b"], r"returned \['a', 'b'\].*integer indices"),
        ([(3, 8), (5, 8)], r"returned \[\(3, 8\), \(5, 8\)\].*integer indices"),
        ([1.5], r"returned \[1.5\].*integer indices"),
        (None, r"returned None.*integer indices"),
        ([3, 99], r"sample 99, IndexError.*22 samples"),
    ):
        with (
            loader(data, batch_size=1, num_workers=workers, batch_sampler=Rows([batch])) as made,
            pytest.raises((UsageError, SampleError), match=f"(?s){said}"),
        ):
            list(made)


@pytest.mark.parametrize("workers", [0, 1])
def test_empty_batch_raises_torch_error(workers):
    options = {"batch_size": 1, "batch_sampler": [[0], None], "num_workers": workers}
    with loader(Sized(Fill(4)), **options) as made:
        epoch = iter(made)
        next(epoch)
        with pytest.raises(TypeError, match="NoneType"):
            next(epoch)


@pytest.mark.parametrize("workers", [0, 1])
def test_attributes_set_on_loader_apply_from_next_iteration(workers):
    with loader(Sized(Fill(2)), num_workers=workers, batch_size=24) as made:
        assert len(next(iter(made))) == 2
        made.collate_fn = len
        assert list(made) == [24]
        for value in (1, 2):
            made.collate_fn = Plus(value)
            assert list(made) == [24 + value]
    with loader(Sized(Fill(2)), num_workers=1, batch_size=24) as made:
        list(made)
        made.worker_init_fn = lambda worker: 1 / 0
        with pytest.raises(ZeroDivisionError):
            next(iter(made))
    drawn = []
    for _ in range(2):
        with loader(Sized(Fill(2)), num_workers=workers, collate_fn=luck) as made:
            made.generator = torch.Generator().manual_seed(3)
            drawn.append(list(made))
    assert drawn[0] == drawn[1]


class Plus:
    def __init__(self, value):
        self.value = value

    def __call__(self, samples):
        return len(samples) + self.value


def luck(samples):
    return float(torch.rand(()))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_planned_dataset_may_grow_and_shrink_between_epochs(workers):
    data = Sized(Fill(2))
    data.length = 8
    with loader(data, num_workers=workers, seed=0, shuffle=True) as made:
        for length in (8, 13, 5):
            data.length = length
            epoch = iter(made)
            assert len(made) == -(-length // 4)
            found = torch.cat([images[:, 0, 0] for images, _ in epoch])
            assert sorted(found.tolist()) == list(range(length))
            next(iter(made))  # broken off
        state = made.state_dict()
        made.load_state_dict(state)
        data.length = 6
        with pytest.raises(UsageError, match="6 samples, but had 5"):
            iter(made)


def test_ranks_initialised_after_first_look_are_detected(monkeypatch):
    made = loader(Sized(Fill(2)), seed=0, num_workers=0)
    next(iter(made))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    found = torch.cat([images[:, 0, 0] for images, _ in made])
    assert found.tolist() == list(range(1, 24, 2))


def test_unknown_size_raises_or_uses_default():
    with pytest.raises(UsageError, match=r"no size is known.*schedule=.*image_size=.*default=224"):
        feedline.image_size()
    assert feedline.image_size(default=9) == 9
    plain = Sized(feedline.per_size(Fill, default=6))
    with loader(plain, seed=1) as made:
        images, told = next(iter(made))
    assert images.shape[-1] == 6
    assert set(told.tolist()) == {-1}
    with pytest.raises(UsageError, match="per_size"):
        feedline.per_size(224)


# IterableDataset, and unsupported datasets


def test_iterable_dataset_uses_torchs_engine_and_workers_even_after_their_end():
    with loader(Counting(10), num_workers=2) as made:
        epoch = iter(made)
        workers = epoch._workers
        assert len(list(epoch)) == 6
        for process in workers:
            process.join()
        assert [process.exitcode for process in epoch._workers] == [0, 0]
        assert "torch's engine" in made.explain()
    with pytest.raises(StateError, match="num_workers was 2, is 0"):
        loader(Counting(10), num_workers=0).load_state_dict(made.state_dict())


# Frameworks


def test_replaced_stock_loader_is_detected():
    made = loader(list(range(12)), seed=1, rank=0, world_size=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert [len(batch) for batch in made] == [4, 2]
    stock = TorchDataLoader(made.dataset, batch_sampler=made.batch_sampler)
    with pytest.warns(RuntimeWarning, match="replaced the loader by a torch DataLoader"):
        list(stock)


def test_state_of_other_files_is_rejected_at_equal_length(folder):
    with loader(ImageFolder(folder, EVAL)) as made:
        next(iter(made))
        state = made.state_dict()
    first = Path(ImageFolder(folder).samples[0][0])
    renamed = first.rename(first.with_stem(f"{first.stem}-renamed"))
    try:
        with (
            loader(ImageFolder(folder, EVAL)) as made,
            pytest.raises(StateError, match="dataset was"),
        ):
            made.load_state_dict(state)
    finally:
        renamed.rename(first)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}])
def test_the_default_dtype_of_each_epoch_counts(folder, options):
    steps = [transforms.Resize(16), transforms.CenterCrop(16), transforms.ToTensor()]
    loader = feedline.DataLoader(ImageFolder(folder, transforms.Compose(steps)), 4, **options)
    dtypes = [next(iter(loader))[0].dtype]
    default = torch.get_default_dtype()
    try:
        for dtype in (torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            dtypes.append(next(iter(loader))[0].dtype)
    finally:
        torch.set_default_dtype(default)
    assert dtypes == [torch.float32, torch.float64, torch.float32]


class RaisingAttributes:
    """Dataset, sampler and collate function without attributes beyond their methods."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise KeyError(name)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor(index)

    def __iter__(self):
        return iter([3, 1, 0, 2])

    def __call__(self, samples):
        return torch.stack(samples)


@pytest.mark.parametrize("workers", [0, 1])
def test_attributes_that_raise_any_error_are_missing(workers):
    user = RaisingAttributes()
    loader = feedline.DataLoader(
        user, 2, sampler=user, collate_fn=user, num_workers=workers, seed=1
    )
    assert [batch.tolist() for batch in loader] == [[3, 1], [0, 2]]
    loader.load_state_dict(loader.state_dict())
    assert "RaisingAttributes" in loader.explain()
    nested = feedline.DataLoader(Subset(user, [2, 3]), 2, num_workers=workers)
    assert [batch.tolist() for batch in nested] == [[2, 3]]
