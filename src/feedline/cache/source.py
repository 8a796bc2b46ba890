"""Source of a cache: original images of a sample store, read ahead if they are remote.

Guarantees: the kind of a path follows from its files. A changed image has another stamp, if its
store detects changes; an unreachable server is a DatasetError, so that its images do not count as
broken.
"""

from __future__ import annotations

import functools
import itertools
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
from feedline.sources.folder import FileStore, split_hint
from feedline.sources.manifest import MANIFEST, Manifest
from feedline.sources.opening import check_no_cache, list_splits, open_originals
from feedline.sources.remote_files import THREADS
from feedline.sources.remote_filesystem import is_url, shown
from feedline.sources.remote_images import is_unreachable
from feedline.sources.store import Pixels, SampleStore, check_unique_keys, first_names

__all__ = ["CacheSource", "open_cache_source", "open_source"]


class CacheSource:
    """Original images of a store. Pickled once and sent to every worker."""

    def __init__(
        self,
        store: SampleStore,
        where: str,
        classes: Sequence[str] | None,
        kind: str | None = None,
    ) -> None:
        self.store, self.where, self.classes = store, where, classes
        self.kind = store.kind if kind is None else kind

    def __len__(self) -> int:
        return len(self.store)

    def read(self, sample: int) -> bytes | Pixels:
        """Return an image, encoded or as uint8 (height, width, 3), RGB.

        Raises an ImageError that does not name it, or a DatasetError if the whole source is
        unreachable.
        """
        try:
            image = self.store.read(sample, 0)
        except ImageError as error:
            if is_unreachable(error):
                raise DatasetError.of(error) from error
            raise
        # A proxy's error page must not be cached.
        if self.store.is_remote and isinstance(image, bytes) and codec_of(image) is None:
            return self.store.reload(sample, image) or image
        return image

    def read_ahead(
        self, samples: Iterable[int]
    ) -> Iterator[tuple[int, Callable[[], bytes | Pixels]]]:
        """Yield samples with a function that returns the image or raises its error, as `read`.

        Remote images are read in threads, `THREADS` ahead at most.
        """
        if not self.store.is_remote:
            yield from ((sample, functools.partial(self.read, sample)) for sample in samples)
            return
        threads, remaining = ThreadPoolExecutor(THREADS), iter(samples)
        waiting: deque[tuple[int, Future[bytes | Pixels]]] = deque()
        try:
            while True:
                for sample in itertools.islice(remaining, THREADS - len(waiting)):
                    waiting.append((sample, threads.submit(self.read, sample)))
                if not waiting:
                    return
                sample, image = waiting.popleft()
                yield sample, image.result
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


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
