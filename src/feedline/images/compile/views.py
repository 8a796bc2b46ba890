"""`feedline.compile` and `feedline.views`: pipelines as callables of an image.

Guarantees: the result of `[transform(image) for transform in transforms]`, in distribution and
types; the image is decoded once. All randomness comes from the global random states: one number of
torch's places the crops, and unchanged steps draw as usual. Compiling never raises, for any
pipeline; torchvision is not imported; only steps of libraries are run, on small generated images.

Relies on: `compile_pipeline`, and `image_input` for the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from feedline.errors import UsageError
from feedline.images.compile.compile_pair import FusedPair
from feedline.images.compile.compile_pipeline import compile_transform
from feedline.images.compile.fused_transform import (
    FusedTransform,
    ViewCrops,
    resize_views,
    view_crops,
)
from feedline.images.compile.image_input import (
    FileBytes,
    LazyImage,
    call_at_requested_size,
    call_with_input,
    check_not_open,
    has_rgb_pixels,
    open_with_pillow,
)
from feedline.images.compile.library_steps import attempt, step_text
from feedline.images.crops import format_shape
from feedline.order.batch_spec import Item
from feedline.order.requested_size import (
    SampleRequest,
    augmentation_strength,
    current_request,
    image_size,
)
from feedline.sources.store import Pixels
from feedline.timing.stage_timer import end_stage

_FAST_INPUTS = (
    "fast with a path, the bytes of a file, an unloaded image from Image.open (of a JPEG only the "
    "visible region is decoded), and loaded RGB images; anything else, e.g. an image of another "
    "mode or a tensor, is passed to the pipeline itself"
)


@dataclass(frozen=True, eq=False)
class View:
    """A pipeline, its fused form (None: it runs unchanged), and the reasons for unchanged steps.

    `inputs` are the arguments of a pipeline that runs unchanged, as text.
    """

    transform: Callable[..., Any]
    fused: FusedTransform | FusedPair | None
    reasons: tuple[str, ...]
    inputs: str = "Image.open(file).convert('RGB')"

    def facts(self) -> list[tuple[str, str]]:
        """Description as pairs of a label and a text."""
        fused, because = self.fused, ("because", " ".join(self.reasons))
        if fused is None:
            text = f"all: {step_text(self.transform)}, called with {self.inputs}"
            return [("unchanged", text), because]
        steps = ("fused", ", ".join(fused.fused)), ("unchanged", ", ".join(fused.unchanged))
        size = "differs from image to image, or is set by a step that is not fused"
        if isinstance(fused, FusedTransform) and fused.fixed_size_step:
            size = f"that of {fused.fixed_size_step}"
        elif fused.shape is not None:
            square = fused.shape[0] == fused.shape[1]
            sides = "" if square else " (height x width; an image size is that of the longer side)"
            size = f"{format_shape(fused.shape)}{sides}, or the size of a feedline loader"
            return [*steps, because, ("size", size)]
        return [*steps, because, ("size", f"{size}; cannot follow the size of a schedule")]

    def explain(self, fast_inputs: str) -> str:
        """Description, with the fast inputs of a fused pipeline, one fact per line."""
        return _format_facts((*self.facts(), ("inputs", fast_inputs if self.fused else "")))

    def __str__(self) -> str:
        return f"unchanged: {step_text(self.transform)}" if self.fused is None else str(self.fused)


def _format_facts(facts: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"{name:<11} {fact}" for name, fact in facts if fact)


class Views:
    """Compiled pipelines of several views; see `feedline.views`."""

    def __init__(self, transforms: tuple[Callable[..., Any], ...]) -> None:
        self.transforms = transforms
        by_id = {id(each): View(each, *attempt(compile_transform, each)) for each in transforms}
        self.views = tuple(by_id[id(transform)] for transform in transforms)
        self._fused = tuple(
            view.fused for view in self.views if isinstance(view.fused, FusedTransform)
        )
        self._crops: ViewCrops = view_crops(self._fused)

    def __call__(self, *images: Any, **named: Any) -> list[Any]:
        """Make the views.

        Args:
            images: a path, the bytes of an image file, or a Pillow image. With several arguments,
                or with anything else, each pipeline is called unchanged with these.
            named: keyword arguments for the unchanged pipelines.

        Returns:
            the transforms' return values, in their order.

        Raises:
            ImageError: a file cannot be read or decoded; names it.
            UsageError: an open file was given; or a view that runs unchanged did not ask for the
                loader's image size.
            Exception: any error of an unchanged step.
        """
        output: list[Any] = call_with_input(self._transform, images, named)
        return output

    def _transform(
        self, file: FileBytes | None, images: tuple[Any, ...], named: dict[str, Any]
    ) -> list[Any]:
        single = len(images) == 1 and not named and len(self._fused) > 0
        if single and (file is not None or has_rgb_pixels(images[0])):
            return self._transform_image(LazyImage(file, None if file else images[0]))
        if file is not None:
            images = open_with_pillow(file, None), *images[1:]
            end_stage("decode")
        if self._fused:
            check_not_open(*images[:1])
        return [self._call_unchanged(view, images, named) for view in self.views]

    def _transform_image(self, image: LazyImage) -> list[Any]:
        item = self._item()
        whole = image.loaded() if len(self._fused) < len(self.views) else None
        placed = self._crops.place(*image.size, item)
        pixels = resize_views(self._fused, placed, image.read(placed.part))
        resized = iter(zip(pixels, placed.sides, strict=True))
        return [
            _run_tail(view.fused, *next(resized))
            if isinstance(view.fused, FusedTransform)
            else self._call_unchanged(view, (whole,), {})
            for view in self.views
        ]

    def _item(self) -> Item:
        """Request for this image: its size, its strength, and a seed for its crops."""
        size = image_size(self._crops.largest)
        strength = augmentation_strength() if self._crops.uses_strength else 1.0
        seed = 0
        if self._crops.draws:
            seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_())
        return Item(0, size, seed, strength)

    def _call_unchanged(self, view: View, images: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return call_at_requested_size(
            view.transform, images, named, view.transform, len(self._fused) > 0
        )

    def explain(self) -> str:
        """Describe fused and unchanged steps of each pipeline, with the reasons, one per line."""
        facts: list[tuple[str, str]] = []
        for view in dict.fromkeys(self.views):
            numbers = [str(number) for number, each in enumerate(self.views, 1) if each is view]
            facts.append(("view" if len(numbers) == 1 else "views", ", ".join(numbers)))
            facts += view.facts()
        if len(self._fused) == len(self.views):
            decoded = "once, only the smallest rectangle that contains all views"
        elif self._fused:
            decoded = "once, whole, for the views that run unchanged"
        else:
            decoded = "once, by Pillow"
        facts.append(("decoded", decoded))
        facts.append(("inputs", _FAST_INPUTS if self._fused else ""))
        return _format_facts(facts)

    def __repr__(self) -> str:
        return f"feedline.views({'; '.join(map(str, self.views))})"


def _run_tail(fused: FusedTransform, pixels: Pixels, side: int) -> Any:
    """Apply the steps after the resize, with the current random states."""
    outer = current_request()
    if outer is None or not fused.unchanged:
        return fused.tail.run(pixels, None)
    with SampleRequest(None if outer.image_size is None else side, outer.strength) as own:
        output = fused.tail.run(pixels, None)
    outer.merge(own)
    return output


class Compiled:
    """Compiled pipeline; see `feedline.compile`."""

    def __init__(self, transform: Callable[..., Any]) -> None:
        self.transform = transform
        self._views = Views((transform,))

    def __call__(self, *images: Any, **named: Any) -> Any:
        """Transform an image; arguments and errors are those of `feedline.views`."""
        return self._views(*images, **named)[0]

    @property
    def fused(self) -> FusedTransform | FusedPair | None:
        """Fused form of the pipeline; None if it runs unchanged."""
        return self._views.views[0].fused

    def explain(self) -> str:
        """Describe fused steps, unchanged steps with the reasons, and fast inputs, one per line."""
        return self._views.views[0].explain(_FAST_INPUTS)

    def __repr__(self) -> str:
        return f"feedline.compile({'; '.join(map(str, self._views.views))})"


def compile(transform: Callable[..., Any]) -> Compiled | Views:
    """Compile a pipeline into one callable with a single pass over the pixels.

        class Pictures(Dataset):
            def __init__(self, paths):
                self.paths, self.transform = paths, feedline.compile(Compose([...]))

            def __getitem__(self, index):
                return self.transform(self.paths[index])  # no Image.open, no convert

    The result accepts a path (str or Path), the bytes of an image file, or a Pillow image, and
    returns what the pipeline returns: the same type, the same random distribution, the same pixels
    (those of torchvision's GaussianBlur within one grey level).

    A path or bytes are read like torchvision's loader does, `Image.open(file).convert("RGB")`. Of a
    JPEG, also one that `Image.open` has opened but not loaded or changed, only the visible region
    is decoded. A loaded RGB Pillow image is transformed from its pixels. Any other image, any other
    object (a tensor, an array), and several or named arguments are passed to the pipeline itself.

    If the pipeline begins with a crop or resize of torchvision (both versions) or timm, the steps
    with known equivalents are fused: crops, resizes and flips, conversions to tensors, types and
    values, and on Pillow images ColorJitter, RandomGrayscale, GaussianBlur and RandomApply of
    these, also after an unchanged step; see "Compiled transforms" in
    docs/explanation/how-it-works.md. Other steps run unchanged, in their places; any other pipeline
    runs unchanged, on the opened file or the image. `explain()` tells which and why. Changes
    to these libraries by a user (a replaced function or method, a hook, a subclass) are detected at
    this call: call it again after a change of the pipeline, Pillow or torch's default dtype.

    A class of your own, like MoCo's and DINO's, is called unchanged. feedline.DataLoader fuses the
    pipelines that it holds; for other loaders use `feedline.views` for several views of an image.

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


def _pipelines(transforms: tuple[Any, ...], example: str) -> tuple[Callable[..., Any], ...]:
    """Check pipelines, and replace compiled ones by their originals."""
    for each in transforms:
        if not callable(each) or isinstance(each, type):
            raise UsageError(
                f"{example} expects a function of an image, such as torchvision's Compose([...]) "
                f"or timm's create_transform(...), got {step_text(each)}"
            )
    if not transforms:
        raise UsageError(f"no transform given; pass at least one, e.g. {example}")
    return tuple(each.transform if type(each) is Compiled else each for each in transforms)
