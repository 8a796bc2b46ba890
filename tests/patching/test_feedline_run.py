"""`feedline run`: scripts as their authors wrote them, in processes of their own."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

import preloaded
from feedline.errors import UsageError
from feedline.running.launch import PatchSettings, python_command
from feedline.running.start import call_after_import
from feedline.timing.run_file import read_run
from packages import needs
from ranks import said_by_ranks
from slow import slow
from torchvision_folder import write_images

FEEDLINE = [sys.executable, "-m", "feedline", "run"]

TRAIN = """
import sys
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets
from torchvision.transforms import v2

torch.manual_seed(0)
dist.init_process_group("gloo")
steps = v2.Compose(
    [v2.ToImage(), v2.Resize(40), v2.CenterCrop(32), v2.ToDtype(torch.float32, scale=True)]
)
folder = datasets.ImageFolder(sys.argv[1], steps)
sampler = DistributedSampler(folder)
loader = DataLoader(folder, 2, sampler=sampler, num_workers=1)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 2))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        line = f"{epoch} {labels.tolist()} {loss.item().hex()}\\n"
        with open(f"{sys.argv[2]}-{dist.get_rank()}", "a") as file:
            file.write(line)
dist.destroy_process_group()
print(0)
"""


def run(command, folder, environment=None):
    """Run a command in a folder. Each program runs in a new Python, which `feedline run` starts."""
    start = preloaded.run if [*command[:4]] == FEEDLINE else subprocess.run
    return start(
        [str(part) for part in command],
        cwd=folder,
        # torchrun leaves a folder of logs among the temporary files.
        env={**os.environ, "TMPDIR": str(folder), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=200,
    )


def script(folder, text, name="script.py"):
    path = folder / name
    path.write_text(text)
    return path


def summary_of(result):
    lines = result.stderr.splitlines()
    starts = [k for k, line in enumerate(lines) if line.startswith("feedline run:")]
    assert len(starts) == 1, result.stderr
    return lines[starts[0] :]


@needs("torchvision")
def test_a_deterministic_training_has_the_same_losses_on_each_rank(tmp_path):
    images = write_images(tmp_path / "images")
    said_by_ranks(TRAIN, 2, str(images), str(tmp_path / "torch"))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    arguments = [*launcher, script(tmp_path, TRAIN), images, tmp_path / "feedline"]
    result = run([*FEEDLINE, "--run", "record", *arguments], tmp_path)
    assert result.returncode == 0, result.stderr
    lines = summary_of(result)
    assert len(lines) <= 10
    assert "on 2 of 2 ranks" in lines[0]
    assert "image-row engine" in lines[1]
    assert "CenterCrop" in lines[1]
    (folder,) = (tmp_path / "record").iterdir()
    for rank in range(2):
        losses = [(tmp_path / f"{name}-{rank}").read_text() for name in ("feedline", "torch")]
        assert losses[0] == losses[1]
        record = read_run(folder, rank)
        assert (record.rank, record.world_size) == (rank, 2)
        assert {loader.kind for loader in record.loaders} == {"feedline"}
        assert sum(each.samples or 0 for each in record.passes) == 8


START_METHODS = ["spawn", "fork", "forkserver"] if sys.platform != "win32" else ["spawn"]
SPAWNED = """
import multiprocessing
import sys

from torch.utils.data import DataLoader

def read(queue, way):
    loader = DataLoader(list(range(8)), 4)
    library = type(loader).mro()[1].__module__.split(".")[0]
    queue.put((way, library, [batch.tolist() for batch in loader]))

if __name__ == "__main__":
    for way in sys.argv[1:]:
        context = multiprocessing.get_context(way)
        queue = context.Queue()
        child = context.Process(target=read, args=(queue, way))
        child.start()
        print(*queue.get())
        child.join()
        assert child.exitcode == 0
"""


@pytest.mark.parametrize(
    "ways", [START_METHODS[:2], *slow(*filter(None, [START_METHODS[2:]]))], ids=" ".join
)
def test_children_of_all_start_methods_use_feedline(ways, tmp_path):
    result = run([*FEEDLINE, script(tmp_path, SPAWNED), *ways], tmp_path)
    batches = [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert result.stdout.splitlines() == [f"{way} feedline {batches}" for way in ways]
    assert result.returncode == 0
    assert f"feedline run: {len(ways)} loader" in summary_of(result)[0]


RANKS = """
import multiprocessing
import os

