"""Cache builds: contents, and unsupported sources."""

import gc
import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from caches import FORMATS, photos, shown
from feedline import ImageFolder
from feedline.cache.build import build_cache
from feedline.cache.level_encoder import LevelEncoder
from feedline.errors import DatasetError, ImageError, ResourceError, UsageError
from feedline.images.codec_base import DecodeOptions
from feedline.sources.manifest import Level
from feedline.sources.remote_cache import open_cache
from processes import eventually, newcomers, own_family

lmdb = pytest.importorskip("lmdb")


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_cache_contains_all_samples_of_source(odd_photos, root, format, raw):
    source, before = ImageFolder(odd_photos), own_family()
    made = build_cache(odd_photos, root, (24, 16), format=format, raw=raw, workers=2)
    assert eventually(lambda: not newcomers(before))
    assert [level.side for level in made.levels] == [16, 24]
    cache = ImageFolder(root)
    assert cache.classes == source.classes
    assert cache.targets.tolist() == source.targets.tolist()
    for sample in range(len(source)):
        assert source.path(sample) == str(odd_photos / cache.name(sample))
    for side in (16, 24):
        for sample, copy in enumerate(shown(root, side)):
            original = Image.open(source.path(sample)).convert("RGB")
            assert cache.store.original_size(sample) == original.size[::-1]
            assert min(copy.shape[:2]) == min(side, *original.size)
            same_size = np.asarray(original.resize(copy.shape[1::-1], Image.Resampling.BICUBIC))
            assert np.abs(copy.astype(int) - same_size).mean() < (1 if raw else 8)
    assert build_cache(odd_photos, root, (24, 16), format=format, raw=raw) == made


def test_small_image_is_copied_unchanged(odd_photos, root):
    build_cache(odd_photos, root, (16, 64), workers=1)
    source, store = ImageFolder(odd_photos), open_cache(root)
    for sample in range(len(source)):
        assert store.read(sample, 64) == Path(source.path(sample)).read_bytes()


def test_copies_are_ordinary_jpegs_with_restart_markers():
    shades = np.linspace(0, 255, 300 * 400 * 3).reshape(300, 400, 3).astype(np.uint8)
    encoder = LevelEncoder([Level(side=96, quality=95)], DecodeOptions())
    (copy,) = encoder.make_copies(shades).images
    interval = copy.index(b"\xff\xdd\x00\x04")  # ITU T.81, B.2.4.4
    assert int.from_bytes(copy[interval + 4 : interval + 6], "big") == 4
    # 96 x 128 pixels: 6 x 8 blocks of 16 x 16.
    assert sum(copy.count(bytes((0xFF, 0xD0 + k))) for k in range(8)) == 6 * 8 // 4 - 1
    found = simplejpeg.decode_jpeg(copy)
    assert found.shape == (96, 128, 3)
    assert np.array_equal(found, np.asarray(Image.open(io.BytesIO(copy))))
    assert encoder.make_copies(shades).images == (copy,)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("raw", [False, True])
def test_webdataset_reads_the_shards(odd_photos, root, raw):
    webdataset = pytest.importorskip("webdataset")
    made = build_cache(odd_photos, root, (16,), raw=raw, workers=1)
    shards = f"{root}/16/{{000000..{len(made.levels[0].shards) - 1:06}}}.tar"
    names = ("npy" if raw else "jpg", "cls", "json")
    reader = webdataset.WebDataset(shards, shardshuffle=False, empty_check=False)
    found = list(reader.decode("rgb8").to_tuple(*names))
    store, copies = open_cache(root), shown(root, 16)
    assert [label for _, label, _ in found] == store.labels.tolist()
    for sample, (pixels, label, about) in enumerate(found):
        assert np.array_equal(pixels, copies[sample])
        height, width = store.original_size(sample)
        assert about == {
            "label": label,
            "class": store.classes[label],
            "path": store.name(sample),
            "height": height,
            "width": width,
        }
    gc.collect()  # it leaves its files open


