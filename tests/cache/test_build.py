"""Caches that are built, broken off, gone on with and built anew."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from feedline import ImageFolder
from feedline.cache import build
from feedline.cache.build import build_cache
from feedline.errors import DatasetError, ImageError, ResourceError, UsageError
from feedline.stores.cache_store import CacheStore
from processes import eventually, gone

lmdb = pytest.importorskip("lmdb")
FORMATS = ("webdataset", "lmdb", "folder")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """root/CLASS/NAME: 70 images, so three shards; two are smaller than a level, two no JPEGs."""
    root = tmp_path / "photos"
    generator = np.random.default_rng(0)
    for number in range(70):
        height, width = (14, 20) if number in (3, 40) else (30 + number % 7, 44)
        coarse = generator.integers(0, 256, (3, 4, 3), np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        path = root / ("ants", "bees.v2", ".hidden")[number % 3] / f"{number:02}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number in (5, 6):
            image.save(path.with_suffix(".png"))
        else:
            image.save(path.with_suffix(".jpg"), quality=95)
    return root


def everything(root: Path) -> dict[str, bytes]:
    """All files of a cache; an LMDB by its entries, which pages may hold in any order."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.name == "data.mdb":
            with lmdb.open(str(path.parent), readonly=True, lock=False) as opened:
                for key, value in opened.begin().cursor():
                    found[f"{name}/{key.decode()}"] = value
        elif path.is_file() and path.name not in (".lock", "lock.mdb"):
            found[name] = path.read_bytes()
    return found


def shown(root: Path, side: int) -> list[np.ndarray[Any, Any]]:
    store = CacheStore(root)
    return [
        simplejpeg.decode_jpeg(image) if isinstance(image, bytes) else image
        for image in (store.read(sample, side) for sample in range(len(store)))
    ]


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_a_cache_holds_what_its_source_holds(
    photos: Path, tmp_path: Path, format: Any, raw: bool
) -> None:
    source = ImageFolder(photos)
    made = build_cache(photos, tmp_path / "cache", (24, 16), format=format, raw=raw, workers=2)
    assert [level.side for level in made.levels] == [16, 24]
    cache = ImageFolder(tmp_path / "cache")
    assert cache.classes == source.classes
    assert cache.targets.tolist() == source.targets.tolist()
    for sample in range(len(source)):
        assert source.path(sample) == str(photos / cache.name(sample))
    for side in (16, 24):
        for sample, copy in enumerate(shown(tmp_path / "cache", side)):
            original = Image.open(source.path(sample)).convert("RGB")
            assert cache.store.original_size(sample) == original.size[::-1]
            assert min(copy.shape[:2]) == min(side, *original.size)
            same_size = np.asarray(original.resize(copy.shape[1::-1], Image.Resampling.BICUBIC))
            assert np.abs(copy.astype(int) - same_size).mean() < (1 if raw else 8)
    again = build_cache(photos, tmp_path / "cache", (24, 16), format=format, raw=raw)
    assert again == made


