"""Which torch is installed, read from its files: importing it takes more than a second."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from feedline.doctor.check import Check
from feedline.doctor.gpus import Gpus

__all__ = ["TorchBuild", "look_at_torch", "torch_build", "uses"]

_LEAST = (2, 2)
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class TorchBuild:
    """What the installed torch says of itself.

    Args:
        version: with what it was built for, as "2.5.1+cu124".
        cuda: the CUDA version; None for a build without CUDA.
        hip: the version of ROCm's HIP; None for a build without it.
    """

    version: str
    cuda: str | None
    hip: str | None


def torch_build(package: Path | None = None) -> TorchBuild | None:
    """The installed torch; None where there is none. It is not imported.

    Args:
        package: the folder of the package; None looks for it as an import would.

    Raises:
        ValueError: it is there, and does not say what it is.
    """
    if package is None:
        found = importlib.util.find_spec("torch")
        if found is None or not found.submodule_search_locations:
            return None
        package = Path(next(iter(found.submodule_search_locations)))
    path = package / "version.py"
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST_BYTES)
        said = _constants(text)
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    version = said.get("__version__")
    if not isinstance(version, str):
        raise ValueError(f"{path} holds no version")
    cuda, hip = said.get("cuda"), said.get("hip")
    return TorchBuild(
        version=version,
        cuda=cuda if isinstance(cuda, str) else None,
        hip=hip if isinstance(hip, str) else None,
    )


def _constants(source: bytes) -> dict[str, object]:
    """The names at the top of a Python file that are set to plain values. Nothing of it is run."""
    found: dict[str, object] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            targets, value = node.targets, node.value.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant):
            targets, value = [node.target], node.value.value
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name):
                found[target.id] = value
    return found


def uses(build: TorchBuild, gpus: Gpus) -> bool:
    """Whether a build of torch is made for a GPU that is here, with its driver."""
    return bool((gpus.nvidia and build.cuda) or (gpus.amd and build.hip))


def look_at_torch(build: TorchBuild | None, gpus: Gpus) -> Check:
    """The check "torch-build".

    Args:
        build: what is installed; None for nothing.
        gpus: what there is for it.
    """
    if build is None:
        return Check(
            id="torch-build",
            status="fail",
            summary="torch is not installed, and the loader needs it",
            fix="pip install torch, as https://pytorch.org/get-started/locally says for this "
            "machine",
        )
    details = {"version": build.version, "cuda": build.cuda, "hip": build.hip}
    kind = f"for CUDA {build.cuda}" if build.cuda else f"for ROCm {build.hip}"
    if not build.cuda and not build.hip:
        kind = "for the CPU alone"
    line = f"torch {build.version}, built {kind}"
    release = re.match(r"(\d+)\.(\d+)", build.version)
    if release is None or (int(release[1]), int(release[2])) < _LEAST:
        return Check(
            id="torch-build",
            status="fail",
            summary=f"{line}, and feedline needs {'.'.join(map(str, _LEAST))} or newer",
            details=details,
            fix="pip install --upgrade torch",
        )
    if gpus.any and not uses(build, gpus):
        return Check(
            id="torch-build",
            status="fail",
            summary=f"{line}: it cannot use the GPU that is here",
            details=details,
            fix="install a build for this GPU, as https://pytorch.org/get-started/locally says",
        )
    return Check(id="torch-build", status="ok", summary=line, details=details)
