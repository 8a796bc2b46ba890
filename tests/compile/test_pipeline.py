"""A recognised dataset as a source: its samples, its files, its errors."""

import multiprocessing
import pickle
import re
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from feedline.errors import ImageError
from feedline.order.batch_spec import Item
from slow import slow
from torchvision_folder import IMAGES, image, item_row, pipeline_of, pixel_error, write_images

FIXED = v1.Compose([v1.Resize((32, 32)), v1.ToTensor()])
RANDOM = v1.Compose([v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.ToTensor()])


@pytest.fixture
def root(tmp_path):
    return write_images(tmp_path / "images")


@pytest.mark.parametrize("sample", [0, 7, -8, 10**12])
def test_index_beyond_last_sample_raises(root, sample):
    dataset = ImageFolder(str(root), FIXED)
    if sample == 0:
        dataset.samples = []
    with pytest.raises(IndexError):
        item_row(pipeline_of(dataset), sample)


def test_rows_are_written_in_place_only(root):
    source = pipeline_of(ImageFolder(str(root), RANDOM))
    images, labels = np.full((3, 3, 32, 32), 9, np.float32), np.full(3, -1, np.int64)
    source.load(Item(4, 32, 5, 1.0), (images[1], labels[1, ...]))
    assert (images[[0, 2]] == 9).all()
    assert labels.tolist() == [-1, 1, -1]
    assert 0 <= images[1].min() < images[1].max() <= 1


def test_paths_take_little_memory_and_are_pickled_out_of_band_without_other_buffers(root):
    dataset = ImageFolder(str(root), RANDOM)
    dataset.samples = dataset.samples * 7000
    tracemalloc.start()
    try:
        source = pipeline_of(dataset)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    item_row(source, 0, 224)
    buffers = []
    body = pickle.dumps(source, protocol=5, buffer_callback=buffers.append)
    assert len(body) < 16_000
    names = sum(len(path) - len(str(root)) for path, _ in dataset.samples)
    assert sum(buffer.raw().nbytes for buffer in buffers) < names + 16 * 49_001 + 16_000
    decoder = 1 << 20
    assert kept < names + 17 * 49_000 + decoder + 300_000  # no Python object for each file
    frozen = [bytes(buffer.raw()) for buffer in buffers]
    other = pickle.loads(body, buffers=frozen)
    assert np.array_equal(item_row(source, 8, seed=4)[0], item_row(other, 8, seed=4)[0])
    assert (other.fingerprint(), len(other)) == (source.fingerprint(), 49_000)


def test_transform_identity_covers_everything_that_affects_pixels(root):
    crop, floats = v1.RandomResizedCrop(32), v1.ToTensor()
    own = type("Own", (), {"__call__": lambda self, image: image})
    pipelines = [
        [crop, floats],
        [v1.RandomResizedCrop(32, scale=(0.1, 1)), floats],
        [v1.RandomResizedCrop(48), floats],
        [crop, v1.RandomHorizontalFlip(), floats],
        [v1.Resize(32), v1.CenterCrop(32), floats],
        [v1.Resize(40), v1.CenterCrop(32), floats],
        [v1.PILToTensor(), crop, v1.ConvertImageDtype(torch.float32)],
        [crop, floats, v1.Normalize([0.5] * 3, [0.5] * 3)],
        [crop, floats, v1.Normalize([0.5] * 3, [0.5001] * 3)],
        [crop, floats, v1.RandomErasing(0.5)],
        [crop, floats, v1.RandomErasing(0.5), v1.Normalize([0.5] * 3, [0.5] * 3)],
        [crop],
        [crop, own()],
        [crop, np.asarray],
        [crop, v1.ColorJitter(0.1)],
        [crop, v1.RandomApply([v1.ColorJitter(*[0.123456] * 3), *[v1.RandomInvert()] * 9])],
        [crop, v1.RandomApply([v1.ColorJitter(*[0.123456] * 3), *[v1.RandomInvert()] * 10])],
    ]

    def told():
        made = (pipeline_of(ImageFolder(str(root), v1.Compose(steps))) for steps in pipelines)
        return [pipeline.transform_identity() for pipeline in made]

    first = told()
    assert len(set(first)) == len(pipelines)
    pipelines[12] = [crop, own()]  # at another address
    assert told() == first
    assert not any(" at 0x" in text for text in first)
    assert re.fullmatch(r"RandomResizedCrop\(.*\), ToTensor\(\) \[[0-9a-f]{16}\]", first[0])


