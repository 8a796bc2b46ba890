"""A small HTTP server of a folder on the loopback interface, into which faults can be put."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

__all__ = ["Answer", "Fault", "RangeServer"]


class Answer(BaseHTTPRequestHandler):
    """Answer to a range request, or a fault.

    Attributes:
        whole: content of the file.
        first, stop: requested bytes.
    """

    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        owner = self.server.owner
        path = owner.root / self.path.lstrip("/")
        with owner.lock:
            owner.requests.append((self.path, self.headers.get("Range", "")))
            owner.in_flight += 1
            owner.most_in_flight = max(owner.most_in_flight, owner.in_flight)
        try:
            if not path.is_file():
                self.give(404, b"")
                return
            self.whole = path.read_bytes()
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "bytes=0-"))
            last = int(wanted[2] or len(self.whole))
            self.first, self.stop = int(wanted[1]), min(last + 1, len(self.whole))
            if self.first >= len(self.whole):
                self.give(416, b"")
            elif owner.fault is None or not owner.fault(self):
                self.give(206 if "Range" in self.headers else 200, self.part)
        finally:
            with owner.lock:
                owner.in_flight -= 1

    @property
    def part(self) -> bytes:
        """Requested bytes."""
        return self.whole[self.first : self.stop]

    def give(self, status: int, body: bytes, length: int | None = None) -> None:
        """Send a response.

        Args:
            status: HTTP status.
            body: content.
            length: reported length, if it differs.
        """
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        if status == 206:
            place = f"bytes {self.first}-{self.stop - 1}/{len(self.whole)}"
            self.send_header("Content-Range", place)
        self.end_headers()
        self.wfile.write(body)
        if length not in (None, len(body)):
            self.close_connection = True

    def redirect(self, where: str) -> None:
        """Lead to another URL."""
        self.send_response(302)
        self.send_header("Location", where)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def reset(self) -> None:
        """End the connection without an answer."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True
        self.connection.close()

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # it was reset
            super().finish()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""


Fault = Callable[[Answer], bool]
"""Answers instead, and says whether it did."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    owner: RangeServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


class RangeServer:
    """Serves the files of a folder.

    Args:
        root: the folder.

    Attributes:
        fault: responds instead of the server.
        requests: path and Range of each request.
        in_flight, most_in_flight: current and largest number of concurrent requests.
        sent_bytes: bytes sent by a fault, if it counts them.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.fault = root, None
        self.requests: list[tuple[str, str]] = []
        self.in_flight = self.most_in_flight = self.sent_bytes = 0
        self.lock = threading.Lock()
        self.port = 0
        self.start()

    fault: Fault | None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def asked(self, ending: str) -> int:
        """Number of requests for files with such names."""
        return sum(path.endswith(ending) for path, _ in self.requests)

    def start(self) -> None:
        """Serve, at the same port as before."""
        self._server = _Server(("127.0.0.1", self.port), Answer)
        self._server.owner = self
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        """Answer no more. Connections that are open stay so; see `reset` for these."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
