"""Raw rows made together: each equals a row made alone, or is not handled."""

import os

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from caches import made, photos
from feedline import DataLoader, EvalCrop, ImageArray, ImageFolder, TrainCrop
from feedline.engine.buffers import batch_bytes
from feedline.engine.load_samples import fill, record_stages
from feedline.engine.messages import READING, ROW, RowTask
from feedline.errors import ImageError
from feedline.images import resize
from feedline.images.crops import Box, Window
from feedline.images.resize import FILTERS, place_rows
from feedline.images.rows import ImageSubset
from feedline.order.batch_spec import Items
from feedline.sources.files import storage_read
from feedline.sources.manifest import level_size, level_sizes
from feedline.timing.stage_page import PAGE_WORDS, StagePage, read_page

pytestmark = pytest.mark.skipif(resize.compiled is None, reason="not compiled")
PATHS = resize.compiled.PATHS if resize.compiled else ()
FORMATS = ("webdataset", "lmdb")
SIDE = 24


@pytest.fixture(params=PATHS)
def path(request):
    assert resize.compiled is not None
    resize.compiled.use_path(request.param)
    yield request.param
    resize.compiled.use_path(PATHS[-1])


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    root = tmp_path_factory.mktemp("raw")
    photos(root / "photos")

    def cache(format):
        if not (root / format).exists():
            made(root / "photos", root / format, format, raw=True)
        return root / format

    return cache


@pytest.fixture
def cache(built, tmp_path):
    """A cache that a test may damage."""
    made(built("webdataset").parent / "photos", tmp_path / "cache", raw=True)
    return tmp_path / "cache"


def noise(count, height, width):
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), np.uint8)


def items_of(samples, size, strength=1.0):
    numbers = np.array(list(samples), np.int64)
    seeds = np.random.default_rng(1).integers(0, 1 << 64, len(numbers), np.uint64)
    return Items(numbers, size, seeds, strength)


def memory(source, items):
    rows = len(items.samples)
    return tuple(
        np.full((rows, *field.shape), 77, field.dtype) for field in source.fields(items.image_size)
    )


def together(source, items):
    rows, begun = memory(source, items), []
    left = list(source.load_rows(items, rows, begun.append, None))
    assert begun == (list(range(len(items.samples))) if len(left) < len(begun) else begun)
    return rows, left


def alone(source, items):
    rows = memory(source, items)
    for k, item in enumerate(items.each()):
        source.load(item, tuple(array[k, ...] for array in rows))
    return rows


def assert_equal(source, items):
    rows, left = together(source, items)
    assert left == []
    for found, expected in zip(rows, alone(source, items), strict=True):
        assert np.array_equal(found, expected)


