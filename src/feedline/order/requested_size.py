"""Requested image size and augmentation strength of the current sample, for any dataset.

Guarantees: while a loader makes a sample, `image_size()` and `augmentation_strength()` return the
values of the sample's own batch, also in workers and for prefetched batches. A request records if
it was read, so a loader can refuse to train if the dataset ignores the size.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from feedline.errors import UsageError


class SampleRequest:
    """Image size and augmentation strength of the samples made within a `with`.

    Not a contextlib.contextmanager, because that changes exception tracebacks and some user-defined
    exceptions do not allow it.
    """

    __slots__ = ("_token", "image_size", "image_size_was_read", "strength", "strength_was_read")

    def __init__(self, image_size: int | None, strength: float = 1.0) -> None:
        self.image_size = image_size
        self.strength = strength
        self.image_size_was_read = False
        self.strength_was_read = False

    def __enter__(self) -> SampleRequest:
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)

    def merge(self, nested: SampleRequest) -> None:
        """Mark the values that were read from a nested request as read from this one."""
        self.image_size_was_read |= nested.image_size_was_read
        self.strength_was_read |= nested.strength_was_read


_current: ContextVar[SampleRequest | None] = ContextVar("feedline_request", default=None)


def current_request() -> SampleRequest | None:
    """Current request; None if no loader is making a sample."""
    return _current.get()


def set_request(request: SampleRequest | None) -> None:
    """Set the current request; see `current_request`."""
    _current.set(request)


def image_size(default: int | None = None) -> int:
    """Side of the images of the current batch, in pixels.

    Call it inside a dataset, a transform or a `collate_fn` that a feedline loader calls:

        class Photos(Dataset):
            def __getitem__(self, index):
                return resize(open_image(self.paths[index]), feedline.image_size())

    Args:
        default: value to return outside of a loader, or if the loader has no size.

    Raises:
        UsageError: no loader is making a sample, or the loader has no size, and `default` is None.
    """
    request = _current.get()
    if request is not None and request.image_size is not None:
        request.image_size_was_read = True
        return request.image_size
    if default is None:
        raise UsageError(
            "image_size() was called, but no size is known: no loader is making this sample, or "
            "its loader has no image size. Build the loader with schedule= or image_size=, or call "
            "image_size(default=224)"
        )
    return default


def augmentation_strength() -> float:
    """Augmentation strength of the current batch: 0 (none) to 1 (as configured in the transform).

    The `strength` of the schedule's phase; 1 outside of a loader.
    """
    request = _current.get()
    if request is None:
        return 1.0
    request.strength_was_read = True
    return request.strength


class PerSize:
    """Transform that is created once per image size; see `per_size`."""

    def __init__(
        self, make_transform: Callable[[int], Callable[..., Any]], default: int | None
    ) -> None:
        self._make_transform = make_transform
        self.default = default
        self._transforms: dict[int, Callable[..., Any]] = {}

    def at(self, image_size: int) -> Callable[..., Any]:
        """Return the transform for an image size in pixels."""
        if image_size not in self._transforms:
            self._transforms[image_size] = self._make_transform(image_size)
        return self._transforms[image_size]

    def forget(self, image_size: int | None) -> None:
        """Drop the transform for an image size, so that it is created again on the next call."""
        if image_size is not None:
            self._transforms.pop(image_size, None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the transform of the requested image size."""
        return self.at(image_size(self.default))(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_transforms": {}}

    def __repr__(self) -> str:
        make = self._make_transform
        return f"per_size({getattr(make, '__qualname__', make)!s})"


def per_size(
    make_transform: Callable[[int], Callable[..., Any]], default: int | None = None
) -> PerSize:
    """Create a transform whose size follows the loader's schedule.

        def transform(image_size):
            return v2.Compose([v2.RandomResizedCrop(image_size), v2.RandomHorizontalFlip(), ...])

        data = SomeDataset(transform=feedline.per_size(transform))
        loader = feedline.DataLoader(data, 256, schedule="112x10,160x10,224x10")

    As the transform of a torchvision folder in feedline.DataLoader it is compiled like a Compose,
    once per size: "Compiled transforms" in docs/explanation/how-it-works.md. A Compose whose steps
    do not depend on the size needs no `per_size`: it follows the schedule.

    Args:
        make_transform: function from an image size in pixels to a transform, called once per size
            in each process. Define it at the top level of a module, so that it can be sent to
            workers.
        default: image size outside of a loader.

    Raises:
        UsageError: `make_transform` is not callable; or the transform is called and no size is
            known.
    """
    if not callable(make_transform):
        raise UsageError(
            "per_size expects a function from an image size in pixels to a transform, e.g. "
            f"per_size(lambda image_size: Resize(image_size)), got {make_transform!r}"
        )
    return PerSize(make_transform, default)
