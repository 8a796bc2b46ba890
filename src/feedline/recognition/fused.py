"""A pipeline of a user's, with what was recognised of it.

Guarantees: recognising never raises, whatever the pipeline; torchvision is not imported; nothing of
the pipeline is run but libraries' own steps, on small made-up images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from feedline.images.shape import shape_in_words
from feedline.recognition.recognised_transform import RecognisedTransform
from feedline.recognition.replacements import Replacements
from feedline.recognition.steps import NotRecognised, said, words
from feedline.recognition.transform_reader import read
from feedline.recognition.wrappers import wrapped_in

__all__ = ["FAST_INPUTS", "Fused", "fuse", "in_lines"]

FAST_INPUTS = (
    "fast are a path, the bytes of a file, and an image from Image.open that is not loaded yet (of "
    "a JPEG no more is decoded than is shown), and RGB images that are loaded; anything else, as "
    "an image of another mode or a tensor, goes to the pipeline itself"
)


@dataclass(frozen=True, eq=False)
class Fused:
    """A pipeline, and what stands in its place.

    Args:
        transform: the pipeline itself.
        recognised: how feedline's code does the same; None: the pipeline runs as it is.
        why: why it does, or why a part of it does, sentences.
    """

    transform: Callable[..., Any]
    recognised: RecognisedTransform | None
    why: tuple[str, ...]

    def facts(self) -> list[tuple[str, str]]:
        """What runs, in words: what each is about, and it."""
        recognised = self.recognised
        if recognised is None:
            as_is = f"all: {words(self.transform)}, called with Image.open(file).convert('RGB')"
            return [("unchanged", as_is), ("because", " ".join(self.why))]
        return [
            ("recognised", ", ".join(recognised.fast)),
            ("unchanged", ", ".join(recognised.as_is)),
            ("because", " ".join(self.why)),
            ("size", _size(recognised)),
        ]

    def __str__(self) -> str:
        if self.recognised is None:
            return f"as it is: {words(self.transform)}"
        return str(self.recognised)


def _size(recognised: RecognisedTransform) -> str:
    if recognised.sized:
        return f"that of {recognised.sized}; a schedule's size cannot be followed"
    height, width = recognised.shape
    at = "" if height == width else " (height x width; an image size is that of the longer side)"
    return f"{shape_in_words(recognised.shape)}{at}, or as a feedline loader's schedule asks"


def fuse(transform: Callable[..., Any]) -> Fused:
    """Recognise what can be of a pipeline, as it is now."""
    try:
        replacements = Replacements()
        if replaced := replacements.replaced_in_pillow():
            raise NotRecognised(f"{replaced}.")
        if isinstance(why := wrapped_in(transform), str) and why:
            raise NotRecognised(why)
        recognised = read(transform, replacements)
        return Fused(transform, recognised, recognised.notes)
    except NotRecognised as why:
        return Fused(transform, None, (str(why),))
    except Exception as error:
        return Fused(transform, None, (f"It cannot be looked into: {said(error)}.",))


def in_lines(facts: Iterable[tuple[str, str]]) -> str:
    """Facts, one a line, without those that are empty."""
    return "\n".join(f"{name:<11} {fact}" for name, fact in facts if fact)
