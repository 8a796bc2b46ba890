"""Caches built on a Ray cluster: identical to a local build, also if nodes die.

The cluster has three nodes with one CPU each, on this machine.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

import psutil
import pytest
from pictures import pictures

import feedline
from caches import contents, everything, made, photos
from feedline.cache import ray_workers
from feedline.cache.build import build_cache
from feedline.cli.app import main
from feedline.errors import DatasetError, ImageError, UsageError, WorkerError
from feedline.sources.manifest import MANIFEST
from processes import eventually
from s3_server import Bucket, serving

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="nodes can only be distinguished on Linux"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Ray's own logs
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ray: Any
PER_CLASS = 40  # three units: samples 0 to 31, 32 to 63, 64 to 79
NODE = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
QUICK = {"health_check_period_ms": 500, "health_check_failure_threshold": 3}


@pytest.fixture(scope="module", autouse=True)
def _ray():
    """Import Ray, for these tests alone."""
    global ray
    pytest.importorskip("lmdb")
    ray = pytest.importorskip("ray", reason="Ray has no wheel for each version of Python")


def test_no_cluster_is_started(source, tmp_path, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(UsageError, match=rf"ray '{nowhere}' .* accepts a connection"):
            made_on_ray(source, tmp_path / "cache", ray=nowhere)
        monkeypatch.setenv("RAY_ADDRESS", nowhere)
        with pytest.raises(UsageError, match=rf"'auto' was .*RAY_ADDRESS is '{nowhere}'"):
            made_on_ray(source, tmp_path / "cache")
    monkeypatch.delenv("RAY_ADDRESS")
    with pytest.raises(UsageError, match="workers 2 "):
        made_on_ray(source, tmp_path / "cache", workers=2)
    if not any("--gcs-address" in " ".join(each.info["cmdline"] or ()) for each in processes()):
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        with pytest.raises(UsageError, match=r"(?s)no Ray cluster .*`ray start --head` here"):
            made_on_ray(source, tmp_path / "cache")
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(nowhere)  # of one that was killed
        with pytest.raises(UsageError, match=rf"of this machine has the address '{nowhere}'"):
            made_on_ray(source, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    assert not ray.is_initialized()


CANCELLED = """
import _thread, pickle, sys, threading, time

make = pickle.loads(sys.stdin.buffer.read())

def cancel():
    while "torch" not in sys.modules:  # where a process begins to import it
        time.sleep(0.001)
    _thread.interrupt_main()

assert "torch" not in sys.modules
threading.Thread(target=cancel).start()
try:
    make([None], 0)
except KeyboardInterrupt:
    import torch
    print(int(torch.ones(3).sum()))
