"""Alternative image sources: recommended if faster, and never applied automatically."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feedline import build_cache
from feedline.control.window import StepWindow
from feedline.tuning.alternative import Alternative, pixel_difference
from feedline.tuning.folder import FolderTuning, tune_folder
from feedline.tuning.trial import LoaderSetting, LoaderTrial
from feedline.tuning.tuned_phase import AlternativeTrial, TunedPhase
from feedline.tuning.tuning_result import TuningResult


def trial(rate: float, error: float = 0.01, workers: int = 1) -> LoaderTrial:
    window = StepWindow(
        phase=None,
        steps=100,
        seconds=100 / rate,
        wait_s=1.0,
        tasks_s=1.0,
        on_core=1.0,
        queued=0.0,
        workers=workers,
    )
    setting = LoaderSetting(workers=workers, prefetch=3, task_ms=50.0)
    return LoaderTrial(setting=setting, window=window, error=error)


def phase(*others: AlternativeTrial, size: int = 112) -> TunedPhase:
    best = trial(603.1)
    found = TunedPhase.of_trial(best, size=size, batch_size=1, ceiling=2000.0)
    return replace(found, alternatives=others)


def tuned(*phases: TunedPhase) -> TuningResult:
    return TuningResult(
        phases=phases,
        seconds=1.0,
        batch_size=1,
        start=LoaderSetting(workers=1, prefetch=3, task_ms=50.0),
    )


def scaled(rate: float, error: float = 0.01) -> AlternativeTrial:
    name = "decode='scaled'"
    return AlternativeTrial(
        name=name,
        trial=trial(rate, error),
        how=f"feedline.ImageFolder(..., {name})",
        pixels_off=1.9,
    )


def test_significantly_faster_alternative_is_recommended_but_not_applied() -> None:
    found = tuned(phase(scaled(657.8)))
    (only,) = found.phases
    assert "1 worker was the fastest setting" in only.reason
    assert "decode='scaled' is 1.09 times as fast" in only.reason
    assert "1.9 of 255" in only.reason
    lines = found.snippet.splitlines()
    assert lines[0] == "feedline.DataLoader(..., num_workers=1)"
    assert lines[1].startswith("# or with feedline.ImageFolder(..., decode='scaled'): at 112 px")
    said = found.as_dict()
    assert said["phases"][0]["recommended"] == "decode='scaled'"
    assert said["phases"][0]["others"][0]["pixels_off"] == 1.9
    assert said["snippet"] == found.snippet
    assert found.saved is not None
    assert "scaled" not in found.saved.as_text()
    assert set(found.arguments) == {"num_workers"}


@pytest.mark.parametrize(
    "other", [scaled(500.0), scaled(610.0), scaled(657.8, 0.2), scaled(657.8, 1)]
)
def test_insignificant_alternative_is_not_recommended(other: AlternativeTrial) -> None:
    found = tuned(phase(other))
    assert found.phases[0].recommended is None
    assert found.as_dict()["phases"][0]["recommended"] is None
    assert "scaled" not in found.phases[0].reason + found.snippet


def test_fastest_alternative_is_recommended() -> None:
    slower = AlternativeTrial(name="the originals", trial=trial(640.0))
    assert phase(slower, scaled(700.0)).recommended == scaled(700.0)


def test_setting_applies_to_all_phases_and_is_reported() -> None:
    found = tuned(phase(), phase(size=224))
    assert "one setting for all phases" in found.snippet
    assert "one setting for all phases" in str(found)
    assert found.as_dict()["scope"] == "all phases"
    assert "all phases" not in tuned(phase()).snippet


def photographs(root: Path) -> Path:
    random = np.random.default_rng(0)
    for name in "ab":
        (root / name).mkdir(parents=True)
        for k in range(12):
            small = random.integers(0, 256, (40, 60, 3), np.uint8)
            Image.fromarray(small).resize((600, 400)).save(root / name / f"{k}.jpg")
    return root


@pytest.mark.slow
@pytest.mark.usefixtures("quick_trials")
def test_alternatives_are_compared_on_same_crops(tmp_path: Path, monkeypatch: Any) -> None:
    root, cache = photographs(tmp_path / "photographs"), tmp_path / "cache"
    build_cache(root, cache, [48, 96])
    from feedline.tuning import folder

    ways: list[Alternative] = []
    original = folder.try_alternative

    def noted(found: TuningResult, way: Alternative, *rest: Any) -> TuningResult:
        ways.append(way)
        return original(found, way, *rest)

    monkeypatch.setattr(folder, "try_alternative", noted)
    for given in ({}, {"cache": cache}):
        asked = FolderTuning(root=root, schedule="32x1,64x1", batch_size=8, budget_s=60, **given)
        found = tune_folder(asked, step_ms=0)
        if all(each.status == "done" for each in found.phases):
            assert json.dumps(found.as_dict())
            (way,) = ways
            ways.clear()
            for size in (32, 64):
                assert 0 < pixel_difference(way, size) < 40
                same = replace(way, sample=way.sample_original)
                assert pixel_difference(same, size) == 0
        levels = [each.copies_px for each in found.phases if each.best is not None]
        assert levels == ([48, 96] if given else [None, None])[: len(levels)]