def test_an_image_that_is_small_enough_is_kept_as_it_is(photos: Path, tmp_path: Path) -> None:
    build_cache(photos, tmp_path / "cache", (16, 64), workers=1)
    source, store = ImageFolder(photos), CacheStore(tmp_path / "cache")
    for sample in range(len(source)):
        original = Path(source.path(sample))
        kept = original.suffix == ".jpg"
        assert (store.read(sample, 64) == original.read_bytes()) is kept


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdatasets_own_reader_reads_the_shards(photos: Path, tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    for raw in (False, True):
        root = tmp_path / f"raw {raw}"
        made = build_cache(photos, root, (16,), raw=raw, workers=1)
        shards = f"{root}/16/{{000000..{len(made.levels[0].shards) - 1:06}}}.tar"
        names = ("npy", "cls", "json") if raw else ("jpg", "cls", "json")
        reader = webdataset.WebDataset(shards, shardshuffle=False, empty_check=False)
        found = list(reader.decode("rgb8").to_tuple(*names))
        store = CacheStore(root)
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


def test_anyone_reads_an_lmdb_by_its_keys(photos: Path, tmp_path: Path) -> None:
    build_cache(photos, tmp_path / "cache", (16,), format="lmdb", workers=1)
    with lmdb.open(str(tmp_path / "cache" / "16"), readonly=True, lock=False) as opened:
        entries = {key.decode(): value for key, value in opened.begin().cursor()}
    assert len(entries) == 3 * 70
    store, other = CacheStore(tmp_path / "cache"), CacheStore(tmp_path / "cache")
    for sample in (0, 69):
        name = f"{sample:09d}"
        assert entries[f"{name}.jpg"] == store.read(sample, 16) == other.read(sample, 16)
        assert int(entries[f"{name}.cls"]) == store.label(sample)
        assert json.loads(entries[f"{name}.json"])["path"] == store.name(sample)


def test_plain_files_lie_in_folders_of_their_classes(photos: Path, tmp_path: Path) -> None:
    build_cache(photos, tmp_path / "cache", (16,), format="folder", workers=1)
    assert {path.name for path in (tmp_path / "cache" / "16").iterdir()} == {
        "ants",
        "bees.v2",
        "%2Ehidden",
    }
    files = sorted((tmp_path / "cache" / "16").rglob("*.jpg"))
    assert [path.name.partition("-")[2] for path in files] == [
        f"{Path(path).stem}.jpg" for path in map(ImageFolder(photos).path, range(70))
    ]


@pytest.mark.parametrize("exif", [False, True])
def test_images_are_turned_upright_where_that_was_asked_for(tmp_path: Path, exif: bool) -> None:
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
    with pytest.raises(UsageError, match=r"was built with(out)? turning images upright"):
        ImageFolder(tmp_path / "cache", exif=not exif)


# Broken images


def test_a_broken_image_is_named_or_left_out_and_listed(photos: Path, tmp_path: Path) -> None:
    broken = photos / "ants" / "12.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.raises(ImageError, match=r"ants/12\.jpg, cannot be put into a cache: .*skip"):
        build_cache(photos, tmp_path / "cache", (16,), workers=2)
    with pytest.raises(DatasetError):
        ImageFolder(tmp_path / "cache")
    made = build_cache(photos, tmp_path / "cache", (16,), workers=2, on_error="skip")
    ((number, name, why),) = made.skipped
    assert (made.samples, name) == (69, "ants/12.jpg")
    assert "JPEG" in why or "end" in why
    source, cache = ImageFolder(photos), ImageFolder(tmp_path / "cache")
    names = [os.path.relpath(source.path(k), photos) for k in range(70) if k != number]
    assert [cache.name(sample) for sample in range(69)] == names
    assert build_cache(photos, tmp_path / "cache", (16,), on_error="skip") == made
    # Mended, it is put in.
    Image.new("RGB", (40, 30)).save(broken)
    assert build_cache(photos, tmp_path / "cache", (16,)).samples == 70


# Going on


def counted(photos: Path, root: Path, **options: Any) -> tuple[Any, int]:
    """What a build made, and how many images of it were made by this one."""
    seen: list[build.Progress] = []
    made = build_cache(photos, root, (16, 24), workers=2, progress=seen.append, **options)
    return made, seen[-1].made if seen else 0


@pytest.mark.parametrize("format", FORMATS)
def test_what_has_changed_is_made_anew_and_nothing_else(
    photos: Path, tmp_path: Path, format: Any
) -> None:
    first, made = counted(photos, tmp_path / "cache", format=format)
    assert made == 70
    assert counted(photos, tmp_path / "cache", format=format) == (first, 0)
    files = ImageFolder(photos)
    Image.new("RGB", (50, 40), (9, 99, 200)).save(files.path(5))
    os.unlink(files.path(69))
    extra = photos / "zoo" / "new.jpg"
    extra.parent.mkdir()
    Image.new("RGB", (50, 40), (200, 99, 9)).save(extra)
    os.unlink(files.path(40))
    _, made = counted(photos, tmp_path / "cache", format=format)
    assert made == 69  # by shards, in which a copy of an unchanged image is taken over
    counted(photos, tmp_path / "new", format=format)
    assert everything(tmp_path / "cache") == everything(tmp_path / "new")


def test_copies_of_unchanged_images_are_taken_over(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted(photos, tmp_path / "cache")
    os.unlink(ImageFolder(photos).path(0))  # every later image has another number now
    decoded = tmp_path / "decoded"
    decoded.write_text("")
    copies = build.Units.__getitem__.__globals__["LevelEncoder"].copies

    def noted(self: Any, image: Any) -> Any:
        with decoded.open("a") as file:
            file.write("x")
        return copies(self, image)

    monkeypatch.setattr("feedline.cache.level_encoder.LevelEncoder.copies", noted)
    _, made = counted(photos, tmp_path / "cache")
    looked_at = 64  # by the estimate
    assert made == 69
    assert len(decoded.read_text()) - looked_at < 69
    counted(photos, tmp_path / "new")
    assert everything(tmp_path / "cache") == everything(tmp_path / "new")


def build_in_a_process(*arguments: Any) -> multiprocessing.process.BaseProcess:
    """A build in a process of its own, forked: what it needs is imported here already."""
    process = multiprocessing.get_context("fork").Process(target=_alone, args=arguments)
    process.start()
    return process


def _alone(photos: Path, root: Path, format: Any) -> None:
    build_cache(photos, root, (16, 24), format=format, workers=2)


@pytest.mark.parametrize("format", FORMATS)
def test_a_build_that_is_killed_at_any_moment_goes_on(
    photos: Path, tmp_path: Path, format: Any
) -> None:
    started = time.monotonic()
    process = build_in_a_process(photos, tmp_path / "whole", format)
    process.join()
    usual_s = time.monotonic() - started
    root, moments = tmp_path / "cache", random.Random(format)
    for _ in range(10):
        process = build_in_a_process(photos, root, format)
        process.join(moments.uniform(0, usual_s))
        process.kill()
        process.join()
        try:
            cache = ImageFolder(root)
        except DatasetError:
            continue
        assert len(shown(root, 16)) == len(cache) == 70  # it was whole, and is
        if moments.random() < 0.5:
            shutil.rmtree(root)
    made = build_cache(photos, root, (16, 24), format=format, workers=2)
    assert made.samples == 70
    assert everything(root) == everything(tmp_path / "whole")


# What cannot be


def test_two_builds_do_not_work_in_one_folder(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedline.cache.lock._PATIENCE_S", 0.1)
    ask: list[str] = []

    def meanwhile(progress: Any) -> None:
        if not ask:
            with pytest.raises(UsageError, match=rf"another build works.*{os.getpid()}"):
                build_cache(photos, tmp_path / "cache", (16,), workers=1)
            ask.append("asked")

    build_cache(photos, tmp_path / "cache", (16,), workers=1, progress=meanwhile)
    assert ask
    assert len(ImageFolder(tmp_path / "cache")) == 70


def test_other_settings_do_not_go_on_with_a_build(photos: Path, tmp_path: Path) -> None:
    broken = photos / "ants" / "69.jpg"
    whole = broken.read_bytes()
    broken.write_bytes(b"none")
    with pytest.raises(ImageError, match="no image"):
        build_cache(photos, tmp_path / "cache", (16,), workers=1)
    with pytest.raises(UsageError, match=r"unfinished build with levels .*90.*remove the folder"):
        build_cache(photos, tmp_path / "cache", (16,), quality=90)
    broken.write_bytes(whole)
    build_cache(photos, tmp_path / "cache", (16,), workers=1)
    with pytest.raises(UsageError, match=r"is a cache already, webdataset of 16 px JPEG q95"):
        build_cache(photos, tmp_path / "cache", (16, 24))


def test_a_disk_that_is_too_small_is_refused_before_anything_is_made(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage(tmp_path)._replace(free=50_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    with pytest.raises(ResourceError, match=r"needs about 0\.00 GB \(16 px JPEG q95 .*free"):
        build_cache(photos, tmp_path / "cache", (16,))
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_an_lmdb_map_that_turns_out_too_small_grows(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedline.cache.lmdb_writer._LEAST_MAP_BYTES", 1 << 15)
    monkeypatch.setattr(
        "feedline.cache.build_plan.Estimate.level_bytes", property(lambda self: (100, 100))
    )
    build_cache(photos, tmp_path / "cache", (16, 24), format="lmdb", workers=1)
    assert len(shown(tmp_path / "cache", 24)) == 70


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sizes": ()}, "at least one size"),
        ({"sizes": (4,)}, "from 8 to 8192 pixels, got 4"),
        ({"sizes": ("16",)}, "got '16'"),
        ({"quality": 0}, "quality must be from 1 to 100"),
        ({"on_error": "ignore"}, "on_error must be"),
        ({"format": "zip"}, "format must be webdataset, lmdb or folder, got 'zip'"),
        ({"workers": "many"}, "got 'many'"),
        ({"source": 5}, "a map-style Dataset"),
        ({"source": "/nowhere"}, "no such folder"),
        ({"root": "photos/cache"}, "would lie in its source"),
        ({"root": "photos"}, "would lie in its source"),
        ({"root": "full"}, "is not empty"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(
    photos: Path, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    given = {"source": photos, "root": "cache", "sizes": (16,), **options}
    source, root, sizes = (given.pop(name) for name in ("source", "root", "sizes"))
    with pytest.raises(UsageError, match=said):
        build_cache(source, tmp_path / root, sizes, **given)
    assert not (tmp_path / "cache").exists()


def test_a_cache_is_no_source(photos: Path, tmp_path: Path) -> None:
    build_cache(photos, tmp_path / "cache", (16,), workers=1)
    with pytest.raises(UsageError, match="a copy of a copy loses quality"):
        build_cache(tmp_path / "cache", tmp_path / "other", (16,))


def test_nothing_is_left_running(photos: Path, tmp_path: Path) -> None:
    import psutil

    before = set(psutil.Process().children(recursive=True))
    build_cache(photos, tmp_path / "cache", (16,), workers=2)
    others = [child for child in psutil.Process().children(recursive=True) if child not in before]
    assert eventually(lambda: gone(others))
