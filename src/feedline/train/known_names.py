"""Settings by name, as files and callers give them: a name that is not known is an error."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from feedline.errors import UsageError

__all__ = ["refuse_unknown"]


def refuse_unknown(
    names: Iterable[str], known: Sequence[str], what: str, *, elsewhere: Sequence[str], where: str
) -> None:
    """Make sure that all names are known.

    Args:
        names: that are given.
        known: that there are.
        what: has these settings, for the message.
        elsewhere: names that belong to another place,
        where: and which that is.

    Raises:
        UsageError: one is not known; names the close ones, or its own place.
    """
    for name in names:
        if name in known:
            continue
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"; close ones: {', '.join(close)}" if close else f"; known: {', '.join(known)}"
        if name in elsewhere:
            hint = f"; it belongs {where}"
        raise UsageError(f"{what} has no setting {name!r}{hint}")
