"""`feedline.integrations.timm.create_loader` against timm's own, on folders of images."""

import warnings

import pytest
import torch
from torchvision.datasets import ImageFolder

from feedline.errors import ImageError, UsageError
from packages import needs
from torchvision_folder import IMAGES, write_images

pytestmark = [
    needs("timm"),
    # timm leaves closing of files to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CPU = torch.device("cpu")
GREY_LEVEL = 1 / 255 / 0.224  # of a normalised image


@pytest.fixture(scope="module", autouse=True)
def _timm():
    """Import timm for these tests alone; see `needs`."""
    global create_loader, data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from timm import data

        from feedline.integrations.timm import create_loader


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_images(tmp_path_factory.mktemp("images")))


def folder(root):
    return data.create_dataset("", root=root)


def create(dataset, size=(3, 32, 32), batch_size=4, **options):
    return create_loader(dataset, size, batch_size, **{"device": CPU, "num_workers": 1, **options})


def timms(dataset, size=(3, 32, 32), **options):
    return data.create_loader(dataset, size, 4, **{**options, "device": CPU, "num_workers": 0})


def engine(loader):
    inner = getattr(loader, "loader", loader)
    return str(inner._runtime.stream.choice().engine)


EVALUATION = {
    "usual": {},
    "whole image": {"crop_pct": 1.0, "interpolation": "bicubic", "num_workers": 0},
    "squash": {"crop_mode": "squash"},
    "border": {"crop_mode": "border"},
    "trimmed": {"crop_border_pixels": 2},
    "not square": {"size": (3, 32, 24)},
    "no prefetcher": {"use_prefetcher": False},
    "half precision": {"img_dtype": torch.bfloat16},
    "normalised otherwise": {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)},
}


@pytest.mark.parametrize("case", EVALUATION)
def test_evaluation_matches_timm_batches(root, case):
    options = {"size": (3, 32, 32), **EVALUATION[case]}
    size = options.pop("size")
    timm_loader = timms(folder(root), size, **options)
    loader = create(folder(root), size, **options)
    assert len(loader) == len(timm_loader)
    batches = list(zip(loader, timm_loader, strict=True))
    assert len(batches) == 2
    for (images, labels), (expected, expected_labels) in batches:
        assert images.dtype == expected.dtype
        assert images.shape == expected.shape
        assert torch.equal(labels, expected_labels)
        error = (images.float() - expected.float()).abs()
        assert error.max() <= 2.1 * GREY_LEVEL * (1 if images.dtype is torch.float32 else 2)
        assert error.mean() <= 0.02 * GREY_LEVEL * (1 if images.dtype is torch.float32 else 9)
    if case not in ("border", "trimmed", "not square", "no prefetcher"):
        assert engine(loader) == "image rows"


@pytest.mark.parametrize("kind", ["timm", "torchvision"])
def test_training_makes_rows_with_all_augmentations_fused(root, kind):
    dataset = folder(root) if kind == "timm" else ImageFolder(root)
    loader = create(
        dataset, is_training=True, batch_size=3, auto_augment="rand-m9-mstd0.5", re_prob=1.0
    )
    assert engine(loader) == "image rows"
    torch.manual_seed(1)
    epochs = [list(loader) for _ in range(2)]
    for batches in epochs:
        assert [len(labels) for _, labels in batches] == [3, 3]
        for images, labels in batches:
            assert images.shape == (3, 3, 32, 32)
            assert labels.dtype == torch.int64
            # Erased areas have the value 0, after the normalisation.
            assert all((image == 0).all(0).any() for image in images)
    assert not torch.equal(epochs[0][0][0], epochs[1][0][0])


def test_mixup_in_the_collate_function_can_be_switched_off(root):
    mixup = data.FastCollateMixup(mixup_alpha=1.0, label_smoothing=0.0, num_classes=3)
    loader = create(folder(root), is_training=True, batch_size=6, collate_fn=mixup, hflip=1.0)
    assert engine(loader) == "samples"
    assert loader.mixup_enabled
    torch.manual_seed(2)
    mixed = torch.cat([labels for _ in range(4) for _, labels in loader])
    assert mixed.shape == (24, 3)
    assert ((mixed > 0) & (mixed < 1)).any()
    loader.mixup_enabled = False
    ((images, labels),) = loader
    assert images.shape == (6, 3, 32, 32)
    assert torch.equal(labels.sort(dim=1).values, torch.tensor([[0.0, 0.0, 1.0]] * 6))


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_repeated_augmentation_draws_different_pixels_of_same_images(root):
    loader = create(
        folder(root), is_training=True, batch_size=6, distributed=True, num_aug_repeats=3
    )
    assert engine(loader) == "image rows"
    loader.sampler.set_epoch(1)
    ((images, labels),) = loader
    assert len(labels[:3].unique()) == 1
    assert not torch.equal(images[0], images[1])


@pytest.mark.usefixtures("process_group")
def test_ranks_of_an_evaluation_keep_the_order(root):
    loader = create(folder(root), distributed=True)
    labels = torch.cat([labels for _, labels in loader])
    assert labels.tolist() == [target for _, target in folder(root).reader.samples]


def test_splits_of_augmentations_are_in_one_batch(root):
    dataset = data.AugMixDataset(folder(root), num_splits=3)
    loader = create(dataset, is_training=True, batch_size=2, num_aug_splits=3)
    images, labels = next(iter(loader))
    assert images.shape == (6, 3, 32, 32)
    assert torch.equal(labels, labels[:2].repeat(3))


@pytest.mark.parametrize("seeding", ["part", lambda worker: worker.id])
def test_seeds_of_workers_are_rejected(root, seeding):
    with pytest.raises(UsageError) as error:
        create(folder(root), worker_seeding=seeding)
    assert error.value.argument == "worker_seeding"


def test_images_that_cannot_be_read_are_skipped_as_in_timm(tmp_path):
    write_images(tmp_path)
    (tmp_path / "cats/b.png").write_bytes(b"no image")
    (tmp_path / "dogs/small.png").write_bytes(b"")
    expected, batches = (
        [(images, labels) for images, labels in loader]
        for loader in (timms(folder(str(tmp_path))), create(folder(str(tmp_path))))
    )
    for (images, labels), (expected_images, expected_labels) in zip(batches, expected, strict=True):
        assert torch.equal(labels, expected_labels)
        assert (images - expected_images).abs().mean() <= 0.02 * GREY_LEVEL


def test_folder_without_a_readable_image_raises(tmp_path):
    for name in IMAGES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"no image")
    with pytest.raises(ImageError):
        list(create(folder(str(tmp_path))))
