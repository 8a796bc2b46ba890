"""Cache builds: contents, and unsupported sources."""

from __future__ import annotations

import gc
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from caches import EVERY_FORMAT, FORMATS, shown
from feedline import ImageFolder
from feedline.cache.build import build_cache
from feedline.cache.level_encoder import LevelEncoder
from feedline.errors import DatasetError, ImageError, ResourceError, UsageError
from feedline.images.codec_registry import DecodeOptions
from feedline.sources.manifest import Level
from feedline.sources.remote_cache import open_cache
from processes import eventually, newcomers, own_family

lmdb = pytest.importorskip("lmdb")


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("format", EVERY_FORMAT)
def test_cache_contains_all_samples_of_source(
    odd_photos: Path, tmp_path: Path, format: Any, raw: bool
) -> None:
    source = ImageFolder(odd_photos)
    made = build_cache(odd_photos, tmp_path / "cache", (24, 16), format=format, raw=raw, workers=2)
    assert [level.side for level in made.levels] == [16, 24]
    cache = ImageFolder(tmp_path / "cache")
    assert cache.classes == source.classes
    assert cache.targets.tolist() == source.targets.tolist()
    for sample in range(len(source)):
        assert source.path(sample) == str(odd_photos / cache.name(sample))
    for side in (16, 24):
        for sample, copy in enumerate(shown(tmp_path / "cache", side)):
            original = Image.open(source.path(sample)).convert("RGB")
            assert cache.store.original_size(sample) == original.size[::-1]
            assert min(copy.shape[:2]) == min(side, *original.size)
            same_size = np.asarray(original.resize(copy.shape[1::-1], Image.Resampling.BICUBIC))
            assert np.abs(copy.astype(int) - same_size).mean() < (1 if raw else 8)
    again = build_cache(odd_photos, tmp_path / "cache", (24, 16), format=format, raw=raw)
    assert again == made


def test_small_image_is_copied_unchanged(odd_photos: Path, tmp_path: Path) -> None:
    build_cache(odd_photos, tmp_path / "cache", (16, 64), workers=1)
    source, store = ImageFolder(odd_photos), open_cache(tmp_path / "cache")
    for sample in range(len(source)):
        original = Path(source.path(sample))
        assert store.read(sample, 64) == original.read_bytes()


