"""Measure reading images from another machine: over HTTP from nginx, and from an S3 server.

    python benchmarks/remote.py FOLDER [--originals] [--latency-ms 20] [--in-flight 1,8,32]

A cache of the folder's images at 256 px (JPEG q95), or with `--originals` the folder itself, is
served on the loopback interface by nginx and by moto's server, behind a proxy that delays each
response. Random crops are loaded in batches of 64 at 224 px. An epoch is read twice: with nothing
on the local disk (cold), and again (warm). Prints images per second from the first batch on, which
excludes the start of the workers. Servers, proxy and workers share the cores of this machine.

`--originals` also measures torch's DataLoader with a typical Dataset: each worker fetches a file
with fsspec, decodes it with Pillow and crops it with torchvision, one after the other, and caches
nothing. Its workers make whole batches, so when the first one arrives others are nearly ready: its
rate is slightly too high, and clearly too high with only a few hundred images.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from report import describe_processor, machine

from feedline import DataLoader, ImageFolder, build_cache

_BATCH = 64


def images_per_s(data: ImageFolder, workers: int) -> float:
    with DataLoader(
        data, _BATCH, seed=0, shuffle=True, image_size=224, num_workers=workers
    ) as loader:
        return rate(loader)


def rate(loader: Any) -> float:
    """Images per second of an epoch, from its first batch on."""
    started, images = 0.0, 0
    for _, labels in loader:
        now = time.perf_counter()
        if started:
            images += len(labels)
        else:
            started = now
    return images / (now - started)


class OneByOne(torch.utils.data.Dataset[Any]):
    """Images at URLs; each is fetched, decoded and cropped before the next."""

    def __init__(self, urls: list[str], labels: list[int], options: dict[str, Any]) -> None:
        self._urls, self._labels, self._options = urls, labels, options

    def __len__(self) -> int:
        return len(self._urls)

    def __getitem__(self, sample: int) -> tuple[torch.Tensor, int]:
        import io

        import fsspec
        from PIL import Image
        from torchvision.transforms import v2

        url = self._urls[sample]
        there = fsspec.filesystem(
            url.partition("://")[0], **self._options
        )  # one file system per worker
        image = Image.open(io.BytesIO(there.cat_file(url))).convert("RGB")
        part = v2.RandomHorizontalFlip()(v2.RandomResizedCrop(224)(image))
        return v2.functional.pil_to_tensor(part), self._labels[sample]


def torch_images_per_s(data: ImageFolder, options: dict[str, Any], workers: int) -> float:
    urls = [data.name(sample) for sample in range(len(data))]
    return rate(
        torch.utils.data.DataLoader(
            OneByOne(urls, data.targets.tolist(), options),
            _BATCH,
            shuffle=True,
            num_workers=workers,
            multiprocessing_context="spawn",  # S3 connections do not survive a fork
        )
    )


def _free_port() -> int:
    with socket.socket() as results:
        results.bind(("127.0.0.1", 0))
        return int(results.getsockname()[1])


def _wait_for(port: int) -> None:
    for _ in range(200):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"no server responds on port {port}")


@contextmanager
def nginx(root: Path, scratch: Path) -> Iterator[int]:
    port = _free_port()
    config = scratch / "nginx.conf"
    config.write_text(
        f"daemon off; pid {scratch}/nginx.pid; error_log {scratch}/error.log; worker_processes 1;"
        "events { worker_connections 4096; }"
        f"http {{ access_log off; client_body_temp_path {scratch}; proxy_temp_path {scratch};"
        f"fastcgi_temp_path {scratch}; uwsgi_temp_path {scratch}; scgi_temp_path {scratch};"
        f"server {{ listen 127.0.0.1:{port}; root {root}; autoindex on; }} }}"
    )
    with subprocess.Popen(["nginx", "-c", config, "-e", scratch / "error.log"]) as server:
        try:
            _wait_for(port)
            yield port
        finally:
            server.terminate()


def _serve_s3(port: int) -> None:
    import logging

    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    run_simple("127.0.0.1", port, DomainDispatcherApplication(create_backend_app), threaded=True)


@contextmanager
def s3(root: Path) -> Iterator[int]:
    """Serve a folder as a bucket; yield the port."""
    import boto3

    port = _free_port()
    with _process(_serve_s3, port):
        _wait_for(port)
        client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}")
        client.create_bucket(Bucket="bucket")
        for path in root.rglob("*"):
            if path.is_file():
                client.upload_file(str(path), "bucket", str(path.relative_to(root.parent)))
        yield port


async def _pass_on(reader: Any, writer: Any, delay_s: float) -> None:
    due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def write() -> None:
        while True:
            at, data = await due.get()
            await asyncio.sleep(at - time.monotonic())
            if not data:
                writer.close()
                return
            writer.write(data)
            await writer.drain()

    writing = asyncio.create_task(write())
    data = b"more"
    while data:
        try:
            data = await reader.read(1 << 16)
        except ConnectionError:  # the client may close the connection like this
            data = b""
        due.put_nowait((time.monotonic() + delay_s, data))
    await writing


def _serve_delayed(port: int, target: int, delay_s: float) -> None:
    async def connected(reader: Any, writer: Any) -> None:
        there = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(
            _pass_on(reader, there[1], 0.0),
            _pass_on(there[0], writer, delay_s),
            return_exceptions=True,
        )

    async def serve() -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", port, backlog=1024)
        await server.serve_forever()

    asyncio.run(serve())


@contextmanager
def delayed(target: int, delay_s: float) -> Iterator[int]:
    """Yield a port that forwards to another one and delays the responses."""
    if not delay_s:
        yield target
        return
    port = _free_port()
    with _process(_serve_delayed, port, target, delay_s):
        _wait_for(port)
        yield port


@contextmanager
def _process(target: Any, *arguments: Any) -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(
        target=target, args=arguments, daemon=True
    )
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def measure(name: str, url: str, options: dict[str, Any], arguments: argparse.Namespace) -> None:
    for in_flight in map(int, arguments.in_flight.split(",")):
        with tempfile.TemporaryDirectory() as local:
            data = ImageFolder(
                url, local_dir=local, storage_options={**options, "batch_size": in_flight}
            )
            cold = images_per_s(data, arguments.workers)
            warm = images_per_s(data, arguments.workers)
        print(
            f"{name:6} +{arguments.latency_ms:g} ms, {in_flight:3} in flight: cold {cold:6.0f} "
            f"images/s, warm {warm:6.0f}",
            flush=True,
        )

    if arguments.originals:
        torchs = torch_images_per_s(data, options, arguments.workers)
        print(f"{name:6} +{arguments.latency_ms:g} ms, torch and fsspec: {torchs:6.0f}", flush=True)


def copy_folder(folder: Path, to: Path) -> None:
    """Copy an image folder to a location that the server may read."""
    shutil.copytree(folder, to)
    for path in (to, *to.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--originals", action="store_true")
    parser.add_argument("--latency-ms", type=float, default=20)
    parser.add_argument("--in-flight", default="1,8,32")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", default="nginx,s3")
    arguments = parser.parse_args()
    print(describe_processor(machine()), flush=True)
    os.environ.update(
        AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret", AWS_DEFAULT_REGION="us-east-1"
    )
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        os.chmod(scratch, 0o755)  # nginx reads it as another user
        root = scratch / "www" / "images"
        root.parent.mkdir()
        if arguments.originals:
            copy_folder(arguments.folder, root)
        else:
            build_cache(arguments.folder, root, (256,))
        print(f"used by other processes: {psutil.cpu_percent(5.0):.0f}% of the cores", flush=True)
        print(
            f"local  {images_per_s(ImageFolder(root), arguments.workers):6.0f} images/s", flush=True
        )
        delay_s = arguments.latency_ms / 1000
        if "nginx" in arguments.servers:
            with nginx(root.parent, scratch) as port, delayed(port, delay_s) as near:
                measure("nginx", f"http://127.0.0.1:{near}/images", {}, arguments)
        if "s3" in arguments.servers:
            with s3(root) as port, delayed(port, delay_s) as near:
                options = {"endpoint_url": f"http://127.0.0.1:{near}"}
                measure("s3", "s3://bucket/images", options, arguments)


if __name__ == "__main__":
    main()
