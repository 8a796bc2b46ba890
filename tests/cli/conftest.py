"""Running the command line inside the test's process."""

import tempfile

import numpy as np
import pytest
import simplejpeg
from command_line import Ended

from feedline.cli.app import main
from feedline.train.recipe import Recipe, RunSettings


@pytest.fixture
def feedline(capfd, monkeypatch):
    """Run `feedline ARGUMENTS` in this process; return its exit status and output."""
    monkeypatch.delenv("FEEDLINE_DEBUG", raising=False)

    def command(*arguments):
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        printed = capfd.readouterr()
        code = left.value.code
        return Ended(code if isinstance(code, int) else 0, printed.out, printed.err)

    return command


@pytest.fixture(scope="session")
def tiny_set(tmp_path_factory):
    """Two classes of flat grey, 48 px: 16 training and 4 validation images."""
    root = tmp_path_factory.mktemp("tiny") / "set"
    for split, count in (("train", 8), ("val", 2)):
        for name, level in (("dark", 40), ("light", 200)):
            place = root / split / name
            place.mkdir(parents=True)
            for number in range(count):
                pixels = np.full((48, 48, 3), level + number, dtype=np.uint8)
                (place / f"{number}.jpg").write_bytes(simplejpeg.encode_jpeg(pixels))
    return root


@pytest.fixture
def photos(tiny_set):
    return tiny_set / "train"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


@pytest.fixture(scope="session")
def trained(tiny_set, tmp_path_factory):
    """The folder of a run of one epoch. No test changes it."""
    from feedline.train.run import train_model  # loads torch

    out = tmp_path_factory.mktemp("trained") / "run"
    recipe = Recipe(model="test_resnet.r160_in1k", schedule="32x1", batch_size=8, lr=0.01)
    train_model(recipe, RunSettings(data=tiny_set, out=out, device="cpu", workers=0))
    return out