def test_copies_are_ordinary_jpegs_with_restart_markers() -> None:
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
def test_webdataset_reads_the_shards(odd_photos: Path, tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    for raw in (False, True):
        root = tmp_path / f"raw {raw}"
        made = build_cache(odd_photos, root, (16,), raw=raw, workers=1)
        shards = f"{root}/16/{{000000..{len(made.levels[0].shards) - 1:06}}}.tar"
        names = ("npy", "cls", "json") if raw else ("jpg", "cls", "json")
        reader = webdataset.WebDataset(shards, shardshuffle=False, empty_check=False)
        found = list(reader.decode("rgb8").to_tuple(*names))
        store = open_cache(root)
        assert [label for _, label, _ in found] == store.labels.tolist()
        for sample, (pixels, label, about) in enumerate(found):
            copy = shown(root, 16)[sample] if sample < 3 else None
            assert copy is None or np.array_equal(pixels, copy)
            assert about == {
                "label": label,
                "class": store.classes[label],
                "path": store.name(sample),
                "height": store.original_size(sample)[0],
                "width": store.original_size(sample)[1],
            }
    gc.collect()  # it leaves its files open


def test_lmdb_is_readable_by_its_keys(odd_photos: Path, tmp_path: Path) -> None:
    build_cache(odd_photos, tmp_path / "cache", (16,), format="lmdb", workers=1)
    with lmdb.open(str(tmp_path / "cache" / "16"), readonly=True, lock=False) as opened:
        entries = {key.decode(): value for key, value in opened.begin().cursor()}
    assert len(entries) == 3 * 70
    store, other = open_cache(tmp_path / "cache"), open_cache(tmp_path / "cache")
    for sample in (0, 69):
        name = f"{sample:09d}"
        assert entries[f"{name}.jpg"] == store.read(sample, 16) == other.read(sample, 16)
        assert int(entries[f"{name}.cls"]) == store.label(sample)
        assert json.loads(entries[f"{name}.json"])["path"] == store.name(sample)


def test_files_are_stored_in_class_folders(odd_photos: Path, tmp_path: Path) -> None:
    build_cache(odd_photos, tmp_path / "cache", (16,), format="folder", workers=1)
    assert {path.name for path in (tmp_path / "cache" / "16").iterdir()} == {
        "ants",
        "bees.v2",
        "%2Ehidden",
    }
    files = sorted((tmp_path / "cache" / "16").rglob("*.jpg"))
    assert [path.name.partition("-")[2] for path in files] == [
        f"{Path(path).stem}.jpg" for path in map(ImageFolder(odd_photos).path, range(70))
    ]


@pytest.mark.parametrize("exif", [False, True])
def test_exif_orientation_is_applied_on_request(tmp_path: Path, exif: bool) -> None:
    folder = tmp_path / "photos" / "a"
    folder.mkdir(parents=True)
    for number, size in enumerate([(20, 10), (60, 30)]):
        image = Image.new("RGB", size, (200, 30, 30))
        tags = Image.Exif()
        tags[0x0112] = 6
        image.save(folder / f"{number}.jpg", exif=tags)
    build_cache(tmp_path / "photos", tmp_path / "cache", (16,), exif=exif, workers=1)
    shapes = [copy.shape[:2] for copy in shown(tmp_path / "cache", 16)]
    assert shapes == ([(20, 10), (32, 16)] if exif else [(10, 20), (16, 32)])
    with pytest.raises(UsageError, match=r"was built with(out)? rotating images"):
        ImageFolder(tmp_path / "cache", exif=not exif)


# Broken images


def test_broken_image_raises_or_is_skipped_and_listed(odd_photos: Path, tmp_path: Path) -> None:
    broken = odd_photos / "ants" / "12.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.raises(ImageError, match=r"ants/12\.jpg, cannot be cached: "):
        build_cache(odd_photos, tmp_path / "cache", (16,), workers=2)
    with pytest.raises(DatasetError):
        ImageFolder(tmp_path / "cache")
    made = build_cache(odd_photos, tmp_path / "cache", (16,), workers=2, on_error="skip")
    ((number, name, why),) = made.skipped
    assert (made.samples, name) == (69, "ants/12.jpg")
    assert "JPEG" in why or "end" in why
    source, cache = ImageFolder(odd_photos), ImageFolder(tmp_path / "cache")
    names = [os.path.relpath(source.path(k), odd_photos) for k in range(70) if k != number]
    assert [cache.name(sample) for sample in range(69)] == names
    assert build_cache(odd_photos, tmp_path / "cache", (16,), on_error="skip") == made
    # Mended, it is put in.
    Image.new("RGB", (40, 30)).save(broken)
    assert build_cache(odd_photos, tmp_path / "cache", (16,)).samples == 70


# What cannot be


def test_concurrent_builds_in_one_folder_are_rejected(
    odd_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedline.sources.cache_folder._PATIENCE_S", 0.1)
    ask: list[str] = []

    def meanwhile(progress: Any) -> None:
        if not ask:
            with pytest.raises(UsageError, match=rf"another build is running.*{os.getpid()}"):
                build_cache(odd_photos, tmp_path / "cache", (16,), workers=1)
            ask.append("asked")

    build_cache(odd_photos, tmp_path / "cache", (16,), workers=1, progress=meanwhile)
    assert ask
    assert len(ImageFolder(tmp_path / "cache")) == 70


def test_build_does_not_resume_with_other_settings(odd_photos: Path, tmp_path: Path) -> None:
    broken = odd_photos / "ants" / "69.jpg"
    whole = broken.read_bytes()
    broken.write_bytes(b"none")
    with pytest.raises(ImageError, match="not a supported image"):
        build_cache(odd_photos, tmp_path / "cache", (16,), workers=1)
    with pytest.raises(
        UsageError, match=r"(?s)unfinished build with levels .*90.*remove the folder"
    ):
        build_cache(odd_photos, tmp_path / "cache", (16,), quality=90)
    broken.write_bytes(whole)
    build_cache(odd_photos, tmp_path / "cache", (16,), workers=1)
    with pytest.raises(UsageError, match=r"holds a cache with levels .*'16 px JPEG q95'.*, not"):
        build_cache(odd_photos, tmp_path / "cache", (16, 24))


def test_too_small_disk_is_rejected_before_building(
    odd_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage(tmp_path)._replace(free=50_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    with pytest.raises(
        ResourceError, match=r"needs about [1-9][\d.]* kB \(16 px JPEG q95 .*50\.0 kB free"
    ):
        build_cache(odd_photos, tmp_path / "cache", (16,))
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_too_small_lmdb_map_grows(
    odd_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedline.sources.cache_formats._MIN_MAP_BYTES", 1 << 15)
    monkeypatch.setattr(
        "feedline.cache.spec.Estimate.level_bytes", property(lambda self: (100, 100))
    )
    build_cache(odd_photos, tmp_path / "cache", (16, 24), format="lmdb", workers=1)
    assert len(shown(tmp_path / "cache", 24)) == 70


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
        ({"root": "photos/cache"}, "would lie inside its source"),
        ({"root": "photos"}, "would lie inside its source"),
        ({"root": "full"}, "is not empty"),
        ({"root": "full/letter.txt"}, "is an existing file"),
        ({"root": "full/letter.txt/cache"}, "cannot write to the cache folder .*Not a directory"),
        ({"quality": 90, "raw": True}, "quality 90 "),
    ],
)
def test_unsupported_source_raises_with_its_name(
    odd_photos: Path, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    given = {"source": odd_photos, "root": "cache", "sizes": (16,), **options}
    source, root, sizes = (given.pop(name) for name in ("source", "root", "sizes"))
    with pytest.raises((UsageError, ResourceError), match=said):
        build_cache(source, tmp_path / root, sizes, **given)
    assert not (tmp_path / "cache").exists()


def test_class_name_may_be_unfinished(odd_photos: Path, tmp_path: Path) -> None:
    (odd_photos / "ants").rename(odd_photos / "unfinished")
    assert ImageFolder(odd_photos).classes == [".hidden", "bees.v2", "unfinished"]
    build_cache(odd_photos, tmp_path / "cache", (16,), workers=1)
    assert len(ImageFolder(tmp_path / "cache")) == 70
    other = tmp_path / "other" / "class"
    other.mkdir(parents=True)
    (other / "a.jpg").write_bytes((odd_photos / "unfinished" / "00.jpg").read_bytes())
    with pytest.raises(UsageError, match="is not empty"):
        build_cache(other.parent, odd_photos, (16,), workers=1)
    assert len(ImageFolder(odd_photos)) == 70


@pytest.mark.parametrize("format", FORMATS)
def test_class_names_may_be_any_bytes(odd_photos: Path, tmp_path: Path, format: Any) -> None:
    names = [os.fsdecode(b"a\xff"), "a%FF", "\u00e9 \u732b"]
    try:
        for path, name in zip(sorted(odd_photos.iterdir()), names, strict=True):
            path.rename(odd_photos / name)
    except OSError:
        pytest.skip("this file system takes text only")
    build_cache(odd_photos, tmp_path / "cache", (16,), format=format, workers=1)
    assert ImageFolder(tmp_path / "cache").classes == sorted(names)
    assert len(shown(tmp_path / "cache", 16)) == 70


@pytest.mark.parametrize("raw", [False, True])
def test_copy_too_large_for_jpeg_raises_or_is_skipped(
    odd_photos: Path, tmp_path: Path, raw: bool
) -> None:
    Image.new("RGB", (132_000, 18)).save(odd_photos / "ants" / "long.png")
    if raw:
        build_cache(odd_photos, tmp_path / "cache", (16,), raw=True, workers=1)
        return
    with pytest.raises(ImageError, match=r"ants/long\.png, .* 117333 x 16 pixels.* JPEG"):
        build_cache(odd_photos, tmp_path / "cache", (16,), workers=1)
    made = build_cache(odd_photos, tmp_path / "cache", (16,), on_error="skip", workers=1)
    assert [name for _, name, _ in made.skipped] == ["ants/long.png"]


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs symbolic links")
def test_symlink_does_not_write_into_source(odd_photos: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(odd_photos)
    for source, root in ((tmp_path / "link", odd_photos), (odd_photos, tmp_path / "link")):
        with pytest.raises(UsageError, match="would lie inside its source"):
            build_cache(source, root / "cache", (16,), workers=1)
    assert not (odd_photos / "cache").exists()


def test_build_leaves_no_process(odd_photos: Path, tmp_path: Path) -> None:
    before = own_family()
    build_cache(odd_photos, tmp_path / "cache", (16,), workers=2)
    assert eventually(lambda: not newcomers(before))
