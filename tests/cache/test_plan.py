"""Plans of caches: measured choices of sources of every kind, the recommendation, errors."""

import json
import shlex
import tempfile
from dataclasses import replace

import numpy as np
import pytest
from pictures import Samples, pictures

import feedline
from caches import contents
from feedline.cache.build import build_cache
from feedline.cache.plan import CacheChoice, build_command, recommend
from feedline.errors import DatasetError, ResourceError, UsageError
from feedline.images.crops import EvalCrop
from feedline.images.folder import ImageFolder
from feedline.sources.manifest import Level, read_manifest
from processes import newcomers, own_family

SCHEDULE = "24x2,48x3"
GB = 10**9


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files, and turns that are as short as can be."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr("feedline.cache.rates._ROUNDS", 1)
    monkeypatch.setattr("feedline.cache.rates._MIN_TURN_S", 0.0)
    return folder


def planned(source, schedule=SCHEDULE, **options):
    options = {"seconds": 0.01, "workers": 0} | options
    return feedline.plan_cache(source, schedule, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_plan_compares_three_choices_and_cleans_up(photos, temporary, workers):
    before, running = contents(photos), own_family()
    source = ImageFolder(photos) if workers else photos
    plan = planned(source, workers=workers)
    assert contents(photos) == before
    assert not newcomers(running)
    assert list(temporary.iterdir()) == []

    assert list(map(str, plan.choices)) == ["64 q95", "32,64 q95", "32,64 raw"]
    for choice in (plan.originals, *plan.choices):
        assert set(choice.images_per_s) == {24, 48}
        assert min(choice.images_per_s.values()) > 0
        rates = choice.images_per_s
        assert choice.load_s == pytest.approx(24 * (2 / rates[24] + 3 / rates[48]))
    assert all(choice.bytes > 0 and choice.build_s > 0 for choice in plan.choices)
    assert plan.originals.build_s == 0
    assert (plan.kind, plan.source) == ("folder", str(photos))
    assert (plan.images, plan.images_measured, plan.skipped) == (24, 24, ())
    sizes = [path.stat().st_size for path in photos.rglob("*.jpg")]
    assert plan.originals.bytes == pytest.approx(sum(sizes))


def test_recommended_copies_are_larger_than_the_images_of_training(photos):
    plan = planned(photos, "112x1,160x1,224x1", images=2)
    assert [level.side for level in plan.choices[1].levels] == [128, 192, 256]
    plan = planned(photos, "24x1,27x1", images=2)
    assert all(choice.side_ratio >= 8 / 7 for choice in plan.choices)
    plan = planned(photos, "24x1,48x1", sizes=(24, 64), images=2)
    assert [choice.side_ratio for choice in plan.choices] == [pytest.approx(4 / 3), 1.0, 1.0]
    plan = planned(photos, "28x1", transform=EvalCrop())
    assert list(map(str, plan.choices)) == ["32 q95", "32 raw"]
    assert plan.transform == "EvalCrop(fraction=0.875, filter='bilinear')"


def test_planned_bytes_equal_those_of_build(photos, tmp_path):
    for choice in planned(photos).choices:
        root = tmp_path / str(choice)
        quality, sides = choice.levels[0].quality, [level.side for level in choice.levels]
        build_cache(photos, root, sides, quality=quality, raw=quality is None, workers=0)
        built = sum(level.bytes for level in read_manifest(str(root)).levels)
        assert choice.bytes == pytest.approx(built, rel=0.1)


def choice(size, load_s, *, build_s=10.0, needed=0.0):
    return CacheChoice(
        levels=(Level(side=int(load_s), quality=95),),
        bytes=size * GB,
        build_s=build_s,
        images_per_s={},
        disk_bytes_per_s=needed,
        load_s=load_s,
    )


ORIGINALS = replace(choice(9, 100, build_s=0), levels=())
LIMITS = {"disk_bytes": 10 * GB, "memory_bytes": 10 * GB, "disk_bytes_per_s": 5e8}


@pytest.mark.parametrize(
    ("choices", "best", "facts"),
    [
        (
            [choice(11, 10), choice(4, 40), choice(5, 20)],  # the fastest that fits
            2,
            ["10 epochs in 20 s", "5.0 times", "5.0 GB", "10 s", "after 2 epochs"],
        ),
        ([choice(5, 20), choice(3, 20.9)], 1, []),  # the smallest of equally fast ones
        ([choice(5, 95)], None, ["not worth it"]),
        ([choice(12, 5), choice(11, 10)], None, ["10.0 GB", "11.0 GB"]),
        ([choice(5, 20, build_s=90, needed=2e8)], 0, ["several runs", "200.0 MB/s"]),
    ],
)
def test_the_recommendation_is_the_fastest_choice_that_fits_and_pays(choices, best, facts):
    recommended, reason = recommend(ORIGINALS, choices, LIMITS, 10)
    assert recommended is (None if best is None else choices[best])
    assert [fact for fact in facts if fact not in reason] == []


def test_images_larger_than_memory_are_read_at_disk_speed(photos, monkeypatch):
    monkeypatch.setattr("feedline.cache.plan.cacheable_memory_bytes", lambda: 1)
    plan = planned(photos, "24x1", disk_bytes_per_s=1000.0)
    for each in plan.choices:
        image_bytes = each.bytes / 24
        assert each.images_per_s[24] == pytest.approx(1000 / image_bytes)
        assert each.disk_bytes_per_s > 1000
    assert plan.choices[1].build_s > plan.choices[1].bytes / 1000


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("/data/train", "/data/train-cache"),
        ("/data/train-*.tar", "/data-cache"),
        ("/data/a.parquet", "/data-cache"),
        ("s3://bucket/sets/train", "train-cache"),
        ("s3://bucket/sets/train-*.parquet", "sets-cache"),
        ("https://host/train/", "train-cache"),
    ],
)
def test_a_cache_is_next_to_its_source_or_here(source, target):
    words = shlex.split(build_command("folder", source, choice(1, 48), False))
    assert words[3:] == [source, target, "--sizes", "48", "--quality", "95"]


