"""Checks of the machine: cores, other programs, memory, limits, threads and libraries."""

import importlib
import json
import os
import sys
from importlib.util import find_spec
from math import inf

import numpy as np
import PIL
import pytest

import feedline.images
from feedline import DataLoader
from feedline.engine.start_pool import pool_bytes
from feedline.images import jpeg, resize
from feedline.images.array import ImageArray
from feedline.profile import doctor_machine
from feedline.profile.doctor_machine import (
    BATCH_ROWS,
    BATCH_SLOTS,
    IMAGE_PX,
    check_cores,
    check_decoders,
    check_libraries,
    check_memory,
    check_native_modules,
    check_open_files,
    check_opencv,
    check_openmp,
    check_other_programs,
    check_shared_memory,
    find_missing_modules,
    slot_bytes,
)
from feedline.system import CoreLimits, MemoryLimits

# Cores

EIGHT = {"machine": 8, "affinity": 8, "quota": inf, "allotted": None, "processes": 1}


def limits(**changes):
    return CoreLimits(**{**EIGHT, **changes})


GIB = 1 << 30
NEEDED = pool_bytes(8, BATCH_SLOTS * slot_bytes())
ALL_8, FOUR_OF_8 = limits(), limits(quota=4.0)


def memory(available, limit=None):
    return MemoryLimits(machine=64 * GIB, limit=limit, available=available)


def threads(given):
    return {"OMP_NUM_THREADS": given}


@pytest.mark.parametrize(
    ("check", "arguments", "status", "fix"),
    [
        (check_cores, [ALL_8], "ok", ""),
        (check_cores, [limits(affinity=4)], "note", ""),
        (check_cores, [limits(quota=0.5)], "warn", "docker run --cpus"),
        (check_cores, [limits(processes=4)], "note", ""),
        (check_cores, [limits(processes=16)], "warn", "--nproc-per-node"),
        (check_cores, [limits(allotted=4, affinity=2)], "warn", "srun"),
        (check_cores, [limits(allotted=4, quota=3.5)], "warn", "srun"),
        (check_other_programs, [ALL_8, 4.0], "warn", "stop other programs"),
        (check_other_programs, [ALL_8, 3.9], "note", ""),
        (check_other_programs, [ALL_8, 0.7], "ok", ""),
        (check_memory, [memory(60 * GIB), 8], "ok", ""),
        (check_memory, [memory(7 * GIB, limit=8 * GIB), 8], "note", ""),
        (check_memory, [memory(NEEDED), 8], "ok", ""),
        (check_memory, [memory(NEEDED - 1), 8], "fail", "docker run --memory"),
        (check_openmp, [ALL_8, {}], "ok", ""),
        (check_openmp, [FOUR_OF_8, {}], "warn", "OMP_NUM_THREADS=4"),  # libgomp knows no quota
        (check_openmp, [FOUR_OF_8, threads("4")], "ok", ""),
        (check_openmp, [FOUR_OF_8, threads("1")], "note", ""),
        (check_openmp, [FOUR_OF_8, threads("4,2")], "ok", ""),
        (check_openmp, [FOUR_OF_8, threads("8,1")], "warn", "OMP_NUM_THREADS=4"),
        (check_openmp, [FOUR_OF_8, threads("0")], "warn", "OMP_NUM_THREADS=4"),
        (check_openmp, [FOUR_OF_8, threads("9" * 5000)], "warn", "OMP_NUM_THREADS=4"),
    ],
)
def test_cores_memory_and_threads_are_judged(check, arguments, status, fix):
    found = check(*arguments)
    assert (found.status, bool(found.fix)) == (status, bool(fix))
    assert fix in found.fix
    assert json.loads(json.dumps(found.details, allow_nan=False)) == found.details


def test_memory_is_that_of_the_cgroup_and_a_batch_needs_what_the_loader_allocates():
    check = check_memory(memory(7 * GIB, limit=8 * GIB), 8)
    assert check.details["cgroup_limit_bytes"] == 8 * GIB
    assert check.details["page_cache_may_hold_bytes"] == int(0.8 * 7 * GIB)
    assert "limit of the cgroup 8.6 GB" in check.summary
    images = ImageArray(np.zeros((8, 4, 4, 3), np.uint8), np.zeros(8, np.int64))
    with DataLoader(images, batch_size=BATCH_ROWS, image_size=IMAGE_PX) as loader:
        iterator = iter(loader)
        assert f"{BATCH_SLOTS * slot_bytes() / 2**20:.0f} MiB" in loader.explain()
        del iterator


def test_shared_memory_that_is_too_small_or_missing_is_a_warning_on_linux(tmp_path, monkeypatch):
    missing = check_shared_memory(1, tmp_path / "shm")
    assert (missing.status, missing.details["size_bytes"]) == ("warn", None)
    for platform in ("win32", "darwin"):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "platform", platform)
            check = check_shared_memory(2, tmp_path / "shm")
        assert (check.status, check.fix) == ("ok", "")
    if not os.path.isdir("/dev/shm"):
        pytest.skip("no /dev/shm here")
    room = os.statvfs("/dev/shm")
    small = check_shared_memory(1_000_000)
    assert small.details["size_bytes"] == room.f_blocks * room.f_frsize
    assert small.details["feedline_needs_it"] is False
    assert (small.status, "--shm-size=" in small.fix) == ("warn", True)