from torch.utils.data import DataLoader

class Private(DataLoader):
    def _get_iterator(self):
        return super()._get_iterator()

def read(kind):
    for _ in range(2):
        list(kind(list(range(8)), 4))

if __name__ == "__main__":
    for rank, kind in enumerate([DataLoader, Private]):
        os.environ.update(RANK=str(rank), WORLD_SIZE="3")
        child = multiprocessing.Process(target=read, args=(kind,))
        child.start()
        child.join()
        assert child.exitcode == 0
        del os.environ["RANK"]
"""


def test_the_summary_says_which_ranks_were_not_replaced(tmp_path):
    result = run([*FEEDLINE, script(tmp_path, RANKS)], tmp_path)
    assert result.returncode == 0, result.stderr
    head = summary_of(result)[0]
    for text in ("on 1 of 3 ranks", "torch's loader on rank 1", "no record of rank 2"):
        assert text in head, head


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (["status.py"], 7),
        (["exception.py"], 1),
        (["folder"], 1),
        (["notes.txt"], 1),
        (["-m", "missing_module"], 1),
    ],
)
def test_the_end_of_a_program_passes_through(target, status, tmp_path):
    (tmp_path / "folder").mkdir()
    script(tmp_path, "print(1)\nraise SystemExit(7)\n", "status.py")
    script(tmp_path, "raise KeyError('mine')\n", "exception.py")
    script(tmp_path, "no program", "notes.txt")
    plain, own = run([sys.executable, *target], tmp_path), run([*FEEDLINE, *target], tmp_path)
    assert own.returncode == plain.returncode == status
    assert own.stdout == plain.stdout
    *output, last = own.stderr.splitlines()
    assert output == plain.stderr.splitlines()
    assert last.startswith("feedline run:")
    assert not (tmp_path / "runs").exists()


def test_a_python_that_ignores_the_search_path_is_named(tmp_path, monkeypatch):
    path = script(tmp_path, "")
    (tmp_path / "python313._pth").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python.exe"))
    with pytest.raises(UsageError, match=r"ignores: .*python313\._pth"):
        python_command([str(path)])


ENDLESS = """
import time
from torch.utils.data import DataLoader

for batch in DataLoader(list(range(8)), 4, num_workers=1):
    print(batch.tolist(), flush=True)
    time.sleep(1000)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C goes to a whole console there")