def test_shards_and_parquet_files_are_planned_from_their_images(tmp_path, odd_photos):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    tars = tmp_path / "cache"
    build_cache(odd_photos, tars, (30,), workers=0)
    by_tars = planned(tars / "30", "24x1", images=20)
    assert (by_tars.kind, by_tars.images_measured, by_tars.images) == ("webdataset", 20, 70)

    files = [path for path in sorted(odd_photos.rglob("*.*")) if path.is_file()]
    column = [{"bytes": path.read_bytes(), "path": str(path)} for path in files]
    table = pyarrow.table({"image": column, "label": list(range(len(files)))})
    (tmp_path / "parquet").mkdir()
    parquet.write_table(table, tmp_path / "parquet" / "a.parquet", row_group_size=7)
    by_parquet = planned(tmp_path / "parquet" / "*.parquet", "24x1", images=20)
    assert by_parquet.kind == "parquet"
    assert 20 <= by_parquet.images_measured < 30  # about this many from each of a few row groups
    assert by_parquet.originals.bytes > 0


def test_plan_of_dataset_uses_its_own_decode_time(temporary):
    plan = planned(Samples([(picture, 0) for picture in pictures()]), "16x2", sizes=(16,))
    assert (plan.kind, plan.images_measured) == ("dataset", 8)
    assert plan.originals.bytes == 0
    call = build_command(plan.kind, plan.source, plan.choices[0], True)
    assert call == 'feedline.build_cache(dataset, "cache/", (16,), quality=95, on_error="skip")'
    assert list(temporary.iterdir()) == []


def test_a_sample_is_at_most_the_source_and_large_images_end_it_early(photos, monkeypatch):
    assert planned(photos, images=10_000).images_measured == 24
    few = planned(photos, images=1)
    assert (few.images_measured, few.images) == (1, 24)
    monkeypatch.setattr("feedline.cache.rates._MIN_IMAGES", 3)
    monkeypatch.setattr("feedline.cache.rates._MAX_SAMPLE_BYTES", 1)
    assert planned(photos).images_measured == 3


def test_broken_images_are_skipped_and_named(photos, tmp_path):
    root = tmp_path / "some"
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
        for path in (photos / name).iterdir():
            (root / name / path.name).symlink_to(path)
    (root / "a" / "torn.jpg").write_bytes(b"\xff\xd8\xff torn")
    (root / "b" / "empty.jpg").touch()
    plan = planned(root)
    assert [name for name, _ in plan.skipped] == ["a/torn.jpg", "b/empty.jpg"]
    assert "a/torn.jpg" in str(plan)
    if plan.recommended:
        assert plan.command.endswith("--on-error skip")

    for path in root.rglob("*.jpg"):
        path.unlink()
    (root / "a" / "torn.jpg").write_bytes(b"\xff\xd8\xff torn")
    (root / "b" / "torn.jpg").write_bytes(b"\xff\xd8\xff torn")
    with pytest.raises(DatasetError, match=r"torn\.jpg"):
        planned(root)


def test_a_plan_is_json(photos):
    plan = planned(photos, disk_bytes=1.0)
    saved = json.loads(json.dumps(plan.as_dict(), allow_nan=False))
    assert saved["schedule"] == SCHEDULE
    assert saved["limits"]["disk_bytes"] == 1.0
    assert saved["recommended"] is None
    assert saved["command"] is None
    assert saved["reason"] == plan.reason
    assert [each["bytes"] for each in saved["choices"]] == [each.bytes for each in plan.choices]
    assert saved["choices"][1]["levels"] == [
        {"size_px": 32, "quality": 95},
        {"size_px": 64, "quality": 95},
    ]
    assert set(saved["originals"]["images_per_s"]) == {"24", "48"}


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"schedule": "9000x1"}, None),
        ({"sizes": (24, 32)}, None),
        ({"sizes": (4, 48)}, "sizes"),
        ({"images": 0}, "images"),
        ({"disk_bytes_per_s": float("nan")}, "disk_bytes_per_s"),
        ({"seconds": float("inf")}, "seconds"),
        ({"transform": "train"}, None),
    ],
)
def test_invalid_arguments_raise(photos, temporary, options, argument):
    with pytest.raises(UsageError) as raised:
        planned(photos, **options)
    if argument:
        assert raised.value.argument == argument
    assert list(temporary.iterdir()) == []


def test_missing_disk_space_for_copies_raises(photos, temporary, monkeypatch):
    monkeypatch.setattr("feedline.cache.rates._MAX_SAMPLE_BYTES", 1 << 60)
    with pytest.raises(ResourceError, match="TMPDIR"):
        planned(photos)
    assert list(temporary.iterdir()) == []


def test_pixels_of_a_dataset_are_measured_unchanged(tmp_path):
    from feedline.cache.rates import copy_originals
    from feedline.cache.source import open_source

    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    source = open_source(Samples([(pixels, 0)]))
    copy_originals(source, tmp_path / "originals", 1, lambda *_: None)
    (file,) = (tmp_path / "originals").rglob("*.jpg")
    assert file.read_bytes().endswith(pixels.tobytes())
