"""A local S3 server and its content."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedline.sources.remote_files import RemoteFolder

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "tests",
    "AWS_DEFAULT_REGION": "us-east-1",
    # Else a machine of Amazon's own would be looked for.
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Bucket:
    """A folder in the bucket of a server."""

    def __init__(self, server: Any) -> None:
        self.url = f"s3://{server.bucket}/{secrets.token_hex(8)}"
        self.there = RemoteFolder(self.url)

    def fill(self, name: str, folder: Path) -> str:
        """Upload a folder: its URL."""
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        names = [f"{name}/{path.relative_to(folder).as_posix()}" for path in files]
        list(self.there.map(lambda pair: self.there.put(*pair), zip(names, files, strict=True)))
        return f"{self.url}/{name}"

    def contents(self, name: str) -> dict[str, bytes]:
        """The bytes of all objects below a name."""
        names = list(self.there.files(name))
        found = self.there.map(self.there.read, names)
        return {each[len(name) + 1 :]: data for each, data in zip(names, found, strict=True)}


@contextlib.contextmanager
def serving() -> Iterator[Any]:
    """Start a server with a bucket, and set the environment of S3 clients."""
    s3fs, moto_server = pytest.importorskip("s3fs"), pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patched:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patched.delenv(name)
        for name, value in CREDENTIALS.items():
            patched.setenv(name, value)
        patched.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        server.bucket = f"tests-{secrets.token_hex(8)}"  # no other server has it
        s3fs.S3FileSystem(skip_instance_cache=True).mkdir(server.bucket)
        try:
            yield server
        finally:
            server.stop()
