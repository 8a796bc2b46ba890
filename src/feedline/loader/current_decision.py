"""Decision of a loader for the current state of its dataset.

Guarantees: if a folder's transform stays uncompiled under a schedule, one warning is logged per
loader. The decision is made again after `forget`, or if something was set on the dataset or the
loader, as detected by `outline`. The loader's cache is opened once for all decisions: a dataset may
change while the machine with the cache is unreachable.

Relies on: `decide` for the decision, `filling` for whether copies are read.
"""

from __future__ import annotations

import logging
from typing import Any

from feedline.engine.attribute_snapshot import AttributeSnapshot, take_snapshot
from feedline.errors import UsageError
from feedline.loader.decide import Decision, decide, decided_by
from feedline.loader.filling import Filling
from feedline.loader.identity import fingerprint_of, identity_of
from feedline.loader.settings import Settings
from feedline.remote.open_location import open_cache
from feedline.stores.cache_store import CacheStore

__all__ = ["CurrentDecision"]

_log = logging.getLogger("feedline")


class CurrentDecision:
    """The last decision, and the state of the dataset it was made for."""

    def __init__(self) -> None:
        self._decision: Decision | None = None
        self._outline: AttributeSnapshot | None = None
        self._fingerprint = ""  # of the dataset, once a state asked for it
        self._cache: CacheStore | None = None
        self._warned = False

    def of(self, settings: Settings, filling: Filling, *, whole: bool = False) -> Decision:
        """Choose the engine for the current dataset; raises like `decide`.

        Args:
            settings: settings of the loader.
            filling: cache that is being filled, if any.
            whole: compare the long lists of folders and Subsets entry by entry, too, as at the
                start of an iteration.
        """
        copies = filling.reads_copies(lambda: decide(settings).to_fill)
        before = self._outline
        now = take_snapshot(*decided_by(settings), copies, before=before, whole=whole)
        changed = None if before is None else now.change_from(before)
        if self._decision is None or changed is not None:
            opened = (lambda: self._opened(settings.asked.cache)) if copies else None
            self._decision, self._outline = decide(settings, opened), now
            self._fingerprint = ""
            because = "" if changed is None else f"{changed} has changed; "
            name = type(settings.dataset).__name__
            _log.info("%sengine for %s: %s", because, name, self._decision)
            if self._decision.uncompiled and not self._warned:
                self._warned = True
                _log.warning(
                    "the transform of %s runs unchanged, which is slower than compiled by "
                    'feedline, and cache= and device= cannot be used: %s See "Compiled transforms" '
                    "in docs/explanation/how-it-works.md for what is compiled.",
                    type(settings.dataset).__name__,
                    " ".join(self._decision.reasons),
                )
        return self._decision

    def _opened(self, given: Any) -> CacheStore:
        """Cache that a loader was given: a path, a URL, or rows of it."""
        if self._cache is None:
            cache = open_cache(given) if isinstance(given, str) else given.store
            if not isinstance(cache, CacheStore):
                raise UsageError(f"cache={given!r} is not a cache; remove it")
            self._cache = cache
        return self._cache

    def forget(self) -> None:
        """Re-read the dataset and the cache."""
        self._decision = self._cache = None

    def identity(self, settings: Settings) -> dict[str, Any]:
        """State entry of the dataset and the order, after the decision."""
        # Kept until a new decision is made: hashing a million paths takes a second.
        self._fingerprint = self._fingerprint or fingerprint_of(settings.dataset)
        return identity_of(settings, self._fingerprint)
