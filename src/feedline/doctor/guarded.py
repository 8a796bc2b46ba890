"""Looks that may break or hang, without harm to the others.

Guarantees: each check that was asked for comes once. One whose look breaks is unknown, and says
why; one whose answer does not come in time (of a dead file server, a sick GPU) fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial

from feedline.doctor.check import Check

__all__ = ["DEADLINE_S", "guarded", "within"]

DEADLINE_S = 10.0


def within(work: Callable[[], object]) -> bool:
    """Do something, and say whether it ended in time; raises what it raised.

    What has no end is left behind in a thread, which ends with the process.
    """
    raised: list[BaseException] = []

    def caught() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=caught, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    if raised:
        raise raised[0]
    return not thread.is_alive()


def guarded(
    ids: tuple[str, ...], look: Callable[[], Iterable[Check]], *, bounded: bool = True
) -> list[Check]:
    """The checks of one look.

    Args:
        ids: what they are called, in their order.
        look: gives them.
        bounded: wait no longer than the deadline. Not for what computes: a thread that is left
            behind in a library may bring the process down at its end.
    """
    came: dict[str, Check] = {}

    def work() -> None:
        for check in look():
            came[check.id] = check

    missing = partial(
        Check,
        status="fail",
        summary=f"no answer within {DEADLINE_S:g} s",
        fix="a file server, a disk or a driver hangs: `dmesg` may name it",
    )
    answered = True
    try:
        if bounded:
            answered = within(work)
        else:
            work()
    except Exception as error:  # of whatever a strange machine makes of it
        answered = False
        missing = partial(Check, status="unknown", summary=f"{type(error).__name__}: {error}")
    if answered and set(came) != set(ids):
        raise AssertionError(f"{sorted(came)} came for {ids}")
    return [came.get(name) or missing(id=name) for name in ids]
