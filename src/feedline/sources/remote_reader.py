"""Ranges of files at URLs, and the images in them, fetched many at a time.

Guarantees: those of `remote_filesystem`. Of ranges, those that arrive in time are returned, even
if others fail; returned bytes have the requested length, and with HTTP no truncated file is
returned; time is bounded, and so is memory, except for requests in flight. Images whose bytes are
not intact are neither returned nor stored.

Relies on: fsspec's own event loop.
"""

from __future__ import annotations

import asyncio
import functools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from feedline.errors import ImageError, UsageError
from feedline.sources.files import MAX_FILE_BYTES
from feedline.sources.remote_filesystem import (
    IMAGE_PATIENCE_S,
    AlteredError,
    Filesystem,
    RangeError,
    RemoteError,
    host_of,
    request_options,
)

GAP_BYTES = 64 << 10
"""Maximum gap between joined ranges: transferring it takes as long as a request."""
BLOCK_BYTES = 4 << 20
"""Maximum length of joined ranges, so that a long run uses several requests at a time."""

_DEADLINE_S = 20.0  # of the requests that are sent together
_SHORT_DEADLINE_S = 2.0  # while a server is unreachable
_CANCEL_S = 1.0
_MAX_PREFETCHED_BYTES = 256 << 20

Answer: TypeAlias = "bytes | Exception | None"


class Range(NamedTuple):
    """Bytes of a file: `length` of them from byte `first` on, or the whole file if it is None."""

    url: str
    first: int = 0
    length: int | None = None

    @property
    def stop(self) -> int | None:
        """End of the range; None for that of the file."""
        return None if self.length is None else self.first + self.length

    def __str__(self) -> str:
        url = repr(self.url)
        if self.length is None:
            return url
        return f"{self.length} bytes of {url} from byte {self.first} on"


class RemoteReader:
    """Ranges of files at some hosts, many at a time. Its length is the number of hosts or buckets.

    `urls` has one or more of each host or bucket. `options` are arguments of the fsspec filesystem,
    and "batch_size", the number of requests each process sends at a time.
    """

    def __init__(self, urls: Iterable[str], options: Mapping[str, Any] | None = None) -> None:
        self._requests, others = request_options(options)
        self._hosts: dict[str, Filesystem] = {}
        for url in urls:
            if "::" in url:
                raise UsageError(
                    f"{url!r} uses one protocol within another: use PROTOCOL://HOST/FILE"
                )
            if host_of(url) not in self._hosts:
                self._hosts[host_of(url)] = Filesystem(url, others, requests=self._requests)

    def __len__(self) -> int:
        return len(self._hosts)

    def close(self) -> None:
        """Close the connections; the next read makes others."""
        for filesystem in self._hosts.values():
            filesystem.close()

    def fetch(
        self, ranges: Sequence[Range], max_bytes: int = MAX_FILE_BYTES, *, may_end: bool = False
    ) -> list[Answer]:
        """Fetch ranges at the same time. Return the bytes, or the error, of each.

        After `max_bytes` no more requests are started; their results are None. With `may_end`, a
        file may end before the range does.
        """
        if not ranges:
            return []
        places = [self._hosts[host_of(each.url)] for each in ranges]
        unreachable = any(there.is_unreachable for there in places)
        deadline_s = _SHORT_DEADLINE_S if unreachable else _DEADLINE_S
        try:
            from fsspec.asyn import get_loop, sync

            filesystems = [there.opened()[0] for there in places]
            limits = self._requests, deadline_s, max_bytes
            answers = sync(get_loop(), _fetch_concurrently, filesystems, ranges, *limits)
        except Exception as error:
            return [error] * len(ranges)
        pairs = zip(ranges, answers, strict=True)
        return [_checked(each, answer, may_end) for each, answer in pairs]

    def read(
        self,
        each: Range,
        *,
        patience_s: float,
        is_intact: Callable[[bytes], bool] = lambda data: True,
        may_end: bool = False,
    ) -> bytes:
        """Read a range, with retries for `patience_s` while that may help. A RemoteError if it is
        unavailable, or never intact, has the server's answer.
        """

        def once() -> bytes:
            (answer,) = self.fetch([each], may_end=may_end)
            if isinstance(answer, Exception):
                raise answer
            assert answer is not None, "the first request is always started"
            if not is_intact(answer):
                whole = f"got {len(answer)} bytes, which do not match the listing"
                raise AlteredError(whole if each.length is None else "its checksum differs")
            return answer

        failure = f"{Range(each.url) if may_end else each} cannot be read"
        return self._hosts[host_of(each.url)].retry(once, failure, patience_s=patience_s)


