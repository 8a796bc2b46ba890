"""Benchmark of loaders: images, cost of an image, counting in turn, table and JSON."""

import multiprocessing
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from feedline import DataLoader
from feedline.errors import DatasetError, WorkerError
from feedline.images.folder import ImageFolder, sample_folder
from feedline.order.batch_spec import Item
from feedline.profile.bench import (
    benchmark_table,
    make_rows,
    notes,
    survey_images,
    take_turns,
    verdict,
)
from feedline.profile.bench_loaders import (
    TORCH_FORMS,
    ImageSample,
    MeasuredLoader,
    TorchImages,
    Turn,
)


@pytest.fixture
def folder(jpeg_folder):
    return ImageFolder(jpeg_folder)


def quiet(what, done, total):
    """Ignore progress."""


def test_sample_of_a_seed_draws_each_image_once_with_its_label(folder):
    some = sample_folder(folder, seed=3)
    label = {folder.path(k): folder.targets[k] for k in range(len(folder))}
    assert sorted(map(some.path, range(len(some)))) == sorted(label)
    assert [label[some.path(k)] for k in range(len(some))] == some.targets.tolist()
    assert some.classes == folder.classes
    assert len(folder) == 12, "the folder itself is as it was"
    samples = [sample_folder(folder, seed, most=6) for seed in (1, 1, 2)]
    once, again, other = ([few.name(k) for k in range(6)] for few in samples)
    assert {len(few) for few in samples} == {6}
    assert once == again != other


def test_sample_is_repeated_with_other_crops(folder):
    sample = pickle.loads(pickle.dumps(ImageSample(sample_folder(folder, 0), [4, 2, 7])))
    assert len(sample) > 1_000_000
    assert sample.fingerprint() != ImageSample(sample.folder, [2, 4, 7]).fingerprint()
    assert [sample.name(k) for k in range(6)] == [sample.folder.name(k) for k in (4, 2, 7)] * 2

    image, label = np.zeros((32, 32, 3), np.uint8), np.zeros((), np.int64)
    expected = np.zeros_like(image)
    sample.load(Item(4, 32, 99, 1.0), (image, label))
    sample.folder.load(Item(2, 32, 99, 1.0), (expected, np.zeros((), np.int64)))
    assert (image == expected).all()
    assert label == sample.folder.targets[2]

    with DataLoader(sample, 3, image_size=32, shuffle=False, num_workers=0, seed=0) as loader:
        batches = iter(loader)
        first, again = next(batches)[0].numpy(), next(batches)[0].numpy()
    assert (first != again).any(axis=(1, 2, 3)).all()


def test_images_are_measured_and_broken_ones_named(jpeg_folder, tmp_path):
    root = tmp_path / "some"
    shutil.copytree(jpeg_folder, root)
    whole = (root / "cats" / "3.jpg").read_bytes()
    (root / "cats" / "3.jpg").write_bytes(whole[:-100])
    (root / "dogs" / "5.jpg").write_bytes(b"")
    folder = sample_folder(ImageFolder(root), seed=0)
    heard = []
    survey = survey_images(folder, 45, 60, lambda *told: heard.append(told))
    numbers, data = survey.numbers, survey.data

    assert [(done, total) for _, done, total in heard] == [(k, 12) for k in range(1, 13)]
    broken = {Path(path).name: reason for path, reason in survey.broken.items()}
    assert sorted(broken) == ["3.jpg", "5.jpg"]
    assert "ends before its last pixel" in broken["3.jpg"]
    assert "0 bytes" in broken["5.jpg"]
    assert len(numbers) == 10
    assert numbers == sorted(numbers)
    lengths = [Path(folder.path(number)).stat().st_size for number in numbers]
    assert data["file_bytes_mean"] == pytest.approx(sum(lengths) / 10)
    assert (data["height_px_median"], data["width_px_median"]) == (48, 52)
    assert (data["images_measured"], data["images_shorter_than_size"]) == (10, 7)
    assert survey_images(folder, 40, 1e-9, quiet).data["images_shorter_than_size"] == 0
    for path in root.glob("*/*.jpg"):
        path.write_bytes(b"no")
    with pytest.raises(DatasetError, match=r"of 12 images .*\d\.jpg: it is no"):
        survey_images(folder, 64, 60, quiet)