class OffCentre:
    """A user's crop: the lower right corner of every image."""

    def place(self, height, width, item):
        if item.sample % 2:
            return Window(40, 50, 40 - SIDE, 50 - SIDE, True, "lanczos")
        return Box(height // 3, width // 3, height - height // 3, width - width // 3, True)


CROPS = (
    *(TrainCrop(filter=filter) for filter in FILTERS),
    TrainCrop((1.0, 1.0), (1.0, 1.0), 1),
    TrainCrop((0.01, 0.02), (0.2, 9.0), 0.3),
    TrainCrop((0.9, 1.0), (6.0, 7.0)),
    EvalCrop(1.0),
    OffCentre(),
)


@pytest.mark.parametrize("format", FORMATS)
def test_cache_rows_equal_rows_made_one_by_one(built, path, format):
    for crop in CROPS:
        source = ImageFolder(built(format), crop)
        for size, strength in ((SIDE, 1.0), (16, 0.3), (7, 0.0)):
            assert_equal(source, items_of([*range(len(source)), 3, 3, 0] * 3, size, strength))


@pytest.mark.parametrize(("height", "width"), [(24, 24), (1, 1), (3, 300), (61, 40)])
def test_array_rows_equal_rows_made_one_by_one(path, height, width):
    for crop in CROPS:
        source = ImageArray(noise(9, height, width), np.arange(9), crop)
        items = items_of([*range(9)] * 5, SIDE)
        rows, left = together(source, items)
        expected = alone(source, items)
        assert len(left) == 0 or width == 300  # some of its resizes are too steep
        for k in set(range(45)) - set(left):
            assert np.array_equal(rows[0][k], expected[0][k])
        assert np.array_equal(rows[1], expected[1])


def test_rows_of_a_subset_and_of_files_with_a_cache(built):
    whole = ImageFolder(built("webdataset"))
    assert_equal(ImageSubset(whole, np.array([7, 2, 2])), items_of([2, 0, 1, 0], SIDE))
    folder = ImageFolder(built("webdataset").parent / "photos")
    assert_equal(folder.cached(whole.store), items_of([5, 0, 11], SIDE))


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=1, max_size=8),
    st.integers(1, 300),
    st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 1.0)),
    st.tuples(st.floats(0.1, 9.0), st.floats(0.1, 9.0)),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
    st.integers(0, 2**64 - 1),
)
def test_crops_equal_those_drawn_one_by_one(originals, side, scale, ratio, flip, strength, seed):
    crop = TrainCrop(tuple(sorted(scale)), tuple(sorted(ratio)), flip)
    seeds = np.array([seed ^ k for k in range(len(originals))], np.uint64)
    items = Items(np.arange(len(originals)), 9, seeds, strength)
    copies = [level_size(*original, side) for original in originals]
    assert level_sizes(np.array(originals), side).tolist() == [list(copy) for copy in copies]
    sizes = np.hstack([np.array(originals), np.array(copies)])
    placements = place_rows(crop, items, sizes).tolist()
    for item, original, copy, found in zip(
        items.each(), originals, copies, placements, strict=True
    ):
        box = crop.place(*original, item).map_to_copy(*copy, original=original)
        area = box.edges or (0.0, 0.0, box.height, box.width)
        assert found == [*copy, *box[:4], *area, 9, 9, 0, 0, box.flip, 0]


@given(st.integers(38, 900), st.integers(0, 2**64 - 1), st.sampled_from(PATHS or ["none"]))
def test_checksums_equal_xxhash(pixels, seed, path):
    assert resize.compiled is not None
    image = np.random.default_rng(pixels).integers(0, 256, 128 + 3 * pixels, np.uint8).tobytes()
    expected = xxhash.xxh3_64_intdigest(image, seed=seed)
    placement = np.array([[1, pixels, 0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0]], np.float64)
    resize.compiled.use_path(path)
    for found, left in ((expected, []), (expected ^ 1 << 63, [0])):
        row, checks = np.zeros((1, 1, 1, 3), np.uint8), np.array([[seed, found]], np.uint64)
        arguments = (image,), 128, placement, checks, row, None, None, None
        assert resize.compiled.resample_rows(*arguments) == left
        assert row.tobytes() == (image[128:131] if not left else bytes(3))
    resize.compiled.use_path(PATHS[-1])


def damage(cache, sample):
    (shard,) = (cache / str(SIDE)).iterdir()
    pixels = ImageFolder(cache).store.read(sample, SIDE)
    assert isinstance(pixels, np.ndarray)
    whole = shard.read_bytes()
    at = whole.index(pixels.tobytes()) + 40
    shard.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])


def test_a_damaged_row_is_left_and_the_others_are_made(cache):
    items = items_of([4, 5, 6, 5], SIDE)
    expected = alone(ImageFolder(cache), items)
    damage(cache, 5)
    source = ImageFolder(cache)
    rows, left = together(source, items)
    assert left == [1, 3]
    assert np.array_equal(rows[0][[0, 2]], expected[0][[0, 2]])
    assert (rows[0][[1, 3]] == 77).all()
    with pytest.raises(ImageError, match=r"sample 5, .*checksum differs"):
        alone(source, items)
    with DataLoader(source, 12, image_size=SIDE, shuffle=False, on_error="skip") as loader:
        ((images, _),) = loader
        assert len(images) == 11
        assert [name for name, _ in loader.skipped] == [source.name(5)]


