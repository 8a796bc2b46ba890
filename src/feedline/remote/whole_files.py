"""Whole files by their URLs, at one host or at several, fetched many at a time.

Guarantees: files that arrive in time are returned, even if others fail; time is bounded, and so is
memory, except for requests in flight; with HTTP and S3 no truncated file is returned; those of
`filesystem`.

Relies on: `range_guard` for wrong responses; fsspec's own event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from feedline.errors import UsageError
from feedline.remote.error import Altered, image_step
from feedline.remote.filesystem import Filesystem, shown
from feedline.remote.parts import DEADLINE_S, SHORT_DEADLINE_S, requests_at_a_time
from feedline.remote.range_guard import MOST_BYTES, RangeIgnored

__all__ = ["WholeFiles", "store_of"]

_CLEANED_UP_S = 1.0
_NO_FILE = (FileNotFoundError, IsADirectoryError, RangeIgnored)

Answer: TypeAlias = "bytes | Exception | None"


def store_of(url: str) -> str:
    """Beginning of a URL, up to its host or bucket: "s3://bucket"."""
    return "/".join(url.split("/", 3)[:3])


class WholeFiles:
    """Files at some hosts, by their URLs. Its length is the number of hosts or buckets.

    Args:
        urls: one or more of each host or bucket.
        options: arguments of fsspec's filesystems; also "batch_size", the number of requests each
            process sends at a time.

    Raises:
        UsageError: a URL or an option is invalid, or a package is missing.
    """

    def __init__(self, urls: Iterable[str], options: Mapping[str, Any] | None = None) -> None:
        self._in_flight, others = requests_at_a_time(options)
        self._stores: dict[str, Filesystem] = {}
        for url in urls:
            if "::" in url:
                raise UsageError(
                    f"{shown(url)!r} uses one protocol within another: use PROTOCOL://HOST/FILE"
                )
            if store_of(url) not in self._stores:
                self._stores[store_of(url)] = Filesystem(url, others, parts=self._in_flight)

    def __len__(self) -> int:
        return len(self._stores)

    def close(self) -> None:
        """Close the connections; the next read makes others."""
        for there in self._stores.values():
            there.close()

    def fetch(self, urls: Sequence[str], most_bytes: int) -> list[Answer]:
        """Fetch files at the same time. Return the bytes, or the error, of each.

        Args:
            urls: without duplicates.
            most_bytes: after this many bytes no more requests are started; their results are None.
        """
        at: dict[str, list[str]] = {}
        for url in urls:
            at.setdefault(store_of(url), []).append(url)
        found: dict[str, Answer] = {}
        for store, some in at.items():
            answers = self._ask(self._stores[store], some, most_bytes)
            most_bytes -= sum(len(each) for each in answers if isinstance(each, bytes))
            found.update(zip(some, answers, strict=True))
        return [found[url] for url in urls]

    def _ask(self, there: Filesystem, urls: Sequence[str], most_bytes: int) -> list[Answer]:
        deadline_s = SHORT_DEADLINE_S if there.is_away else DEADLINE_S
        answers: list[Answer] = []
        try:
            filesystem, _ = there.opened()
            paths = [filesystem._strip_protocol(url) for url in urls]
            if filesystem.async_impl:
                from fsspec.asyn import sync

                limits = self._in_flight, deadline_s, most_bytes
                answers = sync(filesystem.loop, _together, filesystem, paths, *limits)
            else:
                answers = _one_by_one(filesystem, paths, deadline_s, most_bytes)
        except Exception as error:
            return [error] * len(urls)
        return [_checked(answer) for answer in answers]

    def read(
        self, url: str, *, patience_s: float, sound: Callable[[bytes], bool] = lambda data: True
    ) -> bytes:
        """Read a file, with retries while that may help.

        Args:
            url: URL of the file.
            patience_s: how long to start retries.
            sound: returns True if the bytes match the file's listing.

        Raises:
            RemoteError: it is unavailable; the message has the server's answer.
        """
        there = self._stores[store_of(url)]

        def once() -> bytes:
            (found,) = self._ask(there, [url], MOST_BYTES)
            if isinstance(found, Exception):
                raise found
            assert found is not None, "the first request is always started"
            if not sound(found):
                raise Altered(f"got {len(found)} bytes, which do not match the listing")
            return found

        refused = f"{shown(url)!r} cannot be read"
        return there.ask(once, refused, patience_s=patience_s, advice=image_step)

    def is_there(self, url: str, *, patience_s: float) -> bool:
        """Return True if a file exists; raises like `read` if that cannot be determined."""
        there = self._stores[store_of(url)]

        def once() -> None:
            filesystem, _ = there.opened()
            # Of HTTP, fsspec's info and exists take any failure for a file that is missing.
            filesystem.cat_file(filesystem._strip_protocol(url), start=0, end=1)

        refused = f"{shown(url)!r} cannot be checked"
        try:
            there.ask(once, refused, patience_s=patience_s, answers=_NO_FILE, advice=image_step)
        except _NO_FILE as error:
            return isinstance(error, RangeIgnored)
        return True


async def _together(
    filesystem: Any, paths: Sequence[str], in_flight: int, deadline_s: float, most_bytes: int
) -> list[Answer]:
    """Fetch files of a filesystem with many requests at a time."""
    at_once, left = asyncio.Semaphore(in_flight), most_bytes

    async def one(path: str) -> bytes | None:
        nonlocal left
        async with at_once:
            if left <= 0:
                return None
            data = bytes(await filesystem._cat_file(path, start=0, end=None))
            left -= len(data)
            return data

    tasks = [asyncio.ensure_future(one(path)) for path in paths]
    _, late = await asyncio.wait(tasks, timeout=deadline_s)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late, timeout=_CLEANED_UP_S)
    too_late = TimeoutError(f"no response within {deadline_s:g} s")
    return [too_late if task in late else _outcome(task) for task in tasks]


def _outcome(task: asyncio.Task[bytes | None]) -> Answer:
    try:
        return task.result()
    except (Exception, asyncio.CancelledError) as error:
        return (
            error if isinstance(error, Exception) else ConnectionError("the request was cancelled")
        )


def _one_by_one(
    filesystem: Any, paths: Sequence[str], deadline_s: float, most_bytes: int
) -> list[Answer]:
    """Fetch files of a filesystem with one request at a time."""
    answers: list[Answer] = []
    ends_at = time.monotonic() + deadline_s
    for path in paths:
        if most_bytes <= 0 or time.monotonic() > ends_at:
            answers.append(None)
            continue
        try:
            answers.append(data := bytes(filesystem.cat_file(path)))
            most_bytes -= len(data)
        except Exception as error:
            answers.append(error)
    return answers


def _checked(answer: Answer) -> Answer:
    if isinstance(answer, bytes) and len(answer) > MOST_BYTES:
        return ValueError(f"it has {len(answer)} bytes, above the limit of {MOST_BYTES}")
    return answer
