"""Plans of caches: what is measured of sources of every kind, what is left out, what is refused."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import Samples, pictures
from PIL import Image

import feedline
from caches import contents
from feedline.bench.level_rates import level_of, smooth_rates
from feedline.bench.planned_cache import CachePlan, plan_table
from feedline.cache.advice import Advice
from feedline.cache.build import build_cache
from feedline.errors import DatasetError, ResourceError, UsageError
from feedline.images.crops import EvalCrop
from feedline.images.folder import ImageFolder
from feedline.sources.cache_layout import Level, read_manifest
from feedline.sources.cache_store import CacheStore
from processes import newcomers, own_family

SCHEDULE = "24x2,48x3"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, and turns that are as short as can be."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr("feedline.bench.level_rates.ROUNDS", 1)
    monkeypatch.setattr("feedline.bench.plan_cache.ROUNDS", 1)
    monkeypatch.setattr("feedline.bench.level_rates._MIN_TURN_S", 0.0)
    return folder


def planned(source: Any, schedule: str = SCHEDULE, **options: Any) -> CachePlan:
    options = {"seconds": 0.01, "workers": 0, "sizes": (24, 48)} | options
    return feedline.plan_cache(source, schedule, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plan_compares_all_choices_and_leaves_nothing_behind(
    photos: Path, temporary: Path, workers: int
) -> None:
    before, running = contents(photos), own_family()
    plan = planned(photos, workers=workers, sizes=None)
    assert contents(photos) == before
    assert not newcomers(running)
    assert list(temporary.iterdir()) == []

    # 24 and 48 px, and the next larger: 32 and 64; the photographs have 90.
    sides = {choice.sides for choice in plan.choices}
    assert sides == {(48,), (64,), (24, 48), (24, 64), (32, 48), (32, 64)}
    assert {choice.quality for choice in plan.choices} == {95, 90, None}
    assert len(plan.choices) == 18
    for choice in (plan.originals, *plan.choices):
        assert [(phase.size, phase.epochs) for phase in choice.phases] == [(24, 2), (48, 3)]
        assert all(phase.images_per_s > 0 for phase in choice.phases)
        assert choice.load_s > 0
    assert all(choice.bytes > 0 and choice.build_s > 0 for choice in plan.choices)
    assert (plan.kind, plan.source) == ("folder", str(photos))
    assert (plan.measured.images, plan.looked_at, plan.median_px) == (24, 24, (90, 108))
    assert (plan.skipped, plan.small) == ((), 0)
    sizes = [path.stat().st_size for path in photos.rglob("*.jpg")]
    assert plan.measured.original_bytes == np.mean(sizes)


def test_the_bytes_are_those_that_a_build_takes(photos: Path, tmp_path: Path) -> None:
    plan = planned(photos)
    for quality in (95, 90, None):
        (choice,) = (
            each for each in plan.choices if each.quality == quality and each.sides == (24, 48)
        )
        root = tmp_path / f"built-{quality}"
        build_cache(photos, root, (24, 48), quality=quality, raw=quality is None, workers=0)
        taken = sum(level.bytes for level in read_manifest(str(root)).levels)
        assert choice.bytes == pytest.approx(taken, rel=0.1)


def test_rows_of_larger_and_better_copies_differ_less(photos: Path) -> None:
    different = planned(photos).measured.differences
    qualities = 95, None
    for quality in qualities:
        small, large = Level(side=24, quality=quality), Level(side=48, quality=quality)
        assert different[24, small] > different[24, large] > 0
    assert different[48, Level(side=48, quality=95)] > different[48, Level(side=48, quality=None)]


def advising(plan: CachePlan, quality: int | None) -> CachePlan:
    """The plan as it is where the first choice of a quality is the best."""
    (first, *_) = (choice for choice in plan.choices if choice.quality == quality)
    return replace(plan, advice=Advice(choice=first, why="It is."))


def test_the_command_builds_what_is_advised(photos: Path) -> None:
    plan = planned(photos)
    of, to = str(photos), f"{photos}-cache"
    build = ["feedline", "cache", "build", of, to, "--sizes", "48"]
    alone = "--workers", "0"
    assert shlex.split(advising(plan, 95).command) == [*build, "--quality", "95", *alone]
    assert shlex.split(advising(plan, None).command) == [*build, "--raw", *alone]
    auto = replace(plan, auto=True)
    said = plan_table(advising(auto, 90))
    assert f"It is.\n\n{shlex.join([*build, '--quality', '90'])}\n" in said
    (line,) = (line for line in said.splitlines() if line.startswith("*"))
    assert line.startswith("* 48 q90 ")
    none = replace(plan, advice=Advice(choice=None, why="No."))
    assert none.command == ""
    assert "*" not in plan_table(none)


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
def test_a_cache_goes_beside_its_source_or_here(photos: Path, source: str, target: str) -> None:
    plan = replace(advising(planned(photos, sizes=(48,)), 95), source=source)
    assert shlex.split(plan.command)[3:5] == [source, target]


def test_tars_and_parquet_files_are_planned_from_their_images(
    tmp_path: Path, odd_photos: Path
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    tars = tmp_path / "cache"
    build_cache(odd_photos, tars, (30,), workers=0)
    by_tars = planned(tars / "30", images=20)
    assert (by_tars.kind, by_tars.looked_at, by_tars.measured.images) == ("webdataset", 20, 70)

    files = [path for path in sorted(odd_photos.rglob("*.*")) if path.is_file()]
    column = [{"bytes": path.read_bytes(), "path": str(path)} for path in files]
    table = pyarrow.table({"image": column, "label": list(range(len(files)))})
    (tmp_path / "parquet").mkdir()
    parquet.write_table(table, tmp_path / "parquet" / "a.parquet", row_group_size=7)
    by_parquet = planned(tmp_path / "parquet" / "*.parquet", images=20)
    assert by_parquet.kind == "parquet"
    assert 20 <= by_parquet.looked_at < 30  # about so many of each of a few row groups
    assert by_parquet.measured.original_bytes > 0
    words = shlex.split(advising(by_parquet, 95).command)
    assert words[3:5] == [f"{tmp_path / 'parquet'}/*.parquet", f"{tmp_path / 'parquet'}-cache"]


def test_a_dataset_is_planned_from_what_it_gives(temporary: Path) -> None:
    plan = planned(Samples([(picture, 0) for picture in pictures()]), "16x2", sizes=(16,))
    assert (plan.kind, plan.looked_at, plan.median_px) == ("dataset", 8, (30, 40))
    assert plan.measured.original_bytes == 0
    assert plan.originals.phases[0].in_memory
    assert "original_bytes_mean" in plan.as_dict()
    assert plan.as_dict()["original_bytes_mean"] is None
    build = 'feedline.build_cache(dataset, "cache/", (16,), '
    assert advising(plan, None).command == build + "raw=True, workers=0)"
    assert advising(replace(plan, auto=True), 90).command == build + "quality=90)"
    assert plan_table(plan).startswith("8 images, 40x30 px, for 16x2 with no workers")
    assert list(temporary.iterdir()) == []


def test_the_time_that_a_dataset_takes_counts_for_its_originals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Samples([(picture, 0) for picture in pictures()])
    rates: dict[Any, float] = {}

    def as_measured(*arguments: Any, **options: Any) -> dict[Any, float]:
        rates.update(dict.fromkeys(arguments[1], 1000.0))
        return rates

    monkeypatch.setattr("feedline.bench.plan_cache.measure_rates", as_measured)
    plan = planned(source, "16x2", sizes=(16,))
    read_s = 1 / plan.measured.rates[16, None] - 1 / 1000
    assert 0 < read_s < plan.measured.open_s
    assert plan.measured.rates[16, Level(side=16, quality=95)] == 1000


def test_fewer_images_than_asked_for_are_all_looked_at(photos: Path) -> None:
    assert planned(photos, images=10_000).looked_at == 24
    few = planned(photos, images=1)
    assert (few.looked_at, few.measured.images) == (1, 24)


def test_broken_images_are_left_out_and_named(photos: Path, tmp_path: Path) -> None:
    root = tmp_path / "some"
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
        for path in (photos / name).iterdir():
            (root / name / path.name).symlink_to(path)
    (root / "a" / "torn.jpg").write_bytes(b"\xff\xd8\xff torn")
    (root / "b" / "empty.jpg").touch()
    plan = planned(root)
    assert plan.looked_at == 24
    assert [name for name, _ in plan.skipped] == ["a/torn.jpg", "b/empty.jpg"]
    said = plan_table(plan)
    assert "unreadable images left out: 2, for example\n  a/torn.jpg: " in said
    assert advising(plan, 95).command.endswith(" --quality 95 --workers 0 --on-error skip")

    for path in root.rglob("*.jpg"):
        path.unlink()
    (root / "a" / "torn.jpg").write_bytes(b"\xff\xd8\xff torn")
    (root / "b" / "torn.jpg").write_bytes(b"\xff\xd8\xff torn")
    with pytest.raises(DatasetError, match=r"of 2 images .* a/torn"):
        planned(root)


def test_rows_larger_than_the_originals_are_said(photos: Path) -> None:
    plan = planned(photos, "100x1", sizes=None)
    # 128 px would be the originals once more, as 100 px is.
    assert {choice.sides for choice in plan.choices} == {(100,)}
    assert plan.small == 24
    assert "24 of 24 images have a side shorter than 100 px: they are enlarged." in plan_table(plan)
    (jpegs,) = (choice for choice in plan.choices if choice.quality == 95)
    assert jpegs.difference == 0  # they are kept as they are


def test_central_crops_want_larger_copies(photos: Path) -> None:
    plan = planned(photos, "28x1", sizes=None, transform=EvalCrop())
    assert plan.measured.wanted == {28: 32}
    assert {choice.sides for choice in plan.choices} == {(32,), (48,)}
    assert plan.transform == "EvalCrop(fraction=0.875, filter='bilinear')"


def test_a_plan_is_json_with_all_choices(photos: Path) -> None:
    plan = planned(photos, disk_bytes=1.0)
    said = json.loads(json.dumps(plan.as_dict(), allow_nan=False))
    assert said["schedule"] == SCHEDULE
    assert said["limits"]["disk_bytes"] == 1.0
    assert said["recommended"] is None
    assert "No choice fits into a budget of 1 byte" in said["why"]
    assert said["command"] is None
    assert len(said["choices"]) == len(plan.choices) == 6
    for choice in (said["originals"], *said["choices"]):
        assert choice["load_s"] > 0
        assert [phase["size"] for phase in choice["phases"]] == [24, 48]
    assert said["choices"][1]["levels"] == [
        {"size_px": 24, "quality": 95},
        {"size_px": 48, "quality": 95},
    ]


def test_many_sizes_are_told_in_one_column(photos: Path) -> None:
    plan = planned(photos, "16x1,20x1,24x1,28x1,32x1", sizes=(32,))
    heads = plan_table(plan).splitlines()[3].split()
    assert heads[:2] == ["images/s", "loading"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schedule": "ownx3@64"}, "has no image sizes"),
        ({"schedule": "big"}, "cannot read 'big'"),
        ({"schedule": "9000x1"}, "9000 px.* 8192 px"),
        ({"sizes": (24, 32)}, "sizes 24,32: .* image size 48 px"),
        ({"sizes": (4, 48)}, "must be from 8 to 8192 pixels, got 4"),
        ({"sizes": range(40, 60)}, "at most 8 sizes are compared, got 20"),
        ({"images": 0}, "images must be a whole number from 1 to 10000, got 0"),
        ({"images": True}, "got True"),
        ({"disk_bytes": 0}, "disk_bytes must be a number above 0, got 0"),
        ({"disk_bytes_per_s": float("nan")}, "disk_bytes_per_s must be a number above 0"),
        ({"seconds": float("inf")}, "seconds must be a number above 0"),
        ({"workers": -1}, "num_workers"),
        ({"transform": "train"}, "transform must be"),
    ],
)
def test_what_cannot_be_used_is_refused(
    photos: Path, temporary: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        planned(photos, **options)
    assert list(temporary.iterdir()) == []


def test_a_cache_is_not_planned_of_a_cache(built: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cache"):
        planned(built())
    with pytest.raises(DatasetError, match="no such folder"):
        planned(tmp_path / "nowhere")


def test_too_little_room_for_the_copies_is_said(
    photos: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedline.bench.level_rates.MAX_ORIGINAL_BYTES", 1 << 60)
    monkeypatch.setattr("feedline.bench.level_rates._ORIGINAL_BYTES", 1 << 60)
    with pytest.raises(ResourceError, match="TMPDIR"):
        planned(photos)
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_large_images_end_the_looking_early(
    photos: Path, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    monkeypatch.setattr("feedline.bench.copy_timings._MIN_IMAGES", 3)
    monkeypatch.setattr("feedline.bench.copy_timings._FETCHED_TOGETHER", 3)
    monkeypatch.setattr("feedline.bench.copy_timings.MAX_ORIGINAL_BYTES", 1)
    assert planned(photos, workers=0).looked_at == 3
    assert planned(photos, workers=2).looked_at == 3


def test_one_level_is_read_whatever_the_size(built: Callable[..., Path]) -> None:
    folder = ImageFolder(built())
    for side in (24, 48):
        one = level_of(folder, side)
        assert isinstance(one.store, CacheStore)
        image = Image.fromarray(np.asarray(_decoded(one.store.read(3, 8))))
        assert min(image.size) == side
    assert isinstance(folder.store, CacheStore)
    assert len(folder.store.manifest.levels) == 2


def _decoded(data: Any) -> Any:
    from feedline.images.codecs import Decoder

    decoder = Decoder()
    decoder.open(data)
    return decoder.read().copy()


def test_no_level_is_faster_than_a_smaller_one() -> None:
    def level(side: int, quality: int = 95) -> Level:
        return Level(side=side, quality=quality)

    measured = {
        (112, None): 1.0,
        (112, level(256)): 6.0,
        (112, level(112)): 9.0,
        (112, level(128)): 5.0,
        (112, level(160)): 7.0,
        (112, level(160, 90)): 20.0,
        (160, level(160)): 100.0,
    }
    assert smooth_rates(measured) == {
        **measured,
        (112, level(128)): 6.0,
        (112, level(160)): 6.0,
        (112, level(256)): 6.0,
    }
    rising = {(8, level(side)): float(side) for side in (8, 16, 24)}
    assert set(smooth_rates(rising).values()) == {16.0}


def test_an_image_folder_is_planned_as_its_path(photos: Path) -> None:
    assert planned(ImageFolder(photos)).source == str(photos)
