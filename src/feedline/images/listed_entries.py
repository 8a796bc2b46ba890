"""Entries of an LMDB as a store with labels.

Guarantees: those of `lmdb_keys`; entries that are not images are detected at the beginning, as far
as a sample of them shows it, and otherwise when they are read; a damaged LMDB that crashes the
process which scans it (the library does not check all that it reads) does not crash this one.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from typing import Any

import numpy as np

from feedline import errors
from feedline.errors import DatasetError, ImageError, UsageError
from feedline.images.codecs import codec_of
from feedline.images.labels import Labels, check_repeats, labels_of, ordered
from feedline.images.listed_shards import texts_typed
from feedline.sources.lmdb_keys import as_text, keys_of, opened, texts_at
from feedline.sources.lmdb_store import LmdbStore, why_no_image
from feedline.sources.open_lmdb import OpenLmdb

__all__ = ["lmdb_entries"]

_BOOT = (
    "import sys; sys.path[:] = sys.argv[1:]; import feedline.images.listed_entries as e; e.main()"
)
_LOOKED_AT = 10
_NAMED = 5


def lmdb_entries(
    path: Any, keys: Any, labels: Any, classes: Any, *, check: bool
) -> tuple[LmdbStore, Labels]:
    """Entries and their labels. Arguments and errors are those of `ImageList.from_lmdb`."""
    if not isinstance(path, (str, os.PathLike)):
        raise UsageError(f"path must be the path of an LMDB, got {path!r:.200}")
    where = os.path.abspath(os.path.expanduser(os.fspath(path)))
    pattern = labels if isinstance(labels, str) else None
    if keys is not None and not isinstance(keys, str):
        listed = ordered(keys)
        if listed is None:
            raise UsageError(
                'keys must be a sequence of texts or bytes, or a pattern such as "image-%09d", got '
                f"{keys!r:.200}"
            )
        keys = listed
    names, texts = _by_another_process(where, keys, pattern, check)

    def called(sample: int) -> str:
        return f"sample {sample}, {as_text(names[sample])!r},"

    if labels is None:
        labels = np.zeros(len(names), np.int64)
    elif pattern is not None:
        labels = texts_typed(f"the LMDB {where!r}", texts, classes, called)
    elif callable(labels):
        labels = [labels(as_text(name)) for name in names]
    found = labels_of(labels, len(names), classes, called)
    check_repeats(names, found.values, called)
    return LmdbStore(where, names, found.values), found


def _by_another_process(*request: Any) -> tuple[list[bytes], list[Any]]:
    """Call `_looked_at` in another process, because a damaged LMDB may crash it."""
    path = [part or os.getcwd() for part in sys.path]
    done = subprocess.run(
        [sys.executable, "-c", _BOOT, *path],
        input=pickle.dumps(request),
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        how = f"status {done.returncode}"
        if done.returncode < 0:
            how = signal.strsignal(-done.returncode) or f"signal {-done.returncode}"
        raise DatasetError(
            f"the LMDB {request[0]!r} is damaged: the process that scanned it crashed ({how}). "
            "Copy it again, or write it again"
        )
    error, names, texts = pickle.loads(done.stdout)
    if error is not None:
        raise getattr(errors, error[0])(error[1])
    return names, texts


def main() -> None:
    """Scan an LMDB named on standard input, and write the result."""
    found: tuple[Any, ...]
    try:
        found = None, *_looked_at(*pickle.load(sys.stdin.buffer))
    except errors.FeedlineError as error:
        found = (type(error).__name__, str(error)), [], []
    pickle.dump(found, sys.stdout.buffer)
    sys.stdout.flush()


def _looked_at(
    path: str, keys: Any, pattern: str | None, check: bool
) -> tuple[list[bytes], list[Any]]:
    """Keys of the samples, and the texts of their labels, if these have a pattern."""
    lmdb = opened(path)
    names, numbers = keys_of(lmdb, path, keys)
    _look_at_some(lmdb, path, names, sure=keys is not None)
    if check:
        _check_all(lmdb, path, names)
    return names, [] if pattern is None else texts_at(lmdb, path, pattern, numbers)


def _look_at_some(lmdb: OpenLmdb, path: str, names: list[bytes], *, sure: bool) -> None:
    """Check that entries are images; if the keys are not `sure`, that at least some are.

    Raises:
        DatasetError: they are not, or the LMDB is damaged.
    """
    picked = np.unique(np.linspace(0, len(names) - 1, _LOOKED_AT).astype(int)).tolist()
    others = []
    for sample in picked:
        value = _value(lmdb, names[sample])
        if value is None or codec_of(bytes(value[:16])) is not None:
            if sure:
                return
            continue
        why = why_no_image(value) or (
            f"it starts with {bytes(value[:8])!r}. A value must be the bytes of an image file; "
            "arrays of pixels, msgpack, pyarrow and other records are not supported"
        )
        others.append(
            f"the entry {as_text(names[sample])!r} of the LMDB {path!r} is not an image: {why}"
        )
    if others:
        hint = "" if sure else ". If other entries are images, pass their keys= explicitly"
        raise DatasetError(others[0] + hint)


def _check_all(lmdb: OpenLmdb, path: str, names: list[bytes]) -> None:
    missing = [as_text(name) for name in names if _value(lmdb, name) is None]
    if missing:
        some = ", ".join(map(repr, missing[:_NAMED])) + (", ..." if len(missing) > _NAMED else "")
        raise DatasetError(
            f"{len(missing)} of {len(names)} keys are not in the LMDB {path!r}: {some}"
        )


def _value(lmdb: OpenLmdb, key: bytes) -> memoryview | None:
    try:
        return lmdb.get(key)
    except ImageError as error:
        raise DatasetError.of(error) from error
