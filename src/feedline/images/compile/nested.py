"""Pipelines of torchvision and timm within a user's dataset or transform, fused in place.

`NestedPipelines.add` collects pipelines among the objects that a dataset holds. `install`
replaces the class of each by a subclass of its own class, whose calls are fused, and the loader of
a torchvision folder by one that leaves images undecoded. So the user's code runs unchanged, is not
read, and finds the same objects with the same attributes; `uninstall` restores the classes.

Guarantees: a fused call draws from the library's generators what the pipeline itself draws, in the
same order, and returns its result bit for bit; pixels of torchvision's blur are within one grey
level. Anything but one RGB Pillow image of some pixels is passed to the pipeline itself, and so is
every image once an attribute of the pipeline or of its steps has been set to another value. An
image looks loaded to any other code: Pillow decodes its pixels when they are first used.

Relies on: Python's assignment of `__class__`; `get_params` and `make_params` of crops, which need
only the size of an image; on attributes of `PIL.Image.Image`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from feedline.errors import ImageError
from feedline.images.compile.compile_pipeline import compile_transform
from feedline.images.compile.datasets import is_timm_folder, is_torchvision_folder
from feedline.images.compile.fused_transform import FusedTransform
from feedline.images.compile.image_input import FileBytes, LazyImage, has_rgb_pixels
from feedline.images.compile.library_steps import (
    CompileError,
    attempt,
    check_libraries,
    library_name,
    sets_own_size,
)
from feedline.images.compile.self_check import check_loader
from feedline.images.compile.views import Compiled
from feedline.images.compile.wrappers import wrapped_transform
from feedline.images.crops import Part
from feedline.images.lazy_images import UndecodedJpeg, undecoded
from feedline.sources.store import Pixels

_ENDS = {b"\xff\xd8\xff": b"\xff\xd9", b"\x89PNG\r\n": b"IEND\xaeB`\x82"}
"""First and last bytes of complete files; others are opened by Pillow at once."""
_LARGE = 1 << 20
_DECODER_SHARE = 0.5
"""Time to find the pixels of a part in its file, in proportion to the rows above the part's end."""
_STEP_MODULES = ("torchvision.transforms", "timm.data", "torch.nn.modules.container")
_MIN_PIXELS = 64
"""Images with fewer pixels are not fused: timm's crops of them may be empty, and black."""