"""


@pytest.mark.slow
def test_task_cancelled_during_import_leaves_usable_process():
    task = ray.cloudpickle.dumps(ray_workers._task(feedline.__version__))
    said = subprocess.check_output([sys.executable, "-c", CANCELLED], input=task)
    assert said == b"3\n"


def processes():
    return psutil.process_iter(["cmdline"])


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """Folder in which the nodes write shards before they transfer them."""
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def server():
    """A store that the nodes find by their environment."""
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def cluster(scratch, server):
    """Three nodes, to which this process is connected."""
    from ray.cluster_utils import Cluster

    before = set(psutil.Process().children(recursive=True))
    running = Cluster()
    try:
        # No work for the node that the builder is connected to: it must not be killed.
        running.add_node(**{**NODE, "num_cpus": 0}, _system_config=QUICK)
        for _ in range(3):
            add_node(running, scratch)
        ray.init(address=running.address, log_to_driver=False, logging_level="ERROR")
        yield running
    finally:
        ray.shutdown()
        running.shutdown()
        others = [each for each in psutil.Process().children(recursive=True) if each not in before]
        _, alive = psutil.wait_procs(others, timeout=30)
        for each in alive:
            each.kill()


def add_node(cluster, scratch):
    return cluster.add_node(**NODE, env_vars={"TMPDIR": str(scratch)})


@pytest.fixture
def away(tmp_path):
    """Path of a folder that only this process sees, like a disk of its own."""
    opened = []

    def path(folder):
        opened.append(os.open(folder, os.O_RDONLY))
        return f"/proc/self/fd/{opened[-1]}"

    yield path
    for descriptor in opened:
        os.close(descriptor)


def made_on_ray(source, root, format="webdataset", **options):
    return build_cache(source, root, (16, 24), format=format, **{"ray": "auto", **options})


def gated(gate):
    """A dataset whose samples from 32 on can only be read on a node once a gate file exists.

    Nodes record in files next to the gate which unit they have reached. The class is pickled by
    value, like a class of a script.
    """
    images, builder = pictures(), os.getpid()

    class Gated:
        def __len__(self):
            return 2 * PER_CLASS

        def __getitem__(self, at):
            import time

            import ray

            if os.getpid() != builder and at >= 32:
                node = ray.get_runtime_context().get_node_id()
                (gate.parent / f"waits-{at // 32}-{node}").touch()
                deadline = time.monotonic() + 100
                while not gate.exists() and time.monotonic() < deadline:
                    time.sleep(0.01)
            return images[at % len(images)], at % 3

    return Gated()


def waiting(gate):
    """By unit, a node that has come to the gate with it."""
    found = sorted(gate.parent.glob("waits-*"))
    return {int(path.name.split("-")[1]): path.name.split("-")[2] for path in found}


@pytest.fixture
def one_node():
    """A cluster of one node, for a test that comes before those with `cluster`."""
    ray.init(**NODE, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.mark.usefixtures("one_node")
def test_the_command_builds_on_a_cluster(source, tmp_path, capfd):
    arguments = [str(source), str(tmp_path / "cache"), "--sizes", "16,24", "--ray", "auto"]
    with pytest.raises(SystemExit) as left:
        main(["cache", "build", *arguments])
    assert not left.value.code
    assert "80 images in " in capfd.readouterr().out
    made(source, tmp_path / "local")
    assert contents(tmp_path / "cache") == contents(tmp_path / "local")
    with pytest.raises(SystemExit) as left:
        main(["cache", "build", *arguments, "--workers", "2"])
    assert left.value.code == 2


@pytest.mark.slow
@pytest.mark.parametrize("format", ["webdataset", "lmdb", "folder"])
def test_cluster_build_equals_local_build(cluster, source, tmp_path, away, scratch, format):
    seen = []
    manifest = made_on_ray(source, tmp_path / "shared", format, progress=seen.append)
    assert manifest == made(source, tmp_path / "local", format)
    assert seen[0].processes == 3
    assert [said.new_images for said in seen] == sorted(said.new_images for said in seen)
    assert (seen[0].new_images, seen[-1].images) == (0, 80)
    # The nodes do not see this folder, and transfer their shards.
    made_on_ray(source, f"{away(tmp_path)}/handed", format)
    expected = everything(tmp_path / "local")
    assert everything(tmp_path / "shared") == expected
    assert everything(tmp_path / "handed") == expected
    assert list(scratch.iterdir()) == []
    assert ray.is_initialized()  # by the fixture, whose it is


@pytest.mark.slow
def test_tasks_of_dead_node_are_redone_by_another(cluster, tmp_path, scratch):
    gate = tmp_path / "gate"
    dataset = gated(gate)
    killed = []

    def makers_of(unit):
        return {path.name.split("-")[2] for path in tmp_path.glob(f"waits-{unit}-*")}

    def kill(said):
        if said.new_images and not killed:  # a unit is done, and others wait at the gate
            assert eventually(lambda: len(waiting(gate)) == 2)
            killed.append(waiting(gate)[1])
            (node,) = (each for each in cluster.worker_nodes if each.node_id == killed[0])
            cluster.remove_node(node, allow_graceful=False)
            assert eventually(lambda: len(makers_of(1)) == 2, 60)
            gate.touch()

    try:
        manifest = made_on_ray(dataset, tmp_path / "cache", progress=kill)
    finally:
        add_node(cluster, scratch)
    assert killed[0] in makers_of(1)
    assert manifest == made(dataset, tmp_path / "local")
    assert contents(tmp_path / "cache") == contents(tmp_path / "local")


@pytest.mark.slow
def test_broken_image_ends_build_like_locally(cluster, source, tmp_path):
    torn = tmp_path / "photos"
    shutil.copytree(source, torn)
    (torn / "dogs" / "3.jpg").write_bytes(b"\xff\xd8\xff torn")
    with pytest.raises(ImageError) as here:
        made(torn, tmp_path / "local")
    with pytest.raises(ImageError) as there:
        made_on_ray(torn, tmp_path / "cache")
    assert str(there.value) == str(here.value)
    assert "dogs/3.jpg, cannot be cached: " in str(there.value)
    assert not list((tmp_path / "cache").rglob("*.partial"))


@pytest.mark.slow
def test_ctrl_c_ends_tasks_and_build_resumes_without_ray(cluster, tmp_path, away, scratch):
    gate = tmp_path / "gate"
    dataset = gated(gate)
    done = threading.Event()

    def interrupt():
        assert done.wait(100)
        assert eventually(lambda: len(waiting(gate)) == 2)
        assert list(scratch.iterdir())
        os.kill(os.getpid(), signal.SIGINT)  # while the builder waits for the cluster

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        made_on_ray(
            dataset, f"{away(tmp_path)}/cache", progress=lambda said: said.new_images and done.set()
        )
    interrupter.join()
    assert list(scratch.iterdir()) == []
    left = sorted(contents(tmp_path / "cache"))
    assert left == [
        "16/000000.tar", "24/000000.tar", "unfinished/000000.npz", "unfinished/settings.json"
    ]  # fmt: skip
    assert eventually(lambda: ray.available_resources().get("CPU") == 3)

    seen = []
    manifest = made(dataset, tmp_path / "cache", progress=seen.append)
    assert (seen[0].images, seen[-1].new_images) == (32, 48)
    assert manifest == made(dataset, tmp_path / "local")
    assert contents(tmp_path / "cache") == contents(tmp_path / "local")


@pytest.mark.slow
def test_finished_cache_is_updated(cluster, tmp_path, away):
    source = photos(tmp_path / "photos", PER_CLASS)
    made(source, tmp_path / "cache")
    (source / "cats" / "0.jpg").write_bytes((source / "dogs" / "1.jpg").read_bytes())
    seen = []
    made_on_ray(source, f"{away(tmp_path)}/cache", progress=seen.append)
    assert seen[-1].new_images == 32
    made(source, tmp_path / "local")
    assert contents(tmp_path / "cache") == contents(tmp_path / "local")


@pytest.mark.slow
def test_nodes_read_from_a_store_and_write_into_one(cluster, server, source, tmp_path, scratch):
    bucket = Bucket(server)
    train, root = bucket.fill("train", source), f"{bucket.url}/cache"
    made_on_ray(train, root)
    made(source, tmp_path / "local")
    expected, apart = contents(tmp_path / "local"), (MANIFEST, "index/stamps.npy")
    found = bucket.contents("cache")
    assert {name: found[name] for name in found if name not in apart} == {
        name: expected[name] for name in expected if name not in apart
    }
    assert set(found) == set(expected)
    assert list(scratch.iterdir()) == []
    with pytest.raises(UsageError, match="format lmdb"):
        made_on_ray(train, f"{bucket.url}/other", "lmdb")


@pytest.mark.slow
def test_build_that_nodes_cannot_run_is_rejected(cluster, source, tmp_path, away, monkeypatch):
    for on_error in ("raise", "skip"):
        with pytest.raises(
            DatasetError, match=rf"on the node {socket.gethostname()} .*jpg' does not exist here"
        ):
            made_on_ray(away(source), tmp_path / "cache", on_error=on_error)
    dataset = gated(tmp_path / "gate")
    dataset.lock = threading.Lock()
    with pytest.raises(UsageError, match=r"(?s)cannot send .*lock.*without ray"):
        made_on_ray(dataset, tmp_path / "other")
    monkeypatch.setattr(ray_workers, "__version__", "9.9")
    with pytest.raises(
        UsageError, match=rf"node {socket.gethostname()} .* has feedline {feedline.__version__}, "
    ):
        made_on_ray(source, tmp_path / "third")


def test_task_on_node_without_feedline_reports_it(monkeypatch):
    pickled = ray.cloudpickle.dumps(ray_workers._task("9.9"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "feedline"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert "has no feedline (" in ray.cloudpickle.loads(pickled)([None], 0)


@pytest.mark.slow
def test_task_that_kills_every_worker_is_named(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_workers, "_RETRIES", 1)
    images, builder = pictures(), os.getpid()

    class Deadly:
        def __len__(self):
            return 2 * PER_CLASS

        def __getitem__(self, at):
            if at == 35 and os.getpid() != builder:
                os.kill(os.getpid(), signal.SIGKILL)
            return images[at % len(images)], 0

    with pytest.raises(WorkerError, match=r"samples 32 to 63 of .*Deadly' were lost .* 2 times"):
        made_on_ray(Deadly(), tmp_path / "cache")


@pytest.mark.slow
def test_connection_is_opened_and_closed_if_none_exists(cluster, source, tmp_path, monkeypatch):
    ray.shutdown()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        made_on_ray(source, tmp_path / "cache")
        assert not ray.is_initialized()
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    made(source, tmp_path / "local")
    assert contents(tmp_path / "cache") == contents(tmp_path / "local")
