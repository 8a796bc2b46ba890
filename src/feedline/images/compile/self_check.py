"""Self-check of fused pipelines, with versions of the libraries that feedline was not tested with.

Guarantees: with tested versions nothing runs. With others a pipeline is compiled only if its fused
form returns, for small generated images, what the libraries' own steps return: within two grey
levels after a resize, one after a blur, otherwise bit for bit; with the same random numbers
drawn. The same holds for reading files, and for folders. Each is checked once in a
process, in tens of milliseconds; no user code runs; the random states are restored. A difference is
a CompileError, and one warning.

Relies on: steps doing to any image what they do to these; `compile_pipeline` for tables of values,
which are found, and checked, by running the steps.
"""

from __future__ import annotations

import io
import os
import random
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image, ImageFilter, features
from torch.utils.data import get_worker_info

from feedline.images.codec_registry import Decoder
from feedline.images.compile.datasets import is_timm_folder
from feedline.images.compile.fused_transform import FusedTransform
from feedline.images.compile.library_steps import (
    CompileError,
    Step,
    error_text,
    full_step_text,
    is_v2,
    leaves,
    library_name,
    step_text,
    steps_text,
    untested_versions,
)
from feedline.images.compile.supported_transforms import (
    draw_crop_params,
    pixel_step,
    pixels_as_image,
)
from feedline.images.crops import Part, TrainCrop, WindowCrop, cut
from feedline.order.seeds import RandomStream
from feedline.randomness import seeded, unbroken
from feedline.sources.store import Pixels
from feedline.system import rank_and_world

FusedRun: TypeAlias = Callable[[Pixels, tuple[Any, ...], Callable[[Pixels], Pixels]], Any]
"""Fused form of steps: function of an image's pixels, the sample's other parts, and a change of the
resized pixels. It returns the sample.
"""

