"""What a sample is requested at: the image size and the strength of augmentation, for any dataset.

Guarantees: while a loader makes a sample, in a worker or not, `image_size()` and
`augmentation_strength()` are those of the batch that the sample is for, also for batches that are
made ahead: both travel with the batches. A request knows whether it was asked for, so that a
loader can refuse to train at another size than the one it reports.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from feedline.errors import UsageError

__all__ = [
    "PerSize",
    "Request",
    "augmentation_strength",
    "image_size",
    "per_size",
    "requested",
    "stand_at",
]


class Request:
    """What the samples made within a `with` are requested at.

    Not made by contextlib: that touches the traceback of what passes through, and some users'
    exceptions allow no change.

    Args:
        size: side of the images in pixels; None where the loader was given no size.
        strength: of the augmentation, 0 (none) to 1 (as the transform says).
    """

    __slots__ = ("_token", "size", "size_was_asked", "strength", "strength_was_asked")

    def __init__(self, size: int | None, strength: float = 1.0) -> None:
        self.size = size
        self.strength = strength
        self.size_was_asked = False
        self.strength_was_asked = False

    def __enter__(self) -> Request:
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)

    def heard(self, within: Request) -> None:
        """Take over what a request within this one was asked for."""
        self.size_was_asked |= within.size_was_asked
        self.strength_was_asked |= within.strength_was_asked


_current: ContextVar[Request | None] = ContextVar("feedline_request", default=None)


def requested() -> Request | None:
    """The request that is being answered; None where no loader is calling."""
    return _current.get()


def stand_at(request: Request | None) -> None:
    """Answer this request from now on, whatever else was begun; see `requested`."""
    _current.set(request)


def image_size(default: int | None = None) -> int:
    """The side in pixels of the images that are being made.

    Call it inside a dataset, a transform or a `collate_fn` that a feedline loader calls:

        class Photos(Dataset):
            def __getitem__(self, index):
                return resize(open_image(self.paths[index]), feedline.image_size())

    Args:
        default: the answer where no loader is calling, or one that was given no size.

    Raises:
        UsageError: no loader is calling, or it was given no size, and there is no default.
    """
    request = _current.get()
    size = default
    if request is not None and request.size is not None:
        request.size_was_asked = True
        size = request.size
    if size is None:
        raise UsageError(
            "image_size() was called, and no size is known: a sample was taken outside of a "
            "loader, or its loader was given no size. Build the loader with schedule=... or "
            "image_size=..., or call image_size(default=224)"
        )
    return size


def augmentation_strength() -> float:
    """How strong the augmentation of the sample being made is: 0 (none) to 1 (as the user set it).

    It is the `strength` of the schedule's phase, and 1 where no loader is calling.
    """
    request = _current.get()
    if request is None:
        return 1.0
    request.strength_was_asked = True
    return request.strength


class PerSize:
    """A transform that is made anew for each image size; see `per_size`."""

    def __init__(self, make: Callable[[int], Callable[..., Any]], default: int | None) -> None:
        self._make = make
        self.default = default
        self._made: dict[int, Callable[..., Any]] = {}

    def at(self, size: int) -> Callable[..., Any]:
        """The transform for a size in pixels."""
        if size not in self._made:
            self._made[size] = self._make(size)
        return self._made[size]

    def forget(self, size: int | None) -> None:
        """Make the transform for a size again when it is next needed."""
        if size is not None:
            self._made.pop(size, None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Transform, at the requested size."""
        return self.at(image_size(self.default))(*args, **kwargs)

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
        loader = feedline.DataLoader(data, 256, schedule="112x10,160x10,224x10")

    As the transform of a torchvision folder under feedline.DataLoader it is recognised as a plain
    Compose is, for each size by itself: docs/explanation/how-it-works.md, "Compiled transforms". A
    Compose whose steps do not depend on the size needs no `per_size`: it follows the schedule.

    Args:
        make_transform: gives the transform for a size in pixels; called once for each size in
            each process. At the top of a module, so that it can be sent to workers.
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
