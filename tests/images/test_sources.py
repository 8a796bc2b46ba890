"""The contract of all image sources: rows, batches, states and caches of the folder they hold."""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

import own_sources
from feedline import DataLoader, EvalCrop, ImageArray, ImageFolder, TrainCrop, build_cache
from feedline.errors import FeedlineError, ImageError, SampleError
from feedline.order.batch_spec import Field
from torchvision_folder import image, item_row

SIZE = 16


def write_photos(root, count):
    """Create root/CLASS/N.jpg: images of one size, as an array needs them."""
    for number in range(count):
        path = root / ("cats", "dogs")[2 * number // count] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image(number, 48, 40).save(path, quality=92)
    return root


def array_file(root, scratch, crop):
    source = own_sources.array(root, scratch, crop)
    np.save(scratch / "images.npy", source.images)
    np.save(scratch / "labels.npy", source.targets)
    return ImageArray(scratch / "images.npy", scratch / "labels.npy")


KINDS = {
    **{each.__name__: each for each in own_sources.SOURCES},
    **{
        f"hugging face, {kind}": lambda *given, kind=kind: own_sources.hugging_face(*given, kind)
        for kind in ("bytes", "saved")
    },
    "array": own_sources.array,
    "array file": array_file,
}


FILES = [kind for kind in KINDS if not kind.startswith("array")]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("photos") / "photos", 12)


@pytest.fixture(params=KINDS)
def create(request, tmp_path):
    """A function that makes a source of the images of a folder."""

    def of(root):
        scratch = tmp_path / f"of {len(own_sources.files(root))}"
        scratch.mkdir()
        return KINDS[request.param](root, scratch, TrainCrop())

    return of


@pytest.mark.parametrize("crop", [TrainCrop(), EvalCrop()])
def test_rows_equal_those_of_the_folder(create, photos, crop):
    source, folder = create(photos).with_transform(crop), ImageFolder(photos, crop)
    assert len(source) == len(folder) == 12
    assert source.targets.tolist() == folder.targets.tolist()
    assert source.classes in (["cats", "dogs"], [])
    assert source.fields(SIZE) == (
        Field("image", "uint8", (SIZE, SIZE, 3)),
        Field("label", "int64", ()),
    )
    copy = pickle.loads(pickle.dumps(source, protocol=5))
    assert copy.fingerprint() == source.fingerprint()
    for sample in range(12):
        wanted, number = item_row(folder, sample, SIZE, seed=sample)
        for each in (source, copy):
            pixels, label = item_row(each, sample, SIZE, seed=sample)
            assert np.array_equal(pixels, wanted)
            assert label == number


def assert_refused(source, sample):
    with pytest.raises(IndexError):
        item_row(source, sample, SIZE)
    with pytest.raises(IndexError):
        source.name(sample)
    loader = DataLoader(source, 2, image_size=SIZE, sampler=[0, sample])
    with loader, pytest.raises(SampleError):
        list(loader)


@pytest.mark.parametrize("sample", [-1, 12])
def test_samples_outside_the_source_are_refused(create, photos, sample):
    assert_refused(create(photos), sample)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("sample", [-1, 12])
def test_samples_outside_a_cache_are_refused(photos, tmp_path, raw, sample):
    build_cache(photos, tmp_path / "cache", (32,), raw=raw, workers=0)
    cache = ImageFolder(tmp_path / "cache")
    for source in (cache, ImageFolder(photos).cached(cache.store)):
        assert_refused(source, sample)


@pytest.mark.parametrize("create", [kind for kind in KINDS if ", " not in kind], indirect=True)
def test_batches_and_states_are_those_of_the_folder(create, photos):
    options = {"schedule": "8x1,16x1", "seed": 4, "prefetch": 1, "shuffle": True}
    source = create(photos)
    wanted = own_sources.epochs(ImageFolder(photos), num_workers=0, **options)
    own_sources.assert_same(own_sources.epochs(source, num_workers=2, **options), wanted)
    with DataLoader(source, 5, num_workers=0, **options) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with DataLoader(source.with_transform(source.transform), 5, num_workers=0, **options) as loader:
        loader.load_state_dict(state)
        rest = [batch for _ in range(2) for batch in loader]
    own_sources.assert_same(rest, wanted[1:])


def test_a_state_of_other_images_does_not_fit(create, photos, tmp_path):
    other = create(write_photos(tmp_path / "photos", 11))
    with DataLoader(create(photos), 4, image_size=SIZE, seed=1) as loader:
        state = loader.state_dict()
    with (
        DataLoader(other, 4, image_size=SIZE, seed=1) as loader,
        pytest.raises(FeedlineError, match="cannot resume"),
    ):
        loader.load_state_dict(state)


@pytest.mark.parametrize("create", FILES, indirect=True)
def test_a_broken_image_is_named_and_skipped(create, tmp_path):
    root = write_photos(tmp_path / "photos", 6)
    (root / "cats" / "01.jpg").write_bytes(b"\xff\xd8\xff" + b"garbage" * 9)
    source = create(root)
    with pytest.raises(ImageError, match="sample 1, ") as caught:
        item_row(source, 1, SIZE)
    assert source.name(1) in str(caught.value)
    with DataLoader(source, 6, image_size=SIZE, on_error="skip") as loader:
        assert [len(labels) for _, labels in loader] == [5]
        assert [name for name, _ in loader.skipped] == [source.name(1)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "hugging_face"])
def test_relative_paths_are_found_from_elsewhere(kind, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(photos, "photos")
    Path("scratch").mkdir()
    source = KINDS[kind](Path("photos"), Path("scratch"), None).with_transform(EvalCrop())
    monkeypatch.chdir("/")
    wanted = item_row(ImageFolder(photos, EvalCrop()), 3, SIZE)[0]
    for each in (source, pickle.loads(pickle.dumps(source))):
        assert np.array_equal(item_row(each, 3, SIZE)[0], wanted)


@pytest.mark.parametrize("kind", ["paths", "lmdb", "shards"])
def test_a_cache_of_it_is_that_of_the_folder(kind, photos, tmp_path):
    source = KINDS[kind](photos, tmp_path, TrainCrop())
    for name, data in (("ours", source), ("folder", photos)):
        build_cache(data, tmp_path / name, (24,), workers=0)
    ours, folder = (ImageFolder(tmp_path / name, EvalCrop()) for name in ("ours", "folder"))
    assert list(ours.classes) == ["cats", "dogs"]
    assert ours.targets.tolist() == folder.targets.tolist()
    for sample in range(12):
        assert np.array_equal(item_row(ours, sample, SIZE)[0], item_row(folder, sample, SIZE)[0])