def test_rows_of_missing_samples_and_of_a_missing_shard_are_left(cache):
    for sample in (-1, 12):
        assert together(ImageFolder(cache), items_of([0, sample], SIDE))[1] == [0, 1]
    (shard,) = (cache / str(SIDE)).iterdir()
    os.unlink(shard)
    assert together(ImageFolder(cache), items_of([0, 1], SIDE))[1] == [0, 1]


class Retouched(TrainCrop):
    def retouch(self, pixels, item):
        pixels[:] = 255 - pixels


class Own(ImageFolder):
    def load(self, item, row):
        row[0][:] = 3


def test_only_resized_raw_pixels_are_handled(built, tmp_path):
    root, items = built("webdataset"), items_of([0, 1], SIDE)
    made(root.parent / "photos", tmp_path / "jpegs")
    grey = ImageArray(noise(2, 9, 9)[..., :1].copy(), np.arange(2))
    deep = ImageArray(noise(2, 9, 9).astype(np.uint16), np.arange(2))
    nearest = ImageFolder(root, TrainCrop(filter="nearest"))
    for source in (
        *(ImageFolder(root, Retouched()), Own(root), nearest, grey, deep),
        *(ImageFolder(tmp_path / "jpegs"), ImageFolder(root.parent / "photos")),
    ):
        rows, left = together(source, items)
        assert left == [0, 1]
        assert (rows[0] == 77).all()


def test_a_task_mixes_rows_made_together_and_alone(built):
    crop = TrainCrop(filter=("bilinear", "nearest"))
    source = ImageFolder(built("webdataset"), crop)
    items = items_of([*range(12)] * 3, SIDE)
    assert 0 < len(together(source, items)[1]) < 36
    with DataLoader(source, 36, image_size=SIDE, num_workers=0, seed=4) as loader:
        images = next(iter(loader))[0].numpy().copy()
    with DataLoader(source, 36, image_size=SIDE, num_workers=2, seed=4) as loader:
        assert np.array_equal(next(iter(loader))[0].numpy(), images)


def task_of(source, rows):
    nbytes = batch_bytes(source.fields(SIDE), rows)
    samples = np.arange(rows) % len(source)
    task = RowTask(1, samples, slot_bytes=nbytes, batch_rows=rows, image_size=SIDE, seed=3)
    return task, np.zeros(nbytes, np.uint8), np.zeros(8, np.int64)


def test_each_row_shows_in_the_heartbeat_table_as_storage_that_is_read(built, monkeypatch):
    source = ImageFolder(built("webdataset"))
    task, block, line = task_of(source, 5)
    seen = []
    monkeypatch.setattr(storage_read, "_flag", line[READING : READING + 1])
    load_rows = source.load_rows

    def watched(items, rows, begin_row, end_row):
        def begin(row):
            begin_row(row)
            seen.append((int(line[ROW]), int(line[READING])))

        return load_rows(items, rows, begin, end_row)

    monkeypatch.setattr(source, "load_rows", watched)
    assert fill(task, source, block, line, 0).failures == ()
    assert seen == [(row, 1) for row in range(5)]
    assert line[READING] == 0


def test_an_error_of_progress_ends_the_task_and_its_read(built):
    source = ImageFolder(built("webdataset"))
    items = items_of(range(4), SIDE)
    rows = memory(source, items)

    def stop(row):
        if row == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        source.load_rows(items, rows, stop, None)
    assert np.array_equal(rows[0][:2], alone(source, items)[0][:2])
    assert (rows[0][2:] == 77).all()


