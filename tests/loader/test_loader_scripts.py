"""Loaders in user scripts, and side effects on their process."""

import random
import re

import numpy as np
import pytest
import torch

from feedline.images.folder import ImageFolder
from feedline.loader import DataLoader
from processes import NEW_PYTHON, outcome
from sets import Made, Sized
from slow import slow

UNGUARDED = """
import torchvision
from torchvision.transforms import v2

import feedline

root = {root!r}
steps = v2.Compose([v2.Resize((8, 8)), v2.ToImage()])
for folder, options in (
    (feedline.ImageFolder(root), {{"image_size": 8}}),
    (torchvision.datasets.ImageFolder(root, steps), {{}}),
):
    with feedline.DataLoader(
        folder, 4, num_workers=2, start_method="forkserver", **options
    ) as loader:
        assert sum(len(labels) for _, labels in loader) == 12
print("fine")
"""


UNGUARDED_MODULE = """
import multiprocessing
import feedline
from sets import Kept

{started}
list(feedline.DataLoader(Kept(0), 4, num_workers=2, start_method="forkserver"))
print("fine")
"""

TOP_LEVEL = """
import feedline
import torch
from defaults import Defaults, as_it_is

torch.set_default_dtype(torch.float64)

if __name__ == "__main__":
    options = {{"num_workers": 2, "start_method": {method!r}, "collate_fn": as_it_is}}
    for epoch in range(2):
        print(*sorted(set(map(str, *feedline.DataLoader(Defaults(), 4, **options)))))
"""

DEFAULTS = """
import torch

class Defaults:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.get_default_dtype()

def as_it_is(samples):
    return samples
"""

ADDED_FORMAT = """
import io
from pathlib import Path

import torch
import torchvision
from PIL import Image
from torchvision.transforms import v2

import feedline

def opened(file, name=None):
    file.seek(4)
    return Image.open(io.BytesIO(file.read()))

Image.register_open("OWN", opened, lambda start: start.startswith(b"OWN:"))
Image.register_extension("OWN", ".own")

if __name__ == "__main__":
    folder = Path(__file__).parent / "images" / "a"
    folder.mkdir(parents=True)
    png = io.BytesIO()
    Image.new("RGB", (8, 8), (0, 255, 0)).save(png, "PNG")
    (folder / "0.own").write_bytes(b"OWN:" + png.getvalue())
    data = torchvision.datasets.DatasetFolder(
        folder.parent,
        torchvision.datasets.folder.default_loader,
        extensions=(".own",),
        transform=v2.Compose([v2.Resize((8, 8)), v2.ToImage()]),
    )
    for options in ({{}}, {{"collate_fn": torch.utils.data._utils.collate.default_convert}}):
        loader = feedline.DataLoader(data, num_workers=1, start_method={method!r}, **options)
        assert len(list(loader)) == 1
    print("fine")
"""

ARGUMENTS = """
import os, sys
from pathlib import Path
import feedline
from sets import Kept, as_it_is

if __name__ == "__main__":
    options = {"num_workers": 1, "collate_fn": as_it_is}
    os.environ["SET_BEFORE"] = "a value"
    # The fork server is older than what follows.
    with feedline.DataLoader(Kept(0), start_method="forkserver", **options) as first:
        list(first)
        later = Path(__file__).parent / "later"
        os.chdir(later)
        sys.path.insert(0, str(later))
        sys.argv += ["--size", "8"]
        os.environ["SET_LATER"] = os.environ.pop("SET_BEFORE")
        from seen import SEEN, Seen
        for method in ("forkserver", "spawn", "fork"):
            with feedline.DataLoader(Seen(), start_method=method, **options) as loader:
                assert list(loader) == [[SEEN]], (method, list(loader))
    print("fine")
"""

SEEN = """
import os, sys

SET = [os.environ.get(name) for name in ("SET_BEFORE", "SET_LATER")]
SEEN = list(sys.argv), os.getcwd(), list(sys.path), SET

class Seen:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return SEEN
"""

UNDER_THE_GUARD = """
import feedline
from sets import Kept

if __name__ == "__main__":
    class Mine(Kept):
        pass

    list(feedline.DataLoader(Mine(0), num_workers=1, start_method="forkserver"))
"""

FROM_STDIN = """
import feedline
from sets import Kept

class Mine(Kept):
    pass

if __name__ == "__main__":
    print(len(list(feedline.DataLoader({data}, num_workers=1, start_method={method!r}))))
"""