def recognised(dataset):
    """Pixels, label and transform of a sample."""
    pipeline = pipeline_of(dataset)
    image, label = pipeline.sample(Item(4, None, 5, 1.0))
    return image.numpy().tobytes(), label, pipeline.transform_identity()


@pytest.mark.parametrize("method", ["fork", *slow("spawn")])
def test_another_process_recognises_the_unpickled_dataset(root, method):
    steps = [v1.RandomResizedCrop(32), v1.ToTensor(), v1.RandomErasing(1.0), v1.Lambda(torch.neg)]
    dataset = ImageFolder(str(root), v1.Compose(steps))
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(recognised, (dataset,)) == recognised(dataset)


def test_truncated_images_are_read_if_pillow_is_configured_to(root, monkeypatch):
    for name in ("cats/a.jpg", "cats/b.png"):
        data = (root / name).read_bytes()
        (root / name).write_bytes(data[: len(data) * 2 // 3])
    dataset = ImageFolder(str(root), FIXED)
    strict = pipeline_of(dataset)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    source = pipeline_of(dataset)
    expected = [dataset[k][0] for k in range(7)]
    # As a worker has it, which does not run the script.
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False)
    for sample in range(7):
        assert pixel_error(item_row(source, sample)[0], expected[sample]) * 255 <= 0.06
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False
    for sample in (0, 1):
        with pytest.raises(ImageError):
            item_row(strict, sample)


def test_as_many_pixels_are_read_as_pillow_reads(root, monkeypatch):
    dataset = ImageFolder(str(root), FIXED)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    unlimited = pipeline_of(dataset)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 97 * 131 // 2 - 1)
    limited = pipeline_of(dataset)
    monkeypatch.undo()
    assert unlimited.options.max_pixels > 10**15
    assert pipeline_of(dataset).options.max_pixels == 2 * Image.MAX_IMAGE_PIXELS
    item_row(unlimited, 1)
    item_row(limited, 0)
    with pytest.raises(ImageError, match="97 x 131 = 12707 pixels"):
        item_row(limited, 1)


def test_several_threads_load_at_once(root):
    noise = v1.RandomErasing(1.0, value="random")  # from the states of its own thread
    source = pipeline_of(ImageFolder(str(root), v1.Compose([*RANDOM.transforms, noise])))
    work = [(seed % len(IMAGES), size, seed) for seed in range(40) for size in (16, 48)]
    expected = [item_row(source, *each)[0].tobytes() for each in work]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(3):
            made = threads.map(lambda each: item_row(source, *each)[0].tobytes(), work)
            assert list(made) == expected


def test_strength_weakens_the_crop(tmp_path):
    (tmp_path / "a").mkdir()
    image(1, 32, 32).save(tmp_path / "a" / "1.png")
    steps = [v1.RandomResizedCrop(32, ratio=(1.0, 1.0)), v1.PILToTensor()]
    dataset = ImageFolder(str(tmp_path), v1.Compose(steps))
    weak, _ = item_row(pipeline_of(dataset), 0, strength=0.0)
    assert np.array_equal(weak, np.asarray(image(1, 32, 32)).transpose(2, 0, 1))
    strong, _ = item_row(pipeline_of(dataset), 0, strength=1.0)
    assert not np.array_equal(weak, strong)
