"""Parts of the files at a URL, fetched many at a time.

Guarantees: returned bytes have the requested length; all requests have a deadline; those of
`filesystem`.

Relies on: `range_guard` for wrong responses; fsspec's own event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from feedline.errors import UsageError
from feedline.remote.error import Altered
from feedline.remote.filesystem import Filesystem
from feedline.remote.joined_parts import Part, joined

__all__ = ["DEADLINE_S", "SHORT_DEADLINE_S", "RemoteParts", "requests_at_a_time"]

IN_FLIGHT = 32
"""Requests of each process at a time, unless the options contain another "batch_size"."""

DEADLINE_S = 20.0  # of the requests that are sent together
SHORT_DEADLINE_S = 2.0  # while a server is away

Answer = bytes | Exception


class RemoteParts:
    """Parts of the files at a URL. Its text is the URL without user and password.

    Args:
        url: URL of their folder, of any fsspec protocol.
        options: arguments of fsspec's filesystem; also "batch_size", the number of requests each
            process sends at a time.

    Raises:
        UsageError: the URL or an option is invalid, or a package is missing.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._in_flight, others = requests_at_a_time(options)
        self._there = Filesystem(url, others, parts=self._in_flight)

    def __str__(self) -> str:
        return str(self._there)

    def close(self) -> None:
        """Close the connections; the next read makes others."""
        self._there.close()

    def fetch(self, parts: Sequence[Part]) -> list[Answer]:
        """Fetch parts, in any order, at the same time. Return the bytes, or the error, of each."""
        try:
            blocks, where = joined(parts)
        except ImportError as error:
            return [error] * len(parts)
        found = self._ask(blocks, short=False)
        given: list[Answer] = []
        for part, at in zip(parts, where, strict=True):
            data, start = found[at], part.first - blocks[at].first
            given.append(data[start : start + part.length] if isinstance(data, bytes) else data)
        return given

    def _ask(self, blocks: Sequence[Part], *, short: bool) -> list[Answer]:
        """Send one request per block; `short`: files may end before their blocks do."""
        deadline_s = SHORT_DEADLINE_S if self._there.is_away else DEADLINE_S
        try:
            filesystem, top = self._there.opened()
            options: dict[str, Any] = {}
            if filesystem.async_impl:
                options = {"batch_size": self._in_flight, "timeout": deadline_s}
            answers = filesystem.cat_ranges(
                [f"{top}/{block.name}" for block in blocks],
                [block.first for block in blocks],
                [block.first + block.length for block in blocks],
                on_error="return",
                **options,
            )
        except Exception as error:
            return [error] * len(blocks)
        pairs = zip(blocks, answers, strict=True)
        return [_checked(block, answer, short) for block, answer in pairs]

    def read(
        self, part: Part, *, patience_s: float, sound: Callable[[bytes], bool] = lambda data: True
    ) -> bytes:
        """Read a part, with retries while that may help.

        Args:
            part: the part.
            patience_s: how long to start retries.
            sound: returns True if the bytes are those that were written there.

        Raises:
            RemoteError: it is unavailable.
        """

        def once() -> bytes:
            (found,) = self.fetch([part])
            if isinstance(found, Exception):
                raise found
            if not sound(found):
                raise Altered("its checksum differs")
            return found

        place = f"{part.length} bytes of '{self}/{part.name}' from byte {part.first} on"
        return self._there.ask(once, f"{place} cannot be read", patience_s=patience_s)

    def rest(self, part: Part, *, patience_s: float) -> bytes:
        """Read a part, or as much of it as its file has; raises like `read`."""

        def once() -> bytes:
            (found,) = self._ask([part], short=True)
            if isinstance(found, Exception):
                raise found
            return found

        refused = f"'{self}/{part.name}' cannot be read"
        return self._there.ask(once, refused, patience_s=patience_s)


def requests_at_a_time(options: Mapping[str, Any] | None) -> tuple[int, dict[str, Any]]:
    """Number of requests a process sends at a time, and the other options.

    Raises:
        UsageError: invalid number of requests.
    """
    others = dict(options or {})
    given = others.pop("batch_size", IN_FLIGHT)
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise UsageError(
            '"batch_size" in storage_options (requests at a time) must be a whole number above 0, '
            f"got {given!r}"
        )
    return given, others


def _checked(block: Part, answer: Any, short: bool) -> Answer:
    if isinstance(answer, Exception):
        return answer
    data = bytes(answer)
    if len(data) == block.length or (short and len(data) < block.length):
        return data
    return Altered(f"got {len(data)} bytes, expected {block.length}")
