"""Results as a benchmark would give them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from feedline.profile.bench.options import BenchmarkOptions
from feedline.profile.bench.rate import Turn
from feedline.profile.bench.result import BenchmarkResult, BenchmarkRow
from feedline.profile.bench.stages import StageCosts
from feedline.profile.bench.survey import Survey, SurveyedImage


def row(loader: Literal["feedline", "torch"], *rates: float) -> BenchmarkRow:
    """A loader that reached these rates, with 2 ms of CPU an image."""
    turns = [Turn(images=round(10 * rate), seconds=10.0, cpu_s=0.02 * rate) for rate in rates]
    return BenchmarkRow(
        name=loader,
        loader=loader,
        first_batch_s=1.25,
        turns=tuple(turns),
    )


def result(**changes: Any) -> BenchmarkResult:
    """100 images of 500 x 400 px on 2 cores: feedline at 480, 500 and 520 images/s."""
    images = [SurveyedImage(k, 110_000, 400, 500) for k in range(100)]
    made = BenchmarkResult(
        settings=BenchmarkOptions(folder=Path("photos")),
        workers=2,
        cores=2,
        images=100,
        classes=2,
        survey=Survey(images=images, skipped=[]),
        stages=StageCosts(
            images=50,
            read_ms=0.1,
            read_cold_ms=1.5,
            cold_not_measured="",
            decode_ms=3.2,
            resize_ms=0.7,
        ),
        rows=(row("feedline", 500, 480, 520),),
        skipped=[],
        left_out=[],
        machine={"cores_usable": 2},
        versions={"feedline": "1"},
        elapsed_s=60.0,
    )
    return replace(made, **changes)
