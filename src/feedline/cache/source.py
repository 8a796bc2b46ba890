"""Source of a cache: original images of a sample store, read ahead if they are remote.

Guarantees: the kind of a path follows from its files. A changed image has another stamp, if its
store detects changes; an unreachable server is a DatasetError, so that its images do not count as
broken.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from feedline.cache.dataset_source import DatasetStore
from feedline.errors import DatasetError, ImageError, UsageError
from feedline.images.codec_registry import codec_of
from feedline.images.folder import ImageFolder
from feedline.images.image_list import ImageList
from feedline.order.batch_spec import Field
from feedline.sources.folder import FileStore, split_hint
from feedline.sources.manifest import MANIFEST, Manifest
from feedline.sources.opening import check_no_cache, list_splits, open_originals
from feedline.sources.remote_files import THREADS
from feedline.sources.remote_filesystem import is_url, shown
from feedline.sources.remote_images import is_unreachable
from feedline.sources.store import Pixels, SampleStore, check_unique_keys, first_names

__all__ = ["CacheSource", "ReadAhead", "open_cache_source", "open_source"]


class CacheSource:
    """Numbered original images with labels and names. Pickled once and sent to every worker."""

    def __init__(
        self,
        store: SampleStore,
        where: str,
        classes: Sequence[str] | None,
        kind: str | None = None,
    ) -> None:
        self.where = where
        self.classes = classes
        self.kind = store.kind if kind is None else kind
        self.label_field: Field = store.label_field
        self._store = store
        self._ahead = ReadAhead(self._read)

    def __len__(self) -> int:
        return len(self._store)

    def pick(self, count: int) -> list[int]:
        """Return about `count` samples, spread over all, that are cheap to read in sequence."""
        return self._store.pick(count)

    def prefetch(self, samples: Iterable[int]) -> None:
        """Start reading remote images that are needed next, in this order."""
        if self._store.is_remote:
            self._ahead.plan(samples)

    def read(self, sample: int) -> bytes | Pixels:
        """Return an image, encoded or as uint8 (height, width, 3), RGB.

        Raises an ImageError that does not name it, or a DatasetError if the whole source is
        unreachable.
        """
        return self._ahead.result(sample)

    def _read(self, sample: int) -> bytes | Pixels:
        try:
            image = self._store.read(sample, 0)
        except ImageError as error:
            if is_unreachable(error):
                raise DatasetError.of(error) from error
            raise
        # A proxy's error page must not be cached.
        if self._store.is_remote and isinstance(image, bytes) and codec_of(image) is None:
            return self._store.reload(sample, image) or image
        return image

    def label(self, sample: int) -> Any:
        """Return a number, or an array of numbers, as described by `label_field`."""
        return self._store.label(sample)

    def name(self, sample: int) -> str:
        """Return the name of a sample, distinct and independent of the source's location."""
        return self._store.key(sample)

    def path(self, sample: int) -> str:
        """Return the path of the local file that holds the sample; "" without one."""
        return self._store.local_path(sample)

    def stamp(self, sample: int) -> int:
        """Return 64 bits that change with the sample; 0 if changes are not detected."""
        return self._store.stamp(sample)


class ReadAhead:
    """Reads planned images in threads."""

    def __init__(self, read: Callable[[int], bytes | Pixels]) -> None:
        self._read = read
        self._clear()

    def _clear(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._process = 0
        self._next: Iterator[int] = iter(())
        self._waiting: deque[tuple[int, Future[bytes | Pixels]]] = deque()

    def __getstate__(self) -> dict[str, Any]:
        return {"_read": self._read}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._clear()

    def plan(self, samples: Iterable[int]) -> None:
        """Read these images next, in this order, instead of an earlier plan."""
        if self._threads is None or self._process != os.getpid():
            self._clear()  # a parent's plan and locks stay untouched
            self._threads = ThreadPoolExecutor(THREADS)
            self._process = os.getpid()
        for _, future in self._waiting:
            future.cancel()
        self._waiting.clear()
        self._next = iter(samples)
        self._fill()

    def result(self, sample: int) -> bytes | Pixels:
        """Return an image: the next one of the plan, or any other."""
        planned = self._process == os.getpid() and any(sample == at for at, _ in self._waiting)
        if not planned:
            return self._read(sample)
        while True:
            at, future = self._waiting.popleft()
            self._fill()
            if at == sample:
                return future.result()
            future.cancel()  # skipped by the reader

    def _fill(self) -> None:
        assert self._threads is not None
        while len(self._waiting) < THREADS:
            sample = next(self._next, None)
            if sample is None:
                return
            self._waiting.append((sample, self._threads.submit(self._read, sample)))


def open_source(source: Any, *, check_splits: bool = True) -> CacheSource:
    """Open a source: a path or URL, see `open_originals`; a `feedline.ImageFolder` or `ImageList`;
    or a map-style Dataset of (image, label). Without `check_splits`, train/ and val/ are two
    classes.
    """
    if isinstance(source, str | os.PathLike):
        if check_splits and (splits := list_splits(source)):
            path = os.fspath(source)
            raise UsageError(split_hint(shown(path) if is_url(path) else path, splits))
        return CacheSource(*open_originals(source))
    if isinstance(source, ImageFolder):
        check_no_cache(source.root, is_cache=os.path.exists(os.path.join(source.root, MANIFEST)))
        return CacheSource(source.originals(), source.root, source.classes)
    if isinstance(source, ImageList):
        if isinstance(source.store, FileStore):
            files = source.store.without_repeats()
            return CacheSource(files, source.root, source.classes or None)
        check_unique_keys(source.store)
        return CacheSource(source.store, repr(source.store), source.classes or None)
    if isinstance(source, Mapping):
        raise UsageError(
            f"a cache is built from one dataset, got a {type(source).__name__} of "
            f"{first_names(list(source))}",
            hint="pass one of its values",
        )
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        store = DatasetStore(source)
        return CacheSource(store, store.where, store.classes)
    raise UsageError(
        "a cache is built from a path (a folder of class folders, tar shards of WebDataset, "
        f"Parquet files) or a map-style Dataset of (image, label), got {type(source).__name__}"
    )


def open_cache_source(where: str, manifest: Manifest, source: Any) -> CacheSource:
    """Open the source of an existing cache: the one from the user, or that of its manifest."""
    if source is not None:
        return open_source(source)
    kind, path = manifest.source
    if kind == "dataset":
        raise UsageError(
            f"the cache {where!r} was built from a Dataset, {path}, which has no path",
            hint="pass the Dataset in Python, as source=",
        )
    try:
        return open_source(path, check_splits=False)
    except DatasetError as error:
        raise DatasetError(
            f"the cache {where!r} was built from {path!r}: {error.message}",
            hint="if it has moved, pass its new path",
            fix={"source": "DIR"},
        ) from error
