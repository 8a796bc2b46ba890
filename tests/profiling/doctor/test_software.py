"""Installed software: decoder, compiled parts, torch and other libraries."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import numpy
import PIL
import pytest
import torch

import feedline.images
from feedline.images import jpeg, resize
from feedline.machine import Gpu, Gpus
from feedline.profile.doctor import cores
from feedline.profile.doctor.cores import check_start_method
from feedline.profile.doctor.gpu_checks import TorchBuild, check_torch, read_torch_build
from feedline.profile.doctor.software import check_decoder, check_libraries, check_png_decoder

# The decoder


def test_parts_in_use_match_pipeline() -> None:
    decoder, parts = check_decoder()
    assert decoder.details["pillow"] == PIL.__version__
    assert parts.details["jpeg"] == (jpeg.compiled_decoder() is not None)
    assert parts.details["resample"] == (resize.compiled is not None)
    assert parts.details["lut"] == (resize.compiled_lut is not None)
    assert decoder.details["crop_only"] == parts.details["jpeg"]
    assert decoder.details["reads_codes"] == parts.details["jpeg"]


@pytest.mark.parametrize("name", ["_jpeg", "_resample", "_lut"])
def test_uncompiled_part_is_a_warning(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, f"feedline.images.{name}", None)
    decoder, parts = check_decoder()
    assert (parts.status, parts.details[name.removeprefix("_")]) == ("warn", False)
    assert f"{name} was not compiled" in parts.summary
    assert (decoder.status == "note") == (name == "_jpeg")


def test_the_inflater_of_pngs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("feedline.images._png")
    found = check_png_decoder()
    assert found.details["compiled"]
    assert (found.status == "ok") == (found.details["isal"] is not None)
    monkeypatch.setitem(sys.modules, "feedline.images._png", None)
    found = check_png_decoder()
    assert (found.status, found.details["compiled"]) == ("note", False)
    assert "Pillow" in found.summary


def test_part_for_another_python_differs_from_missing_part(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "_lut.py").write_text("raise ImportError('undefined symbol: PyAnother')\n")
    monkeypatch.setattr(feedline.images, "__path__", [str(tmp_path), *feedline.images.__path__])
    monkeypatch.delitem(sys.modules, "feedline.images._lut", raising=False)
    _, parts = check_decoder()
    assert "_lut cannot be loaded: undefined symbol: PyAnother" in parts.summary


@pytest.mark.parametrize(("platform", "status"), [("linux", "warn"), ("win32", "note")])
def test_unusable_libjpeg_of_pillow_is_named(
    platform: str, status: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("feedline.images._jpeg")
    from PIL import _imaging

    monkeypatch.setattr(_imaging, "__file__", str(tmp_path / "nowhere.so"))
    monkeypatch.setattr(sys, "platform", platform)
    _, parts = check_decoder()
    assert parts.details["jpeg"] is False
    assert "Pillow's libjpeg" in parts.summary
    # Windows has no Pillow that would help.
    assert (parts.status, "pillow" in parts.fix) == (status, platform == "linux")


def test_libjpeg_with_other_internals_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = pytest.importorskip("feedline.images._jpeg")

    class Unknown:
        reads_codes = False

        def __init__(self, path: str) -> None:
            part_decoder(path)

    part_decoder = part.Decoder
    monkeypatch.setattr(part, "Decoder", Unknown)
    decoder, parts = check_decoder()
    assert (decoder.status, parts.status) == ("note", "ok")
    assert decoder.details["reads_codes"] is False
    assert "Huffman codes" in decoder.summary


# torch


def test_imported_build_is_inspected() -> None:
    build = read_torch_build()
    assert build is not None
    assert build.version == str(torch.__version__)
    assert (build.cuda, build.hip) == (torch.version.cuda, torch.version.hip)


@pytest.mark.parametrize(
    ("text", "build"),
    [
        (
            "__version__ = '2.4.1+cu121'\ndebug = False\ncuda = '12.1'\nhip = None\n",
            TorchBuild(version="2.4.1+cu121", cuda="12.1", hip=None),
        ),
        (
            "from typing import Optional\n__version__: str = '2.5.0+rocm6.2'\n"
            "cuda: Optional[str] = None\nhip: Optional[str] = '6.2.4'\n",
            TorchBuild(version="2.5.0+rocm6.2", cuda=None, hip="6.2.4"),
        ),
        ("__version__ = '2.5.0+cpu'\n", TorchBuild(version="2.5.0+cpu", cuda=None, hip=None)),
    ],
)
def test_a_build_is_read_from_its_file(text: str, build: TorchBuild, tmp_path: Path) -> None:
    (tmp_path / "version.py").write_text(text)
    assert read_torch_build(tmp_path) == build


@pytest.mark.parametrize("text", ["", "__version__ = 2\n", "def (", "import os\n", "\0", "\x80"])
def test_build_without_description_raises(text: str, tmp_path: Path) -> None:
    (tmp_path / "version.py").write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match="version"):
        read_torch_build(tmp_path)


def test_inspecting_a_build_runs_no_code(tmp_path: Path) -> None:
    left = tmp_path / "left"
    (tmp_path / "version.py").write_text(
        f"open({str(left)!r}, 'w')\n__version__ = '2.5.0'\ncuda = open({str(left)!r}, 'w')\n"
    )
    assert read_torch_build(tmp_path) == TorchBuild(version="2.5.0", cuda=None, hip=None)
    assert not left.exists()


NVIDIA = Gpus(nvidia=(Gpu(name="NVIDIA A"),), driver="580.65.06", nvidia_cards=1)
AMD = Gpus(amd_cards=1, amd_driver=True)


@pytest.mark.parametrize(
    ("version", "cuda", "hip", "gpus", "status"),
    [
        ("2.5.0+cu124", "12.4", None, Gpus(), "ok"),
        ("2.5.0+cu124", "12.4", None, NVIDIA, "ok"),
        ("2.5.0+cpu", None, None, Gpus(), "ok"),
        ("2.5.0+cpu", None, None, NVIDIA, "fail"),
        ("2.5.0+rocm6", None, "6.2", NVIDIA, "fail"),
        ("2.5.0+rocm6", None, "6.2", AMD, "ok"),
        ("2.5.0+cu124", "12.4", None, AMD, "fail"),
        ("2.5.0+cpu", None, None, Gpus(amd_cards=1), "ok"),
        ("2.1.2", "12.1", None, Gpus(), "fail"),
        ("strange", None, None, Gpus(), "fail"),
    ],
)
def test_incompatible_build_fails(
    version: str, cuda: str | None, hip: str | None, gpus: Gpus, status: str
) -> None:
    build = TorchBuild(version=version, cuda=cuda, hip=hip)
    assert check_torch(build, gpus).status == status


def test_missing_torch_fails() -> None:
    assert check_torch(None, Gpus()).status == "fail"


# The rest


def test_installed_versions_are_reported() -> None:
    check = check_libraries()
    assert check.status == "ok"
    assert check.details["numpy"] == numpy.__version__
    assert check.details["python"] == ".".join(map(str, sys.version_info[:3]))


def test_a_library_that_is_needed_and_missing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    check = check_libraries()
    assert (check.status, check.fix) == ("fail", "pip install xxhash")


def test_start_methods_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    check = check_start_method()
    assert check.details["python_default"] == multiprocessing.get_all_start_methods()[0]
    monkeypatch.setattr(cores, "default_start_method", lambda: "spawn")
    assert check_start_method().status == "note"