def test_lmdb_is_readable_by_its_keys(odd_photos, root):
    build_cache(odd_photos, root, (16,), format="lmdb", workers=1)
    with lmdb.open(str(root / "16"), readonly=True, lock=False) as opened:
        entries = {key.decode(): value for key, value in opened.begin().cursor()}
    assert len(entries) == 3 * 70
    store, other = open_cache(root), open_cache(root)
    for sample in (0, 69):
        name = f"{sample:09d}"
        assert entries[f"{name}.jpg"] == store.read(sample, 16) == other.read(sample, 16)
        assert int(entries[f"{name}.cls"]) == store.label(sample)
        assert json.loads(entries[f"{name}.json"])["path"] == store.name(sample)


def test_files_are_stored_in_class_folders(odd_photos, root):
    build_cache(odd_photos, root, (16,), format="folder", workers=1)
    folders = {path.name for path in (root / "16").iterdir()}
    assert folders == {"ants", "bees.v2", "%2Ehidden"}
    found = [path.name.partition("-")[2] for path in sorted((root / "16").rglob("*.jpg"))]
    names = [Path(path) for path in map(ImageFolder(odd_photos).path, range(70))]
    assert found == [f"{path.stem}.jpg" for path in names]


@pytest.mark.parametrize("exif", [False, True])
def test_exif_orientation_is_applied_on_request(tmp_path, root, exif):
    folder = tmp_path / "photos" / "a"
    folder.mkdir(parents=True)
    tags = Image.Exif()
    tags[0x0112] = 6
    for number, size in enumerate([(20, 10), (60, 30)]):
        Image.new("RGB", size, (200, 30, 30)).save(folder / f"{number}.jpg", exif=tags)
    build_cache(folder.parent, root, (16,), exif=exif, workers=1)
    shapes = [copy.shape[:2] for copy in shown(root, 16)]
    assert shapes == ([(20, 10), (32, 16)] if exif else [(10, 20), (16, 32)])
    with pytest.raises(UsageError, match=r"was built with(out)? rotating images"):
        ImageFolder(root, exif=not exif)


# Broken images


def test_broken_image_raises_or_is_skipped_and_listed(odd_photos, root):
    broken = odd_photos / "ants" / "12.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.raises(ImageError, match=r"ants/12\.jpg, cannot be cached: "):
        build_cache(odd_photos, root, (16,), workers=2)
    with pytest.raises(DatasetError):
        ImageFolder(root)
    made = build_cache(odd_photos, root, (16,), workers=2, on_error="skip")
    ((number, name, why),) = made.skipped
    assert (made.samples, name) == (69, "ants/12.jpg")
    assert "JPEG" in why or "end" in why
    source, cache = ImageFolder(odd_photos), ImageFolder(root)
    names = [os.path.relpath(source.path(k), odd_photos) for k in range(70) if k != number]
    assert [cache.name(sample) for sample in range(69)] == names
    assert build_cache(odd_photos, root, (16,), on_error="skip") == made
    Image.new("RGB", (40, 30)).save(broken)  # mended, it is put in
    assert build_cache(odd_photos, root, (16,)).samples == 70


def test_copy_too_large_for_jpeg_raises_or_is_skipped(few, root, tmp_path):
    Image.new("RGB", (132_000, 18)).save(few / "cats" / "long.png")
    build_cache(few, tmp_path / "raw", (16,), raw=True, workers=1)
    with pytest.raises(ImageError, match=r"cats/long\.png, .* 117333 x 16 pixels.* JPEG"):
        build_cache(few, root, (16,), workers=1)
    made = build_cache(few, root, (16,), on_error="skip", workers=1)
    assert [name for _, name, _ in made.skipped] == ["cats/long.png"]


# What cannot be


def test_concurrent_builds_in_one_folder_are_rejected(few, root, monkeypatch):
    monkeypatch.setattr("feedline.sources.cache_folder._PATIENCE_S", 0.1)
    refused = []

    def meanwhile(state):
        if not refused:
            with pytest.raises(UsageError, match=rf"another build is running.*{os.getpid()}"):
                build_cache(few, root, (16,), workers=1)
            refused.append(True)

    build_cache(few, root, (16,), workers=1, progress=meanwhile)
    assert refused
    assert len(ImageFolder(root)) == 12


