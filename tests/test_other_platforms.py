"""feedline without Linux-only names: macOS and Windows."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import feedline
import preloaded
from other_platforms import PRETENDED
from slow import slow

TESTS = Path(__file__).parent

USE = """
import importlib, json, pkgutil, sys

for name in [name for name in sys.modules if name.partition(".")[0] == "feedline"]:
    del sys.modules[name]  # from here on as on another platform

import other_platforms
import psutil
import feedline


def plain(batches):
    return [[images.tolist(), labels.tolist()] for images, labels in batches]


def loader(workers):
    folder = feedline.ImageFolder(sys.argv[1])
    options = {"image_size": 8, "shuffle": True, "seed": 1, "num_workers": workers}
    return feedline.DataLoader(folder, 4, **options)


def killing(loader):
    for step, batch in enumerate(loader):
        if step == 1:
            psutil.Process(loader.worker_pids[0]).kill()
        yield batch


if __name__ == "__main__":
    linux_only = {"pool_linux", "pool_forking", "fork_server"}
    for module in pkgutil.walk_packages(feedline.__path__, "feedline.", onerror=exit):
        name = module.name.rpartition(".")[2]
        if not name.startswith("_") and name not in linux_only:
            importlib.import_module(module.name)
    assert not linux_only & {name.rpartition(".")[2] for name in sys.modules}
    with loader(1) as spawned:
        said = {"first": plain(killing(spawned)), "fingerprint": spawned.dataset.fingerprint()}
        batches = iter(spawned)
        next(batches), next(batches)
        state = spawned.state_dict()
    with loader(0) as inline:
        inline.load_state_dict(state)
        said["rest of second"] = plain(inline)
    print(json.dumps(said))
"""


def _nested(photos):
    """A folder of 24 images, some of which lie in folders below that of their class."""
    folders = ("cats", "cats/b", "cats/b-c", "dogs/d")
    for number, folder in enumerate(6 * folders):
        (photos / folder).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (10 * number, 0, 0)).save(photos / folder / f"{number}.png")
    return photos


@pytest.mark.parametrize("platform", ["win32", *slow("darwin")])  # win32 lacks more names
def test_all_modules_import_and_spawned_workers_give_the_same_bytes(platform, tmp_path):
    photos = _nested(tmp_path / "photos")
    (tmp_path / "sitecustomize.py").write_text("import other_platforms\n")  # of workers
    (tmp_path / "use.py").write_text(USE)
    path = [str(tmp_path), str(TESTS), os.environ.get("PYTHONPATH", "")]
    done = preloaded.run(
        [sys.executable, tmp_path / "use.py", photos],
        env={**os.environ, PRETENDED: platform, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    folder = feedline.ImageFolder(photos)
    with feedline.DataLoader(folder, 4, image_size=8, shuffle=True, seed=1) as loader:
        first, second = ([[each.tolist() for each in batch] for batch in loader] for _ in range(2))
    expected = {"first": first, "rest of second": second[2:]}
    assert json.loads(done.stdout) == {**expected, "fingerprint": folder.fingerprint()}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_the_portable_pools_pass_their_tests(platform, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import other_platforms\n")
    path = [str(tmp_path), str(TESTS), os.environ.get("PYTHONPATH", "")]
    pools = TESTS / "engine" / "test_pools.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--noconftest", pools, "-k", "Portable or InProcess"],
        env={**os.environ, PRETENDED: platform, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        capture_output=True,
        text=True,
        cwd=TESTS.parent,
    )
    assert done.returncode == 0, done.stdout + done.stderr
