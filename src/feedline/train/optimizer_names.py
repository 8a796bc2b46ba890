"""Which optimizers there are, by name."""

from __future__ import annotations

import difflib

from feedline.errors import UsageError

__all__ = ["OWN_OPTIMIZERS", "refuse_unknown_optimizer"]

OWN_OPTIMIZERS = ("adamw", "sgd")
"""Torch's, which are made without timm's help, and whose rates have defaults."""


def refuse_unknown_optimizer(name: str) -> None:
    """Make sure that there is an optimizer of a name.

    Raises:
        UsageError: neither torch's two nor timm's have it; names the close ones.
    """
    if name in OWN_OPTIMIZERS:
        return
    try:
        from timm import optim  # an extra, which takes seconds to import
    except ModuleNotFoundError:
        return  # a training, which needs it, says that it is not there

    known = [*OWN_OPTIMIZERS, *optim.list_optimizers()]
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        hint = f"; close ones: {', '.join(close)}" if close else ""
        raise UsageError(f"timm has no optimizer {name!r}{hint}")
