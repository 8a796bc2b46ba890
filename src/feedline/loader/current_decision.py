"""The decision of a loader about its dataset as it is now.

Guarantees: where it leaves a folder's transform uncompiled under a schedule, one warning is logged
for each loader. It is taken anew where something was set on the dataset or the loader, as far as
`outline` tells, and after `forget`; else it is the one before. The loader's cache is opened once
for all of them: a dataset may change while the other machine that the cache lies on is away.

Relies on: `decide` for the decision, `filling` for whether copies are read.
"""

from __future__ import annotations

import logging
from typing import Any

from feedline.dataset.outline import Outline, outline
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
    """What was decided last, and of what."""

    def __init__(self) -> None:
        self._decision: Decision | None = None
        self._outline: Outline | None = None
        self._fingerprint = ""  # of the dataset, once a state asked for it
        self._cache: CacheStore | None = None
        self._warned = False

    def of(self, settings: Settings, filling: Filling, *, whole: bool = False) -> Decision:
        """Whose code makes the batches of a dataset as it is now; raises as `decide` does.

        Args:
            settings: of the loader.
            filling: what it reads of its cache.
            whole: compare the long lists of folders and Subsets entry by entry, too, as when an
                iteration begins.
        """
        copies = filling.reads_copies(lambda: decide(settings).to_fill)
        before = self._outline
        now = outline(*decided_by(settings), copies, before=before, whole=whole)
        changed = None if before is None else now.change_from(before)
        if self._decision is None or changed is not None:
            opened = (lambda: self._opened(settings.asked.cache)) if copies else None
            self._decision, self._outline = decide(settings, opened), now
            self._fingerprint = ""
            because = "" if changed is None else f"{changed} has changed; "
            name = type(settings.dataset).__name__
            _log.info("%sbatches of %s: %s", because, name, self._decision)
            if self._decision.uncompiled and not self._warned:
                self._warned = True
                _log.warning(
                    "the transform of %s runs unchanged, which is slower than the same compiled by "
                    "feedline, and cache= and device= are refused: %s "
                    '"Compiled transforms" in docs/explanation/how-it-works.md lists what is '
                    "compiled.",
                    type(settings.dataset).__name__,
                    " ".join(self._decision.reasons),
                )
        return self._decision

    def _opened(self, given: Any) -> CacheStore:
        """The cache that a loader was given: a path, a URL, or rows of it."""
        if self._cache is None:
            cache = open_cache(given) if isinstance(given, str) else given.store
            if not isinstance(cache, CacheStore):
                raise UsageError(f"cache={given!r} was given, which is no cache; leave it out")
            self._cache = cache
        return self._cache

    def forget(self) -> None:
        """Look at the dataset, and at the cache, anew."""
        self._decision = self._cache = None

    def identity(self, settings: Settings) -> dict[str, Any]:
        """What a state says of the dataset and the order, once the decision was taken."""
        # Kept until the decision is taken anew: hashing a million paths takes a second.
        self._fingerprint = self._fingerprint or fingerprint_of(settings.dataset)
        return identity_of(settings, self._fingerprint)
