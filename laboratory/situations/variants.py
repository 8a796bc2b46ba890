"""Situations that share one loop: a dataset, a loader and a paced step, as a table."""

from __future__ import annotations

import functools
import json
import socketserver
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torchvision import transforms
from torchvision.transforms import v2

import feedline
import images
from samples import Arrays, Computed, Repeated, folder, usual
from situation import CORES, SITUATIONS, Outcome, Situation, Step, burn, paced, train

_FLOATS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A training loop.

    Args:
        data: creates the dataset.
        ms: pause of a step, like a device's.
        batch: samples of a batch.
        workers: number of workers.
        epochs: passes.
        loader: further arguments of the loader.
        step: replaces the pause.
    """

    data: Callable[[], Any]
    ms: float
    batch: int = 16
    workers: int = CORES
    epochs: int = 1
    loader: dict[str, Any] = field(default_factory=dict)
    step: Callable[[], Step] | None = None

    def run(self, over: str) -> Outcome:
        """Run the loop over torch's loader or feedline's."""
        build: Any = DataLoader if over == "torch" else feedline.DataLoader
        loader = build(self.data(), self.batch, num_workers=self.workers, **self.loader)
        return train(loader, self.step() if self.step else paced(self.ms), epochs=self.epochs)


def plant(
    name: str,
    rule: str,
    what: str,
    planted: Loop,
    fixed: Loop | None = None,
    *,
    over: str = "torch",
) -> None:
    """Register a situation; without `fixed` only the rule is compared."""

    def loop(use_fix: bool) -> Outcome:
        return (fixed if use_fix and fixed else planted).run(over)

    SITUATIONS.append(Situation(name, rule, over, what, loop, predicts=fixed is not None))


def healthy(name: str, what: str, loop: Loop, *, over: str = "torch") -> None:
    """Register a compute-bound situation."""
    plant(name, "compute-bound", what, loop, over=over)


class Photos(Dataset):
    """A user-defined dataset: opens a photograph, and transforms it.

    Args:
        length: number of samples.
        transform: of an image, or of a path.
        before: called before each file is opened.
        as_path: the transform is called with the path.
        path: folder of the images; default: the photographs.
    """

    def __init__(
        self,
        length: int,
        transform: Callable[[Any], Any],
        before: Callable[[], Any] = lambda: None,
        *,
        as_path: bool = False,
        path: Path | None = None,
    ) -> None:
        self.paths = sorted((path or images.photos()).rglob("*.jpg"))
        self.length, self.transform = length, transform
        self.before, self.as_path = before, as_path

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Any:
        self.before()
        path = self.paths[number % len(self.paths)]
        if self.as_path:
            return self.transform(str(path)), number % 10
        return self.transform(Image.open(path).convert("RGB")), number % 10


def _index_file() -> Path:
    path = images.FOLDER / "index.json"
    if not path.exists():
        path.write_text(json.dumps({f"photo {k}": [k, k % 977] for k in range(9000)}))
    return path


def _read_index() -> None:
    json.loads(_index_file().read_text())


class Zipped(Dataset):
    """Small photographs in a zip file, opened for each sample or once in each worker."""

    def __init__(self, length: int, *, once: bool) -> None:
        self.length, self.once = length, once
        self.path = images.FOLDER / "small.zip"
        if not self.path.exists():
            files = sorted(images.small().rglob("*.jpg"))
            with zipfile.ZipFile(self.path, "w") as archive:
                for k in range(2000):
                    archive.write(files[k % len(files)], f"{k:05}.jpg")
        self.archive: zipfile.ZipFile | None = None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Any:
        archive = self.archive or zipfile.ZipFile(self.path)
        if self.once:
            self.archive = archive
        image = Image.open(archive.open(f"{number % 2000:05}.jpg")).convert("RGB")
        return usual(96)(image), number % 10


class Waiting(Computed):
    """Samples of the dataset's own code that wait for something."""

    def __init__(self, length: int, ms: float, wait: Callable[[], Any] = lambda: None) -> None:
        super().__init__(length, ms)
        self.wait = wait

    def __getitem__(self, number: int) -> Any:
        self.wait()
        return super().__getitem__(number)