class UndecodedImage(Image.Image):
    """RGB Pillow image of a file. It becomes a plain, loaded `PIL.Image.Image` once code other than
    a fused pipeline reads its pixels, or any attribute besides its mode and size.
    """

    # Not Pillow's __init__: attributes that are missing decode the image.
    def __init__(self, file: LazyImage) -> None:
        self._mode = "RGB"
        self._size = file.size[1], file.size[0]
        self._undecoded = file

    def __getattr__(self, name: str) -> Any:
        self._decode()
        return getattr(self, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._decode()
        return self.__reduce_ex__(protocol)

    def _decode(self) -> None:
        loaded = vars(self)["_undecoded"].loaded()
        self.__dict__ = dict(vars(loaded))
        self.__class__ = Image.Image  # type: ignore[assignment]


def _load_undecoded(stock: Any, path: Any) -> Any:
    """Loader of a folder; `stock` is torchvision's, which also raises all errors of files."""
    with contextlib.suppress(ImageError, OSError, ValueError):
        with open(path, "rb") as file:
            data = file.read()
        if any(data.startswith(head) and data.endswith(end) for head, end in _ENDS.items()):
            image = LazyImage(FileBytes(data, repr(path)), None)
            if image.is_undecoded:
                return UndecodedImage(image)
    return stock(path)


class _DecodeHistory:
    """Learns from earlier images if one decode of the whole image is cheaper than one per call."""

    def __init__(self) -> None:
        self._images = self._cost = 0.0  # the cost of a whole image is 1
        self._latest: LazyImage | None = None
        self._lazy: tuple[UndecodedJpeg, LazyImage] | None = None  # the latest file, opened

    def open(self, image: Any) -> LazyImage:
        """Open an RGB image, once for all calls that get it undecoded."""
        if type(image) is UndecodedImage:
            return vars(image)["_undecoded"]  # type: ignore[no-any-return]
        file = undecoded(image)
        if file is None:
            return LazyImage(None, image)
        if self._lazy is None or self._lazy[0] is not file:
            self._lazy = file, LazyImage(None, image)
        return self._lazy[1]

    def read(self, image: LazyImage, part: Part | None) -> Pixels:
        """Read a part of an image; the pixels are the same in any case."""
        if not image.is_undecoded:
            return image.read(part)
        if image is not self._latest:
            if self._images >= 2 and self._cost > 1.05 * self._images:
                image.keep_whole()
            self._images, self._latest = self._images + 1, image
            if self._images > 64:
                self._images, self._cost = self._images / 2, self._cost / 2
        else:
            image.reopen()
        height, width = image.size
        top, _, rows, columns = part or (0, 0, height, width)
        area = rows * columns / (height * width)
        self._cost += _DECODER_SHARE * (top + rows) / height + (1 - _DECODER_SHARE) * area
        return image.read(part)


def _containers(thing: Any, seen: set[int]) -> Iterator[Any]:
    """Attributes of steps that may be fused, and the lists, tuples and dicts in them."""
    is_step = hasattr(thing, "__dict__") and (
        type(thing).__module__.startswith(_STEP_MODULES) or wrapped_transform(thing) is not None
    )
    if id(thing) in seen or not (is_step or type(thing) in (list, tuple, dict)):
        return
    seen.add(id(thing))
    container = vars(thing) if is_step else thing
    if type(container) is not tuple:
        yield container
    for part in container.values() if type(container) is dict else container:
        yield from _containers(part, seen)


def _values(container: Any) -> Any:
    """View of a container's current elements."""
    return container.values() if type(container) is dict else container


@dataclass(eq=False)
class _NestedPipeline:
    """A pipeline that was found, its path from the dataset, and its fused form."""

    path: str
    pipeline: Any
    fused: FusedTransform
    history: _DecodeHistory

    def __post_init__(self) -> None:
        self.stock: type = type(self.pipeline)
        views = [_values(each) for each in _containers(self.pipeline, set())]
        self._attributes = [(view, [*map(id, view)]) for view in views]
        self._kept = [tuple(view) for view in views]  # so that no other object gets an id
        self.kind = self._create_class()

    def run(self, image: Any) -> Any:
        """Transform an RGB image."""
        opened = self.history.open(image)
        placement = self.fused.draw_placement(*opened.size)
        part = self.history.read(opened, placement.part)
        pixels = self.fused.resize(part, placement, self.fused.image_size)
        return self.fused.tail.run(pixels, None)

    def accepts(self, inputs: tuple[Any, ...]) -> bool:
        """Return True for one RGB Pillow image, if the pipeline is still what was fused."""
        if len(inputs) != 1:
            return False
        image = inputs[0]
        if type(image) is not UndecodedImage and not (
            isinstance(image, Image.Image) and has_rgb_pixels(image)
        ):
            return False
        if image.width * image.height < _MIN_PIXELS:
            return False
        # A loop over ids: this runs for every call, on dozens of attributes.
        for values, ids in self._attributes:  # noqa: SIM110
            if [*map(id, values)] != ids:
                return False
        return True

    def _create_class(self) -> type:
        stock, own = self.stock, self

        def call(self: Any, *inputs: Any, **named: Any) -> Any:
            if not named and own.accepts(inputs):
                return own.run(inputs[0])
            return stock.__call__(self, *inputs, **named)

        def reduce(self: Any, protocol: Any) -> Any:
            pickled: Any = object.__new__(stock)
            vars(pickled).update(vars(self))
            return _unchanged, (pickled,)

        members = {
            "__slots__": (),
            "__module__": stock.__module__,
            "__qualname__": stock.__qualname__,
            "__doc__": stock.__doc__,
            "__call__": call,
            "__reduce_ex__": reduce,
        }
        kind: type = type(stock)(stock.__name__, (stock,), members)
        return kind


def _unchanged(thing: Any) -> Any:
    return thing


class NestedPipelines:
    """Pipelines with a fused form among the objects of a dataset.

    Attributes:
        has_folder: True if one of the objects is an image folder of torchvision or timm.
        has_pixels: True if one is an array of at least 1 MiB and three dimensions, such as images.
        sets_size: True if one is a library's transform that sets the size of an image.
        reasons: why others, or some of their steps, run unchanged, as sentences.
    """

    def __init__(self) -> None:
        self._pipelines: list[_NestedPipeline] = []
        self._folders: list[Any] = []
        self._history = _DecodeHistory()
        self._leaves: set[int] = set()
        self._skipped: list[Any] = []
        self._why = ""
        self.has_folder = self.has_pixels = self.sets_size = False
        self.reasons: tuple[str, ...] = ()
        try:
            check_libraries()
        except CompileError as why:
            self._why = str(why)

    def add(self, path: str, thing: Any) -> None:
        """Add an object of the dataset, if it can be fused."""
        kind = type(thing)
        module = kind.__module__
        if module.startswith("feedline."):
            if not (kind is Compiled and thing.fused is None):
                self._leaves.add(id(thing))  # fused already
        elif is_torchvision_folder(thing):
            self._add_folder(thing)
        elif is_timm_folder(thing):
            self.has_folder = True
        elif kind in (np.ndarray, np.memmap, torch.Tensor):
            self.has_pixels |= thing.ndim >= 3 and thing.nbytes >= _LARGE
        elif not module.startswith(_STEP_MODULES):
            return
        self.sets_size |= sets_own_size(thing)
        is_skipped = any(thing is each for each in self._skipped) and kind.__name__ != "Compose"
        if not is_skipped and (library_name(thing) or kind is nn.Sequential):
            fused, why = (None, (self._why,)) if self._why else attempt(compile_transform, thing)
            if isinstance(fused, FusedTransform):
                self._leaves.add(id(thing))
                self._pipelines.append(_NestedPipeline(path, thing, fused, self._history))
                self.reasons += tuple(note for note in fused.notes if note not in self.reasons)
            elif kind.__name__ == "Compose":
                self.reasons += tuple(f"{path} runs unchanged: {each}" for each in why)
                # Its later steps get images that are decoded already.
                self._skipped += thing.transforms if type(thing.transforms) is list else ()

    def _add_folder(self, folder: Any) -> None:
        self.has_folder = True
        loader = vars(folder).get("loader")
        if _is_stock_loader(loader):
            try:
                check_loader(loader)
                self._folders.append(folder)
            except CompileError as why:
                self.reasons += (str(why),)

    def is_leaf(self, thing: Any) -> bool:
        """Return True for an object whose parts need not be added."""
        return id(thing) in self._leaves

    @property
    def fused(self) -> tuple[str, ...]:
        """Path and fused steps of each pipeline, as text."""
        texts = list[str]()
        for each in self._pipelines:
            first, *others = each.fused.fused
            texts += [f"{each.path}: {first}", *others]
        return tuple(texts)

    @property
    def unchanged(self) -> tuple[str, ...]:
        """Unchanged steps of the fused pipelines, as text."""
        return tuple(dict.fromkeys(s for each in self._pipelines for s in each.fused.unchanged))

    def install(self) -> None:
        """Fuse the calls of the pipelines, in this process."""
        for each in self._pipelines:
            if type(each.pipeline) is each.stock:
                object.__setattr__(each.pipeline, "__class__", each.kind)
        for folder in self._folders if self._pipelines else ():
            loader = vars(folder).get("loader")
            if _is_stock_loader(loader):
                vars(folder)["loader"] = partial(_load_undecoded, loader)

    def uninstall(self) -> None:
        """Undo `install`."""
        for each in self._pipelines:
            if type(each.pipeline) is each.kind:
                object.__setattr__(each.pipeline, "__class__", each.stock)
        for folder in self._folders:
            loader = vars(folder).get("loader")
            if type(loader) is partial and loader.func is _load_undecoded:
                vars(folder)["loader"] = loader.args[0]

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Context in which calls are fused."""
        self.install()
        try:
            yield
        finally:
            self.uninstall()


def _is_stock_loader(loader: Any) -> bool:
    module: Any = sys.modules["torchvision.datasets.folder"]
    is_stock = any(loader is each for each in (module.default_loader, module.pil_loader))
    return is_stock and sys.modules["torchvision"].get_image_backend() == "PIL"
