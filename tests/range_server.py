"""A small web server on the loopback interface, faults for it, and a clock without waiting."""

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
from urllib.parse import quote, unquote

import torch

from feedline import DataLoader


class Answer(BaseHTTPRequestHandler):
    """Answer to a range request, or a fault.

    Attributes:
        whole: content of the file, or links to the files of a folder.
        first, stop: requested bytes.
    """

    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        owner = self.server.owner
        path = owner.root / unquote(self.path).lstrip("/")
        with owner.lock:
            owner.requests.append((self.path, self.headers.get("Range", "")))
            owner.in_flight += 1
            owner.most_in_flight = max(owner.most_in_flight, owner.in_flight)
        try:
            if path.is_dir():
                names = (f"{each.name}/" if each.is_dir() else each.name for each in path.iterdir())
                self.whole = "".join(f'<a href="{quote(name)}">' for name in names).encode()
            elif path.is_file():
                self.whole = path.read_bytes()
            else:
                self.give(404, b"")
                return
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

    def give(self, status: int, body: bytes, length: int | None = None) -> bool:
        """Send a response, with another length than that of its body if one is given."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        if status == 206:
            place = f"bytes {self.first}-{self.stop - 1}/{len(self.whole)}"
            self.send_header("Content-Range", place)
        self.end_headers()
        self.wfile.write(body)
        if length not in (None, len(body)):
            self.close_connection = True
        return True

    def redirect(self, where: str) -> bool:
        """Lead to another URL."""
        self.send_response(302)
        self.send_header("Location", where)
        self.send_header("Content-Length", "0")
        self.end_headers()
        return True

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


OPTIONS: dict[str, Any] = {"seed": 1, "shuffle": True, "image_size": 24, "num_workers": 0}


def batches(data: Any, **options: Any) -> list[Any]:
    """One epoch of 16 images per batch."""
    with DataLoader(data, 16, **{**OPTIONS, **options}) as loader:
        return [(images.clone(), labels.clone()) for images, labels in loader]


def same(ours: list[Any], theirs: list[Any]) -> bool:
    return len(ours) == len(theirs) and all(
        torch.equal(one, other)
        for pair in zip(ours, theirs, strict=True)
        for one, other in zip(*pair, strict=True)
    )


def copies(local: Path) -> list[Path]:
    """Files of local copies below a folder."""
    return sorted(local.rglob("*.part"))


class Clock:
    """A clock that only advances in pauses, which take no real time.

    Attributes:
        pauses: each pause, in seconds.
        passed_s: time passed in addition.
        then: called in a pause.
    """

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self.passed_s = 0.0
        self.then: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.passed_s + sum(self.pauses)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.then()


def unavailable(answer: Answer) -> bool:
    return answer.give(503, b"overloaded")


def reset(answer: Answer) -> bool:
    answer.reset()
    return True


def cut_short(answer: Answer) -> bool:
    return answer.give(206, answer.part[: len(answer.part) // 2], len(answer.part))


def no_http(answer: Answer) -> bool:
    answer.wfile.write(b"no HTTP\r\n\r\n")
    answer.close_connection = True
    return True


def altered(answer: Answer) -> bool:
    return answer.give(206, bytes(byte ^ 1 for byte in answer.part))


def shorter(answer: Answer) -> bool:
    return answer.give(206, answer.part[:-1])


def whole_file(answer: Answer) -> bool:
    return answer.give(200, answer.whole)