def test_a_timed_task_has_a_read_and_a_resize_for_each_row(built):
    source = ImageFolder(built("webdataset"))
    memory, tasks = np.zeros(PAGE_WORDS, np.int64), 8
    page = StagePage(memory)
    for _ in range(tasks):  # one of which is timed
        task, block, line = task_of(source, 6)
        assert record_stages(page, fill, task, source, block, line, 0).failures == ()
    timings = read_page(memory)
    assert (timings.tasks, timings.timed) == (tasks, 1)
    assert timings.stages["read"].count == timings.stages["resize"].count == 6
    assert sum(count for count, _ in timings.sample_sizes.values()) == 6


def test_wrong_arguments_are_rejected():
    assert resize.compiled is not None
    images, rows = (bytes(27),), np.zeros((1, 4, 4, 3), np.uint8)
    placements, none = np.zeros((1, 16)), np.empty((0, 2), np.uint64)
    good = [images, 0, placements, none, rows, None, None, None]
    assert resize.compiled.resample_rows(*good) == [0]
    for at, bad in (
        (1, -1),
        (2, np.zeros((1, 15))),
        (2, np.zeros((2, 16))),
        (2, np.zeros((1, 16), np.int64)),
        (3, np.zeros((2, 2), np.uint64)),
        (3, np.zeros((1, 2), np.int64)),
        (4, np.zeros((1, 4, 4, 4), np.uint8)),
        (4, np.zeros((4, 4, 3), np.uint8)),
        (4, np.zeros((1, 4, 4, 3), np.int8)),
    ):
        with pytest.raises(ValueError, match="must be"):
            resize.compiled.resample_rows(*good[:at], bad, *good[at + 1 :])
    seeds, sizes, crop = np.zeros(1, np.uint64), np.ones((1, 4), np.int64), (1.0,) * 8
    for bad in (
        (seeds[:0], sizes, placements),
        (seeds, sizes[:, :3].copy(), placements),
        (seeds, sizes.astype(np.float64), placements),
    ):
        with pytest.raises(ValueError, match="must be"):
            resize.compiled.place_crops(*bad, crop, 4, 0)


@pytest.mark.parametrize(
    "placement",
    [
        (3, 3, 0, 0, 4, 3, 0, 0, 3, 3, 4, 4, 0, 0, 0, 0),
        (3, 3, 2, 0, 2, 3, 0, 0, 2, 3, 4, 4, 0, 0, 0, 0),
        (3, 3, 0, -1, 3, 3, 0, 0, 3, 3, 4, 4, 0, 0, 0, 0),
        (3, 3, 0, 0, 3, 3, 0, 0, 3.5, 3, 4, 4, 0, 0, 0, 0),
        (3, 3, 0, 0, 3, 3, 0, 0, np.nan, 3, 4, 4, 0, 0, 0, 0),
        (3, 3, 0, 0, 3, 3, 0, 0, 3, 3, 1e300, 4, 0, 0, 0, 0),
        (3, 3, 0, 0, 3, 3, 0, 0, 3, 3, 3, 4, 0, 0, 0, 0),
        (3, 3, 0, 0, 3, 3, 0, 0, 3, 3, 4, 4, 0, 0, 0, 5),
        (9, 1, 0, 0, 3, 3, 0, 0, 3, 3, 4, 4, 0, 0, 0, 0),
        (np.inf, np.nan, 0, 0, 3, 3, 0, 0, 3, 3, 4, 4, 0, 0, 0, 0),
    ],
)
def test_a_row_whose_placement_is_not_in_its_image_is_left(placement):
    assert resize.compiled is not None
    rows = np.full((1, 4, 4, 3), 77, np.uint8)
    arguments = (bytes(27),), 0, np.array([placement], float), np.empty((0, 2), np.uint64), rows
    assert resize.compiled.resample_rows(*arguments, None, None, None) == [0]
    assert (rows == 77).all()
