"""Kernel counters of processes, from a simulated /proc and the real one."""

import os
import subprocess
import sys
import time

import pytest
import torch

from feedline.machine import DeviceWatch
from feedline.timing import processes
from feedline.timing.processes import ResourceWatch

TICKS = os.sysconf("SC_CLK_TCK")


class Proc:
    """A folder as the kernel shows it."""

    def __init__(self, folder):
        self.folder = folder
        self.began = time.clock_gettime(time.CLOCK_BOOTTIME)

    def process(self, pid, *, cpu_s, queued_s=0.0, read=0, faults=0):
        fields = ["0"] * 50
        fields[0], fields[9], fields[17] = "S", str(faults), "5"
        fields[11] = str(round(cpu_s * TICKS))
        fields[19] = str(round((self.began + 1) * TICKS))
        task = self.folder / str(pid) / "task" / str(pid)
        task.mkdir(parents=True, exist_ok=True)
        (self.folder / str(pid) / "stat").write_text(f"{pid} (a) name) {' '.join(fields)}")
        (self.folder / str(pid) / "io").write_text(f"rchar: 9\nread_bytes: {read}\n")
        (task / "schedstat").write_text(f"1 {round(queued_s * 1e9)} 3")

    def end(self, pid):
        (self.folder / str(pid) / "stat").unlink()


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """Here and now is a second after the processes began."""
    made = Proc(tmp_path)
    monkeypatch.setattr(processes, "_age_s", lambda ticks: 0.0)
    made.process(os.getpid(), cpu_s=100.0, read=10**9)
    return made


def test_time_before_run_is_not_counted(proc):
    watch = ResourceWatch(proc.folder)
    proc.process(os.getpid(), cpu_s=103.0, queued_s=0.5, read=10**9 + 4096, faults=2)
    watch.update([])
    (trainer,) = watch.summarise().processes
    assert (trainer.role, trainer.cpu_s, trainer.queued_s) == ("trainer", 3.0, 0.5)
    assert (trainer.read_bytes, trainer.major_faults) == (4096, 2)


def test_a_worker_that_began_within_the_run_counts_from_its_beginning(proc):
    watch = ResourceWatch(proc.folder)
    proc.process(7, cpu_s=2.0, queued_s=1.0, read=500)
    watch.update([7])
    worker = watch.summarise().processes[1]
    assert (worker.cpu_s, worker.queued_s, worker.read_bytes) == (2.0, 1.0, 500)
    assert watch.summarise().worker_threads == 5


def test_a_worker_that_was_there_before_counts_from_then_on(proc, monkeypatch):
    monkeypatch.setattr(processes, "_age_s", lambda ticks: 3600.0)
    watch = ResourceWatch(proc.folder)
    proc.process(7, cpu_s=50.0)
    watch.update([7])
    proc.process(7, cpu_s=51.5)
    watch.update([7])
    assert watch.summarise().processes[1].cpu_s == 1.5


@pytest.mark.parametrize(("busy_s", "other_cores"), [(10.0, 0.9), (1.0, 0.0), (0.4, None)])
def test_cores_of_other_processes_are_those_that_no_own_process_used(
    proc, monkeypatch, busy_s, other_cores
):
    now = {"s": 0.0, "busy": 0.0}
    monkeypatch.setattr(processes, "_busy_s", lambda: now["busy"])
    monkeypatch.setattr(processes.time, "monotonic", lambda: now["s"])
    watch = ResourceWatch(proc.folder)
    proc.process(7, cpu_s=0.5)
    watch.update([7])
    proc.process(os.getpid(), cpu_s=100.5)
    proc.process(7, cpu_s=1.0)
    now.update(s=10.0, busy=busy_s)
    watch.update([7])
    assert watch.summarise().other_cores == other_cores