async def _fetch_concurrently(
    filesystems: Sequence[Any],
    ranges: Sequence[Range],
    requests: int,
    deadline_s: float,
    max_bytes: int,
) -> list[Answer]:
    """Fetch ranges of files with many requests at a time."""
    many, one, left = asyncio.Semaphore(requests), asyncio.Semaphore(1), max_bytes

    async def fetch(there: Any, each: Range) -> Answer:
        nonlocal left
        path, is_async = there._strip_protocol(each.url), there.async_impl
        try:
            async with many if is_async else one:  # others need not be safe for threads
                if left <= 0:
                    return None
                if is_async:
                    data = await there._cat_file(path, start=each.first, end=each.stop)
                else:
                    start = each.first or None
                    data = await asyncio.to_thread(there.cat_file, path, start=start, end=each.stop)
                left -= len(data)
                return bytes(data)
        except asyncio.CancelledError:
            return ConnectionError("the request was cancelled")
        except Exception as error:
            return error

    tasks = [asyncio.ensure_future(fetch(*pair)) for pair in zip(filesystems, ranges, strict=True)]
    _, late = await asyncio.wait(tasks, timeout=deadline_s)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late, timeout=_CANCEL_S)
    too_late = TimeoutError(f"no response within {deadline_s:g} s")
    return [too_late if task in late else task.result() for task in tasks]


def _checked(each: Range, answer: Answer, may_end: bool) -> Answer:
    if not isinstance(answer, bytes):
        return answer
    length = MAX_FILE_BYTES if each.length is None else each.length
    if len(answer) > length:
        return RangeError(f"requested at most {length} bytes, but the server sends {len(answer)}")
    if each.length is None or len(answer) == length or may_end:
        return answer
    return AlteredError(f"got {len(answer)} bytes, expected {length}")


class ImageFetcher:
    """Images at URLs: prefetched together, read from local copies, or fetched.

    A base of stores and readers, which define where an image is, which bytes are intact, and its
    local copy.
    """

    def __init__(self, reader: RemoteReader) -> None:
        self._reader = reader
        self._prefetched: dict[int, bytes] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_prefetched": {}}

    def _range(self, sample: int) -> Range | None:
        """Position of an image; None if it does not exist."""
        raise NotImplementedError

    def _is_intact(self, sample: int, data: bytes) -> bool:
        raise NotImplementedError

    def _copy(self, sample: int) -> bytes | None:
        """Intact local copy of an image."""
        raise NotImplementedError

    def _store(self, sample: int, data: bytes) -> None:
        raise NotImplementedError

    def prepare(self, samples: Sequence[int], side: int = 0) -> None:
        """Fetch images that are about to be read, in place of those prefetched before."""
        self._prefetched = prefetched = {}
        missing: dict[Range, list[int]] = {}  # a file may be that of two samples
        left = _MAX_PREFETCHED_BYTES
        for sample in dict.fromkeys(samples):
            copy = self._copy(sample) if left > 0 else None
            if copy is not None:
                left -= len(copy)
                prefetched[sample] = copy
            elif (each := self._range(sample)) is not None:
                missing.setdefault(each, []).append(sample)
        blocks, places = join_ranges(list(missing))
        answers = self._reader.fetch(blocks, left)
        for (each, samples_of), place in zip(missing.items(), places, strict=True):
            answer, start = answers[place], each.first - blocks[place].first
            if not isinstance(answer, bytes):
                continue
            data = answer if each.length is None else answer[start : start + each.length]
            for sample in samples_of:
                if self._is_intact(sample, data):
                    prefetched[sample] = data
                    self._store(sample, data)

    def image(self, sample: int, each: Range) -> bytes:
        """Read an image, with retries; raises an ImageError."""
        data = self._prefetched.pop(sample, None)
        if data is None:
            data = self._copy(sample)
        if data is None:
            try:
                data = self.fetch_image(sample, each, IMAGE_PATIENCE_S)
            except RemoteError as error:
                raise ImageError.of(error) from error
            self._store(sample, data)
        return data

    def fetch_image(self, sample: int, each: Range, patience_s: float) -> bytes:
        """Fetch an image; raises a RemoteError."""
        is_intact = functools.partial(self._is_intact, sample)
        return self._reader.read(each, patience_s=patience_s, is_intact=is_intact)


def join_ranges(ranges: Sequence[Range]) -> tuple[list[Range], list[int]]:
    """Blocks to fetch, which join nearby ranges, and for each range the index of its block.

    A whole file is a block, and so is a range that is longer than one.
    """
    from fsspec.utils import merge_offset_ranges

    parts = [each for each in ranges if each.length is not None]
    spans = merge_offset_ranges(
        [each.url for each in parts],
        [each.first for each in parts],
        [each.stop for each in parts],
        max_gap=GAP_BYTES,
        max_block=BLOCK_BYTES,
    )
    spans = sorted(zip(*spans, strict=True))
    blocks = [Range(url, first, stop - first) for url, first, stop in spans]
    places = []
    for each in ranges:
        if each.length is None:
            places.append(len(blocks))
            blocks.append(each)
            continue
        at = bisect_right(spans, (each.url, each.first, math.inf)) - 1
        # Ranges that lie in one another may have been divided between blocks that overlap.
        while spans[at][2] < each.first + each.length:
            at -= 1
        places.append(at)
    return blocks, places
