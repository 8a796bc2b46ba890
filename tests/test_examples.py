"""Each example trains, resumes in the middle of an epoch, and says so in one line."""

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NEEDS = {  # an example, and the packages that it needs
    "accelerate_train": ("accelerate",),
    "ddp_torchrun": ("torch",),
    "fastai_train": ("fastai",),
    "hf_trainer": ("transformers", "accelerate"),
    "lightning_resume": ("lightning",),
    "timm_train": ("timm",),
}


pytestmark = pytest.mark.skipif(not EXAMPLES.exists(), reason="tests run apart from the repository")


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*NEEDS, "progressive"}


def test_progressive_resizing_by_hand(jpeg_folder, tmp_path, capsys):
    (tmp_path / "train").symlink_to(jpeg_folder)
    example = runpy.run_path(str(EXAMPLES / "progressive.py"))
    example["main"](str(tmp_path), "16x1,32x2", batch_size=4)
    said = capsys.readouterr().out
    for line in ("epoch 1 at 16 px: loss", "epoch 2 at 32 px: loss", "epoch 3 at 32 px: loss"):
        assert line in said


@pytest.mark.timeout(420)  # importing a framework may take most of it on a busy machine
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NEEDS))
def test_an_example_resumes(name, tmp_path):
    missing = [package for package in NEEDS[name] if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}")
    alone = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path,
        env=alone,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    expected = r"\w+: resumed after step \d+ with the remaining \d+ batches\n"
    assert re.fullmatch(expected, done.stdout), done.stdout + done.stderr
    assert not list(tmp_path.iterdir()), "an example leaves files behind"