def test_survey_ends_with_time_limit_after_the_first_few(jpeg_folder, tmp_path):
    (tmp_path / "cats").mkdir()
    for number in range(40):
        shutil.copy(jpeg_folder / "cats" / "0.jpg", tmp_path / "cats" / f"{number:02}.jpg")
    survey = survey_images(ImageFolder(tmp_path), 64, 1e-9, quiet)
    assert survey.numbers == list(range(32))
    assert survey.costs["images"] == 8


@pytest.mark.parametrize("images", [1, 12])
def test_every_stage_is_timed(folder, images):
    folder.store = folder.files.select(np.arange(images))
    costs = survey_images(folder, 64, 600, quiet).costs
    parts = [costs[name] for name in ("read_ms", "decode_ms", "resize_ms")]
    assert costs["images"] == images
    assert min(parts) > 0
    assert costs["total_ms"] == pytest.approx(sum(parts))
    assert (costs["read_cold_ms"] is None) == bool(costs["cold_not_measured"])
    assert (costs["read_cold_ms"] or 1.0) > 0
    assert images > 1 or costs["cold_not_measured"]


class Batches:
    """Epochs of 2 batches of 8 images; remembers how many were taken."""

    taken = 0

    def __iter__(self):
        for _ in range(2):
            self.taken += 1
            yield [0] * 8, None


@pytest.mark.parametrize(("ahead", "unit"), [(0, 1), (4, 1), (6, 3)])
def test_prefetched_images_are_not_counted_and_counts_are_whole_units(ahead, unit):
    batches = Batches()
    with MeasuredLoader("x", lambda: batches, ahead=ahead, unit=unit) as loader:
        assert batches.taken == 1
        turn = loader.turn(0.01)
    counted = batches.taken - ahead - unit - 1
    assert turn.images == 8 * counted > 0
    assert counted % unit == 0
    assert turn.seconds >= 0.01
    assert turn.cpu_s >= 0
    assert turn.images_per_s == turn.images / turn.seconds


def test_cpu_time_of_children_is_counted():
    with multiprocessing.get_context("spawn").Pool(1) as child:

        def work():
            while True:
                child.apply(sum, (range(3_000_000),))
                yield [0], None

        with MeasuredLoader("x", work) as loader:
            turn = loader.turn(0.5)
    assert turn.cpu_s > 0.01 * turn.images


class Steady(MeasuredLoader):
    """Counts 100 images a second."""

    def __init__(self, name, log, breaks_at=-1):
        super().__init__(name, lambda: [([0], None)])
        self.first_batch_s, self._log, self._breaks_at = 0.5, log, breaks_at

    def turn(self, seconds):
        self._log.append(self.name)
        if self._log.count(self.name) == self._breaks_at:
            raise WorkerError(f"{self.name} broke\nat length")
        return Turn(images=round(100 * seconds), seconds=seconds, cpu_s=0.0)


def test_loaders_alternate_in_each_round():
    log = []
    heard = []
    loaders = [Steady("a", log), Steady("b", log)]
    turns = take_turns(loaders, 3, 2.0, {}, lambda *told: heard.append(told))
    assert log == ["a", "b"] * 3
    assert heard[0] == ("round 1 of 3: a", 0, 6)
    assert heard[-1] == ("round 3 of 3: b", 5, 6)
    rows = make_rows(turns, cores=2)
    assert [(row["name"], row["loader"], len(row["turns"])) for row in rows] == [
        ("a", "feedline", 3),
        ("b", "torch", 3),
    ]
    assert rows[0]["images_per_s"]["median"] == 100.0
    assert rows[0]["first_batch_s"] == 0.5


def test_torch_failure_skips_torch_but_other_failures_raise():
    log = []
    left_out = {}
    loaders = [Steady("a", log), Steady("b", log, breaks_at=2)]
    turns = take_turns(loaders, 4, 1.0, left_out, quiet)
    assert [loader.name for loader in turns] == ["a"]
    assert log == ["a", "b", "a", "b", "a", "a"]
    assert left_out == {"b": "at length"}
    with pytest.raises(WorkerError, match="c broke"):
        take_turns([Steady("c", [], breaks_at=1)], 1, 1.0, {}, quiet)


