"""Messages when a script ends, or cannot run as written."""

import sys

import pytest

from feedline.engine import shared_memory
from processes import outcome, start_script
from slow import slow

UNGUARDED = """
from faulty import Steady
from feedline.loader import DataLoader

with DataLoader(Steady(20), 4, image_size=4, num_workers=8, start_method="spawn") as loader:
    list(loader)
print("fine")
"""


OPENCVS_THREADS = """
import time
import cv2
import numpy as np
import torch
from feedline import DataLoader

class Blurred(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        pixels = np.full((512, 512, 3), index, np.uint8)
        return torch.from_numpy(cv2.GaussianBlur(pixels, (31, 31), 5)[:8, :8])

if __name__ == "__main__":
    Blurred()[0]
    time.sleep(1)  # until OpenCV's threads sleep
    loader = DataLoader(Blurred(), 4, num_workers=2)
    print([int(image[0, 0, 0]) for batch in loader for image in batch])
"""

SIGNALLED = """
import os, signal
import psutil
from faulty import Steady

def note(number, frame):
    print("handled", os.getpid() == trainer, flush=True)

trainer = os.getpid()
signals = [signal.SIGUSR1, signal.SIGHUP]
for number in signals:  # in workers that import this script, too
    signal.signal(number, note)

if __name__ == "__main__":
    from feedline.loader import DataLoader  # not at the top: workers would load torch

    loader = DataLoader(Steady(96), 4, image_size=4, num_workers=2, start_method="METHOD")
    batches = iter(loader)
    count = len(next(batches)[1])
    for pid in loader.worker_pids:
        worker = psutil.Process(pid)
        for process in {worker, worker.parent()} - {psutil.Process()}:
            for number in signals:
                process.send_signal(number)
    for number in signals:
        os.kill(trainer, number)
    count += sum(len(labels) for _, labels in batches)
    print(count, loader.worker_deaths)
"""

WITHOUT_PYTHON = """
import multiprocessing, sys
python, sys.executable = sys.executable, "PROGRAM"
from faulty import Steady
from feedline.errors import StartError

if __name__ == "__main__":
    from feedline.loader import DataLoader  # not at the top: workers would load torch

    try:
        for executable in (python, "PROGRAM"):
            multiprocessing.set_executable(executable)
            options = {"num_workers": 1, "start_method": "METHOD"}
            with DataLoader(Steady(20), 4, image_size=4, **options) as loader:
                print(sum(len(labels) for _, labels in loader))
    except StartError as error:
        print(error)
"""

UNUSABLE_STREAMS = """file = open(__file__)  # takes the descriptor of a missing standard input

import io, os, sys
import torch
from feedline import DataLoader

class WriteOnly:
    def write(self, text):
        pass

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        assert os.pread(file.fileno(), 4, 0) == b"file"
        return torch.tensor(index)

if __name__ == "__main__":
    closed = io.StringIO()
    closed.close()
    for stream in (sys.stdout, None, closed, WriteOnly()):
        sys.stdout = sys.stderr = stream
        read = [batch.tolist() for batch in DataLoader(Numbers(), 4, num_workers=1)]
        with open(sys.argv[1], "a") as written:
            print(read, file=written)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
"""

OPTIONS_OF_PYTHON = """
import sys
import feedline

class Options:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return repr([sys.flags, sys.warnoptions, sys._xoptions])

if __name__ == "__main__":
    data, method = Options(), "forkserver" if sys.platform == "linux" else "spawn"
    print(list(feedline.DataLoader(data, None, num_workers=1, start_method=method)) == [data[0]])
"""

FROZEN = """
import multiprocessing.spawn, os, sys
sys.frozen, sys.executable = True, os.environ["PROGRAM"]
multiprocessing.set_executable(sys.executable)
from faulty import Steady

if __name__ == "__main__":
    multiprocessing.spawn.freeze_support()  # runs workers, as that of PyInstaller
    if "from multiprocessing.resource_tracker import" in sys.argv[-1]:  # PyInstaller runs it
        exec(sys.argv[-1])
        sys.exit()
    assert len(sys.argv) == 1, sys.argv
    from feedline.loader import DataLoader

    with DataLoader(Steady(20), 4, image_size=4, num_workers=1) as loader:
        print(sum(len(labels) for _, labels in loader))
"""

