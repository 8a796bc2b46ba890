"""The image size that a sample is wanted at, for any dataset and any transform.

Guarantees: while a loader makes a sample, in a worker or not, `image_size()` is the size of the
batch that the sample is for, also for batches that are made ahead. Sizes travel with the batches.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from feedline.errors import UsageError

__all__ = ["PerSize", "image_size", "per_size", "sized"]

_size: ContextVar[int | None] = ContextVar("feedline_image_size", default=None)


def image_size(default: int | None = None) -> int:
    """The side in pixels of the images that are being made.

    To be asked inside a dataset or a transform while a feedline loader calls it:

        class Photos(Dataset):
            def __getitem__(self, index):
                return resize(open_image(self.paths[index]), feedline.image_size())

    Args:
        default: the answer where no loader is calling, or one that was given no size.

    Raises:
        UsageError: no loader is calling, or it was given no size, and there is no default.
    """
    size = _size.get()
    if size is None:
        size = default
    if size is None:
        raise UsageError(
            "image_size() was asked, and no size is known: a sample was taken outside of a loader, "
            "or its loader was given no size. Build it with schedule=... or image_size=..., or ask "
            "image_size(default=224)"
        )
    return size


class sized:  # used as a statement
    """Make `size` what `image_size` answers, within a `with`; None leaves it unknown.

    Not made by contextlib: that touches the traceback of what passes through, which some users'
    exceptions do not bear.
    """

    def __init__(self, size: int | None) -> None:
        self._wanted = size

    def __enter__(self) -> None:
        self._token = _size.set(self._wanted)

    def __exit__(self, *_: object) -> None:
        _size.reset(self._token)


class PerSize:
    """A transform that is made anew for each image size; see `per_size`."""

    def __init__(self, make: Callable[[int], Callable[..., Any]], default: int | None) -> None:
        self._make = make
        self._default = default
        self._made: dict[int, Callable[..., Any]] = {}

    def at(self, size: int) -> Callable[..., Any]:
        """The transform for a size in pixels."""
        if size not in self._made:
            self._made[size] = self._make(size)
        return self._made[size]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Transform, at the size that is wanted now."""
        return self.at(image_size(self._default))(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": {}}

    def __repr__(self) -> str:
        return f"per_size({getattr(self._make, '__qualname__', self._make)!s})"


def per_size(
    make_transform: Callable[[int], Callable[..., Any]], default: int | None = None
) -> PerSize:
    """A transform whose size follows the loader's schedule.

        def transform(size):
            return v2.Compose([v2.RandomResizedCrop(size), v2.RandomHorizontalFlip(), ...])

        data = SomeDataset(transform=feedline.per_size(transform))
        loader = feedline.DataLoader(data, 256, seed=0, schedule="112x10,160x10,224x10")

    Args:
        make_transform: gives the transform for a size in pixels; called once for each size in
            each worker. At the top of a module, so that it can be sent to workers.
        default: the size where the transform is called outside of a loader.

    Raises:
        UsageError: it cannot be called; or, later, no size is known.
    """
    if not callable(make_transform):
        raise UsageError(
            "per_size wants a function from a size in pixels to a transform, e.g. "
            f"per_size(lambda size: Resize(size)), got {make_transform!r}"
        )
    return PerSize(make_transform, default)