def test_torch_variants_match_torchvision_samples(folder):
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchvision")
    sample = ImageSample(folder, [7, 2])
    dtypes = {"pillow": torch.float32, "uint8": torch.uint8}
    assert TORCH_FORMS.keys() == dtypes.keys()
    for form, dtype in dtypes.items():
        dataset = pickle.loads(pickle.dumps(TorchImages(form, sample, 48)))
        assert len(dataset) == len(sample)
        assert [dataset[k][1] for k in range(4)] == [1, 0, 1, 0]
        image, _ = dataset[3]
        assert image.shape == (3, 48, 48)
        assert image.dtype == dtype


# Text and JSON

DATA = {
    "images": 100,
    "classes": 2,
    "images_measured": 100,
    "images_shorter_than_size": 0,
    "file_bytes_mean": 110_000,
    "height_px_median": 400,
    "width_px_median": 500,
}
COSTS = {
    "images": 50,
    "read_ms": 0.1,
    "read_cold_ms": 1.5,
    "cold_not_measured": "",
    "decode_ms": 3.2,
    "resize_ms": 0.7,
    "total_ms": 4.0,
}


class Rated(MeasuredLoader):
    """A loader that reached these rates, with 2 ms of CPU an image."""

    def __init__(self, name, *rates):
        super().__init__(name, lambda: [([0], None)])
        self.first_batch_s = 1.25
        self.turns = [
            Turn(images=round(10 * rate), seconds=10.0, cpu_s=0.02 * rate) for rate in rates
        ]


def rows(*loaders):
    """Rows of feedline at 480, 500 and 520 images/s, and of other loaders."""
    ours = Rated("feedline", 500, 480, 520)
    return make_rows({loader: loader.turns for loader in (ours, *loaders)}, cores=2)


TORCH = Rated("torch", 250, 240, 260)


def result(**changes):
    """100 images of 500 x 400 px on 2 cores."""
    made = {
        "settings": {"size_px": 224, "batch_size": 64},
        "workers": 2,
        "cores_used": 2,
        "other_cores": 0.1,
        "data": DATA,
        "rows": rows(),
        "one_image": COSTS,
        "left_out": [],
        "skipped": [],
        "machine": {"usable_cores": 2},
        **changes,
    }
    return {**made, "verdict": verdict(made), "notes": notes(made)}


def test_verdict_names_the_largest_stage_and_compares_measured_loaders():
    (said,) = verdict(result())
    for fact in ("decoding, 80% of the 4.00 ms", "resizing 18%", "reading 2%"):
        assert fact in said
    slow = {**COSTS, "read_cold_ms": 12.0}
    _, cold, compared = verdict(result(one_image=slow, rows=rows(TORCH)))
    assert "12.00 ms an image from the disk" in cold
    assert "2.00x (2.00-2.00) torch" in compared


def test_unusual_circumstances_are_noted():
    assert notes(result()) == []
    small = {**DATA, "images_measured": 2, "images_shorter_than_size": 1}
    said = notes(result(data=small, workers=1))
    assert "1 of 2 images" in said[0]
    assert "2 images are fewer than a batch of 64" in said[1]
    assert "1 for 2 usable cores" in said[2]
    unknown = {**COSTS, "read_cold_ms": None, "cold_not_measured": "a RAM disk"}
    noisy = rows(Rated("torch", 100, 250, 260))
    said = notes(result(other_cores=1.4, one_image=unknown, rows=noisy))
    for fact in ("a RAM disk", "used 1.4 of 2 cores", "differ by up to 64% (torch)"):
        assert fact in " ".join(said)


def test_table_has_one_line_per_contestant_and_fits_terminal():
    path = "photos/" + "very-long-names/" * 9 + "1.jpg"
    text = benchmark_table(
        result(
            rows=rows(TORCH),
            left_out=[{"what": "torch + Pillow", "reason": "it broke"}],
            skipped=[{"file": path, "reason": "it is empty"}] * 7,
        )
    )
    lines = text.splitlines()
    assert " ".join(lines[3].split()) == "feedline 500 480-520 250 1.00 1.25 s 2.00"
    assert " ".join(lines[4].split()) == "torch 250 240-260 125 0.50 1.25 s 2.00"
    assert "torch + Pillow left out: it broke" in lines
    assert sum(line == f"  {path}: it is empty" for line in lines) == 3
    assert max(len(line) for line in lines if path not in line) <= 100