def _locked(ms: float) -> Callable[[], Any]:
    lock = get_context("fork").Lock()

    def wait() -> None:
        with lock:
            time.sleep(ms / 1000)

    return wait


class _Answer(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        time.sleep(0.008)
        self.request.sendall(b"0")


def _served() -> Callable[[], Any]:
    """A server of labels that answers after 8 ms."""
    import socket

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Answer)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def wait() -> None:
        with socket.create_connection(server.server_address[:2]) as connection:
            connection.recv(1)

    return wait


class Shards(IterableDataset):
    """A stream of shards with these numbers of samples, divided among the workers."""

    def __init__(self, *lengths: int, ms: float = 1.5) -> None:
        self.lengths, self.ms = lengths, ms

    def __iter__(self) -> Any:
        info = get_worker_info()
        for length in self.lengths[info.id :: info.num_workers]:
            for number in range(length):
                burn(self.ms)
                yield torch.zeros((3, 64, 64), dtype=torch.uint8), number % 10


class Slow(Computed):
    """One sample in 64 waits, as a file on slow storage."""

    def __getitem__(self, number: int) -> Any:
        if number % 64 == 20:
            time.sleep(0.25)
        return super().__getitem__(number)


class Doubles:
    """A transform to float64."""

    def __call__(self, pixels: Any) -> Any:
        return torch.from_numpy(pixels / 255.0).permute(2, 0, 1)


def _pixels(pixels: Any) -> Any:
    return torch.from_numpy(pixels).permute(2, 0, 1)


def _listed(samples: Any, scale: float) -> Any:
    rows = [[scale * value for value in image.flatten().tolist()] for image, _ in samples]
    return torch.tensor(rows), torch.tensor([label for _, label in samples])


class CutMixCollate:
    """A collate_fn that is an instance, and mixes images with NumPy."""

    def __call__(self, samples: Any) -> Any:
        batch = np.stack([image.numpy() for image, _ in samples]).astype(np.float32)
        for _ in range(6):
            batch = 0.7 * batch + 0.3 * batch[::-1]
        return torch.from_numpy(batch), torch.tensor([label for _, label in samples])


def _initialised(worker: int) -> None:
    burn(250)


def _with_pauses() -> Step:
    """Every 25th step evaluates for 0.3 s."""
    number = 0

    def step(batch: Any) -> None:
        nonlocal number
        number += 1
        time.sleep(0.33 if number % 25 == 0 else 0.03)

    return step


def _pipeline(size: int) -> transforms.Compose:
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(size),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(*_FLOATS),
        ]
    )


def _elastic() -> Any:
    return v2.Compose([v2.ToImage(), v2.ElasticTransform()])


def _plain() -> Any:
    return v2.Compose([v2.ToImage()])


_resized = transforms.Compose(
    [transforms.Resize(128), transforms.CenterCrop(112), transforms.PILToTensor()]
)

