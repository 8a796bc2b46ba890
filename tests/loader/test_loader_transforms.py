"""User-defined functions on whole batches on their device: `pixel_transform`, `batch_transform`."""

import numpy as np
import pytest
import torch

from feedline import DataLoader, ImageArray, TrainCrop
from feedline.engine.normalise import Normalise
from feedline.errors import UsageError


def images():
    pixels = np.random.default_rng(0).integers(0, 256, (20, 24, 24, 3), np.uint8)
    return ImageArray(pixels, np.arange(20) % 10, transform=TrainCrop())


def darker(images, batch):
    assert images.dtype == torch.uint8
    return images // 2


def noisy(images, labels, *, batch):
    seed = batch.batch_seed & (1 << 63) - 1
    drawn = torch.rand(images.shape, generator=torch.Generator().manual_seed(seed))
    return images + drawn, torch.nn.functional.one_hot(labels, 10).float()


def loader(**options):
    return DataLoader(images(), 8, schedule="8x1,16x2", seed=3, **options)


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_results_of_functions(workers):
    normalise = Normalise()
    with (
        loader(num_workers=workers) as raw,
        loader(
            num_workers=workers, device="cpu", pixel_transform=darker, batch_transform=noisy
        ) as changed,
    ):
        for _ in range(3):
            for (pixels, labels), (got, targets) in zip(raw, changed, strict=True):
                assert changed.batch is not None
                normal = normalise(pixels // 2, normalise.constants(torch.device("cpu")))
                want, want_targets = noisy(normal, labels, batch=changed.batch)
                assert torch.equal(got, want)
                assert torch.equal(targets, want_targets)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pixel_transform": lambda x, batch: x.float()}, "pixel_transform.*torch.float32"),
        ({"pixel_transform": lambda x, batch: x[:2]}, r"returned a tensor of shape \(2, 3"),
        ({"pixel_transform": lambda x, batch: None}, "returned a NoneType"),
        ({"batch_transform": lambda x, y, batch: x}, "batch_transform must return 2 tensors"),
        ({"batch_transform": lambda x, y, batch: (x,)}, "returned 1 of Tensor"),
        ({"batch_transform": lambda x, y, batch: (x, 3)}, "returned 2 of Tensor, int"),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_results_of_functions_are_checked(workers, options, said):
    with (
        loader(num_workers=workers, device="cpu", **options) as made,
        pytest.raises(UsageError, match=said),
    ):
        next(iter(made))


def test_exception_of_transform_is_raised_and_batch_repeats():
    calls = []

    def sometimes(images, labels, *, batch):
        calls.append(batch.step)
        if len(calls) == 2:
            raise ArithmeticError("no")
        return images, labels

    with (
        loader(num_workers=1, device="cpu", batch_transform=sometimes) as made,
        loader(num_workers=1, device="cpu") as plain,
    ):
        expected = [labels.tolist() for _, labels in plain]
        iterator = iter(made)
        got = [next(iterator)[1].tolist()]
        with pytest.raises(ArithmeticError, match="no"):
            next(iterator)
        got += [labels.tolist() for _, labels in iterator]
    assert got == expected
