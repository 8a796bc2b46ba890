"""A user's pipeline, with its compiled form.

Guarantees: compiling never raises, for any pipeline; torchvision is not imported; only steps of
libraries are run, on small generated images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from feedline.images.shape import shape_in_words
from feedline.recognition.recognised_transform import RecognisedTransform
from feedline.recognition.steps import NotRecognised, check_libraries, said, words
from feedline.recognition.transform_reader import read

__all__ = ["FAST_INPUTS", "Fused", "fuse", "in_lines"]

FAST_INPUTS = (
    "fast with a path, the bytes of a file, an unloaded image from Image.open (of a JPEG only the "
    "visible region is decoded), and loaded RGB images; anything else, e.g. an image of another "
    "mode or a tensor, is passed to the pipeline itself"
)


@dataclass(frozen=True, eq=False)
class Fused:
    """A pipeline, and its compiled form.

    Args:
        transform: the pipeline itself.
        recognised: compiled form; None: the pipeline runs unchanged.
        why: reasons why it, or a part of it, runs unchanged, as sentences.
    """

    transform: Callable[..., Any]
    recognised: RecognisedTransform | None
    why: tuple[str, ...]

    def facts(self) -> list[tuple[str, str]]:
        """Description as pairs of a label and a text."""
        recognised = self.recognised
        if recognised is None:
            as_is = f"all: {words(self.transform)}, called with Image.open(file).convert('RGB')"
            return [("unchanged", as_is), ("because", " ".join(self.why))]
        return [
            ("fused", ", ".join(recognised.fast)),
            ("unchanged", ", ".join(recognised.as_is)),
            ("because", " ".join(self.why)),
            ("size", _size(recognised)),
        ]

    def __str__(self) -> str:
        if self.recognised is None:
            return f"unchanged: {words(self.transform)}"
        return str(self.recognised)


def _size(recognised: RecognisedTransform) -> str:
    if recognised.sized:
        return f"that of {recognised.sized}; cannot follow the size of a schedule"
    height, width = recognised.shape
    at = "" if height == width else " (height x width; an image size is that of the longer side)"
    return f"{shape_in_words(recognised.shape)}{at}, or the size of a feedline loader"


def fuse(transform: Callable[..., Any]) -> Fused:
    """Compile as much as possible of a pipeline in its current state."""
    try:
        check_libraries()
        recognised = read(transform)
        return Fused(transform, recognised, recognised.notes)
    except NotRecognised as why:
        return Fused(transform, None, (str(why),))
    except Exception as error:
        return Fused(transform, None, (f"It cannot be inspected: {said(error)}.",))


def in_lines(facts: Iterable[tuple[str, str]]) -> str:
    """Format facts, one per line, without empty ones."""
    return "\n".join(f"{name:<11} {fact}" for name, fact in facts if fact)