plant(
    "index-for-each-sample",
    "slow-transform",
    "A JSON index is read for each sample; fix: once.",
    Loop(data=lambda: Photos(800, usual(96), _read_index), ms=12),
    Loop(data=lambda: Photos(2400, usual(96)), ms=12),
)
plant(
    "zip-for-each-sample",
    "slow-transform",
    "A zip file is opened for each sample, before a long step; fix: once in each worker.",
    Loop(data=lambda: Zipped(700, once=False), ms=40),
    Loop(data=lambda: Zipped(1600, once=True), ms=40),
)
plant(
    "lock-around-samples",
    "blocked-workers",
    "Workers share a lock for 4 ms a sample; fix: none.",
    Loop(data=lambda: Waiting(1200, 0.5, _locked(4)), ms=20),
    Loop(data=lambda: Waiting(2400, 0.5), ms=20),
)
plant(
    "server-of-labels",
    "blocked-workers",
    "A server answers after 8 ms for each sample; fix: labels in memory.",
    Loop(data=lambda: Waiting(1200, 0.3, _served()), ms=25),
    Loop(data=lambda: Waiting(2400, 0.3), ms=25),
)
plant(
    "pause-before-samples",
    "blocked-workers",
    "The dataset sleeps 5 ms before each sample; fix: it does not.",
    Loop(data=lambda: Waiting(1600, 0.3, lambda: time.sleep(0.005)), ms=20),
    Loop(data=lambda: Waiting(3200, 0.3), ms=20),
    over="feedline",
)
plant(
    "slow-open",
    "blocked-workers",
    "Each file is opened after 10 ms, as on a network file system; fix: local files.",
    Loop(data=lambda: Photos(1000, usual(64), lambda: time.sleep(0.01)), ms=45),
    Loop(data=lambda: Photos(1600, usual(64)), ms=45),
)
plant(
    "unequal-shards",
    "uneven-workers",
    "A stream with one shard ten times as long as the others; fix: equal shards.",
    Loop(data=lambda: Shards(2200, *[220] * (CORES - 1)), ms=5),
    Loop(data=lambda: Shards(*[1210] * CORES), ms=5),
)
plant(
    "partial-collate",
    "collate",
    "collate_fn is a functools.partial that builds lists; fix: torch's default.",
    Loop(
        data=lambda: Computed(1600, 0.3, (3, 48, 48)),
        ms=6,
        loader={"collate_fn": functools.partial(_listed, scale=1.0)},
    ),
    Loop(data=lambda: Computed(4000, 0.3, (3, 48, 48)), ms=6),
)
plant(
    "mixing-object",
    "cpu-mix",
    "collate_fn is an object that mixes images; fix: on the device.",
    Loop(
        data=lambda: Computed(2400, 0.2, (3, 128, 128)),
        ms=8,
        loader={"collate_fn": CutMixCollate()},
    ),
    Loop(data=lambda: Computed(4800, 0.2, (3, 128, 128)), ms=8),
)
plant(
    "four-samples-a-batch",
    "small-batch",
    "Batches of four tiny samples.",
    Loop(data=lambda: Computed(16000, 0.0, (16,)), ms=0, batch=4, step=lambda: lambda batch: None),
)
plant(
    "doubles",
    "float-copy",
    "Images are float64; fix: uint8.",
    Loop(data=lambda: Arrays(2400, 160, Doubles()), ms=8, batch=32),
    Loop(data=lambda: Arrays(4800, 160, _pixels), ms=8, batch=32),
)
plant(
    "large-images-resized",
    "decode-bound",
    "Images of 1600 x 1200 px are decoded, then resized to 128 px; fix: copies of 128 px.",
    Loop(data=lambda: Repeated(folder(images.large(), _resized), 500), ms=15),
    Loop(data=lambda: Repeated(folder(images.small(), _resized), 2400), ms=15),
)
_unfused = Loop(data=lambda: Photos(1600, _pipeline(160)), ms=12)
_fused = Loop(data=lambda: Photos(3200, feedline.compile(_pipeline(160)), as_path=True), ms=12)
plant(
    "unfused-dataset",
    "uncompiled-transform",
    "A user-defined dataset opens images for a torchvision pipeline; fix: feedline.compile.",
    _unfused,
    _fused,
)
plant(
    "unfused-dataset-of-feedline",
    "uncompiled-transform",
    "The same over feedline.DataLoader.",
    _unfused,
    _fused,
    over="feedline",
)
plant(
    "elastic",
    "slow-transform",
    "ElasticTransform in workers; fix: without it.",
    Loop(data=lambda: Arrays(900, 128, _elastic()), ms=10),
    Loop(data=lambda: Arrays(4000, 128, _plain()), ms=10),
)
plant(
    "samples-that-wait",
    "slow-samples",
    "One sample in 64 waits 0.25 s; fix: none does.",
    Loop(data=lambda: Slow(3200, 0.8), ms=12),
    Loop(data=lambda: Computed(3200, 0.8), ms=12),
)
plant(
    "slow-initialisation",
    "workers-restarted",
    "New workers each epoch compute for 0.25 s; fix: persistent_workers.",
    Loop(
        data=lambda: Computed(16 * 25, 0.8),
        ms=20,
        epochs=7,
        loader={"worker_init_fn": _initialised},
    ),
    Loop(
        data=lambda: Computed(16 * 25, 0.8),
        ms=20,
        epochs=7,
        loader={"worker_init_fn": _initialised, "persistent_workers": True},
    ),
)
plant(
    "one-worker-at-growing-sizes",
    "too-few-workers",
    "feedline.ImageFolder at sizes that grow, with one worker; fix: one per core.",
    *(
        Loop(
            data=lambda: feedline.ImageFolder(str(images.photos())),
            ms=10,
            batch=32,
            workers=workers,
            epochs=10,
            loader={"schedule": "64x3,160x7", "seed": 0},
        )
        for workers in (1, CORES)
    ),
    over="feedline",
)
plant(
    "no-workers-of-own-dataset",
    "too-few-workers",
    "feedline.DataLoader without workers; fix: one per core.",
    Loop(data=lambda: Computed(1200, 1.5), ms=25, workers=0),
    Loop(data=lambda: Computed(2000, 1.5), ms=25),
    over="feedline",
)

