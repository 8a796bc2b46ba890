"""The tables of the measurements page are those of the benchmarks' results."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


pytestmark = pytest.mark.skipif(
    not BENCHMARKS.is_dir(), reason="tests run apart from the repository"
)


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Function that imports a module of the benchmarks."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module
    for name in ("measurements", "caches_table", "versus_table", "report"):
        sys.modules.pop(name, None)


def test_tables_match_results(benchmark: Any) -> None:
    measurements = benchmark("measurements")
    page = measurements.PAGE.read_text()
    assert page == measurements.fill_tables(page)


@pytest.mark.parametrize(
    ("cpuinfo", "vector_sets"),
    [
        ("flags : sse2 avx2 fma\n", ["AVX2"]),
        ("flags : avx2 avx512f avx512dq avx512bw\n", ["AVX2"]),
        (
            "flags : avx2 avx512f avx512dq avx512bw avx512vl avx512_vnni\n",
            ["AVX2", "AVX-512", "VNNI"],
        ),
        ("Features : fp asimd crc32\n", ["NEON"]),
        ("", []),
    ],
)
def test_results_name_the_vector_sets_of_their_processor(
    benchmark: Any, tmp_path: Path, cpuinfo: str, vector_sets: list[str]
) -> None:
    report, path = benchmark("report"), tmp_path / "cpuinfo"
    path.write_text(f"vendor_id : AuthenticAMD\ncpu family : 26\nmodel : 2\n{cpuinfo}")
    found = report.processor(path)
    assert found["vector_sets"] == vector_sets
    assert found["cpu_generation"] == "vendor_id AuthenticAMD, cpu family 26, model 2"
    assert {*found} <= {*report.machine()}
    described = report.describe_processor(found)
    assert all(name in described for name in vector_sets)