def test_build_does_not_resume_with_other_settings(odd_photos, root):
    broken = odd_photos / "ants" / "69.jpg"
    whole = broken.read_bytes()
    broken.write_bytes(b"none")
    with pytest.raises(ImageError, match="not a supported image"):
        build_cache(odd_photos, root, (16,), workers=1)
    said = r"(?s)unfinished build with levels .*90.*remove the folder"
    with pytest.raises(UsageError, match=said):
        build_cache(odd_photos, root, (16,), quality=90)
    broken.write_bytes(whole)
    build_cache(odd_photos, root, (16,), workers=1)
    with pytest.raises(UsageError, match=r"holds a cache with levels .*'16 px JPEG q95'.*, not"):
        build_cache(odd_photos, root, (16, 24))


def test_too_small_disk_is_rejected_before_building(few, root, monkeypatch):
    free = shutil.disk_usage(few)._replace(free=5_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    said = r"needs about [1-9][\d.]* kB \(16 px JPEG q95 .*5\.0 kB free"
    with pytest.raises(ResourceError, match=said):
        build_cache(few, root, (16,))
    assert [path.name for path in root.iterdir()] == [".lock"]


def test_too_small_lmdb_map_grows(odd_photos, root, monkeypatch):
    monkeypatch.setattr("feedline.sources.cache_formats._MIN_MAP_BYTES", 1 << 15)
    sizes = property(lambda self: (100, 100))
    monkeypatch.setattr("feedline.cache.spec.Estimate.level_bytes", sizes)
    build_cache(odd_photos, root, (16, 24), format="lmdb", workers=1)
    assert len(shown(root, 24)) == 70


INSIDE = "would lie inside its source"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sizes": ()}, "sizes must be"),
        ({"sizes": (4,)}, "from 8 to 8192 pixels, got 4"),
        ({"sizes": ("16",)}, "got '16'"),
        ({"quality": 0}, "quality must be from 1 to 100"),
        ({"on_error": "ignore"}, "on_error must be"),
        ({"format": "zip"}, "format must be one of webdataset, lmdb, folder"),
        ({"workers": "many"}, "got 'many'"),
        ({"source": 5}, "a map-style Dataset"),
        ({"source": "/nowhere"}, "no such folder"),
        ({"root": "photos/cache"}, INSIDE),
        ({"root": "photos"}, INSIDE),
        ({"root": "link/cache"}, INSIDE),
        ({"source": "link", "root": "photos/cache"}, INSIDE),
        ({"root": "full"}, "is not empty"),
        ({"root": "full/letter.txt"}, "is an existing file"),
        ({"root": "full/letter.txt/cache"}, "cannot write to the cache folder .*Not a directory"),
        ({"quality": 90, "raw": True}, "quality 90 "),
    ],
)
def test_unsupported_source_raises_with_its_name(few, tmp_path, monkeypatch, options, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(few)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    given = {"source": few, "root": "cache", "sizes": (16,), **options}
    with pytest.raises((UsageError, ResourceError), match=said):
        build_cache(**given)
    assert {path.name for path in tmp_path.iterdir()} == {"photos", "link", "full"}
    assert {path.name for path in few.iterdir()} == {"cats", "dogs"}


def test_class_name_may_be_unfinished(few, root, tmp_path):
    (few / "cats").rename(few / "unfinished")
    build_cache(few, root, (16,), workers=1)
    assert ImageFolder(root).classes == ["dogs", "unfinished"]
    with pytest.raises(UsageError, match="is not empty"):
        build_cache(photos(tmp_path / "other"), few, (16,), workers=1)
    assert len(ImageFolder(few)) == 12


@pytest.mark.parametrize("format", FORMATS)
def test_class_names_may_be_any_bytes(few, root, format):
    names = [os.fsdecode(b"a\xff"), "a%FF", "\u00e9 \u732b"]
    shutil.copytree(few / "cats", few / "cows")
    try:
        for path, name in zip(sorted(few.iterdir()), names, strict=True):
            path.rename(few / name)
    except OSError:
        pytest.skip("this file system takes text only")
    build_cache(few, root, (16,), format=format, workers=1)
    assert ImageFolder(root).classes == sorted(names)
    assert len(shown(root, 16)) == 18
