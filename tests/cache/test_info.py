"""Output of `feedline cache info`."""

import pytest

import feedline
from caches import FORMATS, contents, made
from feedline import ImageFolder
from feedline.cache import rates
from feedline.cache.rates import cache_info, loader_rate, measure_rates


@pytest.mark.parametrize("form", FORMATS)
def test_info_lists_levels_sizes_and_source(few, root, form):
    (few / "cats" / "torn.jpg").write_bytes(b"\xff\xd8\xff torn")
    made(few, root, form, quality=80, on_error="skip")
    before = contents(root)
    known = cache_info(root, measure=False)
    assert known.root == str(root)
    assert known.manifest.samples == 12
    assert known.manifest.source == ("folder", str(few))
    assert known.manifest.classes == ("cats", "dogs")
    assert [name for _, name, _ in known.manifest.skipped] == ["cats/torn.jpg"]
    assert known.manifest.feedline == feedline.__version__
    for each, side in zip(known.levels, (16, 24), strict=True):
        assert str(each.level) == f"{side} px JPEG q80"
        files = [path for path in (root / str(side)).rglob("*") if path.is_file()]
        assert each.bytes == sum(path.stat().st_size for path in files)
        assert 100 < each.image_bytes < 5000
        assert each.images_per_s is None
        if form == "folder":
            assert each.image_bytes == each.bytes / 12
    assert contents(root) == before


@pytest.mark.parametrize(
    ("sizes", "crops"),
    [((24, 32, 33), [16, 32, 33]), ((8, 16, 128, 136, 192, 256), [8, 16, 112, 136, 160, 224])],
)
def test_level_is_measured_at_seven_eighths_of_its_size_unless_a_smaller_one_serves_it(
    few, root, monkeypatch, sizes, crops
):
    monkeypatch.setattr(rates, "_INFO_S", 0.02)
    made(few, root, sizes=sizes)
    known = cache_info(root)
    assert [each.crop_px for each in known.levels] == crops
    assert all(each.images_per_s and each.images_per_s > 0 for each in known.levels)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_rate_is_counted_over_epochs(jpeg_folder, workers):
    folder = ImageFolder(jpeg_folder)
    assert loader_rate(folder, 16, workers=workers, seconds=0.05) > 0
    turns = []
    rates = measure_rates(
        {(16, None): folder, (24, None): folder},
        workers=workers,
        seconds=0.01,
        progress=lambda *turn: turns.append(turn),
    )
    assert set(rates) == {(16, None), (24, None)}
    assert turns == [("measuring", turn, 6) for turn in range(6)]
