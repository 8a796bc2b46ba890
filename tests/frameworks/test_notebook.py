"""A real Jupyter kernel: classes of cells, cells that run again, interrupts, a killed kernel."""

import os
import sys
from pathlib import Path

import psutil
import pytest

from packages import needs
from processes import descendants, eventually, gone

pytestmark = [
    needs("ipykernel"),
    pytest.mark.skipif(sys.platform != "linux", reason="workers of cells are forks"),
]

DATASET = """
import feedline
import torch

class Numbers(torch.utils.data.Dataset):
    factor = {factor}

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return self.factor * index

loader = feedline.DataLoader(Numbers(), 8, num_workers=2, {options})
"""
READ = "print([int(batch.sum()) for batch in loader])"
SUMS = [28, 92, 156]


class Kernel:
    """A kernel that runs cells."""

    def __init__(self, folder):
        from jupyter_client.kernelspec import KernelSpec
        from jupyter_client.manager import KernelManager

        self.manager = KernelManager(connection_file=str(folder / "kernel.json"))
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        self.manager._kernel_spec = KernelSpec(argv=command, language="python")
        path = os.pathsep.join(sys.path)
        self.manager.start_kernel(cwd=folder, env={**os.environ, "PYTHONPATH": path})
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=120)

    @property
    def processes(self):
        """The kernel's descendants."""
        return descendants(self.manager.provisioner.pid)

    def messages(self, code):
        """Run a cell. Yield the types and contents of its messages."""
        cell = self.client.execute(code)
        while True:
            message = self.client.get_iopub_msg(timeout=120)
            if message["parent_header"].get("msg_id") == cell:
                if message["content"].get("execution_state") == "idle":
                    return
                yield message["msg_type"], message["content"]

    def run(self, code):
        """Run a cell. Return its output, or the name and text of its error."""
        found = list(self.messages(code))
        errors = [
            f"{error['ename']}: {error['evalue']}" for kind, error in found if kind == "error"
        ]
        return "".join([*errors, *(each["text"] for kind, each in found if kind == "stream")])

    def end(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    started = Kernel(tmp_path_factory.mktemp("kernel"))
    yield started
    started.end()


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_read_a_dataset_of_a_cell_and_of_its_next_version(kernel, persistent):
    options = f"start_method='fork', persistent_workers={persistent}"
    for factor in (1, 2):
        said = kernel.run(DATASET.format(factor=factor, options=options) + READ + "\n" + READ)
        assert said == 2 * f"{[factor * each for each in SUMS]}\n"
    kernel.run("loader.close()")
    assert eventually(lambda: gone(kernel.processes))


def test_an_error_names_the_start_method_that_reads_a_dataset_of_a_cell(kernel):
    said = kernel.run(DATASET.format(factor=1, options="start_method='forkserver'") + READ)
    assert said.startswith("StartError")
    assert 'start_method="fork"' in said


def test_an_interrupted_cell_can_be_run_again(kernel):
    kernel.run(DATASET.format(factor=1, options="start_method='fork'"))
    endless = "while True:\n    for batch in loader:\n        print('read', flush=True)"
    errors = []
    for kind, content in kernel.messages(endless):
        if kind == "stream" and not errors:
            kernel.manager.interrupt_kernel()
        errors += [content["ename"]] if kind == "error" else []
    assert errors == ["KeyboardInterrupt"]
    assert kernel.run(READ) == f"{SUMS}\n"


def test_a_diagnosis_is_shown_as_html(kernel):
    kernel.run(DATASET.format(factor=1, options="start_method='fork'") + READ)
    (shown,) = [each for kind, each in kernel.messages("loader.why()") if kind == "display_data"]
    assert shown["data"]["text/html"].startswith("<")
    assert "data wait" in shown["data"]["text/plain"]


def test_a_killed_kernel_leaves_no_process(tmp_path):
    kernel = Kernel(Path(tmp_path))
    try:
        kernel.run(DATASET.format(factor=1, options="start_method='fork'") + "next(iter(loader))")
        kernel.run("batches = iter(loader)\nnext(batches)")
        left = kernel.processes
        assert len(left) >= 2
        psutil.Process(kernel.manager.provisioner.pid).kill()
        assert eventually(lambda: gone(left))
    finally:
        kernel.end()
