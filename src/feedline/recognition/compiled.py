"""A pipeline as one callable, which takes the path of an image, its bytes or the image itself.

Guarantees: those of `views`, for one view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from feedline.errors import UsageError
from feedline.recognition.fused import FAST_INPUTS, in_lines
from feedline.recognition.steps import words
from feedline.recognition.view_form import Form, Wrapped
from feedline.recognition.views import Views
from feedline.recognition.wrappers import wrapped_in

__all__ = ["Compiled", "calls_of", "compile", "views"]


class Compiled:
    """What a pipeline makes of an image, made in fewer steps; `feedline.compile` says how.

    Args:
        transform: the pipeline.
    """

    def __init__(self, transform: Callable[..., Any]) -> None:
        self.transform = transform
        self._views = Views(calls_of(transform))

    @property
    def calls(self) -> Wrapped:
        """What is called with an image: the pipeline, or those that a wrapper calls."""
        return self._views.calls

    def __call__(self, *images: Any, **named: Any) -> Any:
        """Transform an image; arguments and errors are those of `feedline.views`."""
        if (named or len(images) != 1) and self.calls.transforms[0] is not self.transform:
            # A wrapper of a user's was read as what it does to one image.
            return self.transform(*images, **named)
        return self._views(*images, **named)

    def explain(self) -> str:
        """What is recognised, what runs as it is and why, what is fast: one fact a line."""
        if len(self._views.fused) > 1:
            return self._views.explain()
        (fused,) = self._views.fused
        facts = fused.facts()
        if fused.recognised is not None:
            facts.append(("inputs", FAST_INPUTS))
        return in_lines(facts)

    def __repr__(self) -> str:
        return f"feedline.compile({'; '.join(map(str, self._views.fused))})"


def compile(transform: Callable[..., Any]) -> Compiled:
    """A pipeline as one callable, with one pass over the pixels where it is recognised.

        class Pictures(Dataset):
            def __init__(self, paths):
                self.paths, self.transform = paths, feedline.compile(Compose([...]))

            def __getitem__(self, index):
                return self.transform(self.paths[index])  # no Image.open, no convert

    It takes a path (str or Path), the bytes of an image file, or an image of Pillow's, and gives
    what the pipeline gives: the same type, the same distribution of what is random, the same pixels
    but for some that are rounded otherwise (0.002 grey levels on average over 125 ImageNet
    photographs at 224 px, 0.08 in the worst, 2 at most).

    A path and bytes count as what torchvision's loader makes of them,
    `Image.open(file).convert("RGB")`. Of a JPEG, also of one that `Image.open` has opened and
    nothing has loaded or changed, no more is decoded than is shown. An RGB image of Pillow's that
    is loaded is fused from its pixels. With any other image, any other thing (a tensor, an array),
    several or named arguments the pipeline itself is called with what was given.

    Of a pipeline that begins with a crop or resize of torchvision's (both versions) or timm's the
    steps are fused that feedline surely understands: crops, resizes and flips, conversions to
    tensors, types and values, and on Pillow's images ColorJitter, RandomGrayscale, GaussianBlur and
    RandomApply of these, also behind a step that runs as it is; "Compiled transforms" in
    docs/explanation/how-it-works.md lists them. The others run as they are, in their
    places; any other pipeline runs as it is, on an opened file or on the image that was given.
    `explain()` says which and why. What a user has changed of these libraries (a replaced function
    or method, a hook, a subclass) is seen when this is called: after a change of the pipeline, of
    Pillow or of torch's default dtype call it again.

    A class of yours that does nothing but call transforms with the image, as MoCo's and DINO's, is
    read as the views that it gives, in its own form; `explain()` shows the line of one that does
    more, which runs as it is.

    All that is random follows from the global random states: a number drawn from torch's places the
    crop, and other steps draw as they would. So `torch.manual_seed` and the seeds that torch gives
    its workers have the meaning that they have for the pipeline, with other draws.

    The result pickles if the pipeline does, and may be called from several threads. Where a
    feedline loader asks for an image size it is followed, with a Resize before the crop in
    proportion; else the pipeline's own is.

    Args:
        transform: a pipeline of torchvision's or timm's, or any other function of an image.

    Raises:
        UsageError: it cannot be called.
    """
    return Compiled(*_pipelines((transform,), "feedline.compile(transform)"))


def views(*transforms: Callable[..., Any]) -> Views:
    """Several views of an image, each by a pipeline of its own; it is read and decoded once.

        data = Pictures(paths, transform=feedline.views(augment, augment))  # SimCLR
        data = Pictures(paths, transform=feedline.views(*2 * [large], *8 * [small]))  # DINO

    A view is what its pipeline gives, and the list of them what
    `[transform(image) for transform in transforms]` would be: each pipeline is recognised as
    `feedline.compile` says, takes what that takes, and runs as it is where it is not recognised.
    If all are, no more of a JPEG is decoded than the smallest rectangle that holds all crops.

    As the transform of a torchvision ImageFolder under feedline.DataLoader, or in any Dataset
    under any DataLoader; torch's default collate makes a list of batches, one for each view. Where
    a feedline loader asks for an image size it is that of the largest view; the others keep their
    proportion to it, rounded to whole pixels.

    Args:
        transforms: torchvision's (both versions) or timm's pipelines, results of `feedline.compile`
            or any other function of an image; at least one. The same one may be there repeatedly.

    Raises:
        UsageError: there is none, or one cannot be called.
    """
    made: list[Callable[..., Any]] = []
    forms: list[Form] = []
    for calls in map(calls_of, _pipelines(transforms, "feedline.views(first, second)")):
        forms.append(calls.form_from(len(made)))
        made += calls.transforms
    return Views(Wrapped(tuple(made), (list, tuple(forms))))


def calls_of(transform: Any) -> Wrapped:
    """What is called with an image where this is: itself, or what a wrapper calls."""
    if type(transform) in (Compiled, Views):
        return cast(Wrapped, transform.calls)
    found = wrapped_in(transform)
    return found if isinstance(found, Wrapped) else Wrapped((transform,), 0)


def _pipelines(given: tuple[Any, ...], example: str) -> tuple[Callable[..., Any], ...]:
    """The pipelines that were given, those of compiled ones taken out of them."""
    for each in given:
        if not callable(each) or isinstance(each, type):
            raise UsageError(
                f"{example} wants what can be called with an image, such as torchvision's "
                f"Compose([...]) or timm's create_transform(...), got {words(each)}"
            )
    if not given:
        raise UsageError(f"there is no transform: give at least one, as in {example}")
    return tuple(each.transform if type(each) is Compiled else each for each in given)
