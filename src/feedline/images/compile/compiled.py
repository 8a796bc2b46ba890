"""A pipeline as one callable, for the path of an image, its bytes or the image itself.

Guarantees: those of `views`, for one view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedline.errors import UsageError
from feedline.images.compile.steps import step_text
from feedline.images.compile.views import FAST_INPUTS, Views, in_lines

__all__ = ["Compiled", "compile", "views"]


class Compiled:
    """Compiled pipeline; see `feedline.compile`.

    Args:
        transform: the pipeline.
    """

    def __init__(self, transform: Callable[..., Any]) -> None:
        self.transform = transform
        self._views = Views((transform,))

    def __call__(self, *images: Any, **named: Any) -> Any:
        """Transform an image; arguments and errors are those of `feedline.views`."""
        return self._views(*images, **named)[0]

    def explain(self) -> str:
        """Describe the fused steps, the unchanged steps with the reasons, and the fast inputs,
        one per line.
        """
        (fused,) = self._views.fused
        facts = fused.facts()
        if fused.recognised is not None:
            facts.append(("inputs", FAST_INPUTS))
        return in_lines(facts)

    def __repr__(self) -> str:
        return f"feedline.compile({'; '.join(map(str, self._views.fused))})"


def compile(transform: Callable[..., Any]) -> Compiled | Views:
    """Compile a pipeline into one callable with a single pass over the pixels.

        class Pictures(Dataset):
            def __init__(self, paths):
                self.paths, self.transform = paths, feedline.compile(Compose([...]))

            def __getitem__(self, index):
                return self.transform(self.paths[index])  # no Image.open, no convert

    The result accepts a path (str or Path), the bytes of an image file, or a Pillow image, and
    returns what the pipeline returns: the same type, the same random distribution, the same pixels
    except for rounding (0.002 grey levels on average over 125 ImageNet photographs at 224 px, 0.08
    in the worst photograph, 2 at most).

    A path or bytes are read like torchvision's loader does, `Image.open(file).convert("RGB")`. Of a
    JPEG, also one that `Image.open` has opened but not loaded or changed, only the visible region
    is decoded. A loaded RGB Pillow image is transformed from its pixels. Any other image, any other
    object (a tensor, an array), and several or named arguments are passed to the pipeline itself.

    If the pipeline begins with a crop or resize of torchvision (both versions) or timm, the steps
    with known equivalents are fused: crops, resizes and flips, conversions to tensors, types and
    values, and on Pillow images ColorJitter, RandomGrayscale, GaussianBlur and RandomApply of
    these, also after an unchanged step; see "Compiled transforms" in
    docs/explanation/how-it-works.md. Other steps run unchanged, in their places; any other pipeline
    runs unchanged, on the opened file or the given image. `explain()` tells which and why. Changes
    to these libraries by a user (a replaced function or method, a hook, a subclass) are detected at
    this call: call it again after a change of the pipeline, of Pillow or of torch's default dtype.

    A class of your own runs unchanged, also one that only calls transforms with the image, like
    MoCo's and DINO's: use `feedline.views` for several views of an image.

    All randomness comes from the global random states: a number drawn from torch's places the crop,
    and other steps draw as usual. So `torch.manual_seed` and torch's worker seeds work as for the
    pipeline, with other draws.

    The result can be pickled if the pipeline can, and called from several threads. It follows the
    image size of a feedline loader, with a Resize before the crop scaled in proportion; otherwise
    it uses the pipeline's own size.

    Args:
        transform: a torchvision or timm pipeline, or any other function of an image. Results of
            `feedline.compile` and `feedline.views` are compiled already.

    Raises:
        UsageError: `transform` is not callable.
    """
    (pipeline,) = _pipelines((transform,), "feedline.compile(transform)")
    return pipeline if isinstance(pipeline, Views) else Compiled(pipeline)


def views(*transforms: Callable[..., Any]) -> Views:
    """Compile several views of an image, each with its own pipeline; reads and decodes it once.

        data = Pictures(paths, transform=feedline.views(augment, augment))  # SimCLR
        data = Pictures(paths, transform=feedline.views(*2 * [large], *8 * [small]))  # DINO

    The result returns a list equal to `[transform(image) for transform in transforms]`. Each
    pipeline is compiled and called like with `feedline.compile`, and runs unchanged if it cannot be
    compiled. If all are compiled, only the smallest rectangle of a JPEG that contains all crops is
    decoded.

    Use it as the transform of a torchvision ImageFolder in feedline.DataLoader, or in any Dataset
    with any DataLoader; torch's default collate makes a list of batches, one per view. The image
    size of a feedline loader is that of the largest view; the others keep their proportion to it,
    rounded to whole pixels.

    Args:
        transforms: torchvision (both versions) or timm pipelines, results of `feedline.compile`, or
            any other functions of an image; at least one. The same one may be repeated.

    Raises:
        UsageError: there is none, or one is not callable.
    """
    return Views(_pipelines(transforms, "feedline.views(first, second)"))


def _pipelines(given: tuple[Any, ...], example: str) -> tuple[Callable[..., Any], ...]:
    """Given pipelines, with compiled ones replaced by their originals."""
    for each in given:
        if not callable(each) or isinstance(each, type):
            raise UsageError(
                f"{example} expects a function of an image, such as torchvision's Compose([...]) "
                f"or timm's create_transform(...), got {step_text(each)}"
            )
    if not given:
        raise UsageError(f"no transform given; pass at least one, e.g. {example}")
    return tuple(each.transform if type(each) is Compiled else each for each in given)
