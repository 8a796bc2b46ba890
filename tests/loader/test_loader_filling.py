"""Caches filled during training: which images are read, and how failures are handled."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys

import psutil
import pytest
import torch
from torch.utils.data import Subset
from torchvision.datasets import ImageFolder as TorchvisionFolder
from torchvision.transforms import v2

import preloaded
from caches import smooth_photos
from feedline import DataLoader, ImageFolder, TrainCrop, build_cache
from feedline.errors import ImageError, ResourceError, StateError, UsageError
from feedline.loader import cache_filling
from feedline.sources.manifest import MANIFEST, read_manifest
from processes import eventually, gone

TRAIN = v2.Compose(
    [
        v2.RandomResizedCrop(32, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.PILToTensor(),
    ]
)
OPTIONS = {"seed": 5, "shuffle": True, "image_size": 32, "num_workers": 1}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """70 smooth images of 90 to 96 px in two classes: three shards of a cache."""
    return smooth_photos(tmp_path_factory.mktemp("photos"), 70, width=96, seed=2)


@pytest.fixture(scope="module")
def finished(photos, tmp_path_factory):
    """State of a full cache of the photos."""
    root = tmp_path_factory.mktemp("caches") / "finished"
    build_cache(photos, root, (64,), workers=2)
    return root


@pytest.fixture(autouse=True)
def _no_fillers_left():
    yield
    end_fillers()


def end_fillers():
    for each in cache_filling._fillers.values():
        each.end()
    cache_filling._fillers.clear()


def epochs(loader, count):
    """Images of several epochs, one tensor each."""
    return [torch.cat([images.clone() for images, _ in loader]) for _ in range(count)]


def wanted_of(data, finished, count, form):
    """Epochs of originals ("o") and of copies ("c"), each by a loader that reads nothing else."""
    with (
        DataLoader(data, 8, **OPTIONS) as originals,
        DataLoader(data, 8, cache=finished, **OPTIONS) as copies,
    ):
        made = {"o": epochs(originals, count), "c": epochs(copies, count)}
    return [made[which][epoch] for epoch, which in enumerate(form)]


def same(found, wanted):
    return len(found) == len(wanted) and all(map(torch.equal, found, wanted))


def until(what):
    assert eventually(what, within_s=300)  # idle processes get little of a busy machine


# What is read when


def test_an_epoch_of_originals_then_copies(photos, finished, tmp_path, monkeypatch):
    root = tmp_path / "cache"
    data = ImageFolder(photos, TrainCrop())
    with DataLoader(data, 8, cache=root, **OPTIONS) as loader:
        assert "none for the first epoch" in loader.explain()
        assert "copies of 64 px" in loader.explain()
        found = epochs(loader, 3)
        assert "64 px JPEG q95 for 32 px" in loader.explain()
    assert same(found, wanted_of(data, finished, 3, "occ"))
    assert read_manifest(str(root)).fingerprint == read_manifest(str(finished)).fingerprint
    # The next run finds it finished.
    with DataLoader(data, 8, cache=root, **OPTIONS) as loader:
        assert same(epochs(loader, 1), wanted_of(data, finished, 1, "c"))


@pytest.mark.slow
def test_parts_of_a_torchvision_folder_fill_one_cache(photos, finished, tmp_path):
    root, folder = tmp_path / "cache", TorchvisionFolder(str(photos), TRAIN)
    parts = [Subset(folder, range(0, 70, 3)), Subset(folder, [1, 4, 7])]
    for part in parts:
        with DataLoader(part, 8, cache=root, **OPTIONS) as loader:
            form = "oc" if part is parts[0] else "cc"
            assert same(epochs(loader, 2), wanted_of(part, finished, 2, form))
    assert read_manifest(str(root)).samples == 70
    assert read_manifest(str(root)).classes == ("a", "b")


@pytest.mark.slow
def test_torch_samplers_switch_to_cache(photos, tmp_path):
    folder = TorchvisionFolder(str(photos), TRAIN)
    with DataLoader(folder, 8, num_workers=1, cache=tmp_path / "cache", shuffle=True) as loader:
        states = []
        for _ in range(2):
            for _ in loader:
                pass
            states.append(loader.state_dict()["cache"])
    assert states == [{"copies": False, "batches": 9}, {"copies": True, "batches": 9}]


def test_first_epoch_of_a_sampler_without_a_length_is_of_originals(photos, tmp_path):
    folder = TorchvisionFolder(str(photos), TRAIN)
    batches = iter([[0, 1], [2, 3]])
    with DataLoader(folder, batch_sampler=batches, cache=tmp_path / "cache") as loader:
        next(iter(loader))
        assert not loader.state_dict()["cache"]["copies"]


@pytest.mark.slow
def test_inspected_batches_are_not_an_epoch(photos, tmp_path):
    data = ImageFolder(photos)
    with DataLoader(data, 8, cache=tmp_path / "cache", **OPTIONS) as loader:
        read = []
        for _ in range(11):  # of an epoch of nine batches, one each
            next(iter(loader))
            read.append(loader.state_dict()["cache"]["copies"])
    assert read == [False] * 9 + [True] * 2


@pytest.mark.slow
def test_epoch_finishes_with_its_initial_pixels(photos, finished, tmp_path):
    data = ImageFolder(photos)
    whole = wanted_of(data, finished, 2, "oc")
    with DataLoader(data, 8, cache=tmp_path / "cache", **OPTIONS) as loader:
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
    # Here the cache is finished, and the rest of the epoch is of originals.
    with DataLoader(data, 8, cache=finished, **OPTIONS) as loader:
        loader.load_state_dict(state)
        rest, second = epochs(loader, 2)
        later = loader.state_dict()
    assert torch.equal(rest, whole[0][32:])
    assert torch.equal(second, whole[1])
    # And here it is not there, and the next epoch is of copies.
    with DataLoader(data, 8, cache=tmp_path / "other", **OPTIONS) as loader:
        loader.load_state_dict(later)
        third = epochs(loader, 1)
    assert same(third, wanted_of(data, finished, 3, "occ")[2:])


def test_damaged_state_is_rejected_and_changes_nothing(photos, finished):
    with DataLoader(ImageFolder(photos), 8, cache=finished, **OPTIONS) as loader:
        state = loader.state_dict()
        assert state["cache"] == {"copies": True, "batches": 0}
        for damaged in (7, {}, {"copies": 1, "batches": 0}, {"copies": True, "batches": -1}):
            with pytest.raises(StateError, match="invalid 'cache'"):
                loader.load_state_dict(state | {"cache": damaged})
        with pytest.raises(StateError, match="seed was 6"):
            loader.load_state_dict(state | {"seed": 6, "cache": {"copies": False, "batches": 1}})
        assert loader.state_dict() == state


@pytest.mark.slow
def test_broken_image_raises_when_it_is_read(photos, tmp_path):
    folder = tmp_path / "photos"
    for path in sorted(photos.glob("*/*.jpg")):
        (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
        (folder / path.parent.name / path.name).write_bytes(path.read_bytes())
    (folder / "a" / "10.jpg").write_bytes(b"\xff\xd8 no more")
    with DataLoader(
        ImageFolder(folder), 8, cache=tmp_path / "cache", on_error="skip", **OPTIONS
    ) as loader:
        assert [len(images) for images in epochs(loader, 3)] == [69] * 3
        assert [name for name, _ in loader.skipped] == [str(folder / "a" / "10.jpg")] * 3
        # Of copies it is the same error.
        assert loader.state_dict()["cache"]["copies"]
        assert len({why for _, why in loader.skipped}) == 1
    with (
        DataLoader(ImageFolder(folder), 8, cache=tmp_path / "cache", **OPTIONS) as loader,
        pytest.raises(ImageError, match=r"10\.jpg.*cannot be loaded"),
    ):
        epochs(loader, 1)


# What dies, and who shares


@pytest.mark.slow
def test_killed_filler_is_replaced(photos, finished, tmp_path):
    root, data = tmp_path / "cache", ImageFolder(photos)
    with DataLoader(data, 8, cache=root, **OPTIONS) as loader:
        first = torch.cat([images.clone() for images, _ in loader])
        found = cache_filling._fillers[str(root)]
        found._process.send_signal(signal.SIGKILL)
        found._process.wait()
        second = epochs(loader, 1)
    assert same([first, *second], wanted_of(data, finished, 2, "oc"))


def test_filler_that_always_dies_raises(photos, tmp_path, monkeypatch):
    boot = "import sys; sys.stdin.close(); sys.exit(9)"
    monkeypatch.setattr(cache_filling, "_BOOT", boot)
    with pytest.raises(ResourceError, match="status 9"):
        DataLoader(ImageFolder(photos), 8, cache=tmp_path / "cache", **OPTIONS)


SCRIPT = """
import json, os, sys, time
from feedline import DataLoader, ImageFolder