def test_ended_process_keeps_its_last_values_and_another_may_get_its_number(proc):
    watch = ResourceWatch(proc.folder)
    proc.process(7, cpu_s=2.0, read=500)
    watch.update([7])
    (proc.folder / "7" / "io").unlink()  # it ends while it is read
    watch.update([7])
    assert (watch.summarise().processes[1].read_bytes, watch.disk_bytes()) == (500, 500)
    proc.end(7)
    watch.update([7])
    assert [process.cpu_s for process in watch.summarise().processes] == [0.0, 2.0]
    assert watch.summarise().worker_starts == 1
    proc.process(7, cpu_s=0.5)  # another process with its number
    watch.update([7])
    assert watch.summarise().worker_starts == 2


def test_many_workers_that_come_and_go_are_counted_once_and_bounded(proc):
    watch = ResourceWatch(proc.folder)
    for epoch in range(50):
        pids = [1000 + 4 * epoch + k for k in range(4)]
        for pid in pids:
            proc.process(pid, cpu_s=0.1)
        for _ in range(2):
            watch.update(pids)
    assert watch.summarise().worker_starts == 200
    assert len(watch.summarise().processes) == 64
    assert len(watch._watched) <= 133


def test_workers_beyond_display_limit_are_followed(proc):
    watch = ResourceWatch(proc.folder)
    pids = list(range(1000, 1100))
    for cpu_s in (0.1, 0.2, 0.3):
        for pid in pids:
            proc.process(pid, cpu_s=cpu_s)
        watch.update(pids)
    assert watch.summarise().worker_starts == 100
    assert {process.cpu_s for process in watch.summarise().processes[1:]} == {0.3}


def test_hidden_kernel_files_are_unknown_and_without_a_proc_the_time_on_a_core_is_known(proc):
    (proc.folder / str(os.getpid()) / "io").unlink()
    (proc.folder / str(os.getpid()) / "task" / str(os.getpid()) / "schedstat").unlink()
    watch = ResourceWatch(proc.folder)
    watch.update([])
    (trainer,) = watch.summarise().processes
    assert (trainer.read_bytes, trainer.queued_s) == (None, None)
    watch = ResourceWatch(proc.folder / "none")
    watch.update([])
    (trainer,) = watch.summarise().processes
    assert trainer.cpu_s >= 0.0
    assert trainer.major_faults is None


def test_real_process_is_measured():
    watch = ResourceWatch()
    work = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        watch.update([process.pid])
        process.communicate(b"\n")
    worker = watch.summarise().processes[1]
    assert worker.pid == process.pid
    assert worker.cpu_s >= 0.29
    assert worker.seconds >= 0.29
    assert worker.queued_s is not None
    watch.update([process.pid])
    assert len(watch.summarise().processes) == 2


@pytest.fixture
def device(monkeypatch):
    """A program with initialised CUDA, whose device is lost at the end of these percentages."""
    shares = [20, 40, 60, 80, 100]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "utilization", lambda: shares.pop(0))
    return shares


def test_utilisation_of_the_device_is_known_from_cudas_start_until_it_is_lost(device, monkeypatch):
    use = DeviceWatch()
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_initialized", lambda: False)
        use.update()
    assert (len(device), use.busy) == (5, None)
    for _ in range(3):
        use.update()
    assert (use.busy, use.latest) == (pytest.approx(0.4), 0.6)
    for _ in range(3):
        use.update()
    device.append(0)
    use.update()
    assert (use.busy, use.latest) == (pytest.approx(0.6), 1.0)
    assert device == [0], "it was asked no more"


@pytest.mark.parametrize("counter", ["throttled_s", "storage_stall_s"])
@pytest.mark.parametrize(("before", "after", "grown"), [(5.0, 7.5, 2.5), (None, 7.5, None)])
def test_counters_of_the_machine_count_from_the_runs_beginning(
    monkeypatch, counter, before, after, grown
):
    monkeypatch.setattr(processes, counter, lambda: before)
    use = ResourceWatch()
    monkeypatch.setattr(processes, counter, lambda: after)
    use.update([])
    found = use.summarise(2)
    assert (getattr(found, counter), found.worker_deaths) == (grown, 2)


def test_threads_and_memory_are_this_machines():
    found = ResourceWatch().summarise()
    assert found.threads == torch.get_num_threads()
    assert found.cacheable_bytes is not None
    assert found.cacheable_bytes > 0
    assert found.shared_memory_bytes is None or found.shared_memory_bytes > 0