healthy(
    "zip-opened-once",
    "A zip file that is opened once in each worker.",
    Loop(data=lambda: Zipped(1200, once=True), ms=45),
)
healthy(
    "equal-shards",
    "A stream with equal shards.",
    Loop(data=lambda: Shards(*[600] * CORES, ms=0.8), ms=45),
)
healthy(
    "evaluating",
    "Every 25th step evaluates for 0.3 s.",
    Loop(data=lambda: Computed(16 * 110, 0.5), ms=30, step=_with_pauses),
)
healthy(
    "floats-in-time",
    "Floats, but steps that are longer.",
    Loop(data=lambda: Photos(1200, _pipeline(96)), ms=70),
)
healthy(
    "waits-in-time",
    "Samples that wait 2 ms, and steps that are longer.",
    Loop(data=lambda: Waiting(1600, 0.2, lambda: time.sleep(0.002)), ms=40),
    over="feedline",
)
healthy(
    "one-sample-a-batch-in-time",
    "Batches of one sample, and steps of 60 ms.",
    Loop(data=lambda: Computed(90, 1.0), ms=60, batch=1),
)


def _rank(rank: int, port: int, run: str, slow: str, results: Any) -> None:
    """Train on one of two ranks that synchronise after each step."""
    import os

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
    torch.set_num_threads(1)  # as torchrun does
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    late = rank == 1
    data = Waiting(16 * 90, 0.2, lambda: time.sleep(0.004 if late and slow == "input" else 0.0))
    gradient, start_s, samples = torch.zeros(8), 0.0, 0
    loader = DataLoader(data, 16, num_workers=1)
    watched = feedline.watch(loader, run=run)
    for batch, _ in watched:
        start_s = start_s or time.perf_counter()
        burn(25.0 if late and slow == "computing" else 3.0)
        time.sleep(0.05 if slow == "none" else 0.03)
        torch.distributed.all_reduce(gradient)
        samples += len(batch)
    results.put((rank, time.perf_counter() - start_s, samples))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _two_ranks(slow: str) -> Callable[[bool], Outcome]:
    def loop(fixed: bool) -> Outcome:
        import socket
        import tempfile

        from feedline.timing.run_file import read_run

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        context = get_context("fork")
        results = context.SimpleQueue()
        with tempfile.TemporaryDirectory() as run:
            args = port, run, "" if fixed else slow, results
            ranks = [context.Process(target=_rank, args=(rank, *args)) for rank in range(2)]
            for each in ranks:
                each.start()
            found = sorted(results.get() for _ in ranks)
            for each in ranks:
                each.join()
            return Outcome(read_run(run), found[0][1], found[0][2])

    return loop


for _slow, _what in (
    ("input", "On two ranks, samples of one wait 4 ms; fix: none do."),
    ("computing", "On two ranks, one computes 22 ms longer; fix: as the other."),
):
    SITUATIONS.append(
        Situation(f"rank-with-slow-{_slow}", "slow-rank", "torch", _what, _two_ranks(_slow))
    )
SITUATIONS.append(
    Situation(
        "equal-ranks",
        "compute-bound",
        "torch",
        "Two ranks alike.",
        lambda fixed: _two_ranks("none")(False),
        predicts=False,
    )
)