IMPORTS = """
import contextlib, random, sys, numpy, torch

def states():
    numpys = numpy.random.get_state()
    torchs = torch.get_rng_state().tolist(), torch.initial_seed()
    return random.getstate(), (numpys[0], numpys[1].tolist(), *numpys[2:]), torchs

random.seed(1); numpy.random.seed(2); torch.manual_seed(3)
before = states()
import feedline
feedline.DataLoader([1, 2], num_workers=0).explain()
assert "feedline.images.compile.compile_dataset" not in sys.modules  # nor the decoders with it
for name in feedline.__all__:
    getattr(feedline, name)
with contextlib.redirect_stdout(None):
    watched = feedline.watch([1, 2], panel=True)
    list(watched)
    watched.why()
    with feedline.DataLoader([1, 2], num_workers=0) as loader:
        loader.why()
assert states() == before
print("fine")
"""


@pytest.mark.slow
def test_imports_and_reports_leave_the_global_random_states_alone(tmp_path):
    assert outcome(IMPORTS, tmp_path, prefix=NEW_PYTHON) == ("fine", "")


@pytest.mark.slow
def test_a_script_whose_workers_run_no_code_of_the_user_needs_no_guard(jpeg_folder, tmp_path):
    assert outcome(UNGUARDED.format(root=str(jpeg_folder)), tmp_path) == ("fine", "")


@pytest.mark.parametrize(
    "started", ["", *slow('multiprocessing.get_context("spawn").Process(target=print).start()')]
)
def test_script_without_guard_raises_with_hint(started, tmp_path):
    output, errors = outcome(UNGUARDED_MODULE.format(started=started), tmp_path)
    assert "fine" not in output
    assert re.search("if __name__ == ['\"]__main__['\"]", errors)
    assert "StartError" in errors


@pytest.mark.parametrize(
    ("by", "method", "dtype"),
    [
        ("file", "forkserver", "float64"),
        *slow(
            ("module", "forkserver", "float64"),
            ("stdin", "forkserver", "float32"),  # there is no file that workers could import
            ("file", "spawn", "float64"),
        ),
    ],
)
def test_workers_have_top_level_settings_of_script(by, method, dtype, tmp_path):
    (tmp_path / "defaults.py").write_text(DEFAULTS)
    expected = f"torch.{dtype}\ntorch.{dtype}"
    assert outcome(TOP_LEVEL.format(method=method), tmp_path, by=by) == (expected, "")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_workers_read_image_formats_that_the_script_registers(method, tmp_path):
    assert outcome(ADDED_FORMAT.format(method=method), tmp_path) == ("fine", "")


@pytest.mark.slow
def test_module_in_worker_finds_current_state_of_trainer(tmp_path):
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "seen.py").write_text(SEEN)
    assert outcome(ARGUMENTS, tmp_path) == ("fine", "")


@pytest.mark.parametrize(
    ("method", "data", "fine"),
    [
        ("forkserver", "Mine(0)", False),
        # multiprocessing itself imports the script in any case
        *slow(
            ("forkserver", "Kept(0)", True),
            ("spawn", "Kept(0)", False),
            ("fork", "Mine(0)", True),
        ),
    ],
)
def test_script_from_stdin_raises_with_hint(method, data, fine, tmp_path):
    text = FROM_STDIN.format(data=data, method=method)
    output, errors = outcome(text, tmp_path, by="stdin")
    if fine:
        assert (output, errors) == ("4", "")
    else:
        assert "UsageError: worker processes must import your script" in errors
        assert 'Put the code into a file, or use start_method="fork"' in errors


def test_class_missing_in_script_is_named(tmp_path):
    _, errors = outcome(UNDER_THE_GUARD, tmp_path)
    assert "StartError: a worker could not open the dataset" in errors
    assert "'Mine'" in errors
    assert "Move it to a module or to the top level of the script" in errors


def threads(index):
    (torch.ones(600, 600) @ torch.ones(600, 600)).sum()
    return torch.get_num_threads()


@pytest.fixture
def two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def global_states():
    numpys = np.random.get_state()
    return [
        random.getstate(),
        (numpys[0], numpys[1].tolist(), *numpys[2:]),
        torch.get_rng_state().tolist(),
        torch.initial_seed(),
        torch.get_num_threads(),
        torch.get_default_dtype(),
    ]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "options", [{}, {"device": "cpu"}, {"dataset": Sized(12)}], ids=["usual", "device", "rows"]
)
def test_a_loader_leaves_the_global_random_states_alone(workers, options, jpeg_folder):
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    before = global_states()
    chosen = {"dataset": ImageFolder(jpeg_folder), "schedule": "16x1,12x1", **options}
    with DataLoader(batch_size=5, num_workers=workers, **chosen) as loader:
        for _ in range(2):
            for _ in loader:
                assert global_states() == before
        loader.load_state_dict(loader.state_dict())
        next(iter(loader))
        assert global_states() == before


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_compute_on_one_thread(method):
    (torch.ones(600, 600) @ torch.ones(600, 600)).sum()  # starts threads, which no fork has
    with DataLoader(Made(2, threads), None, num_workers=1, start_method=method) as loader:
        assert list(loader) == [1, 1]