@pytest.mark.skipif(find_spec("resource") is None, reason="no such limits here")
@pytest.mark.parametrize(
    ("soft", "hard", "status", "fix"),
    [
        (1024, 4096, "ok", ""),
        (1023, 4096, "warn", "ulimit -n 4096"),
        (1023, 1023, "warn", "limits.conf"),
        (31, 4096, "fail", "ulimit -n 4096"),
    ],
)
def test_low_limit_is_a_failure(soft, hard, status, fix, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor_machine.resource, "getrlimit", lambda kind: (soft, hard))
    check = check_open_files()
    assert (check.status, check.details["soft_limit"]) == (status, soft)
    assert fix in check.fix
    assert check_open_files(tmp_path / "fd").details["open"] is None, "there is no such list"


@pytest.fixture
def opencv(tmp_path, monkeypatch):
    """A stand-in for OpenCV with the one function that is used."""
    (tmp_path / "cv2.py").write_text("def getNumThreads():\n    return 16\n")
    monkeypatch.delitem(sys.modules, "cv2", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("cv2", None)


@pytest.mark.usefixtures("opencv")
@pytest.mark.parametrize(
    ("given", "status", "threads"),
    [("", "note", None), ("1", "ok", 1), ("4", "note", 4), ("5", "warn", 5), ("-2", "warn", None)],
)
def test_opencv_is_checked_by_environment_without_import(given, status, threads):
    check = check_opencv(FOUR_OF_8, {"OPENCV_FOR_THREADS_NUM": given}, measure=False)
    assert (check.status, check.details["threads"]) == (status, threads)
    assert "cv2" not in sys.modules


@pytest.mark.usefixtures("opencv")
def test_measuring_queries_opencv(tmp_path, monkeypatch):
    check = check_opencv(FOUR_OF_8, {}, measure=True)
    assert (check.status, check.details["threads"]) == ("warn", 16)
    sys.modules.pop("cv2")
    (tmp_path / "cv2.py").write_text("raise ImportError('libGL.so.1: cannot open')\n")
    importlib.invalidate_caches()
    check = check_opencv(ALL_8, {}, True)
    assert check.status == "warn"
    assert "libGL.so.1" in check.summary
    monkeypatch.setitem(sys.modules, "cv2", None)
    check = check_opencv(ALL_8, {}, True)
    assert (check.status, check.details["threads"]) == ("ok", None)
    assert "not installed" in check.summary


def check_decoder():
    missing = find_missing_modules()
    return check_decoders(missing), check_native_modules(missing)


@pytest.mark.parametrize("name", ["_jpeg", "_lut"])
def test_parts_in_use_match_pipeline_and_an_uncompiled_part_is_a_warning(name, monkeypatch):
    decoder, parts = check_decoder()
    assert decoder.details["pillow"] == PIL.__version__
    assert parts.details["jpeg"] == (jpeg.compiled_decoder() is not None)
    assert parts.details["resample"] == (resize.compiled is not None)
    assert parts.details["lut"] == (resize.compiled_lut is not None)
    assert decoder.details["crop_only"] == parts.details["jpeg"]
    assert decoder.details["reads_codes"] == parts.details["jpeg"]
    monkeypatch.setitem(sys.modules, f"feedline.images.{name}", None)
    decoder, parts = check_decoder()
    assert (parts.status, parts.details[name.removeprefix("_")]) == ("warn", False)
    assert f"{name} was not compiled" in parts.summary
    assert decoder.details["crop_only"] == (name != "_jpeg")


def test_the_inflater_of_pngs_is_named(monkeypatch):
    pytest.importorskip("feedline.images._png")
    found, _ = check_decoder()
    assert found.details["compiled_png"]
    assert (f"ISA-L {found.details['isal']}" in found.summary) == bool(found.details["isal"])
    monkeypatch.setitem(sys.modules, "feedline.images._png", None)
    found, _ = check_decoder()
    assert (found.status, found.details["compiled_png"]) == ("note", False)
    assert found.summary.endswith("Pillow")


def test_part_for_another_python_differs_from_missing_part(monkeypatch, tmp_path):
    (tmp_path / "_lut.py").write_text("raise ImportError('undefined symbol: PyAnother')\n")
    monkeypatch.setattr(feedline.images, "__path__", [str(tmp_path), *feedline.images.__path__])
    monkeypatch.delitem(sys.modules, "feedline.images._lut", raising=False)
    _, parts = check_decoder()
    assert "_lut cannot be loaded: undefined symbol: PyAnother" in parts.summary


@pytest.mark.parametrize(("platform", "status"), [("linux", "warn"), ("win32", "note")])
def test_unusable_libjpeg_of_pillow_is_named(platform, status, monkeypatch, tmp_path):
    pytest.importorskip("feedline.images._jpeg")
    from PIL import _imaging

    monkeypatch.setattr(_imaging, "__file__", str(tmp_path / "nowhere.so"))
    monkeypatch.setattr(sys, "platform", platform)
    _, parts = check_decoder()
    assert parts.details["jpeg"] is False
    assert "Pillow's libjpeg" in parts.summary
    # Windows has no Pillow that would help.
    assert (parts.status, "pillow" in parts.fix) == (status, platform == "linux")


def test_libjpeg_with_other_internals_is_reported(monkeypatch):
    part = pytest.importorskip("feedline.images._jpeg")

    class Unknown:
        reads_codes = False

        def __init__(self, path):
            part_decoder(path)

    part_decoder = part.Decoder
    monkeypatch.setattr(part, "Decoder", Unknown)
    decoder, parts = check_decoder()
    assert (decoder.status, parts.status) == ("note", "ok")
    assert decoder.details["reads_codes"] is False
    assert "Huffman codes" in decoder.summary


def test_a_library_that_is_needed_and_missing_fails(monkeypatch):
    monkeypatch.setitem(sys.modules, "xxhash", None)
    check = check_libraries()
    assert (check.status, check.fix) == ("fail", "pip install xxhash")
