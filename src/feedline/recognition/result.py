"""What was made of a user's dataset: a pipeline, or the reasons why not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedline.recognition.pipeline import ImagePipeline

__all__ = ["Recognition"]


@dataclass(frozen=True)
class Recognition:
    """What was made of a dataset.

    Args:
        pipeline: makes its rows or samples; None: everything has to run as it is, elsewhere.
        fast: the steps of its pipeline that run on the fast path.
        as_is: those that run unchanged after them, in the same place.
        refused: why it, or a part of it, was not recognised, or makes no rows: sentences.
    """

    pipeline: ImagePipeline | None
    fast: tuple[str, ...] = ()
    as_is: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