LOADER_IN_A_DATASET = """
from faulty import Steady
from feedline.loader import DataLoader

class Nested(Steady):
    def load(self, item, row):
        list(DataLoader(Steady(8), 4, image_size=4, num_workers=1))

if __name__ == "__main__":
    with DataLoader(Nested(20), 4, image_size=4, num_workers=2, start_method={method!r}) as loader:
        list(loader)
"""


def test_memory_is_released_after_its_modules_are_gone(monkeypatch):
    block = shared_memory.NamedMemory(None, 4096)
    segment, kept = block._memory, block.array
    with monkeypatch.context() as gone:
        # What the end of the interpreter does to the globals of a module.
        gone.setattr(shared_memory, "contextlib", None)
        segment.close()
        kept[:] = 1  # a batch keeps the mapping
        gone.setattr(shared_memory, "os", None)
        segment.__del__()
    block.close()


@pytest.mark.slow
def test_unguarded_script_with_spawn_raises_one_error_about_guard(tmp_path):
    output, errors = outcome(UNGUARDED, tmp_path)
    assert output == ""
    assert errors.count("Traceback") == 1, errors
    assert 'put that code under `if __name__ == "__main__":`' in errors


@pytest.mark.parametrize("method", ["forkserver", *slow("spawn", "fork")])
def test_dataset_that_builds_a_loader_with_workers_raises_without_guard_hint(method, tmp_path):
    _, errors = outcome(LOADER_IN_A_DATASET.format(method=method), tmp_path)
    assert "a loader with num_workers=1 was built inside a worker process" in errors
    assert "num_workers=0" in errors
    assert "if __name__" not in errors


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_workers_have_the_options_of_python(tmp_path):
    options = "-O -B -Wignore::UserWarning -X utf8=0"
    shell = ("sh", "-c", f'python=$1; shift; exec "$python" {options} "$@"', "sh")
    output, errors = outcome(OPTIONS_OF_PYTHON, tmp_path, prefix=shell)
    assert output == "True", errors


def test_forked_workers_do_not_wait_for_opencv_threads(tmp_path):
    pytest.importorskip("cv2")
    output, errors = outcome(OPENCVS_THREADS, tmp_path)
    assert output == str(list(range(16))), errors


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_only_the_trainer_handles_its_signals(method, tmp_path):
    script = SIGNALLED.replace("METHOD", method)
    told, errors = outcome(script, tmp_path)
    assert told.splitlines() == ["handled True", "handled True", "96 []"], errors


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell script")
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_workers_run_the_executable_of_multiprocessing(method, tmp_path):
    program = tmp_path / "application"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    script = WITHOUT_PYTHON.replace("METHOD", method).replace("PROGRAM", str(program))
    told, _ = outcome(script, tmp_path)
    count, *error = told.splitlines()
    assert count == "20"
    assert str(program) in " ".join(error)
    assert "exited with status 3" in " ".join(error)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell script")
def test_workers_of_a_frozen_program_run_it_as_those_of_multiprocessing(tmp_path):
    program = tmp_path / "application"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path / "script.py"} "$@"\n')
    program.chmod(0o755)
    output, errors = outcome(FROZEN, tmp_path, prefix=("env", f"PROGRAM={program}"))
    assert output == "20", errors


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
@pytest.mark.parametrize("redirections", ["", "<&- >&- 2>&-"])
def test_workers_start_without_usable_standard_streams(redirections, tmp_path):
    written = tmp_path / "written.txt"
    shell = ("sh", "-c", f'exec "$@" {written} {redirections}', "sh")
    script = start_script(UNUSABLE_STREAMS, tmp_path, prefix=shell)
    output, errors = script.communicate(timeout=200)
    assert (output, errors, script.returncode) == ("", "", 0)
    assert written.read_text().splitlines() == ["[[0, 1, 2, 3], [4, 5, 6, 7]]"] * 4