def test_ctrl_c_ends_a_program_as_without_feedline(tmp_path):
    path = script(tmp_path, ENDLESS)
    with preloaded.Popen(
        [*FEEDLINE, str(path)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "[0, 1, 2, 3]\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=100)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    assert "1 loader" in errors
    (folder,) = (tmp_path / "runs").glob("*/*")
    assert sum(each.batches for each in read_run(folder).passes) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C goes to a whole console there")
def test_ctrl_c_ends_a_rank_that_prints_no_summary_as_without_feedline(tmp_path):
    path = script(tmp_path, "import time\nprint('started', flush=True)\ntime.sleep(1000)\n")
    environment = {**os.environ, "RANK": "1", "WORLD_SIZE": "2"}
    with subprocess.Popen(
        [*FEEDLINE, str(path)], cwd=tmp_path, env=environment, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"started\n"
        process.send_signal(signal.SIGINT)
    assert process.returncode == -signal.SIGINT


FACTS = """
import json
import sys

import package.first
flags = [repr(sys.flags), sys.warnoptions, sys._xoptions, sys.stdout.write_through]
loaded = "torch" in sys.modules
facts = [sys.argv, __file__, __name__, sys.path, package.first.__file__, flags, loaded]
print(json.dumps(facts))
"""


@pytest.mark.parametrize("as_module", [False, True])
def test_arguments_options_and_search_path_are_those_of_python(as_module, tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    for name in ("__init__.py", "first.py"):
        script(package, "", name)
    path = script(package if as_module else tmp_path, FACTS)
    target = ["-m", "package.script"] if as_module else [path.name]
    arguments = [*target, "--watch", "-m", "--", "a b"]
    options = ["-O", "-B", "-u", "-X", "utf8=0", "-W", "ignore::UserWarning"]
    plain = run([sys.executable, *options, *arguments], tmp_path)
    own = run([sys.executable, *options, *FEEDLINE[1:], "--run", "here", *arguments], tmp_path)
    assert plain.returncode == own.returncode == 0, own.stderr
    assert json.loads(own.stdout) == json.loads(plain.stdout)
    argv, *_, flags, loads_torch = json.loads(own.stdout)
    assert argv[1:] == arguments[len(target) :]
    assert "optimize=1" in flags[0]
    assert not loads_torch


CODE = "import sys; print(sys.argv, sys.path[0], __name__)"


@pytest.mark.parametrize("target", [["-c", CODE, "x"], ["-", "x"]])
def test_code_and_standard_input_are_programs(target, tmp_path):
    plain, own = (
        subprocess.run(
            [*command, *target], cwd=tmp_path, input=CODE, capture_output=True, text=True
        )
        for command in ([sys.executable], FEEDLINE)
    )
    assert own.stdout == plain.stdout
    assert plain.stdout, plain.stderr
    assert own.stderr.startswith("feedline run: the program iterated")


def test_a_profiler_that_would_miss_the_program_is_named(tmp_path):
    path, profiler = script(tmp_path, ""), ["-m", "cProfile"]
    around = run([sys.executable, *profiler, *FEEDLINE[1:], path], tmp_path)
    within = run([*FEEDLINE, *profiler, path], tmp_path)
    assert "`feedline run -m cProfile train.py`" in around.stderr
    assert "cProfile" not in within.stderr


def test_the_sitecustomize_of_the_user_runs(tmp_path):
    script(tmp_path, "import os\nos.environ['MINE'] = __file__", "sitecustomize.py")
    path = script(tmp_path, "import os, sitecustomize; print(os.environ['MINE'])")
    search_path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    result = run([*FEEDLINE, path], tmp_path, {"PYTHONPATH": search_path})
    assert result.stdout.strip() == str(tmp_path / "sitecustomize.py"), result.stderr


WRONG_USES = {
    "missing.py": ["missing.py"],
    "tool.sh": ["tool.sh"],
    "tool": ["tool"],
    "SCRIPT": ["--watch"],
    "-m": ["-m"],
    "workers": ["--workers", "3", "script.py"],
    "--watch": ["--watch", "--off", "X", "script.py"],
    "--unknown": ["--unknown", "script.py"],
}
USE_WRONGLY = """
import contextlib
import io
import json
import sys

from feedline.cli.app import main

for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            main(["run", *arguments])
        except SystemExit as left:
            print(json.dumps([left.code, errors.getvalue()]))
"""


def test_wrong_use_is_an_error(tmp_path):
    script(tmp_path, "#!/bin/sh\nexit 0\n", "tool.sh")
    script(tmp_path, "\0", "tool")
    script(tmp_path, "")
    arguments = json.dumps([*WRONG_USES.values()])
    result = preloaded.run(
        [sys.executable, "-c", USE_WRONGLY, arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    for line, text in zip(result.stdout.splitlines(), WRONG_USES, strict=True):
        status, errors = json.loads(line)
        assert status == 2
        assert errors.startswith("error:")
        assert text in errors


def test_options_are_settings_of_the_program(tmp_path):
    text = "from feedline.running.launch import read_settings; print(read_settings())"
    path, run_folder = script(tmp_path, text), ["--run", "here"]
    for options, expected in (
        (["--watch"], PatchSettings(watch=True)),
        (
            ["--off", "A", "--off=B", "--compare", "1", "--workers", "auto", "--cache", "c"],
            PatchSettings(off=("A", "B"), compare=1, workers="auto", cache=str(tmp_path / "c")),
        ),
    ):
        result = run([*FEEDLINE, *run_folder, *options, path], tmp_path)
        expected = replace(expected, folder=str(tmp_path / "here"))
        assert re.sub(r"root=\d+", "root=None", result.stdout.strip()) == str(expected)


def test_torchrun_may_start_feedline_run_on_each_rank(tmp_path):
    text = "from torch.utils.data import DataLoader\nlist(DataLoader(list(range(8)), 4))\n"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    command = [*launcher, "--nproc-per-node=2", *FEEDLINE, script(tmp_path, text)]
    result = run(command, tmp_path)
    assert result.returncode == 0, result.stderr
    (folder,) = (tmp_path / "runs").glob("*/*")
    assert {file.name for file in folder.iterdir()} == {"trace.json", "trace-rank1.json"}
    assert result.stderr.count("feedline run: 1 loader") == 1


def test_tasks_of_srun_share_a_folder_and_one_summary(tmp_path):
    text = "from torch.utils.data import DataLoader\nlist(DataLoader(list(range(8)), 4))\n"
    file = script(tmp_path, text)
    step = {"SLURM_JOB_ID": "41", "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "2"}
    results = [run([*FEEDLINE, file], tmp_path, step | {"SLURM_PROCID": k}) for k in ("1", "0")]
    assert results[0].stderr == ""
    assert "2 loaders" in summary_of(results[1])[0]
    assert os.listdir(tmp_path / "runs") == ["script-41.2"]


COMPARED = """
import multiprocessing
import random
import sys

import feedline
patched = feedline.patch(compare=int(sys.argv[2]))

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

class Numbers(Dataset):
    rng = np.random.default_rng(3)

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return index, self.rng.random() + random.random()

class Stream(IterableDataset):
    def __iter__(self):
        yield from range(8)

random.seed(1)
np.random.seed(2)
torch.manual_seed(3)
own = torch.Generator().manual_seed(4)
plain = v2.Compose([v2.ToImage(), v2.Resize((16, 16)), v2.ToDtype(torch.float32, scale=True)])
crop = v2.Compose([v2.RandomResizedCrop(16), v2.ToImage()])
for loader in (
    DataLoader(ImageFolder(sys.argv[1], plain), 2, shuffle=True, num_workers=1),
    DataLoader(ImageFolder(sys.argv[1], crop), 3, shuffle=True, num_workers=1, generator=own),
    DataLoader(Numbers(), 2, shuffle=True),
    DataLoader(Stream(), 2),
):
    print(len(loader.dataset) if not isinstance(loader.dataset, Stream) else 8)
    for batch in loader:
        if not isinstance(batch, list):
            print(batch.tolist())
        elif type(loader.dataset) is Numbers:
            print([part.tolist() for part in batch])
        else:
            print(batch[1].tolist())
    print(len(multiprocessing.active_children()))
print(torch.rand(1), random.random(), np.random.rand(), own.get_state().sum(), Numbers.rng.random())
"""


@needs("torchvision")
def test_a_comparison_with_torch_changes_nothing_for_the_program(tmp_path):
    images = write_images(tmp_path / "images")
    path = script(tmp_path, COMPARED)
    results = [
        preloaded.run(
            [sys.executable, path, images, compare],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
        )
        for compare in ("0", "3")
    ]
    assert [result.returncode for result in results] == [0, 0], results[-1].stderr
    assert results[0].stdout == results[1].stdout
    *compared, stream = results[1].stderr.splitlines()
    plain, crop, numbers = compared[1::2]
    for line in compared[::2]:
        assert "3 batches: torch " in line
        assert ", feedline " in line
    assert plain.endswith("equal: shapes, labels, pixels")
    assert crop.endswith("equal: shapes, labels; random in both: pixels")
    assert numbers.endswith("equal: shapes; random in both: labels")
    assert "IterableDataset" in stream
    assert len(compared) == 6


def test_several_hooks_may_wait_for_one_module(tmp_path, monkeypatch):
    script(tmp_path, "", "awaited_module.py")
    monkeypatch.syspath_prepend(tmp_path)
    calls = []
    for number in range(2):
        call_after_import("awaited_module", lambda number=number: calls.append(number))
    module = importlib.import_module("awaited_module")
    assert sorted(calls) == [0, 1]
    assert "exec_module" not in vars(module.__loader__)