_SHAPES = ((40, 56), (12, 97), (37, 29), (9, 8), (90, 11), (64, 1))
"""Height and width of generated images, in pixels."""
_MAX_RUNS, _MAX_PIXELS = 12, 400_000
"""Samples of a pipeline, at least two; and pixels of all its outputs, after which it ends."""
_LEVELS = 2
"""Difference of pixels after a resize, in grey levels."""
_STEP_SHAPES = ((21, 26), (9, 40), (3, 2))
_CROPPED_SHAPES = ((60, 80), (200, 31), (9, 300))
_SEEDS, _POLICY_SEEDS = 6, 40
_FILES = (
    *(("PNG", mode) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")),
    *(("JPEG", mode) for mode in ("L", "RGB", "CMYK")),
    ("WEBP", "RGB"),
)

_FIX = "Install a tested version, or a newer feedline."

_reasons: dict[str, str] = {}
"""Reason not to compile, a sentence, by what was checked; "" for none."""


class _DifferenceError(Exception):
    """Difference between fused code and the libraries, as a clause."""


def check_fused(steps: Sequence[Step], fused: FusedTransform) -> None:
    """Raise CompileError if a fused pipeline differs from the steps that became its crop and table.

    Its other fused steps are checked one by one.
    """
    tail = replace(fused.tail, before=(), after=())

    def run(image: Pixels, others: tuple[Any, ...], change: Callable[[Pixels], Pixels]) -> Any:
        placement = fused.draw_placement(*image.shape[:2])
        pixels = fused.resize(cut(image, placement.part), placement, fused.image_size)
        return tail.run(change(pixels), None)

    def check() -> None:
        for step in fused.geometry:
            _check_crop_draws(step, fused)
        levels = 0 if fused.resize_mode == "pillow" else _LEVELS
        _compare_samples(steps, run, lambda height, width: (), levels)
        for step, operation in fused.tail.before:
            if operation is not None:
                _compare_pixels(step)
        if fused.tail.unchanged_between and fused.tail.input_form == "pil":
            _compare_images()

    _check_once((*steps, *(step for step, _ in fused.tail.before)), check)


def check_steps(
    steps: Sequence[Step],
    fused: FusedRun,
    others: Callable[[int, int], tuple[Any, ...]],
    pixel_steps: Sequence[Step],
) -> None:
    """Raise CompileError if the fused form of a sample's steps, or a pixel step, differs from them.

    `others` makes the parts of a sample besides its image of a height and width.
    """

    def check() -> None:
        _compare_samples(steps, fused, others)
        for step in pixel_steps:
            _compare_pixels(step)

    _check_once((check_steps, *steps, *pixel_steps), check)


def check_folder(folder: Any) -> None:
    """Raise CompileError if a folder of torchvision or timm, with a loader and methods of these
    libraries, does not return a file's image and label.
    """
    if not is_timm_folder(folder):
        check_loader(folder.loader)
    _check_once((type(folder),), partial(_check_sample, partial(_read_sample, folder)))


def check_loader(loader: Callable[[str], Any]) -> None:
    """Raise CompileError if torchvision's loader of a folder does not read images like Pillow."""
    _check_once((loader,), partial(_check_sample, lambda path: (loader(path), 7)))


def _check_once(things: Iterable[object], check: Callable[[], None]) -> None:
    """Check things, if a library has an untested version. Raise CompileError for a difference."""
    versions = untested_versions()
    if not versions:
        return
    for key, function in (((_check_reading,), _check_reading), (things, check)):
        text = "\n".join((versions, *map(full_step_text, key)))
        if text not in _reasons:
            why = _find_difference(function)
            why = why and f"With {versions} {why}."
            _reasons[text] = why
            if why and get_worker_info() is None and rank_and_world()[0] == 0:
                warning = f"a pipeline runs unchanged, and so slower. {why} {_FIX}"
                warnings.warn(warning, RuntimeWarning, stacklevel=4)
        if why := _reasons[text]:
            raise CompileError(why, _FIX)


def has_warned_of(text: str) -> bool:
    """Return True if a text contains a reason that a warning of this process has told."""
    return any(why and why in text for why in _reasons.values())


def _find_difference(check: Callable[[], None]) -> str:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several wait for each other longer than they compute
    try:
        with warnings.catch_warnings(), torch.device("cpu"):
            warnings.simplefilter("ignore")
            check()
    except _DifferenceError as difference:
        return str(difference)
    except Exception as error:
        return f"the self-check raised {error_text(error)}"
    finally:
        torch.set_num_threads(num_threads)
    return ""


def _compare_images() -> None:
    """Compare the methods of images that unchanged steps get with Pillow's."""
    methods: dict[str, Callable[[Image.Image], Image.Image]] = {
        "filter": lambda image: image.filter(ImageFilter.GaussianBlur((0.3, 1.9))),
        "point": lambda image: image.point([level // 3 for level in range(768)]),
        "rotate": lambda image: image.rotate(20, Image.Resampling.BILINEAR),
    }
    for seed, shape in enumerate(_STEP_SHAPES):
        pixels = _noise(shape, seed)
        for name, method in methods.items():
            ours = np.asarray(method(pixels_as_image(pixels)))
            if not np.array_equal(ours, np.asarray(method(Image.fromarray(pixels)))):
                raise _DifferenceError(f"an image's {name} returns other pixels than Pillow's")


def _compare_samples(
    steps: Sequence[Step],
    fused: FusedRun,
    others: Callable[[int, int], tuple[Any, ...]],
    levels: int = _LEVELS,
) -> None:
    num_pixels = 0
    for seed in range(_MAX_RUNS):
        if seed >= 2 and num_pixels > _MAX_PIXELS:
            break
        shape = _SHAPES[seed % len(_SHAPES)]
        image = _noise(shape, seed)
        theirs = _run(seed, _run_steps, steps, (Image.fromarray(image), *others(*shape)))
        ours, *bounds = (
            _run(seed, fused, image, others(*shape), partial(_brighten, levels=change))
            for change in (0, -levels, levels)
        )
        if difference := _difference_of_samples(theirs, ours, bounds):
            raise _DifferenceError(
                f"the fused form of {steps_text(steps)} {difference}, for an image of {shape[0]} x "
                f"{shape[1]} pixels"
            )
        num_pixels += 0 if isinstance(ours, Exception) else np.size(_image_values(ours)) // 3


def _compare_pixels(step: Step) -> None:
    """Compare the pixel operations of a step, or of those in a container, with the steps."""
    for leaf in leaves(step):
        operation = pixel_step(leaf)
        assert operation is not None
        name = library_name(leaf)
        num_seeds = _POLICY_SEEDS if "Augment" in name else _SEEDS
        for seed in range(num_seeds):
            pixels = _noise(_STEP_SHAPES[seed % (1 if "Augment" in name else 3)], seed)
            theirs = _run(
                seed, lambda step, image: np.asarray(step(image)), leaf, Image.fromarray(pixels)
            )
            ours = _run(seed, operation, pixels.copy())
            bounds = [ours] * 2
            if name == "GaussianBlur" and not isinstance(ours, Exception):
                bounds = [(_brighten(ours[0], levels), ours[1]) for levels in (-1, 1)]
            if difference := _difference_of_samples(theirs, ours, bounds):
                raise _DifferenceError(f"the fused form of {step_text(leaf)} {difference}")


def _difference_of_samples(theirs: Any, ours: Any, bounds: Sequence[Any]) -> str:
    """Difference between a sample of the steps and a fused one, as a predicate.

    Each is a pair of the sample and the numbers drawn next, or an exception. The image must lie
    between `bounds`.
    """
    errors = [each for each in (theirs, ours) if isinstance(each, Exception)]
    if errors:
        return "" if len(errors) == 2 else f"differs: one of them raised {error_text(errors[0])}"
    if theirs[1] != ours[1]:
        return "draws other random numbers"
    parts, own_parts = (
        each[0] if isinstance(each[0], tuple) else each[:1] for each in (theirs, ours)
    )
    if list(map(_type_and_shape, parts)) != list(map(_type_and_shape, own_parts)):
        return "returns another type or shape"
    low, high = (_image_values(bound) for bound in bounds)
    values = _image_values(theirs)
    if not ((np.minimum(low, high) <= values) & (values <= np.maximum(low, high))).all():
        return "returns other pixels"
    others = zip(parts[1:], own_parts[1:], strict=True)
    same = all(np.array_equal(_values(one), _values(other)) for one, other in others)
    return "" if same else "returns other masks or boxes"


def _type_and_shape(part: Any) -> tuple[Any, ...]:
    values = _values(part)
    return type(part), values.shape, values.dtype


def _image_values(outcome: Any) -> np.ndarray[Any, Any]:
    sample = outcome[0]
    return _values(sample[0] if isinstance(sample, tuple) else sample)


def _values(part: Any) -> np.ndarray[Any, Any]:
    if isinstance(part, torch.Tensor):
        return np.asarray(part.as_subclass(torch.Tensor).numpy())
    return np.asarray(part)


def _run(seed: int, function: Callable[..., Any], *args: Any) -> Any:
    """Output of a function with seeded random states, and the numbers drawn next; or its error."""
    with unbroken(), seeded(seed):
        try:
            output = function(*args)
        except Exception as error:
            return error
        return output, (torch.rand(1).item(), random.random(), np.random.random())


def _run_steps(steps: Sequence[Step], sample: tuple[Any, ...]) -> Any:
    """Sample that steps return: an image, or a tuple of several parts."""
    for step in steps:
        output = step(*sample)
        sample = output if len(sample) > 1 else (output,)
    return sample if len(sample) > 1 else sample[0]


def _brighten(pixels: Pixels, levels: int) -> Pixels:
    return (pixels.astype(np.int16) + levels).clip(0, 255).astype(np.uint8)


def _noise(shape: tuple[int, int], seed: int) -> Pixels:
    """Pixels (height, width, 3) of large and small structures, uint8, with all grey levels."""
    generator = np.random.RandomState(seed)
    coarse = generator.randint(0, 256, (-(-shape[0] // 8), -(-shape[1] // 8), 3))
    blocks = coarse.repeat(8, 0).repeat(8, 1)[: shape[0], : shape[1]]
    return (blocks + generator.randint(-40, 41, (*shape, 3))).clip(0, 255).astype(np.uint8)


class _Draw(float):
    """A number whose product with n is a whole number below n, as the library draws it."""

    is_timm: bool

    def __mul__(self, count: float, /) -> float:
        if self.is_timm:
            return random.randint(0, int(count) - 1)
        return int(torch.randint(0, int(count), (1,), device="cpu"))


class _LibraryStream(RandomStream):
    """Random numbers in the order in which torchvision and timm draw those of a crop."""

    __slots__ = ("_is_timm",)

    def __init__(self, is_timm: bool) -> None:
        super().__init__(0)
        self._is_timm = is_timm

    def uniform(self) -> float:
        return random.random() if self._is_timm else torch.rand(1, device="cpu").item()

    def pair(self) -> tuple[float, float]:
        return self.uniform(), self.uniform()

    def triple(self) -> tuple[float, float, float]:
        draw = _Draw()
        draw.is_timm = self._is_timm
        return draw, draw, 0.0


def _check_crop_draws(step: Step, fused: FusedTransform) -> None:
    """Compare a random crop with that of `TrainCrop` or `WindowCrop` for the same numbers."""
    name = library_name(step)
    if "RandomResizedCrop" not in name and name != "RandomCrop":
        return

    def draw(height: int, width: int) -> Part:
        stream = _LibraryStream(name.startswith("timm."))
        if isinstance(fused.crop, TrainCrop):
            return fused.crop.box(height, width, stream)[:4]
        assert isinstance(fused.crop, WindowCrop)
        rows, columns = fused.crop.crop
        room = height - rows, width - columns
        # Version 1 draws both numbers, or none.
        is_drawn = map(bool, room) if is_v2(step) else (any(room),) * 2
        draws = zip(stream.triple(), room, is_drawn, strict=False)
        top, left = (int(draw * (most + 1)) if drawn else 0 for draw, most, drawn in draws)
        return top, left, rows, columns

    cases, num_equal = [(shape, seed) for shape in _CROPPED_SHAPES for seed in range(_SEEDS)], 0
    for shape, seed in cases:
        if isinstance(fused.crop, WindowCrop):
            shape = fused.crop.resized_shape(*shape, fused.image_size)
        with unbroken(), seeded(seed):
            theirs = draw_crop_params(step, *shape)
        with unbroken(), seeded(seed):
            num_equal += draw(*shape) == theirs
    # torch draws in float32, so that a side may be rounded in another way.
    if num_equal < 0.75 * len(cases):
        raise _DifferenceError(f"{step_text(step)} draws its crops in another way")


def _check_reading() -> None:
    """Compare decoders with Pillow."""
    pixels = _noise((30, 41), 0)
    part = 5, 7, 9, 11
    for format, mode in _FILES:
        if format == "WEBP" and not features.check("webp"):
            continue
        image = Image.fromarray(pixels)
        if mode == "I;16":
            image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 3)
        buffer = io.BytesIO()
        image.convert(mode).save(buffer, format)
        data = buffer.getvalue()
        expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        for needed in (None, part):
            decoder = Decoder()
            decoder.open(data)
            if not np.array_equal(decoder.read(1, needed), cut(expected, needed)):
                raise _DifferenceError(f"{format} files of mode {mode} are decoded to other pixels")


def _check_sample(read: Callable[[str], tuple[Any, Any]]) -> None:
    """Compare the image that libraries read from a file with Pillow's; its label must be 7."""
    image = Image.fromarray(_noise((12, 9), 0)).quantize(16)
    with tempfile.TemporaryDirectory() as root:
        path = os.path.join(root, "image.png")
        image.save(path)
        output, label = read(path)
        if type(output) is not Image.Image or output.mode != "RGB" or label != 7:
            raise _DifferenceError("a folder returns other objects than RGB images and labels")
        if output.tobytes() != image.convert("RGB").tobytes():
            raise _DifferenceError("a folder reads images in another way")


def _read_sample(folder: Any, path: str) -> tuple[Any, Any]:
    """Sample of a copy of a folder that has one file, without transforms."""
    changes: dict[str, Any] = {"samples": [(path, 7)]}
    if is_timm_folder(folder):
        changes = {"reader": _copy(folder.reader, changes)}
    copied = _copy(folder, {**changes, "transform": None, "target_transform": None})
    image, label = copied[0]
    return image, label


def _copy(thing: Any, changes: dict[str, Any]) -> Any:
    """Copy of an object with other values of attributes; no code of its class runs."""
    other = object.__new__(type(thing))
    vars(other).update(vars(thing), **changes)
    return other