loader = DataLoader(
    ImageFolder(sys.argv[1]), 8, cache=sys.argv[2], seed=5, image_size=32, num_workers=1
)
if sys.argv[4:] and not os.fork():  # a child that holds all that its parent has open
    os.close(1)
    time.sleep(600)
    os._exit(0)
print("begun", flush=True)
for epoch in range(2):
    for images, labels in loader:
        if len(sys.argv) > 3 and not epoch:
            sys.stdin.readline()
    print(json.dumps([int(images.sum()), loader.state_dict()["cache"]["copies"]]), flush=True)
"""


def run(*arguments, **options):
    return preloaded.Popen(
        [sys.executable, "-c", SCRIPT, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def fillers(root):
    """The processes that fill a cache, without their workers."""
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if str(root) in line and any("feedline.cache.fill" in part for part in line):
            found.append(process)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_filler_ends_with_trainer_and_next_one_resumes(photos, tmp_path, how):
    root = tmp_path / "cache"
    errors = tmp_path / "errors"
    with errors.open("w") as stderr:
        trainer = run(photos, root, "slow", stderr=stderr)
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == "begun\n"
    until(lambda: bool(fillers(root)))
    processes = [*fillers(root), *fillers(root)[0].children(recursive=True)]
    trainer.send_signal(how)
    trainer.communicate()
    if how == signal.SIGINT:
        assert not list(root.rglob("*.partial"))
    until(lambda: gone(processes))
    assert not list(root.rglob("*.partial"))
    assert "ignored" not in errors.read_text()
    again = run(photos, root)
    said = again.communicate()[0].splitlines()
    assert [json.loads(line)[1] for line in said[1:]] == [False, True] or (root / MANIFEST).exists()
    assert again.returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs a choice of cores")
@pytest.mark.slow
def test_filler_ends_with_trainer_even_if_a_child_survives(photos, tmp_path):
    many, root = tmp_path / "many", tmp_path / "cache"  # enough to take seconds on a core
    for path in photos.glob("*/*.jpg"):
        (many / path.parent.name).mkdir(parents=True, exist_ok=True)
        for number in range(60):
            os.link(path, many / path.parent.name / f"{number}-{path.name}")
    core = min(os.sched_getaffinity(0))
    trainer = run(many, root, "slow", "forks", preexec_fn=lambda: os.sched_setaffinity(0, {core}))
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == "begun\n"
    of_trainer = psutil.Process(trainer.pid)
    (child,) = (each for each in of_trainer.children() if each.cmdline() == of_trainer.cmdline())
    try:
        until(lambda: (root / "unfinished" / "settings.json").exists())
        processes = [*fillers(root), *fillers(root)[0].children(recursive=True)]
        trainer.kill()
        trainer.communicate()
        until(lambda: gone(processes))
        assert not (root / MANIFEST).exists()
    finally:
        child.kill()
    assert not list(root.rglob("*.partial"))


def test_a_launcher_of_python_fills_a_cache(photos, finished, tmp_path):
    """Like python.exe of a venv on Windows, which starts the real one as its child."""
    launcher, root = tmp_path / "launcher", tmp_path / "cache"
    launcher.write_text(f'#!/bin/sh\n"{sys.executable}" "$@"\nexit $?\n')
    launcher.chmod(0o755)
    data = ImageFolder(photos, TrainCrop())
    multiprocessing.set_executable(str(launcher))
    try:
        with DataLoader(data, 8, cache=root, **{**OPTIONS, "num_workers": 0}) as loader:
            found = epochs(loader, 2)
    finally:
        multiprocessing.set_executable(sys.executable)
    assert same(found, wanted_of(data, finished, 2, "oc"))


@pytest.mark.slow
def test_runs_share_a_cache(photos, finished, tmp_path):
    root = tmp_path / "cache"
    trainers = [run(photos, root, "slow") for _ in range(3)]
    for trainer in trainers:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "begun\n"
    until(lambda: len(fillers(root)) <= 1)
    outputs = [trainer.communicate("\n" * 20)[0].splitlines() for trainer in trainers]
    assert [trainer.returncode for trainer in trainers] == [0] * 3
    # A run that began later may have found it finished, and says so.
    said = {(epoch, *json.loads(line)) for lines in outputs for epoch, line in enumerate(lines)}
    forms = [(epoch, copies) for epoch, _, copies in said]
    assert len(set(forms)) == len(forms)
    assert {copies for epoch, copies in forms if epoch == 1} == {True}
    levels = [path.read_bytes() for path in sorted((root / "64").iterdir())]
    assert levels == [path.read_bytes() for path in sorted((finished / "64").iterdir())]


# What cannot be filled


def test_unfillable_cache_raises_immediately(photos, tmp_path, capfd):
    data = ImageFolder(photos)

    def refused(root, kind, match):
        with (
            pytest.raises(kind, match=match),
            DataLoader(data, 8, cache=root, **OPTIONS) as loader,
        ):
            iter(loader)
        end_fillers()

    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("")
    refused(other, UsageError, "is not empty")
    refused(photos / "cache", UsageError, "would lie inside its source")
    refused(other / "letter.txt" / "cache", ResourceError, "cannot write to the cache folder")
    small = tmp_path / "small"
    unfinished(photos, small, (16,))
    refused(small, UsageError, r"16 px JPEG q95.* 64 px are needed")
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_unfinished_cache_is_finished_with_its_settings(photos, tmp_path):
    root = tmp_path / "cache"
    unfinished(photos, root, (40, 80))
    with DataLoader(ImageFolder(photos), 8, cache=root, **OPTIONS) as loader:
        epochs(loader, 2)
    assert [level.side for level in read_manifest(str(root)).levels] == [40, 80]


def unfinished(photos, root, sizes):
    """A build that was stopped after its first shard."""
    script = (
        "import os, sys; from feedline import build_cache\n"
        "def stop(said):\n"
        "    if said.new_images:\n"
        "        os._exit(3)\n"
        f"build_cache({str(photos)!r}, {str(root)!r}, {sizes}, workers=0, progress=stop)\n"
    )
    assert preloaded.run([sys.executable, "-c", script], env=os.environ).returncode == 3


@pytest.mark.skipif(
    not os.path.exists("/proc/self/autogroup"), reason="sessions are no groups here"
)
def test_filler_has_lowest_cpu_priority():
    code = (
        "import os; from feedline.cache.fill import _yield_to_others; _yield_to_others(); "
        "print(os.sched_getscheduler(0) == os.SCHED_IDLE, open('/proc/self/autogroup').read())"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True, start_new_session=True)
    assert said.startswith("True")
    assert said.strip().endswith("nice 19")
